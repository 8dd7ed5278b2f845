//! Routing by what workers tell of their caches: against recorded vectors, and in time.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use trunkline_core::{
    Applied, CacheEvent, CacheView, Error, ExactPrompt, Handle, Medium, Millis, Prompt, Reason, Root,
    RouteRequest, Router, RouterConfig, Spelling, Stored, WorkerId, WorkerSpec,
};

/// Spells token `t` as the bytes at place `t`.
#[derive(Default)]
struct Words {
    bytes: Vec<Vec<u8>>,
    by_id: BTreeMap<(u64, usize), u32>,
}

impl Words {
    /// The first token of a block spells all of it, the others nothing.
    fn block(&mut self, id: u64, bytes: &[u8], size: usize) -> Vec<u32> {
        (0..size)
            .map(|at| {
                *self.by_id.entry((id, at)).or_insert_with(|| {
                    self.bytes.push(if at == 0 { bytes.to_vec() } else { Vec::new() });
                    self.bytes.len() as u32 - 1
                })
            })
            .collect()
    }
}

impl Spelling for Words {
    fn spell(&self, tokens: &[u32], bytes: &mut Vec<u8>) -> bool {
        tokens.iter().for_each(|&token| bytes.extend_from_slice(&self.bytes[token as usize]));
        true
    }
}

fn router(workers: u32) -> (Router, Vec<WorkerId>) {
    let router = Router::new(RouterConfig { index_seed: 9, ..RouterConfig::default() }).expect("defaults");
    let ids = (0..workers).map(|number| {
        let id = router.add_worker(WorkerSpec::new(format!("w{number}"))).expect("a new name");
        router.set_cache_view(id, CacheView::Events).expect("it was added");
        id
    });
    let ids = ids.collect();
    (router, ids)
}

fn bytes_of(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.clone().into_bytes(),
        other => STANDARD.decode(other["b64"].as_str().expect("text or base64")).expect("base64"),
    }
}

fn root_of(step: &Value) -> Root {
    Root::default().with("cache_salt", step["root"].as_str().unwrap_or_default().as_bytes())
}

#[test]
fn finds_what_the_recorded_vectors_expect() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("data/index_vectors.json")).expect("a list of cases");
    let mut queries = 0;
    for case in &cases {
        let size = case["block_size"].as_u64().expect("a number") as usize;
        let (router, ids) = router(8);
        let worker = |step: &Value| {
            let name = step["worker"].as_str().expect("a name");
            router.worker(name).expect("one of eight")
        };
        let mut words = Words::default();
        for step in case["steps"].as_array().expect("steps") {
            let id = |value: &Value| value.as_u64().map(Handle);
            match step["op"].as_str().expect("an operation") {
                "store" => {
                    let blocks = step["blocks"].as_array().expect("blocks");
                    let handles: Vec<Handle> =
                        blocks.iter().map(|block| id(&block["id"]).expect("a number")).collect();
                    let tokens: Vec<u32> = (blocks.iter().zip(&handles))
                        .flat_map(|(block, handle)| words.block(handle.0, &bytes_of(&block["bytes"]), size))
                        .collect();
                    let stored = Stored {
                        handles: &handles,
                        parent: id(&step["parent"]),
                        tokens: &tokens,
                        block_size: size as u32,
                        root: root_of(step),
                        extras: &[],
                        medium: Medium::Gpu,
                    };
                    apply(&router, worker(step), CacheEvent::Stored(stored), Some(&words));
                }
                "remove" => {
                    let handles = [id(&step["id"]).expect("a number")];
                    let event = CacheEvent::Removed { handles: &handles, medium: Medium::Gpu };
                    apply(&router, worker(step), event, None);
                }
                "clear" => _ = apply(&router, worker(step), CacheEvent::Cleared, None),
                "query" => {
                    queries += 1;
                    let prompt = bytes_of(&step["prompt"]);
                    let held = holders(
                        &router,
                        ExactPrompt { bytes: &prompt, root: root_of(step), ..ExactPrompt::default() },
                    );
                    for (name, tokens) in step["matched_tokens"].as_object().expect("a table") {
                        let worker = router.worker(name).expect("one of eight");
                        let expected = tokens.as_u64().expect("a number") as u32;
                        let found = held.get(&worker).copied().unwrap_or(0);
                        assert_eq!(
                            found,
                            expected,
                            "{}: {name} of {}",
                            case["name"],
                            String::from_utf8_lossy(&prompt)
                        );
                    }
                }
                other => panic!("an unknown operation: {other}"),
            }
        }
        assert_eq!(ids.len(), 8);
    }
    assert_eq!((cases.len(), queries), (27, 248));
}

fn apply(router: &Router, id: WorkerId, event: CacheEvent<'_>, spelling: Option<&dyn Spelling>) -> Applied {
    router.apply_events(id, [event], spelling, None, Millis(0)).expect("a worker of it")
}

fn holders(router: &Router, exact: ExactPrompt<'_>) -> BTreeMap<WorkerId, u32> {
    let pieces = [exact.bytes];
    let request = RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Text(&pieces)) };
    router.peek(&request).expect("text").workers.into_iter().collect()
}

/// Token ids of a prompt, as both kinds of view see them.
fn request<'a>(tokens: &'a [u32], bytes: &'a [u8]) -> RouteRequest<'a> {
    let exact = ExactPrompt { bytes, is_tokens: true, ..ExactPrompt::default() };
    RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Tokens(tokens)) }
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// A chain of blocks of 16 tokens, with handles from `first` on.
fn stored<'a>(handles: &'a [Handle], tokens: &'a [u32], medium: Medium) -> CacheEvent<'a> {
    CacheEvent::Stored(Stored {
        handles,
        parent: None,
        tokens,
        block_size: 16,
        root: Root::default(),
        extras: &[],
        medium,
    })
}

#[test]
fn a_decision_counts_until_its_worker_had_time_to_tell() {
    let (router, ids) = router(1);
    let tokens: Vec<u32> = (0..160).collect();
    let prompt = bytes(&tokens);
    let request = request(&tokens, &prompt);
    let held = |now| router.route(&request, Millis(now)).expect("a worker").matched_tokens;
    // The feed is usually 100 ms behind.
    router.apply_events(ids[0], [], None, Some(100), Millis(0)).expect("a worker of it");

    let first = router.route(&request, Millis(0)).expect("a worker");
    assert_eq!((first.matched_tokens, first.told_tokens), (0, Some(0)));
    assert_eq!(held(10_000), 160, "not answered: it is still on its way");
    let second = router.route(&request, Millis(10_000)).expect("a worker");
    assert_eq!((second.matched_tokens, second.told_tokens), (160, Some(0)));
    for decision in [first, second] {
        router.first_token(decision.id, Millis(11_000));
        router.complete(decision.id, None, Millis(11_100));
    }
    // Everything else that asked is answered as well.
    let (router, ids) = self::router(1);
    router.apply_events(ids[0], [], None, Some(100), Millis(0)).expect("a worker of it");
    let first = router.route(&request, Millis(0)).expect("a worker");
    router.first_token(first.id, Millis(1000));
    router.complete(first.id, None, Millis(9000));
    let peek =
        |now: u64| router.explain(&request, Millis(now)).expect("a worker").candidates[0].matched_tokens;
    assert_eq!(peek(1399), 0, "told nothing four delays after the first token");
    let again = router.route(&request, Millis(9001)).expect("a worker");
    router.first_token(again.id, Millis(9100));
    assert_eq!((peek(9101), peek(9499), peek(9500)), (160, 160, 0));
    router.complete(again.id, None, Millis(9600));

    let handles: Vec<Handle> = (0..9).map(Handle).collect();
    apply(&router, ids[0], stored(&handles, &tokens[..144], Medium::Gpu), None);
    assert_eq!(peek(20_000), 144);
}

#[test]
fn workers_with_and_without_events_are_compared() {
    let (router, ids) = router(3);
    router.set_cache_view(ids[1], CacheView::Own).expect("it was added");
    router.set_cache_view(ids[2], CacheView::None).expect("it was added");
    let tokens: Vec<u32> = (0..320).collect();
    let prompt = bytes(&tokens);
    let ask = request(&tokens, &prompt);
    for id in &ids {
        let only = RouteRequest { eligible: Some(std::slice::from_ref(id)), ..ask };
        let decision = router.route(&only, Millis(0)).expect("a worker");
        router.complete(decision.id, None, Millis(1));
    }
    let handles: Vec<Handle> = (0..5).map(Handle).collect();
    apply(&router, ids[0], stored(&handles, &tokens[..80], Medium::Gpu), None);
    let explained = router.explain(&ask, Millis(20_000)).expect("a worker");
    let held: BTreeMap<WorkerId, u32> =
        explained.candidates.iter().map(|row| (row.worker, row.matched_tokens)).collect();
    assert_eq!(held, BTreeMap::from([(ids[0], 80), (ids[1], 320), (ids[2], 0)]));
    assert_eq!(explained.worker, ids[1]);
    // Without an exact prompt the own views count for all that keep any.
    let plain = RouteRequest { exact: None, ..ask };
    let peek = router.peek(&plain).expect("tokens");
    assert_eq!(
        peek.workers.into_iter().collect::<BTreeMap<_, _>>(),
        BTreeMap::from([(ids[0], 320), (ids[1], 320)])
    );
    let views: Vec<(CacheView, u64)> =
        router.workers().into_iter().map(|worker| (worker.cache_view, worker.cached_blocks)).collect();
    assert_eq!(views, [(CacheView::Events, 5), (CacheView::Own, 20), (CacheView::None, 0)]);
}

#[test]
fn events_alone_draw_requests_to_a_worker() {
    let (router, ids) = router(4);
    let tokens: Vec<u32> = (0..1600).collect();
    let handles: Vec<Handle> = (0..100).map(Handle).collect();
    apply(&router, ids[2], stored(&handles, &tokens, Medium::Gpu), None);
    let prompt = bytes(&tokens);
    let decision = router.route(&request(&tokens, &prompt), Millis(0)).expect("a worker");
    assert_eq!((decision.worker, decision.reason, decision.matched_tokens), (ids[2], Reason::Prefix, 1584));
    router.complete(decision.id, None, Millis(1));
    // It restarts: nothing of it counts, and what was in flight is still completed.
    let decision = router.route(&request(&tokens, &prompt), Millis(2)).expect("a worker");
    apply(&router, ids[2], CacheEvent::Cleared, None);
    assert!(router.peek(&request(&tokens, &prompt)).expect("tokens").workers.is_empty());
    assert!(router.complete(decision.id, None, Millis(3)));
    assert_eq!(router.stats().in_flight, 0);
    // Events of a worker that left are nobody's.
    router.remove_worker(ids[2]).expect("it was added");
    let late = router.apply_events(ids[2], [stored(&handles, &tokens, Medium::Gpu)], None, None, Millis(4));
    assert!(matches!(late, Err(Error::UnknownWorker { .. })));
    assert!(router.peek(&request(&tokens, &prompt)).expect("tokens").workers.is_empty());
}

#[test]
fn what_is_in_slower_memory_is_worth_a_little_less() {
    let (router, ids) = router(2);
    let tokens: Vec<u32> = (0..1616).collect();
    let handles: Vec<Handle> = (0..100).map(Handle).collect();
    apply(&router, ids[0], stored(&handles, &tokens[..1600], Medium::Gpu), None);
    apply(&router, ids[1], stored(&handles, &tokens[..1600], Medium::Gpu), None);
    apply(&router, ids[1], stored(&handles, &tokens[..1600], Medium::Cpu), None);
    let removed = CacheEvent::Removed { handles: &handles[50..], medium: Medium::Gpu };
    apply(&router, ids[1], removed, None);
    let prompt = bytes(&tokens);
    let held: BTreeMap<_, _> =
        router.peek(&request(&tokens, &prompt)).expect("tokens").workers.into_iter().collect();
    assert_eq!(held, BTreeMap::from([(ids[0], 1600), (ids[1], 800 + 752)]));
    let removed = CacheEvent::Removed { handles: &handles[..1], medium: Medium::Cpu };
    apply(&router, ids[1], removed, None);
    let held = router.peek(&request(&tokens, &prompt)).expect("tokens").workers;
    assert_eq!(held.iter().find(|(id, _)| *id == ids[1]).map(|row| row.1), Some(1552), "the first is near");
}

#[test]
fn forgotten_events_come_again_and_the_own_view_stays() {
    let (router, ids) = router(1);
    let tokens: Vec<u32> = (0..160).collect();
    let prompt = bytes(&tokens);
    let handles: Vec<Handle> = (0..10).map(Handle).collect();
    apply(&router, ids[0], stored(&handles, &tokens, Medium::Gpu), None);
    let decision = router.route(&request(&tokens, &prompt), Millis(0)).expect("a worker");
    router.complete(decision.id, None, Millis(1));
    router.forget_events(ids[0]).expect("it was added");
    let matched = || router.peek(&request(&tokens, &prompt)).expect("tokens").matched_tokens;
    assert_eq!(matched(), 160, "no events at all: the own view counts");
    apply(&router, ids[0], stored(&handles[..3], &tokens[..48], Medium::Gpu), None);
    router.apply_events(ids[0], [], None, Some(1), Millis(60_000)).expect("a worker of it");
    assert_eq!(matched(), 48);
    router.set_cache_view(ids[0], CacheView::Own).expect("it was added");
    assert_eq!(matched(), 160);
}

#[test]
fn a_worker_whose_events_count_and_that_told_none_holds_nothing() {
    let (router, ids) = router(1);
    let tokens: Vec<u32> = (0..160).collect();
    let prompt = bytes(&tokens);
    let ask = request(&tokens, &prompt);
    router.set_cache_view(ids[0], CacheView::Own).expect("it was added");
    let decision = router.route(&ask, Millis(0)).expect("a worker");
    router.complete(decision.id, None, Millis(1));
    assert_eq!(router.peek(&ask).expect("tokens").matched_tokens, 160);
    // Its cache was lost with its engine, which has nothing to tell yet.
    router.forget_events(ids[0]).expect("it was added");
    router.set_cache_view(ids[0], CacheView::Events).expect("it was added");
    assert_eq!(router.peek(&ask).expect("tokens").matched_tokens, 0);
    assert_eq!(router.route(&ask, Millis(2)).expect("a worker").told_tokens, Some(0));
}
