//! Snapshots with bytes replaced under a fitting checksum: a router that works, or a refusal.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<(u16, u8)>, Option<u16>)| trunkline_core::fuzzing::restore(&input.0, input.1));
