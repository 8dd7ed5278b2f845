//! The router from outside: what users of it rely on.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;
use trunkline_core::{
    Best, Decision, Error, Millis, Policy, Prompt, Reason, RouteRequest, Router, RouterConfig, Usage,
    WorkerId, WorkerSpec,
};

fn router_of(config: RouterConfig, workers: u32) -> Router {
    let router = Router::new(config).expect("good settings");
    for number in 0..workers {
        router.add_worker(WorkerSpec::new(format!("worker-{number:04}"))).expect("new name");
    }
    router
}

fn router(workers: u32) -> Router {
    router_of(RouterConfig::default(), workers)
}

/// A prompt of `shared` tokens that depend on `group` and `own` tokens that depend on `number` as well.
fn tokens(group: u32, shared: u32, number: u32, own: u32) -> Vec<u32> {
    let mix = |a: u32, b: u32| a.wrapping_mul(0x9E37_79B9).rotate_left(7) ^ b.wrapping_mul(0x85EB_CA6B);
    (0..shared)
        .map(|at| mix(group, at))
        .chain((0..own).map(|at| mix(mix(group, number), at ^ 0xFFFF)))
        .collect()
}

fn route(router: &Router, prompt: &[u32], now_ms: u64) -> Decision {
    router.route(&RouteRequest::new(Prompt::Tokens(prompt)), Millis(now_ms)).expect("somebody is live")
}

fn serve(router: &Router, prompt: &[u32], now_ms: u64) -> Decision {
    let decision = route(router, prompt, now_ms);
    assert!(router.first_token(decision.id, Millis(now_ms + 1)));
    assert!(router.complete(decision.id, None, Millis(now_ms + 2)));
    decision
}

fn in_flight(router: &Router) -> Vec<u32> {
    router.workers().iter().map(|worker| worker.in_flight).collect()
}

#[test]
fn a_prompt_returns_to_the_worker_that_served_its_prefix() {
    let router = router(4);
    let first = serve(&router, &tokens(1, 1024, 0, 64), 0);
    assert_eq!((first.matched_tokens, first.prompt_tokens, first.reason), (0, 1088, Reason::Home));
    let second = serve(&router, &tokens(1, 1024, 1, 64), 10);
    assert_eq!((second.worker, second.matched_tokens, second.reason), (first.worker, 1024, Reason::Prefix));
    assert_eq!((second.matched_blocks, second.prompt_blocks), (64, 68));
}

#[test]
fn one_hot_prefix_at_once_spreads_over_the_fleet() {
    for at_once in [48, 120] {
        let router = router(4);
        for number in 0..3 {
            serve(&router, &tokens(1, 1500, number, 50), u64::from(number));
        }
        for number in 0..at_once {
            route(&router, &tokens(1, 1500, 10 + number, 50), 100);
        }
        let counts = in_flight(&router);
        let mean = f64::from(at_once) / 4.0;
        assert!(counts.iter().all(|&count| f64::from(count) <= 1.5 * mean), "{counts:?}");
        assert!(counts.iter().all(|&count| f64::from(count) >= 0.5 * mean), "{counts:?}");
    }
}

#[test]
fn cold_prompts_use_every_worker_and_replicas_agree() {
    let replica = |seed| router_of(RouterConfig { index_seed: seed, ..RouterConfig::default() }, 4);
    let (one, two) = (replica(1), replica(2));
    let mut counts = [0; 4];
    for group in 0..200 {
        let worker = serve(&one, &tokens(group, 512, 0, 0), u64::from(group)).worker;
        serve(&two, &tokens(199 - group, 512, 0, 0), u64::from(group));
        counts[worker.0 as usize] += 1;
    }
    for group in 0..200 {
        let at = |router: &Router| serve(router, &tokens(group, 512, 0, 0), 1000).worker;
        assert_eq!(at(&one), at(&two), "prompt {group}");
    }
    assert!(counts.iter().all(|&count| count >= 25), "{counts:?}");
}

#[test]
fn the_order_in_which_workers_are_named_does_not_matter() {
    let names = ["c", "a", "d", "b"];
    let forward = Router::new(RouterConfig::default()).expect("default");
    let backward = Router::new(RouterConfig::default()).expect("default");
    for (one, two) in names.iter().zip(names.iter().rev()) {
        forward.add_worker(WorkerSpec::new(*one)).expect("new");
        backward.add_worker(WorkerSpec::new(*two)).expect("new");
    }
    let name_at = |router: &Router, group| {
        let worker = serve(router, &tokens(group, 64, 0, 0), 0).worker;
        router.workers()[worker.0 as usize].name.clone()
    };
    for group in 0..50 {
        assert_eq!(name_at(&forward, group), name_at(&backward, group));
    }
}

#[test]
fn sessions_stay_under_load() {
    let router = router(4);
    let (mut stayed, mut turns, mut now) = (0, 0, 0);
    let mut history: HashMap<u32, (Vec<u32>, WorkerId)> = HashMap::new();
    let mut open: Vec<Decision> = Vec::new();
    for turn in 0..5 {
        for session in 0..60 {
            now += 5;
            let last = history.get(&session).map(|(prompt, worker)| (prompt.clone(), *worker));
            let mut prompt =
                last.as_ref().map_or_else(|| tokens(7, 1500, 0, 0), |(prompt, _)| prompt.clone());
            prompt.extend(tokens(1000 + session, 100, turn, 75));
            let decision = route(&router, &prompt, now);
            if let Some((_, worker)) = last {
                turns += 1;
                stayed += u32::from(worker == decision.worker);
            }
            history.insert(session, (prompt, decision.worker));
            open.push(decision);
            if open.len() == 24 {
                for decision in open.drain(..12) {
                    router.first_token(decision.id, Millis(now));
                    router.complete(decision.id, None, Millis(now));
                }
            }
        }
    }
    assert!(f64::from(stayed) >= 0.95 * f64::from(turns), "{stayed} of {turns}");
    let sent: Vec<u64> = router.workers().iter().map(|worker| worker.decisions).collect();
    assert!(sent.iter().all(|&count| (38..=112).contains(&count)), "{sent:?}");
}

#[test]
fn removing_a_worker_moves_its_prompts_only_and_it_gets_them_back() {
    let router = router(5);
    let before: Vec<WorkerId> =
        (0..300).map(|group| serve(&router, &tokens(group, 64, 0, 0), 0).worker).collect();
    let gone = WorkerId(2);
    router.remove_worker(gone).expect("known");
    for (group, &was) in before.iter().enumerate() {
        let now = serve(&router, &tokens(group as u32, 64, 0, 0), 0).worker;
        assert_ne!(now, gone);
        assert!(was == gone || was == now);
    }
    let back = router.add_worker(WorkerSpec::new("worker-0002")).expect("free again");
    assert_eq!(back, gone);
    let cold = |group| serve(&router, &tokens(group, 64, 0, 0), 0).worker;
    let share = (5000..5300).filter(|&group| cold(group) == back).count();
    assert!((30..=95).contains(&share), "{share} of 300 new prompts");
}

#[test]
fn drained_unhealthy_excluded_and_foreign_workers_get_nothing() {
    let router = router(4);
    router.drain_worker(WorkerId(0), true).expect("known");
    router.set_healthy(WorkerId(1), false).expect("known");
    let prompt = tokens(1, 64, 0, 0);
    let request = RouteRequest::new(Prompt::Tokens(&prompt));
    for group in 0..50 {
        assert!(serve(&router, &tokens(group, 64, 0, 0), 0).worker.0 >= 2);
    }
    let only = RouteRequest { exclude: &[WorkerId(2)], ..request };
    let decision = router.route(&only, Millis(0)).expect("one is left");
    assert_eq!((decision.worker, decision.reason), (WorkerId(3), Reason::Only));
    router.complete(decision.id, None, Millis(0));
    let eligible = [WorkerId(0), WorkerId(1), WorkerId(77)];
    let none = RouteRequest { eligible: Some(&eligible), ..request };
    assert_eq!(
        router.route(&none, Millis(0)),
        Err(Error::NoWorkerAvailable { known: 4, live: 2, eligible: 0 })
    );
    assert_eq!(router.stats().in_flight, 0);
    router.drain_worker(WorkerId(0), false).expect("known");
    router.set_healthy(WorkerId(1), true).expect("known");
    let used: HashSet<u32> =
        (0..60).map(|group| serve(&router, &tokens(100 + group, 64, 0, 0), 0).worker.0).collect();
    assert_eq!(used.len(), 4);
}

#[test]
fn booking_and_completion_balance_whatever_the_order() {
    let router = router(2);
    let decision = route(&router, &tokens(1, 320, 0, 0), 0);
    let booked = router.workers()[decision.worker.0 as usize].clone();
    assert_eq!((booked.in_flight, booked.queued_tokens), (1, 320));
    assert!(router.first_token(decision.id, Millis(5)));
    assert!(!router.first_token(decision.id, Millis(6)));
    assert_eq!(router.workers()[decision.worker.0 as usize].queued_tokens, 0);
    assert!(router.complete(decision.id, None, Millis(7)));
    assert!(!router.complete(decision.id, None, Millis(8)));
    assert!(!router.first_token(decision.id, Millis(9)));
    // Without a first token, completion releases the queue as well.
    let decision = route(&router, &tokens(2, 320, 0, 0), 10);
    assert!(router.complete(decision.id, None, Millis(11)));
    assert!(router.workers().iter().all(|worker| (worker.in_flight, worker.queued_tokens) == (0, 0)));
}

#[test]
fn a_worker_that_left_and_returned_owes_nothing_for_its_earlier_life() {
    let router = router(1);
    let old = route(&router, &tokens(1, 320, 0, 0), 0);
    router.remove_worker(old.worker).expect("known");
    assert_eq!(router.remove_worker(old.worker), Err(Error::UnknownWorker { id: old.worker }));
    router.add_worker(WorkerSpec::new("worker-0000")).expect("free again");
    let new = route(&router, &tokens(1, 320, 0, 0), 1);
    assert_eq!((new.worker, new.matched_tokens), (old.worker, 0), "its cache is gone");
    assert!(router.complete(old.id, None, Millis(2)));
    assert_eq!(in_flight(&router), [1]);
    assert!(router.complete(new.id, None, Millis(3)));
    assert_eq!(in_flight(&router), [0]);
}

#[test]
fn a_restarted_worker_is_cold_but_still_loaded() {
    let router = router(1);
    let decision = route(&router, &tokens(1, 320, 0, 0), 0);
    router.reset_worker(decision.worker).expect("known");
    let peek = router.peek(&RouteRequest::new(Prompt::Tokens(&tokens(1, 320, 0, 0)))).expect("good tokens");
    assert_eq!((peek.matched_tokens, peek.workers.len()), (0, 0));
    assert_eq!(in_flight(&router), [1]);
    router.complete(decision.id, None, Millis(1));
    assert_eq!(in_flight(&router), [0]);
    assert_eq!(serve(&router, &tokens(1, 320, 0, 0), 2).matched_tokens, 0);
    assert_eq!(serve(&router, &tokens(1, 320, 0, 0), 3).matched_tokens, 320);
}

#[test]
fn a_small_cache_is_modelled_at_its_size() {
    let router = Router::new(RouterConfig::default()).expect("default");
    let spec = WorkerSpec { capacity_tokens: Some(1600), ..WorkerSpec::new("small") };
    let worker = router.add_worker(spec).expect("new");
    for group in 0..10 {
        serve(&router, &tokens(group, 480, 0, 0), 0);
    }
    let matched: Vec<u32> = (7..10)
        .map(|group| {
            router
                .peek(&RouteRequest::new(Prompt::Tokens(&tokens(group, 480, 0, 0))))
                .expect("good")
                .matched_tokens
        })
        .collect();
    assert_eq!(matched, [480, 480, 480]);
    assert_eq!(router.workers()[0].cached_blocks, 100);
    router.set_capacity(worker, Some(480)).expect("known");
    assert_eq!(router.workers()[0].cached_blocks, 30);
}

#[test]
fn explain_tells_what_route_then_does_and_books_nothing() {
    let router = router(4);
    for number in 0..40 {
        route(&router, &tokens(number % 5, 400, number, 80), u64::from(number));
    }
    let prompt = tokens(3, 400, 99, 80);
    let request = RouteRequest::new(Prompt::Tokens(&prompt));
    let explained = router.explain(&request, Millis(50)).expect("live");
    assert_eq!(explained, router.explain(&request, Millis(50)).expect("live"));
    let decision = router.route(&request, Millis(50)).expect("live");
    assert_eq!(
        (explained.worker, explained.reason, explained.preferred),
        (decision.worker, decision.reason, decision.preferred)
    );
    assert_eq!(explained.candidates.len(), 4);
    assert!(explained.candidates.windows(2).all(|pair| pair[0].cost <= pair[1].cost));
    let chosen = explained
        .candidates
        .iter()
        .find(|candidate| candidate.worker == decision.worker)
        .expect("a candidate");
    assert_eq!(chosen.matched_tokens, decision.matched_tokens);
}

#[test]
fn large_fleets_find_holders_and_use_everybody() {
    let router = router(300);
    let warm = serve(&router, &tokens(1, 2048, 0, 0), 0);
    for round in 0..20 {
        assert_eq!(serve(&router, &tokens(1, 2048, round, 32), 1).worker, warm.worker);
    }
    for group in 0..3000 {
        route(&router, &tokens(10 + group, 64, 0, 0), 2);
    }
    let counts = in_flight(&router);
    assert!(counts.iter().all(|&count| (1..=30).contains(&count)), "{counts:?}");
}

#[test]
fn text_lengths_are_learnt_from_answers() {
    let router = router(1);
    let text = vec![b'x'; 4000];
    let pieces = [&text[..]];
    let request = RouteRequest { text_model: 9, ..RouteRequest::new(Prompt::Text(&pieces)) };
    for round in 0..200 {
        let decision = router.route(&request, Millis(round)).expect("live");
        let usage = Usage { prompt_tokens: 2000, cached_tokens: Some(1000), completion_tokens: 10 };
        router.complete(decision.id, Some(usage), Millis(round));
    }
    let learnt = router.route(&request, Millis(300)).expect("live").prompt_tokens;
    assert!((1999..=2000).contains(&learnt), "{learnt}");
    let other = RouteRequest { text_model: 8, ..request };
    assert_eq!(
        router.route(&other, Millis(300)).expect("live").prompt_tokens,
        1000,
        "4 bytes per token at the start"
    );
    let view = &router.workers()[0];
    assert_eq!((view.reported_prompt_tokens, view.reported_cached_tokens), (400_000, 200_000));
}

#[test]
fn another_policy_keeps_what_is_known() {
    let router = router_of(RouterConfig::default(), 3);
    let prompt: Vec<u32> = (0..64).collect();
    let send = || {
        let decision = router.route(&RouteRequest::new(Prompt::Tokens(&prompt)), Millis(0)).expect("live");
        assert!(router.complete(decision.id, None, Millis(0)));
        decision
    };
    let first = send().worker;
    router.set_policy(Policy::RoundRobin).expect("no parameters");
    let chosen: std::collections::HashSet<WorkerId> = (0..3).map(|_| send().worker).collect();
    assert_eq!((chosen.len(), router.policy()), (3, Policy::RoundRobin));
    router.set_policy(Policy::KvAware).expect("no parameters");
    assert_eq!(
        (
            send().reason,
            router.peek(&RouteRequest::new(Prompt::Tokens(&prompt))).expect("tokens").workers.len()
        ),
        (Reason::Prefix, 3)
    );
    assert!(chosen.contains(&first));
    let bad = Policy::PrefixAware { prefix_length: 1, concurrency_threshold: None };
    assert!(matches!(router.set_policy(bad), Err(Error::Config { key: "prefix_length", .. })));
    let restored = Router::restore(&router.snapshot(Millis(0)), Millis(0)).expect("just saved");
    assert_eq!(restored.policy(), Policy::KvAware);
}

#[test]
fn prefix_aware_hashes_the_head_and_spills_by_its_rule() {
    let policy = |threshold| Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: threshold };
    let router =
        |threshold| router_of(RouterConfig { policy: policy(threshold), ..RouterConfig::default() }, 4);
    let head = "h".repeat(1024);
    let send = |router: &Router, tail: &str| {
        let pieces = [head.as_bytes(), tail.as_bytes()];
        router.route(&RouteRequest::new(Prompt::Text(&pieces)), Millis(0)).expect("live")
    };
    let fixed = router(Some(3));
    let first: Vec<Decision> = (0..3).map(|number| send(&fixed, &format!("tail {number}"))).collect();
    assert!(
        first.iter().all(|decision| decision.worker == first[0].worker && decision.reason == Reason::Home)
    );
    let fourth = send(&fixed, "one more");
    assert_eq!((fourth.reason, fourth.preferred), (Reason::Spill, Some(first[0].worker)));
    assert_ne!(fourth.worker, first[0].worker);

    let relative = router(None);
    for number in 0..80 {
        send(&relative, &format!("tail {number}"));
    }
    let counts = in_flight(&relative);
    assert!(counts.iter().all(|&count| count <= 31), "1.5 times the mean of 20: {counts:?}");
}

#[test]
fn prefix_aware_spills_to_the_same_machine_first() {
    let router = router_of(RouterConfig::default(), 6);
    let ids: Vec<WorkerId> = router.workers().iter().map(|worker| worker.id).collect();
    // The last worker is not among them; the others stand on two machines.
    let (eligible, machines) = (&ids[..5], [7, 9, 7, 9, 9]);
    let policy = Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: Some(2) };
    let send = || {
        let prompt = Prompt::Text(&[b"one prompt"]);
        let request =
            RouteRequest { eligible: Some(eligible), policy: Some(policy), ..RouteRequest::new(prompt) };
        router.route(&RouteRequest { machines: &machines, ..request }, Millis(0)).expect("live")
    };
    let machine =
        |decision: &Decision| machines[ids.iter().position(|&id| id == decision.worker).expect("known")];
    let home = send();
    assert_eq!((home.reason, send().worker), (Reason::Home, home.worker));
    let beside = machines.iter().filter(|&&other| other == machine(&home)).count() - 1;
    let near: Vec<Decision> = (0..2 * beside).map(|_| send()).collect();
    for decision in &near {
        assert_eq!((decision.reason, decision.preferred), (Reason::Spill, Some(home.worker)));
        assert_eq!(machine(decision), machine(&home));
    }
    let far = send();
    assert_eq!((far.reason, far.preferred), (Reason::Spill, Some(home.worker)));
    assert_ne!(machine(&far), machine(&home), "its machine is full");
    assert!(in_flight(&router)[..5].iter().all(|&count| count <= 2), "{:?}", in_flight(&router));
    assert_eq!(in_flight(&router)[5], 0, "nothing leaves the eligible workers");
}

#[test]
fn a_request_may_bring_its_own_policy() {
    let config = RouterConfig { policy: Policy::RoundRobin, ..RouterConfig::default() };
    let router = router_of(config, 4);
    let prompt = Prompt::Text(&[b"hello"]);
    let send = |policy| {
        router.route(&RouteRequest { policy, ..RouteRequest::new(prompt) }, Millis(0)).expect("live").reason
    };
    let hashed = Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: None };
    assert_eq!(
        [send(None), send(Some(hashed)), send(None)],
        [Reason::Baseline, Reason::Home, Reason::Baseline]
    );
}

#[test]
fn baselines_do_what_their_names_say() {
    let of = |name: &str| {
        router_of(RouterConfig { policy: Policy::parse(name).expect("known"), ..RouterConfig::default() }, 4)
    };
    let turns = of("round_robin");
    let order: Vec<u32> = (0..8).map(|group| route(&turns, &tokens(group, 64, 0, 0), 0).worker.0).collect();
    assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3]);
    let least = of("least_outstanding");
    for group in 0..40 {
        route(&least, &tokens(group % 3, 64, 0, 0), 0);
    }
    assert_eq!(in_flight(&least), [10; 4]);
    let random = of("random");
    for _ in 0..4000 {
        route(&random, &tokens(1, 64, 0, 0), 0);
    }
    assert!(
        in_flight(&random).iter().all(|&count| (850..=1150).contains(&count)),
        "{:?}",
        in_flight(&random)
    );
}

#[test]
fn random_choices_do_not_depend_on_those_before() {
    const WORKERS: usize = 7;
    const DRAWS: usize = 7_000;
    let router = router_of(RouterConfig { policy: Policy::Random, ..Default::default() }, WORKERS as u32);
    let drawn: Vec<WorkerId> = (0..DRAWS).map(|at| serve(&router, &[1; 16], at as u64).worker).collect();
    for lag in 1..=WORKERS {
        let repeats = drawn.iter().zip(&drawn[lag..]).filter(|(a, b)| a == b).count();
        let share = repeats as f64 * WORKERS as f64 / (DRAWS - lag) as f64;
        // One deviation is 0.03.
        assert!(
            (share - 1.0).abs() < 0.12,
            "a worker comes again after {lag} draws {share:.2} times as often"
        );
    }
}

#[test]
fn several_replicas_prefer_the_home_of_new_text() {
    let config = RouterConfig { replicas: 4, ..RouterConfig::default() };
    let (one, two) = (router_of(config.clone(), 4), router_of(config, 4));
    // Different loads, yet the same home.
    for group in 0..3 {
        route(&one, &tokens(group, 160, 0, 0), 0);
    }
    let agreed = (100..200)
        .filter(|&group| {
            let at = |router: &Router| serve(router, &tokens(group, 2048, 0, 0), 0).worker;
            at(&one) == at(&two)
        })
        .count();
    assert!(agreed >= 95, "{agreed} of 100");
}

#[test]
fn bad_settings_are_named() {
    let bad = |change: fn(&mut RouterConfig)| {
        let mut config = RouterConfig::default();
        change(&mut config);
        Router::new(config).expect_err("out of range")
    };
    for (error, wanted) in [
        (bad(|config| config.block_size = 0), "block_size = 0"),
        (bad(|config| config.block_size = 257), "block_size = 257"),
        (bad(|config| config.memory_budget = 4096), "memory_budget = 4096"),
        (bad(|config| config.replicas = 0), "replicas = 0"),
    ] {
        assert!(error.to_string().starts_with(wanted), "{error}");
    }
    let router = router(1);
    let twice = router.add_worker(WorkerSpec::new("worker-0000"));
    assert_eq!(twice, Err(Error::DuplicateWorker { name: "worker-0000".into() }));
    let wide = router.route(&RouteRequest::new(Prompt::WideTokens(&[1, -5])), Millis(0));
    assert_eq!(wide, Err(Error::TokenId { position: 1, value: -5 }));
}

#[test]
fn a_batch_of_matches_equals_peeks() {
    let router = router(6);
    for number in 0..300 {
        serve(&router, &tokens(number % 7, 32 * (number % 7), number % 11, 100), u64::from(number));
    }
    let asked: Vec<Vec<u32>> =
        (0..100).map(|number| tokens(number % 9, 32 * (number % 9), number % 13, number * 3)).collect();
    let wide: Vec<i64> = asked[20].iter().map(|&id| i64::from(id)).collect();
    let mut prompts: Vec<Prompt<'_>> = asked.iter().map(|ids| Prompt::Tokens(ids)).collect();
    prompts.extend([Prompt::WideTokens(&wide), Prompt::Text(&[b"short"]), Prompt::Tokens(&[])]);
    let batch = router.match_batch(&prompts, Default::default()).expect("good tokens");
    assert!(batch.iter().flatten().count() >= 50);
    assert_eq!(batch.len(), prompts.len());
    for (prompt, best) in prompts.iter().zip(batch) {
        let peek = router.peek(&RouteRequest::new(*prompt)).expect("good tokens");
        let workers = peek.workers.iter().filter(|(_, tokens)| *tokens == peek.matched_tokens);
        let expected = workers.map(|&(worker, matched_tokens)| Best { worker, matched_tokens });
        assert_eq!(best, expected.min_by_key(|best| best.worker));
    }
    let bad = router.match_batch(&[Prompt::Tokens(&[1]), Prompt::WideTokens(&[1, -1])], Default::default());
    assert_eq!(bad, Err(Error::TokenId { position: 1, value: -1 }));
    assert_eq!(router.match_batch(&[], Default::default()), Ok(Vec::new()));
}

#[test]
fn concurrent_callers_leave_nothing_behind() {
    let router = router_of(RouterConfig { memory_budget: 2 << 20, ..RouterConfig::default() }, 8);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let router = &router;
            scope.spawn(move || {
                let mut open = Vec::new();
                for step in 0..2000u32 {
                    let prompt = tokens(step % 13, 256, thread << 16 | step, 64);
                    open.push(route(router, &prompt, u64::from(step)).id);
                    router.peek(&RouteRequest::new(Prompt::Tokens(&prompt))).expect("good tokens");
                    if step % 3 == 0 {
                        router.first_token(open[open.len() / 2], Millis(u64::from(step)));
                    }
                    if open.len() > 16 {
                        assert!(router.complete(
                            open.swap_remove(step as usize % 16),
                            None,
                            Millis(u64::from(step))
                        ));
                    }
                }
                for id in open {
                    assert!(router.complete(id, None, Millis(9999)));
                }
            });
        }
    });
    let stats = router.stats();
    assert_eq!((stats.in_flight, stats.decisions.iter().sum::<u64>()), (0, 16_000));
    assert!(stats.index_bytes <= 2 << 20);
    assert!(router.workers().iter().all(|worker| (worker.in_flight, worker.queued_tokens) == (0, 0)));
}

#[derive(Debug, Clone)]
enum Step {
    Route { group: u32, number: u32, len: u32 },
    FirstToken { which: prop::sample::Index },
    Complete { which: prop::sample::Index },
    Add { name: u32 },
    Remove { name: u32 },
    Drain { name: u32, draining: bool },
    Health { name: u32, healthy: bool },
    Reset { name: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0u32..6;
    prop_oneof![
        8 => (0u32..4, 0u32..6, 0u32..90).prop_map(|(group, number, len)| Step::Route { group, number, len }),
        3 => any::<prop::sample::Index>().prop_map(|which| Step::FirstToken { which }),
        5 => any::<prop::sample::Index>().prop_map(|which| Step::Complete { which }),
        1 => name.clone().prop_map(|name| Step::Add { name }),
        1 => name.clone().prop_map(|name| Step::Remove { name }),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, draining)| Step::Drain { name, draining }),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, healthy)| Step::Health { name, healthy }),
        1 => name.prop_map(|name| Step::Reset { name }),
    ]
}

/// What the router should know of a worker.
#[derive(Debug, Default)]
struct Model {
    id: u32,
    draining: bool,
    sick: bool,
    /// Open decisions by their number, with the prompt's uncached tokens still queued.
    open: BTreeMap<usize, u64>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_book_equals_a_plain_model(policy in 0usize..5, steps in proptest::collection::vec(step(), 1..120)) {
        let config = RouterConfig { policy: Policy::parse(Policy::NAMES[policy]).expect("known"), ..RouterConfig::default() };
        let router = Router::new(config).expect("good");
        let mut models: BTreeMap<u32, Model> = BTreeMap::new();
        let mut decisions: Vec<Decision> = Vec::new();
        let mut closed: HashSet<usize> = HashSet::new();
        let mut stored: HashSet<(u32, Vec<u32>)> = HashSet::new();
        for (now, step) in steps.into_iter().enumerate() {
            let now = Millis(now as u64 * 10);
            match step {
                Step::Route { group, number, len } => {
                    let prompt = tokens(group, len, number, len / 2);
                    let live = models.values().filter(|model| !model.draining && !model.sick).count();
                    match router.route(&RouteRequest::new(Prompt::Tokens(&prompt)), now) {
                        Ok(decision) => {
                            let model = models.values_mut().find(|model| model.id == decision.worker.0).expect("in the fleet");
                            prop_assert!(!model.draining && !model.sick);
                            let matched = decision.matched_tokens as usize;
                            prop_assert!(matched == 0 || stored.contains(&(decision.worker.0, prompt[..matched].to_vec())));
                            let queued = u64::from(decision.prompt_tokens - decision.matched_tokens).max(1);
                            model.open.insert(decisions.len(), queued);
                            for end in (16..=prompt.len()).step_by(16) {
                                stored.insert((decision.worker.0, prompt[..end].to_vec()));
                            }
                            decisions.push(decision);
                        }
                        Err(error) => prop_assert_eq!(error, Error::NoWorkerAvailable { known: models.len(), live, eligible: 0 }),
                    }
                }
                Step::FirstToken { which } if !decisions.is_empty() => {
                    let which = which.index(decisions.len());
                    router.first_token(decisions[which].id, now);
                    for model in models.values_mut() {
                        model.open.entry(which).and_modify(|queued| *queued = 0);
                    }
                }
                Step::Complete { which } if !decisions.is_empty() => {
                    let which = which.index(decisions.len());
                    prop_assert_eq!(router.complete(decisions[which].id, None, now), closed.insert(which));
                    for model in models.values_mut() {
                        model.open.remove(&which);
                    }
                }
                Step::Add { name } => match router.add_worker(WorkerSpec::new(name.to_string())) {
                    Ok(id) => {
                        stored.retain(|(worker, _)| *worker != id.0);
                        let before = models.insert(name, Model { id: id.0, ..Model::default() });
                        prop_assert!(before.is_none());
                    }
                    Err(_) => prop_assert!(models.contains_key(&name)),
                },
                Step::Remove { name } => {
                    if let Some(model) = models.remove(&name) {
                        prop_assert_eq!(router.remove_worker(WorkerId(model.id)), Ok(()));
                    }
                }
                Step::Drain { name, draining } => {
                    if let Some(model) = models.get_mut(&name) {
                        model.draining = draining;
                        prop_assert_eq!(router.drain_worker(WorkerId(model.id), draining), Ok(()));
                    }
                }
                Step::Health { name, healthy } => {
                    if let Some(model) = models.get_mut(&name) {
                        model.sick = !healthy;
                        prop_assert_eq!(router.set_healthy(WorkerId(model.id), healthy), Ok(()));
                    }
                }
                Step::Reset { name } => {
                    if let Some(model) = models.get(&name) {
                        prop_assert_eq!(router.reset_worker(WorkerId(model.id)), Ok(()));
                        stored.retain(|(worker, _)| *worker != model.id);
                    }
                }
                Step::FirstToken { .. } | Step::Complete { .. } => {}
            }
            let views = router.workers();
            prop_assert_eq!(views.len(), models.len());
            for view in views {
                let model = &models[&view.name.parse::<u32>().expect("a number")];
                prop_assert_eq!(view.in_flight as usize, model.open.len());
                prop_assert_eq!(view.queued_tokens, model.open.values().sum::<u64>());
            }
            prop_assert_eq!(router.stats().in_flight, decisions.len() - closed.len());
        }
    }
}

#[test]
fn requests_of_others_count_until_they_are_stale() {
    let router = router(2);
    let request = RouteRequest::new(Prompt::Text(&[b"a prompt that nobody holds"]));
    let busy = router.workers()[0].id;
    router.set_other_load(busy, 8, Millis(3000)).expect("a worker of it");
    for now in 0..6 {
        let decision = router.route(&request, Millis(now)).expect("workers live");
        assert_ne!(decision.worker, busy, "the other one has fewer");
    }
    assert_eq!(router.workers()[0].other_in_flight, 8);
    let explained = router.explain(&request, Millis(2999)).expect("workers live");
    assert!(explained.candidates.iter().any(|row| (row.worker, row.in_flight) == (busy, 8)));
    let decision = router.route(&request, Millis(3000)).expect("workers live");
    assert_eq!(decision.worker, busy, "nothing was heard for three seconds");
    assert_eq!(router.workers()[0].other_in_flight, 0);
    assert!(router.set_other_load(WorkerId(9), 1, Millis(0)).is_err());
}
