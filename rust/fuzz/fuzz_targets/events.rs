//! Messages of KV events: whatever the bytes, a decoder makes sound events of them or refuses them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_core::CacheEvent;
use trunkline_events::{Batch, Decoder, decode};

fuzz_target!(|payload: &[u8]| {
    let mut batch = Batch::new();
    if Decoder::new().decode(payload, &mut batch).is_err() {
        assert_eq!(batch.events().len(), 0);
    }
    check(&batch, payload.len());
    if decode::trtllm::Decoder::new(None).decode(payload, &mut batch).is_err() {
        assert_eq!(batch.events().len(), 0);
    }
    check(&batch, payload.len());
    _ = decode::timestamp(payload);
});

fn check(batch: &Batch, bytes: usize) {
    for event in batch.events() {
        if let CacheEvent::Stored(stored) = event {
            assert!(stored.block_size > 0 && !stored.handles.is_empty());
            assert_eq!(stored.tokens.len(), stored.handles.len() * stored.block_size as usize);
            assert!(stored.extras.is_empty() || stored.extras.len() == stored.handles.len());
            assert!(stored.tokens.len() <= bytes);
        }
    }
}
