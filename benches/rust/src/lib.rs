//! What the benchmarks of the core share: a seeded workload, the CPU clock of a thread, and what is resident.
//!
//! `make bench-rust` runs the benchmarks, `make bench-memory` the soak of [`bin/memory.rs`](../memory/index.html).

pub mod cpu;
pub mod fixture;
pub mod memory;
pub mod workload;
