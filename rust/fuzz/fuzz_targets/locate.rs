//! The prompt locator on any bytes: no panic, and whatever a strict parser takes as JSON can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (class, body) = input;
    let located = trunkline_gateway::fuzzing::locate(class, body);
    if serde_json::from_slice::<serde_json::Value>(body).is_ok() {
        assert!(located.is_some(), "JSON that a strict parser takes");
    }
});
