//! TensorRT-LLM's drains of JSON.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use trunkline_core::{CacheEvent, Handle, Medium, Millis, Root, Stored};
use trunkline_events::decode::trtllm::Decoder;
use trunkline_events::feed::Drain;
use trunkline_events::{Batch, Endpoint, Extra, Fault, Feed, Health, Sink, Source, extra_hash};

fn block(hash: i64, tokens: &[u32]) -> Json {
    let tokens: Vec<_> = tokens
        .iter()
        .map(|id| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0}))
        .collect();
    json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "lora_id": null, "cache_level": 0, "priority": 35})
}

fn stored(id: u64, parent: Option<i64>, blocks: &[Json]) -> Json {
    json!({"event_id": id, "data": {"type": "stored", "parent_hash": parent, "blocks": blocks}})
}

fn removed(id: u64, hash: i64) -> Json {
    json!({"event_id": id, "data": {"type": "removed", "block_hashes": [hash]}})
}

fn drain(decoder: &mut Decoder, events: &[Json], batch: &mut Batch) -> u64 {
    decoder.decode(json!(events).to_string().as_bytes(), batch).unwrap()
}

/// `S` stored, `R` removed, `C` cleared.
fn kinds(batch: &Batch) -> String {
    let kind = |event| match event {
        CacheEvent::Stored(_) => 'S',
        CacheEvent::Removed { .. } => 'R',
        CacheEvent::Cleared => 'C',
    };
    batch.events().map(kind).collect()
}

#[test]
fn a_drain_is_a_batch() {
    let (mut decoder, mut batch) = (Decoder::new(None), Batch::new());
    let created = json!({"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [10, 0]}, "window_size": 4096});
    let updated = json!({"event_id": 3, "data": {"type": "updated", "block_hash": -2, "cache_level": {"old_value": 0, "new_value": 1}}});
    let events =
        [created, stored(1, None, &[block(-1, &[1, 2]), block(-2, &[3, 4])]), removed(2, -1), updated];
    assert_eq!(drain(&mut decoder, &events, &mut batch), 0);
    let expected = Stored {
        handles: &[Handle(u64::MAX), Handle(u64::MAX - 1)],
        parent: None,
        tokens: &[1, 2, 3, 4],
        block_size: 2,
        root: Root::default(),
        extras: &[],
        medium: Medium::Gpu,
    };
    let gone = |medium| CacheEvent::Removed { handles: &[Handle(u64::MAX)], medium };
    let events: Vec<_> = batch.events().collect();
    assert_eq!(
        events,
        [CacheEvent::Cleared, CacheEvent::Stored(expected), gone(Medium::Gpu), gone(Medium::Cpu)]
    );
    assert_eq!((batch.skipped, batch.refused), (1, 0));
    assert_eq!(drain(&mut decoder, &[], &mut batch), 0);
    assert_eq!(kinds(&batch), "");
}

#[test]
fn a_step_in_the_ids_empties_the_view_and_is_told() {
    let (mut decoder, mut batch) = (Decoder::new(None), Batch::new());
    assert_eq!(drain(&mut decoder, &[removed(7, 1)], &mut batch), 7);
    assert_eq!(kinds(&batch), "CRR");
    assert_eq!(drain(&mut decoder, &[removed(8, 1), removed(11, 1)], &mut batch), 2);
    assert_eq!(kinds(&batch), "RRCRR");
    // A new engine begins anew.
    assert_eq!(drain(&mut decoder, &[removed(0, 1), removed(1, 1)], &mut batch), 0);
    assert_eq!(kinds(&batch), "CRRRR");
    assert_eq!(drain(&mut decoder, &[removed(1, 1)], &mut batch), 1, "and its own first one was lost");
}

#[test]
fn parts_of_blocks_are_left_out() {
    let (mut decoder, mut batch) = (Decoder::new(None), Batch::new());
    let events = [
        stored(0, None, &[block(1, &[1, 2]), block(2, &[3])]),
        stored(1, Some(1), &[block(3, &[9])]),
        stored(2, Some(1), &[block(4, &[5, 6])]),
    ];
    drain(&mut decoder, &events, &mut batch);
    let handles: Vec<_> = batch
        .events()
        .map(|event| match event {
            CacheEvent::Stored(stored) => stored.handles.to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(handles, [[Handle(1)], [Handle(4)]]);
}

#[test]
fn what_parts_a_cache_is_read() {
    let (mut decoder, mut batch) = (Decoder::new(None), Batch::new());
    let mut first = block(1, &[1, 2]);
    first["cache_salt"] = "tenant".into();
    first["cache_level"] = 1.into();
    let mut second = block(2, &[3, 4]);
    second["mm_keys"] = json!([{"type": "mm_key", "hash": "cat", "start_offset": 5}]);
    let mut third = block(3, &[3, 4]);
    third["tokens"][1]["token_extra_id"] = 9.into();
    drain(&mut decoder, &[stored(0, None, &[first, second, third])], &mut batch);
    let Some(CacheEvent::Stored(stored)) = batch.events().next() else { panic!("stored") };
    assert_eq!((stored.root, stored.medium), (Root::default().with("cache_salt", b"tenant"), Medium::Cpu));
    assert_eq!(stored.extras[..2], [0, extra_hash([Extra::Item { id: b"cat", offset: 5 }])]);
    assert_ne!(stored.extras[2], 0);
    let mut adapted = block(1, &[1, 2]);
    adapted["lora_id"] = 3.into();
    drain(&mut decoder, &[stored_at_start(1, adapted)], &mut batch);
    let Some(CacheEvent::Stored(stored)) = batch.events().next() else { panic!("stored") };
    assert_ne!(stored.root, Root::default());
}

fn stored_at_start(id: u64, block: Json) -> Json {
    stored(id, None, &[block])
}

#[test]
fn ranks_and_narrow_windows_are_kept_apart() {
    let (mut decoder, mut batch) = (Decoder::new(Some(1)), Batch::new());
    let with = |mut event: Json, key: &str, value: u64| {
        event[key] = value.into();
        event
    };
    let of_rank = |id, rank| with(removed(id, 1), "attention_dp_rank", rank);
    // Each rank counts its own ids.
    assert_eq!(
        drain(&mut decoder, &[of_rank(0, 1), of_rank(0, 0), of_rank(1, 0), of_rank(1, 1)], &mut batch),
        0
    );
    assert_eq!((kinds(&batch).as_str(), batch.rank), ("RRRR", Some(1)));
    let of_window = |id, window| with(removed(id, 1), "window_size", window);
    drain(&mut decoder, &[of_window(2, 4096), of_window(3, 512)], &mut batch);
    assert_eq!((kinds(&batch).as_str(), batch.skipped), ("RR", 1));
}

#[test]
fn wrong_events_cost_themselves_and_wrong_drains_the_drain() {
    let (mut decoder, mut batch) = (Decoder::new(None), Batch::new());
    let mut wrong = block(1, &[1]);
    wrong["tokens"][0]["token_id"] = (-1).into();
    let events = [stored(0, None, &[wrong]), json!({"event_id": 1}), json!(3), removed(0, 1)];
    drain(&mut decoder, &events, &mut batch);
    assert_eq!((kinds(&batch).as_str(), batch.refused, batch.fault), ("RR", 3, Some(Fault::Json)));
    for wrong in ["", "{}", "[1", "null", "<html>"] {
        assert_eq!(decoder.decode(wrong.as_bytes(), &mut batch), Err(Fault::Json));
        assert_eq!(kinds(&batch), "");
    }
}

#[derive(Default)]
struct Seen {
    kinds: Mutex<String>,
    healths: Mutex<Vec<Health>>,
}

impl Sink for Seen {
    fn apply(&self, _: &Source, batch: &Batch) {
        self.kinds.lock().push_str(&kinds(batch));
    }

    fn reset(&self, _: &Source, reason: &'static str) {
        panic!("{reason}: a batch empties the view itself");
    }

    fn health(&self, _: &Source, health: Health) {
        self.healths.lock().push(health);
    }
}

/// Hands out one body at a time, then fails.
struct Engine(VecDeque<String>);

impl Drain for Engine {
    async fn drain(&mut self) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        self.0.pop_front().map(Bytes::from).ok_or_else(|| "gone".into())
    }
}

#[tokio::test(start_paused = true)]
async fn a_polled_engine_is_live_once_its_beginning_was_seen() {
    let created = |id| json!({"event_id": id, "data": {"type": "created"}});
    let bodies = [
        json!([]),
        json!([created(0), stored(1, None, &[block(1, &[1, 2])])]),
        json!([removed(4, 1)]),
        json!([removed(5, 1)]),
        json!([created(0)]),
        json!("no list"),
    ];
    let engine = Engine(bodies.iter().map(Json::to_string).collect());
    let endpoint = Endpoint::Ipc("unused".into());
    let source = Source {
        worker: "w".to_owned(),
        rank: None,
        endpoint,
        replay: None,
        topic: String::new(),
        bind: false,
    };
    let seen = Arc::new(Seen::default());
    let feed = Feed::poll(source, engine, Duration::from_secs(1), seen.clone());
    // The clock is the test's: it moves when everything waits.
    tokio::time::sleep(Duration::from_millis(8_500)).await;
    let partial = |reason| Health::Partial { reason };
    let expected = [
        Health::Connecting,
        partial("late start"),
        Health::Live,
        partial("gap"),
        Health::Live,
        partial("unreadable"),
        Health::Lost { since: Millis(6_000) },
    ];
    assert_eq!(seen.healths.lock()[..], expected);
    assert_eq!(*seen.kinds.lock(), "CSCRRRRCC");
    let stats = feed.stats();
    assert_eq!((stats.batches, stats.decode_errors, stats.disconnects, stats.sequence.gaps), (5, 1, 1, 1));
}
