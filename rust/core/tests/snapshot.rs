//! Snapshots from outside: what is kept, and that nothing but a whole snapshot becomes a router.

use proptest::prelude::*;
use trunkline_core::snapshot::VERSION;
use trunkline_core::{
    Error, Millis, Policy, Prompt, RouteRequest, Router, RouterConfig, SnapshotFault, Usage, WorkerId,
    WorkerSpec,
};

const HEADER_BYTES: usize = 28;

fn tokens(group: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| group.wrapping_mul(0x9E37_79B9) ^ at.wrapping_mul(0x85EB_CA6B)).collect()
}

/// A router with all that a snapshot keeps: workers of every kind, holes, learnt speeds and lengths, shared prompts.
fn busy_router(policy: &str, memory_budget: usize) -> Router {
    let policy = Policy::parse(policy).expect("known");
    let config =
        RouterConfig { policy, memory_budget, index_seed: 9, replicas: 3, ..RouterConfig::default() };
    let router = Router::new(config).expect("good settings");
    for number in 0..8 {
        let spec = WorkerSpec {
            endpoint: (number % 2 == 0).then(|| format!("http://10.0.0.{number}:8000")),
            weight: 1 + number % 3,
            capacity_tokens: (number % 3 == 0).then_some(20_000),
            slowness: (number == 5).then_some(1.5),
            ..WorkerSpec::new(format!("worker-{number}"))
        };
        router.add_worker(spec).expect("new");
    }
    for step in 0..600u32 {
        if step == 200 {
            router.remove_worker(WorkerId(2)).expect("known");
            router.reset_worker(WorkerId(3)).expect("known");
        }
        serve(&router, step, u64::from(step) * 40);
    }
    router.drain_worker(WorkerId(6), true).expect("known");
    router.set_healthy(WorkerId(7), false).expect("known");
    router
}

fn serve(router: &Router, step: u32, now_ms: u64) -> (WorkerId, trunkline_core::Reason, u32) {
    let (shared, own) = (tokens(step % 9, 16 * (step % 9) * 7), tokens(step, 16 * (step % 13)));
    let ids = [shared, own].concat();
    let text = format!("prompt {} of group {}", "x".repeat(200), step % 7);
    let pieces = [text.as_bytes()];
    let prompt = if step.is_multiple_of(4) { Prompt::Text(&pieces) } else { Prompt::Tokens(&ids) };
    let request = RouteRequest { text_model: u64::from(step % 2), ..RouteRequest::new(prompt) };
    let decision = router.route(&request, Millis(now_ms)).expect("somebody is live");
    router.first_token(decision.id, Millis(now_ms + 30 + u64::from(step % 5) * 10));
    let usage = Usage { prompt_tokens: 100 + step, cached_tokens: Some(10), completion_tokens: step % 70 };
    router.complete(decision.id, Some(usage), Millis(now_ms + 400));
    (decision.worker, decision.reason, decision.matched_tokens)
}

fn fault(bytes: &[u8]) -> SnapshotFault {
    match Router::restore(bytes, Millis(0)) {
        Err(Error::Snapshot { fault }) => fault,
        other => panic!("{other:?} instead of a fault"),
    }
}

/// The snapshot with another body and the header that fits it.
fn sealed(snapshot: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = snapshot[..HEADER_BYTES].to_vec();
    bytes[12..20].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64_with_seed(body, u64::from(VERSION));
    bytes[20..28].copy_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn a_restored_router_is_the_saved_one_and_goes_on_alike() {
    for policy in Policy::NAMES {
        let router = busy_router(policy, 4 << 20);
        let saved = router.snapshot(Millis(24_000));
        // Another process has another clock.
        let offset = 1 << 33;
        let restored = Router::restore(&saved, Millis(24_000 + offset)).expect("just saved");
        assert!(saved == restored.snapshot(Millis(24_000 + offset)), "saved again, it has the same bytes");
        assert_eq!(router.workers(), restored.workers());
        let (before, after) = (router.stats(), restored.stats());
        assert_eq!(before.decisions, after.decisions);
        assert_eq!((before.index_blocks, before.index_runs), (after.index_blocks, after.index_runs));
        for step in 600..1200 {
            let now_ms = 24_000 + u64::from(step) * 40;
            let expected = serve(&router, step, now_ms);
            assert_eq!(serve(&restored, step, now_ms + offset), expected, "{policy}, step {step}");
        }
        assert_eq!(router.workers(), restored.workers());
        for router in [&router, &restored] {
            let back = router.add_worker(WorkerSpec::new("worker-2")).expect("it left");
            assert_eq!(back, WorkerId(2), "a worker that returns gets its id back");
            assert!(matches!(
                router.add_worker(WorkerSpec::new("worker-0")),
                Err(Error::DuplicateWorker { .. })
            ));
        }
    }
}

#[test]
fn nothing_is_in_flight_after_a_restore() {
    let router = busy_router("kv_aware", 4 << 20);
    let prompt = tokens(77, 4096);
    let decision = router.route(&RouteRequest::new(Prompt::Tokens(&prompt)), Millis(0)).expect("live");
    let restored = Router::restore(&router.snapshot(Millis(0)), Millis(0)).expect("just saved");
    assert_eq!((router.stats().in_flight, restored.stats().in_flight), (1, 0));
    assert!(restored.workers().iter().all(|worker| (worker.in_flight, worker.queued_tokens) == (0, 0)));
    let held = restored.peek(&RouteRequest::new(Prompt::Tokens(&prompt))).expect("good tokens");
    assert_eq!((held.workers, held.matched_tokens), (vec![(decision.worker, 4096)], 4096));
    assert!(!restored.complete(decision.id, None, Millis(1)), "a decision of another router is a no-op");
}

#[test]
fn an_empty_router_round_trips() {
    let router = Router::new(RouterConfig::default()).expect("default");
    let restored = Router::restore(&router.snapshot(Millis(5)), Millis(5)).expect("just saved");
    assert_eq!(restored.stats(), router.stats());
    assert_eq!(restored.add_worker(WorkerSpec::new("first")), Ok(WorkerId(0)));
}

#[test]
fn every_cut_and_every_altered_byte_is_refused() {
    let saved = busy_router("kv_aware", 1 << 20).snapshot(Millis(24_000));
    let step = if saved.len() > 20_000 { 7 } else { 1 };
    for len in (0..HEADER_BYTES + 200).chain((0..saved.len()).step_by(step)) {
        assert!(matches!(fault(&saved[..len]), SnapshotFault::Length { .. }), "cut to {len}");
    }
    let mut bytes = saved.clone();
    for at in (0..HEADER_BYTES + 200).chain((0..saved.len()).step_by(step)) {
        bytes[at] ^= 1 << (at % 8);
        let fault = fault(&bytes);
        let expected = match at {
            0..8 => matches!(fault, SnapshotFault::Foreign),
            8..12 => matches!(fault, SnapshotFault::Version { supported: VERSION, .. }),
            12..20 => matches!(fault, SnapshotFault::Length { .. }),
            _ => matches!(fault, SnapshotFault::Checksum { .. }),
        };
        assert!(expected, "byte {at}: {fault:?}");
        bytes[at] = saved[at];
    }
    bytes.push(0);
    assert!(matches!(fault(&bytes), SnapshotFault::Length { .. }));
    assert!(matches!(fault(b""), SnapshotFault::Length { .. }));
    assert!(matches!(fault(b"PK\x03\x04 something else altogether"), SnapshotFault::Foreign));
    assert!(Router::restore(&saved, Millis(0)).is_ok());
}

#[test]
fn counts_that_promise_too_much_are_refused() {
    let saved = Router::new(RouterConfig::default()).expect("default").snapshot(Millis(0));
    let body = &saved[HEADER_BYTES..];
    // The count of workers follows the settings.
    let mut grown = body.to_vec();
    grown[50..54].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        fault(&sealed(&saved, &grown)),
        SnapshotFault::Content { offset: 54, what: "a count exceeds what follows" }
    );
    let mut small = body.to_vec();
    small[13..21].copy_from_slice(&7u64.to_le_bytes());
    let SnapshotFault::Content { what, .. } = fault(&sealed(&saved, &small)) else {
        panic!("a content fault")
    };
    assert_eq!(what, "a setting is out of range");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A body with a fitting checksum that no router wrote: refused or restored, and then usable; never a panic.
    #[test]
    fn forged_bodies_are_refused_or_sound(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        static SAVED: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let saved = SAVED.get_or_init(|| {
            let router = busy_router("kv_aware", 1 << 20);
            router.set_capacity(WorkerId(0), Some(160)).expect("known");
            router.snapshot(Millis(24_000))
        });
        let mut body = saved[HEADER_BYTES..].to_vec();
        for (at, value) in edits {
            // Not the budget: what is allocated for a large one is what its owner asked for.
            let at = at.index(body.len());
            if !(13..21).contains(&at) {
                body[at] = value;
            }
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        match Router::restore(&sealed(saved, &body), Millis(0)) {
            Err(error) => prop_assert!(matches!(error, Error::Snapshot { .. }), "{error}"),
            Ok(router) => {
                for step in 0..100 {
                    let prompt = tokens(step % 9, 700);
                    if let Ok(decision) = router.route(&RouteRequest::new(Prompt::Tokens(&prompt)), Millis(u64::from(step))) {
                        router.complete(decision.id, None, Millis(u64::from(step)));
                    }
                }
                prop_assert!(router.stats().index_bytes <= router.config().memory_budget);
                prop_assert!(Router::restore(&router.snapshot(Millis(0)), Millis(0)).is_ok());
            }
        }
    }
}
