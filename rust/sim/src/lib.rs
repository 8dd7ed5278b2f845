//! A model of one inference worker, and a live mock worker built on it.
//!
//! Three layers, each usable without the next, and beside them a whole fleet on simulated time ([`des`]):
//!
//! - [`cache::BlockCache`]: a prefix cache of fixed-size token blocks with least-recently-used eviction;
//! - [`engine::Engine`]: continuous batching with chunked prefill over that cache, a state machine that is advanced
//!   step by step and never looks at a clock;
//! - [`MockWorker`]: that engine on wall-clock time behind the HTTP routes of a vLLM server, or of another [`Dialect`].
//!
//! Timings follow a cost model of Llama 3.1 70B on 8xH100 ([`StepModel`]); ratios between routing policies carry over
//! to real fleets, absolute times do not. Not modelled: pre-emption, speculative decoding, split prefill and decode,
//! a tokenizer ([`tokens`] documents the stand-in, [`byte_tokens`] that of workers that publish KV events).

pub mod analyze;
mod api;
pub mod byte_tokens;
pub mod cache;
mod config;
pub mod des;
mod dialect;
mod driver;
pub mod engine;
mod error;
mod events;
mod histogram;
mod log;
mod step;
pub mod tokens;
mod worker;

pub use config::{EventsConfig, MockWorkerConfig};
pub use dialect::Dialect;
pub use error::Error;
pub use step::StepModel;
pub use worker::{MockStats, MockWorker};
