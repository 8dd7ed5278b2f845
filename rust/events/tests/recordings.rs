//! What a real vLLM worker sent, decoded to the last value and held against what the worker itself said of its cache.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use serde_json::Value as Json;
use support::{Cache, base64, recording};
use trunkline_core::{
    CacheEvent, CacheView, ExactPrompt, Handle, Millis, Prompt, Root, RouteRequest, Router, RouterConfig,
    WorkerSpec,
};
use trunkline_events::{Batch, Decoder, decode};

#[derive(Debug, Default, PartialEq)]
struct Counts {
    batches: usize,
    stored: usize,
    removed: usize,
    cleared: usize,
    handles: usize,
    sum_of_tokens: u64,
}

struct Replayed {
    counts: Counts,
    /// Per request: its name, what the model expects, what the engine found.
    requests: Vec<(String, usize, usize)>,
    payloads: Vec<Vec<u8>>,
}

fn replay(name: &str) -> Replayed {
    let mut replayed = Replayed { counts: Counts::default(), requests: Vec::new(), payloads: Vec::new() };
    let (mut decoder, mut batch, mut cache) = (Decoder::new(), Batch::new(), Cache::default());
    // Frames stand before the request that caused them, whose hits come from the cache before them.
    let mut before = cache.clone();
    for line in recording(name) {
        match line["kind"].as_str().unwrap() {
            "frames" => {
                let payload = base64(line["frames"][2].as_str().unwrap());
                decoder.decode(&payload, &mut batch).unwrap();
                let of_sequence = base64(line["frames"][1].as_str().unwrap());
                assert_eq!(of_sequence, (replayed.counts.batches as u64).to_be_bytes());
                assert_eq!((batch.refused, batch.skipped, batch.rank), (0, 0, Some(0)));
                assert_eq!(decode::timestamp(&payload), Some(batch.ts));
                assert!(batch.ts > 1.79e9 && batch.ts < 1.8e9);
                count(&batch, &mut replayed.counts);
                cache.apply(&batch);
                replayed.payloads.push(payload);
            }
            "request" => {
                let prompt: Vec<u32> = serde_json::from_value(line["prompt_token_ids"].clone()).unwrap();
                let root = match line["params"]["cache_salt"].as_str() {
                    Some(salt) => Root::default().with("cache_salt", salt.as_bytes()),
                    None => Root::default(),
                };
                let found =
                    line["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
                let step = line["step"].as_str().unwrap().to_owned();
                replayed.requests.push((step, before.cached_tokens(&prompt, root, 32), found));
                before = cache.clone();
            }
            _ => {}
        }
    }
    replayed
}

fn count(batch: &Batch, counts: &mut Counts) {
    counts.batches += 1;
    for event in batch.events() {
        match event {
            CacheEvent::Stored(stored) => {
                assert_eq!((stored.block_size, stored.tokens.len()), (32, 32 * stored.handles.len()));
                counts.stored += 1;
                counts.handles += stored.handles.len();
                counts.sum_of_tokens += stored.tokens.iter().map(|&token| u64::from(token)).sum::<u64>();
            }
            CacheEvent::Removed { handles, .. } => {
                counts.removed += 1;
                counts.handles += handles.len();
            }
            CacheEvent::Cleared => counts.cleared += 1,
        }
    }
}

#[test]
fn every_event_is_read_and_tells_what_the_engine_finds() {
    let replayed = replay("kv_events_w0.jsonl");
    // Counted once by another MessagePack library, in Python.
    let expected =
        Counts { batches: 22, stored: 22, removed: 94, cleared: 1, handles: 392, sum_of_tokens: 37_760_380 };
    assert_eq!(replayed.counts, expected);
    let wrong: Vec<_> = replayed.requests.iter().filter(|(_, expected, found)| expected != found).collect();
    // An idle engine tells of a reset with its next step only, so the view is late by one request.
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!((replayed.requests.len(), wrong[0].0.as_str()), (26, "l: A after the reset"));
}

#[test]
fn hashes_of_32_bytes_do_as_well() {
    let replayed = replay("kv_events_bytes_cbor.jsonl");
    let expected =
        Counts { batches: 12, stored: 12, removed: 36, cleared: 0, handles: 270, sum_of_tokens: 29_893_148 };
    assert_eq!(replayed.counts, expected);
    assert_eq!(replayed.requests.len(), 12);
    for (step, expected, found) in &replayed.requests {
        assert_eq!(expected, found, "{step}");
    }
}

#[test]
fn handles_are_the_engines_integers() {
    let first = &replay("kv_events_w0.jsonl").payloads[0];
    let mut batch = Batch::new();
    Decoder::new().decode(first, &mut batch).unwrap();
    let Some(CacheEvent::Stored(stored)) = batch.events().next() else { panic!("stored") };
    // The first two of the message, as its bytes spell them.
    assert_eq!(stored.handles[..2], [Handle(0x4281_5c7e_dcc7_c5d0), Handle(0xb840_167e_b281_5b4b)]);
    assert_eq!(stored.tokens[..4], [2662, 7774, 1245, 3244]);
    assert_eq!((stored.parent, stored.root, stored.extras), (None, Root::default(), &[][..]));
}

#[test]
fn replayed_payloads_are_the_live_ones() {
    let live = replay("kv_events_w0.jsonl").payloads;
    for line in recording("kv_replay_w0.jsonl") {
        let replies = line["replies"].as_array().unwrap();
        for reply in replies.split_last().unwrap().1 {
            let frame = |at: usize| base64(reply[at].as_str().unwrap());
            let sequence = u64::from_be_bytes(frame(2).try_into().unwrap());
            assert_eq!(frame(3), live[sequence as usize]);
        }
        assert_eq!(replies.last().unwrap(), &Json::from(["", "", "//////////8=", ""].to_vec()));
    }
}

/// Requests of a recording for which a router, told all that was sent before, expects other cached tokens than the engine found.
fn surprises(name: &str) -> Vec<String> {
    let router = Router::new(RouterConfig::default()).unwrap();
    let worker = router.add_worker(WorkerSpec::new("w0")).unwrap();
    router.set_cache_view(worker, CacheView::Events).unwrap();
    let (mut decoder, mut batch, mut sent, mut surprises) =
        (Decoder::new(), Batch::new(), Vec::new(), Vec::new());
    for line in recording(name) {
        match line["kind"].as_str().unwrap() {
            "frames" => sent.push(base64(line["frames"][2].as_str().unwrap())),
            "request" => {
                let ids: Vec<u32> = serde_json::from_value(line["prompt_token_ids"].clone()).unwrap();
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                let root = match line["params"]["cache_salt"].as_str() {
                    Some(salt) => Root::default().with("cache_salt", salt.as_bytes()),
                    None => Root::default(),
                };
                let exact = ExactPrompt { bytes: &bytes, root, is_tokens: true, extras: &[] };
                let request = RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Tokens(&ids)) };
                let expected = router.peek(&request).unwrap().matched_tokens;
                if Some(u64::from(expected))
                    != line["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
                {
                    surprises.push(line["step"].as_str().unwrap().to_owned());
                }
                // What a request caused stands before it.
                for payload in sent.drain(..) {
                    decoder.decode(&payload, &mut batch).unwrap();
                    router.apply_events(worker, batch.events(), None, None, Millis(0)).unwrap();
                }
            }
            _ => {}
        }
    }
    surprises
}

#[test]
fn a_router_expects_what_the_engine_finds() {
    assert_eq!(
        surprises("kv_events_w0.jsonl"),
        ["l: A after the reset"],
        "an idle engine does not tell of a reset"
    );
    assert_eq!(surprises("kv_events_bytes_cbor.jsonl"), [""; 0]);
}
