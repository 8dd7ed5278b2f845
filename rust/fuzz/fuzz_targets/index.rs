//! The index on any steps: what it finds is what a plain model finds.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: Vec<(u8, u8, Vec<u8>)>| trunkline_core::fuzzing::index(&steps));
