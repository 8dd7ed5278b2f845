//! The sample of candidates in a large fleet against the scan of all workers, and terms that count in some fleets only.

use super::*;

fn tokens(group: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| group.wrapping_mul(0x9E37_79B9) ^ at.wrapping_mul(0x85EB_CA6B)).collect()
}

/// A number below `below`, made of `seed`.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// What the sample chooses and what a scan of all workers would choose.
fn both(router: &mut Router, prompt: &[u32]) -> [Explanation; 2] {
    [SAMPLE_FROM, usize::MAX].map(|sample_from| {
        router.sample_from = sample_from;
        router.explain(&RouteRequest::new(Prompt::Tokens(prompt)), Millis(0)).expect("somebody is live")
    })
}

fn cost(explanation: &Explanation) -> f64 {
    let chosen = explanation.candidates.iter().find(|candidate| candidate.worker == explanation.worker);
    chosen.expect("the choice is a candidate").cost
}

#[test]
fn a_sampled_choice_is_the_best_holder_or_costs_little_more_than_the_best_worker() {
    for (workers, seed) in [(64, 1u64), (200, 2), (1024, 3)] {
        let mut router = Router::new(RouterConfig::default()).expect("default");
        let ids: Vec<WorkerId> = (0..workers)
            .map(|number| router.add_worker(WorkerSpec::new(format!("worker-{number}"))).expect("new"))
            .collect();
        let mut state = seed;
        // Loads by chance, far more uneven than a router makes them, and prompts on one to three workers.
        for number in 0..3 * workers {
            let prompt = tokens(number % workers, 16 * random(&mut state, 60) as u32);
            let at = ids[random(&mut state, u64::from(workers)) as usize];
            let request =
                RouteRequest { eligible: Some(&[at]), ..RouteRequest::new(Prompt::Tokens(&prompt)) };
            let decision = router.route(&request, Millis(0)).expect("live");
            if random(&mut state, 2) == 0 {
                router.complete(decision.id, None, Millis(0));
            }
        }
        let (mut on_holders, mut ratios) = (0, Vec::new());
        for number in 0..400 {
            let prompt = tokens(number % 80, 1024 + 16 * random(&mut state, 120) as u32);
            let [sampled, full] = both(&mut router, &prompt);
            assert!(sampled.candidates.len() <= 10 && full.candidates.len() == workers as usize);
            let holders = full.candidates.iter().filter(|candidate| candidate.matched_tokens > 0).count();
            let best = full.candidates.iter().find(|candidate| candidate.worker == full.worker);
            if best.is_some_and(|best| best.matched_tokens > 0) && holders <= 4 {
                assert_eq!(sampled.worker, full.worker, "{workers} workers, prompt {number}, seed {seed}");
                on_holders += 1;
            }
            ratios.push(cost(&sampled) / cost(&full));
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        assert!(on_holders >= 20, "{on_holders} of 400 choices at {workers} workers were holders");
        assert!(mean <= 1.25 && worst <= 4.0, "{workers} workers, seed {seed}: mean {mean}, worst {worst}");
    }
}

#[test]
fn the_deepest_holders_are_in_the_sample_the_least_loaded_of_them_first() {
    let mut router = Router::new(RouterConfig::default()).expect("default");
    let ids: Vec<WorkerId> = (0..300)
        .map(|number| router.add_worker(WorkerSpec::new(format!("worker-{number}"))).expect("new"))
        .collect();
    let prompt = tokens(1, 3200);
    // 40 holders, each with another depth or load: worker 100 + n holds 3,200 tokens for n < 20 and has n requests.
    for (number, &at) in ids[100..140].iter().enumerate() {
        let held = if number < 20 { &prompt[..] } else { &prompt[..1600] };
        for _ in 0..=number {
            let request = RouteRequest { eligible: Some(&[at]), ..RouteRequest::new(Prompt::Tokens(held)) };
            router.route(&request, Millis(0)).expect("live");
        }
    }
    let [sampled, full] = both(&mut router, &prompt);
    for wanted in &ids[100..104] {
        assert!(sampled.candidates.iter().any(|candidate| candidate.worker == *wanted), "{wanted:?}");
    }
    assert_eq!(sampled.worker, full.worker);
}

#[test]
fn what_is_held_counts_for_new_prompts_of_a_single_router_with_a_small_and_busy_fleet() {
    let held = |workers: u32, replicas: u32, busy: u32, prompt: &[u32]| {
        let router = Router::new(RouterConfig { replicas, ..RouterConfig::default() }).expect("allowed");
        let ids: Vec<WorkerId> = (0..workers)
            .map(|number| router.add_worker(WorkerSpec::new(format!("worker-{number}"))).expect("new"))
            .collect();
        let known = tokens(1, 1600);
        let request = RouteRequest { eligible: Some(&ids[..1]), ..RouteRequest::new(Prompt::Tokens(&known)) };
        let decision = router.route(&request, Millis(0)).expect("live");
        router.complete(decision.id, None, Millis(0));
        for number in 0..busy {
            let other = tokens(100 + number, 16);
            let at = &ids[(number % workers) as usize..][..1];
            let request = RouteRequest { eligible: Some(at), ..RouteRequest::new(Prompt::Tokens(&other)) };
            router.route(&request, Millis(0)).expect("live");
        }
        let asked = router.explain(&RouteRequest::new(Prompt::Tokens(prompt)), Millis(0)).expect("live");
        let full = asked.candidates.iter().find(|candidate| candidate.worker == ids[0]);
        (full.map_or(0.0, |candidate| candidate.held), asked.worker == ids[0])
    };
    let new = tokens(2, 1600);
    assert_eq!(held(4, 1, 4, &new), (330.0, false));
    assert_eq!(held(4, 1, 1, &new).0, 0.0, "little to do");
    assert_eq!(held(4, 2, 4, &new).0, 0.0, "replicas");
    assert_eq!(held(64, 1, 64, &new).0, 0.0, "a large fleet");
    assert_eq!(held(4, 1, 4, &tokens(1, 1600)), (0.0, true), "cached");
    assert_eq!(
        held(4, 1, 4, &[tokens(1, 1600), tokens(3, 1500)].concat()).0,
        0.0,
        "more than half is cached"
    );
}

#[test]
fn routers_that_see_the_same_do_not_all_take_the_same_worker() {
    let chosen = |index_seed, shared_state, busy: u32, prompt: &[u32]| {
        let config = RouterConfig { index_seed, replicas: 4, shared_state, ..RouterConfig::default() };
        let router = Router::new(config).expect("allowed");
        let ids: Vec<WorkerId> = (0..4)
            .map(|number| router.add_worker(WorkerSpec::new(format!("worker-{number}"))).expect("new"))
            .collect();
        for at in ids.chunks(1).cycle().take(busy as usize) {
            let other = tokens(9, 16);
            let request = RouteRequest { eligible: Some(at), ..RouteRequest::new(Prompt::Tokens(&other)) };
            router.route(&request, Millis(0)).expect("live");
        }
        router.explain(&RouteRequest::new(Prompt::Tokens(prompt)), Millis(0)).expect("live").worker
    };
    // Prompts of which two routers of different seeds choose different workers.
    let apart = |shared_state, busy| {
        let prompts: Vec<Vec<u32>> = (0..100).map(|group| tokens(group, 1600)).collect();
        let differs = |prompt: &&Vec<u32>| {
            chosen(1, shared_state, busy, prompt) != chosen(2, shared_state, busy, prompt)
        };
        prompts.iter().filter(differs).count()
    };
    assert!((30..80).contains(&apart(true, 8)), "{}", apart(true, 8));
    assert_eq!(apart(true, 0), 0, "an idle fleet");
    assert_eq!(apart(false, 8), 0, "what each sees is its own, and homes are what they agree on");
}
