//! Readers of traces.
