//! What the benchmarks of the core share: a seeded workload, the CPU clock of a thread, and an allocator that counts.
//!
//! `make bench-rust` runs the benchmarks, `make bench-memory` the soak of [`bin/memory.rs`](../memory/index.html).

pub mod allocator;
pub mod cpu;
pub mod fixture;
pub mod workload;
