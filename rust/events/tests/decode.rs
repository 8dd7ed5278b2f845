//! Every shape that engines of several versions put on the wire, and what is done with wrong ones.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::sync::LazyLock;

use proptest::prelude::*;
use support::{Value, batch_of, cleared, ints, recording, removed, s, stored};
use trunkline_core::{CacheEvent, Handle, Medium, Root, Stored};
use trunkline_events::{Batch, Decoder, Extra, Fault, decode, extra_hash};
use xxhash_rust::xxh3::xxh3_64;

fn decoded(payload: &[u8]) -> Batch {
    let mut batch = Batch::new();
    Decoder::new().decode(payload, &mut batch).unwrap();
    batch
}

fn of_event(event: Value) -> Batch {
    decoded(&batch_of(1.5, vec![event]))
}

fn only_stored(batch: &Batch) -> Stored<'_> {
    let events: Vec<_> = batch.events().collect();
    match events[..] {
        [CacheEvent::Stored(stored)] => stored,
        _ => panic!("{events:?}, {:?}", batch.fault),
    }
}

fn with(event: Value, fields: Vec<(&'static str, Value)>) -> Value {
    let Value::Map(mut pairs) = event else { panic!("a map") };
    pairs.retain(|(key, _)| fields.iter().all(|(other, _)| key != other));
    pairs.extend(fields);
    Value::Map(pairs)
}

/// `["BlockStored", hashes, parent, tokens, block_size, ...tail]`.
fn positional(handles: &[u64], tail: Vec<Value>) -> Value {
    let tokens = ints(0..2 * handles.len() as u32);
    let head = vec![s("BlockStored"), ints(handles.iter().copied()), Value::Int(9), tokens, Value::Int(2)];
    Value::List([head, tail].concat())
}

#[test]
fn maps_and_arrays_mean_the_same() {
    let by_name = with(stored(&[1, 2], Some(9), &[0, 1, 2, 3], 2), vec![("lora_name", s("a"))]);
    let by_position = positional(&[1, 2], vec![Value::Int(4), s("GPU"), s("a")]);
    let events = Value::List(vec![by_name.clone()]);
    let as_map = Value::Map(vec![
        ("data_parallel_rank", Value::Int(3)),
        ("other", Value::Map(vec![("x", ints([1, 2]))])),
        ("events", events.clone()),
        ("ts", Value::Int(7)),
    ]);
    let as_map = decoded(&as_map.pack());
    assert_eq!((as_map.ts, as_map.rank), (7.0, Some(3)));
    let expected = Stored {
        handles: &[Handle(1), Handle(2)],
        parent: Some(Handle(9)),
        tokens: &[0, 1, 2, 3],
        block_size: 2,
        root: Root::default().with("lora", b"a"),
        extras: &[],
        medium: Medium::Gpu,
    };
    assert_eq!(only_stored(&as_map), expected);
    for event in [by_name, by_position] {
        let batch = of_event(event);
        assert_eq!((batch.ts, batch.rank), (1.5, Some(0)));
        assert_eq!(only_stored(&batch), expected);
    }
    // Without a rank, and with more behind it than is known.
    assert_eq!(decoded(&Value::List(vec![Value::Int(1), events.clone()]).pack()).rank, None);
    let long = Value::List(vec![Value::Float(2.5), events, Value::Nil, s("x"), ints([1])]);
    assert_eq!((decoded(&long.pack()).ts, decode::timestamp(&long.pack())), (2.5, Some(2.5)));
}

#[test]
fn old_events_end_early_and_new_ones_late() {
    for tail in [vec![], vec![Value::Nil], vec![Value::Nil, Value::Nil], vec![Value::Nil; 20]] {
        assert_eq!(only_stored(&of_event(positional(&[5], tail))).root, Root::default());
    }
    let new = vec![
        ("locality", s("LOCAL")),
        ("session_id", s("x")),
        ("future", Value::Map(vec![("a", Value::Nil)])),
    ];
    assert_eq!(only_stored(&of_event(with(stored(&[5], None, &[1], 1), new))).tokens, [1]);
}

#[test]
fn sglang_puts_metadata_where_vllm_puts_the_adapter() {
    let metadata = Value::Map(vec![("session_id", s("7")), ("cache_salt", s("t"))]);
    let batch = of_event(positional(&[5], vec![Value::Nil, s("CPU_PINNED"), metadata]));
    let stored = only_stored(&batch);
    assert_eq!((stored.root, stored.medium), (Root::default().with("cache_salt", b"t"), Medium::Cpu));
}

#[test]
fn an_adapter_without_a_name_is_told_apart() {
    let named = |tail| only_stored(&of_event(positional(&[5], tail))).root;
    let number = named(vec![Value::Int(4)]);
    assert_ne!(number, Root::default());
    assert_ne!(number, named(vec![Value::Int(5)]));
    assert_ne!(number, Root::default().with("lora", b"4"));
}

#[test]
fn hashes_are_integers_of_any_width_or_bytes() {
    let values = [
        0,
        127,
        128,
        255,
        256,
        65_535,
        65_536,
        1 << 32,
        i64::MAX.into(),
        u64::MAX.into(),
        -1,
        -33,
        i64::MIN.into(),
    ];
    let event = |hashes| with(removed(&[]), vec![("block_hashes", Value::List(hashes))]);
    let batch = of_event(event(values.map(Value::Int).to_vec()));
    let handles: Vec<_> = values.iter().map(|&value: &i128| Handle(value as u64)).collect();
    let expected = CacheEvent::Removed { handles: &handles, medium: Medium::Gpu };
    assert_eq!(batch.events().collect::<Vec<_>>(), [expected]);

    for bytes in [vec![7; 8], vec![8; 32], vec![9; 64]] {
        let batch = of_event(event(vec![Value::Bin(bytes.clone())]));
        let expected = CacheEvent::Removed { handles: &[Handle(xxh3_64(&bytes))], medium: Medium::Gpu };
        assert_eq!(batch.events().collect::<Vec<_>>(), [expected]);
    }
    for wrong in [Value::Bin(vec![1; 7]), Value::Bin(vec![1; 65]), Value::Bin(vec![])] {
        let batch = of_event(event(vec![wrong]));
        assert_eq!((batch.refused, batch.fault, batch.events().len()), (1, Some(Fault::Hash), 0));
    }
}

#[test]
fn tokens_are_read_at_every_width() {
    let tokens = [0, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
    assert_eq!(only_stored(&of_event(stored(&[1], None, &tokens, 8))).tokens, tokens);
    for wrong in [-1, 1i64 << 32] {
        let event = with(stored(&[1], None, &[0], 1), vec![("token_ids", ints([wrong]))]);
        assert_eq!(of_event(event).fault, Some(Fault::Token));
    }
}

#[test]
fn extra_keys_are_adapter_items_and_salt_by_their_place() {
    let item = |id: &str, offset| Value::List(vec![s(id), Value::Int(offset)]);
    let keys = Value::List(vec![
        Value::List(vec![s("a"), item("cat", 1), s("salt"), Value::Bin(vec![1, 2])]),
        Value::Nil,
        Value::List(vec![s("a"), item("cat", -15)]),
        Value::List(vec![s("a")]),
    ]);
    let fields =
        |parent| vec![("parent_block_hash", parent), ("extra_keys", keys.clone()), ("lora_name", s("a"))];
    let event = stored(&[1, 2, 3, 4], None, &[0, 1, 2, 3], 1);
    let batch = of_event(with(event.clone(), fields(Value::Nil)));
    let start = only_stored(&batch);
    assert_eq!(start.root, Root::default().with("lora", b"a").with("cache_salt", b"salt"));
    let cat = |offset| Extra::Item { id: b"cat", offset };
    let (first, third) = (extra_hash([cat(1), Extra::Other(&[1, 2])]), extra_hash([cat(-15)]));
    assert_eq!(start.extras, [first, 0, third, 0]);
    // Further on in a prompt a string is no salt.
    let batch = of_event(with(event.clone(), fields(Value::Int(7))));
    let later = only_stored(&batch);
    assert_eq!(later.root, Root::default().with("lora", b"a"));
    assert_eq!(later.extras[0], extra_hash([cat(1), Extra::Other(b"salt"), Extra::Other(&[1, 2])]));
    // The same name as adapter and as salt.
    let same = Value::List(vec![Value::List(vec![s("a"), s("a")]), Value::Nil, Value::Nil, Value::Nil]);
    let batch = of_event(with(event.clone(), vec![("extra_keys", same), ("lora_name", s("a"))]));
    let same = only_stored(&batch);
    assert_eq!(
        (same.root, same.extras),
        (Root::default().with("lora", b"a").with("cache_salt", b"a"), &[][..])
    );
    // As many as there are blocks.
    let batch = of_event(with(event, vec![("extra_keys", Value::List(vec![Value::Nil]))]));
    assert_eq!((batch.refused, batch.fault), (1, Some(Fault::Blocks)));
}

#[test]
fn extra_hashes_stay_what_they_are() {
    assert_eq!(extra_hash([]), 0);
    let both = [Extra::Item { id: b"cat", offset: -3 }, Extra::Other(b"x")];
    assert_ne!(extra_hash(both), extra_hash([both[1], both[0]]));
    assert_ne!(extra_hash([both[0]]), extra_hash([Extra::Item { id: b"cat", offset: -2 }]));
    // Computed once by a second implementation, in Python.
    assert_eq!(extra_hash(both), 0x1483_6c79_1174_a4f4);
}

#[test]
fn only_attention_over_whole_prompts_counts() {
    let kind = |kind: &str, group| vec![("kv_cache_spec_kind", s(kind)), ("group_idx", Value::Int(group))];
    let event = || stored(&[1], None, &[0], 1);
    let lost = |group| with(removed(&[1]), vec![("group_idx", Value::Int(group))]);
    let batch = decoded(&batch_of(
        0.0,
        vec![
            with(event(), kind("full_attention", 0)),
            with(event(), kind("sliding_window", 1)),
            with(event(), kind("mla_attention", 2)),
            lost(1),
            with(event(), vec![("group_idx", Value::Int(1))]),
            lost(0),
            removed(&[1]),
        ],
    ));
    let stores: Vec<_> = batch.events().map(|event| matches!(event, CacheEvent::Stored(_))).collect();
    assert_eq!(stores, [true, true, false, false]);
    assert_eq!((batch.skipped, batch.refused), (3, 0));
}

#[test]
fn media_have_many_names() {
    for (name, medium) in [
        ("GPU", Medium::Gpu),
        ("cuda", Medium::Gpu),
        ("CPU", Medium::Cpu),
        ("CPU_TIER1", Medium::Cpu),
        ("Host", Medium::Cpu),
        ("CPU_TIER2", Medium::Disk),
        ("STORAGE", Medium::Disk),
        ("some_connector", Medium::Disk),
    ] {
        let event = with(stored(&[1], None, &[0], 1), vec![("medium", s(name))]);
        assert_eq!(only_stored(&of_event(event)).medium, medium, "{name}");
        let batch = of_event(with(removed(&[1]), vec![("medium", s(name))]));
        let expected = CacheEvent::Removed { handles: &[Handle(1)], medium };
        assert_eq!(batch.events().next(), Some(expected), "{name}");
    }
}

#[test]
fn a_wrong_event_costs_itself_alone() {
    let good = || stored(&[7], None, &[1, 2], 2);
    for (wrong, fault) in [
        (stored(&[1], None, &[1, 2], 3), Fault::Blocks),
        (stored(&[1, 2], None, &[1, 2], 2), Fault::Blocks),
        (stored(&[1], None, &[], 0), Fault::Blocks),
        (stored(&[], None, &[1], 1), Fault::Blocks),
        (with(good(), vec![("block_size", Value::Int(-2))]), Fault::Blocks),
        (with(good(), vec![("block_size", Value::Nil)]), Fault::Missing),
        (with(good(), vec![("token_ids", s("x"))]), Fault::Type),
        (with(good(), vec![("block_hashes", Value::Float(1.0))]), Fault::Type),
        (with(good(), vec![("medium", Value::Int(1))]), Fault::Type),
        (Value::Map(vec![("block_hashes", ints([1]))]), Fault::Missing),
        (Value::Map(vec![("type", s("BlockRemoved"))]), Fault::Missing),
        (Value::List(vec![]), Fault::Missing),
        (Value::Int(1), Fault::Type),
        (Value::Nil, Fault::Type),
    ] {
        let batch = decoded(&batch_of(0.0, vec![good(), wrong.clone(), removed(&[7])]));
        assert_eq!((batch.refused, batch.skipped, batch.fault), (1, 0, Some(fault)), "{wrong:?}");
        let events: Vec<_> = batch.events().collect();
        let [CacheEvent::Stored(stored), CacheEvent::Removed { handles: [Handle(7)], .. }] = events[..]
        else {
            panic!("{events:?} beside {wrong:?}");
        };
        assert_eq!((stored.tokens, stored.handles), (&[1, 2][..], &[Handle(7)][..]));
    }
    // Unknown types, with fields of known names, and empty events are none.
    let unknown = with(good(), vec![("type", s("BlockMigrated"))]);
    let batch = decoded(&batch_of(0.0, vec![unknown, stored(&[], None, &[], 4), removed(&[]), cleared()]));
    assert_eq!(batch.events().collect::<Vec<_>>(), [CacheEvent::Cleared]);
    assert_eq!((batch.refused, batch.skipped, batch.clears()), (0, 1, true));
}

#[test]
fn what_cannot_be_read_to_its_end_is_refused_whole() {
    let good = batch_of(1.0, vec![stored(&[7], None, &[1, 2], 2)]);
    let mut batch = Batch::new();
    let mut refused = |payload: &[u8]| {
        Decoder::new().decode(&good, &mut batch).unwrap();
        let fault = Decoder::new().decode(payload, &mut batch).unwrap_err();
        assert_eq!((batch.events().len(), batch.ts), (0, 0.0), "nothing of the message before");
        fault
    };
    for length in 0..good.len() {
        assert_eq!(refused(&good[..length]), Fault::Truncated);
    }
    assert_eq!(refused(&[&good[..], &[0]].concat()), Fault::Trailing);
    assert_eq!(refused(&Value::List(vec![Value::Float(1.0)]).pack()), Fault::Missing);
    assert_eq!(refused(&Value::Map(vec![("ts", Value::Float(1.0))]).pack()), Fault::Missing);
    assert_eq!(refused(&Value::List(vec![s("x"), Value::List(vec![])]).pack()), Fault::Type);
    assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), Fault::Type);
    // Lengths that nothing stands behind.
    for head in [
        &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0xc6, 0xff, 0xff, 0xff, 0xff],
    ] {
        let list = [&[0x92, 0x00, 0x91, 0x92, 0xab][..], b"BlockStored", head].concat();
        assert_eq!(refused(&list), Fault::Truncated);
    }
    // Nested deeper than any stack.
    assert_eq!(refused(&[vec![0x92, 0x00], vec![0x91; 1 << 20]].concat()), Fault::Truncated);
}

/// Valid payloads of many shapes.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(seeds);

fn seeds() -> Vec<Vec<u8>> {
    let frames = recording("kv_events_w0.jsonl");
    let frames = frames.iter().filter(|line| line["kind"] == "frames");
    let mut seeds: Vec<_> = frames.map(|line| support::base64(line["frames"][2].as_str().unwrap())).collect();
    let keys =
        Value::List(vec![Value::List(vec![s("a"), Value::List(vec![s("cat"), Value::Int(3)]), s("salt")])]);
    seeds.push(batch_of(
        1.0,
        vec![with(stored(&[7], None, &[1, 2], 2), vec![("extra_keys", keys)]), cleared()],
    ));
    let metadata = Value::Map(vec![("cache_salt", s("t"))]);
    let tail = vec![Value::Nil, s("CPU"), metadata];
    seeds.push(batch_of(
        1.0,
        vec![positional(&[5, 6], tail), Value::List(vec![s("BlockRemoved"), ints([5])])],
    ));
    seeds
}

proptest! {
    #[test]
    fn whatever_the_bytes_the_batch_is_sound(
        seed in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut payload = seed.get(&SEEDS).clone();
        for (at, value) in changes {
            *at.get_mut::<u8>(&mut payload) = value;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        let (mut batch, mut again) = (Batch::new(), Batch::new());
        let result = Decoder::new().decode(&payload, &mut batch);
        prop_assert!(result.is_ok() || batch.events().len() == 0);
        for event in batch.events() {
            if let CacheEvent::Stored(stored) = event {
                prop_assert!(stored.block_size > 0 && !stored.handles.is_empty());
                prop_assert_eq!(stored.tokens.len(), stored.handles.len() * stored.block_size as usize);
                prop_assert!(stored.extras.is_empty() || stored.extras.len() == stored.handles.len());
                prop_assert!(stored.tokens.len() <= payload.len());
            }
        }
        // What a batch held before leaves no trace.
        Decoder::new().decode(&SEEDS[0], &mut again).unwrap();
        prop_assert_eq!(Decoder::new().decode(&payload, &mut again), result);
        prop_assert!(batch.events().eq(again.events()));
        _ = decode::timestamp(&payload);
        _ = decode::trtllm::Decoder::new(None).decode(&payload, &mut batch);
    }
}
