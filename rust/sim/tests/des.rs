//! The simulated fleet from outside: nothing is lost, nothing overflows, equal seeds give equal figures, and the router in it
//! is the one of the core.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use trunkline_core::{
    DecisionId, Millis, Policy as Rule, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec,
};
use trunkline_sim::des::policies::{self, PEERS, PolicyOptions, Trunkline, TrunklineOptions};
use trunkline_sim::des::workloads::{AgentLoops, Bursts, Chatbot, SharedPrefixes};
use trunkline_sim::des::{
    Arrival, CacheChange, Fleet, Loss, Options, Outcome, Policy, Profile, Report, Simulation, Spec, Turn,
    Workload, WorkloadBuilder,
};

/// Looks at every worker whenever a request arrives.
struct Watched {
    inner: Box<dyn Policy>,
    capacity_blocks: u64,
}

impl Policy for Watched {
    fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize {
        for worker in 0..fleet.live() {
            let status = fleet.status(worker);
            assert!(status.used_blocks <= self.capacity_blocks, "worker {worker}: {status:?}");
            assert!(status.kv_use <= 1.0);
        }
        self.inner.place(arrival, fleet)
    }

    fn first_token(&mut self, request: u32, now_s: f64) {
        self.inner.first_token(request, now_s);
    }

    fn complete(&mut self, outcome: &Outcome<'_>) {
        assert!(outcome.cached_tokens < outcome.prompt_tokens || outcome.prompt_tokens <= 16);
        self.inner.complete(outcome);
    }

    fn scale(&mut self, live: usize, now_s: f64) {
        self.inner.scale(live, now_s);
    }

    fn worker_lost(&mut self, worker: usize, now_s: f64) {
        self.inner.worker_lost(worker, now_s);
    }

    fn wants_cache_changes(&self) -> bool {
        self.inner.wants_cache_changes()
    }

    fn cache_changed(&mut self, worker: usize, change: CacheChange, now_s: f64) {
        self.inner.cache_changed(worker, change, now_s);
    }
}

fn policy_named(name: &str, workers: usize, profile: &Profile, workload: &Workload) -> Box<dyn Policy> {
    let options = PolicyOptions::one_router(profile, workload, 1);
    policies::named(name, workers, &options).expect("a known name")
}

fn workload(kind: usize, seed: u64) -> Workload {
    match kind {
        0 => Chatbot {
            sessions: 60,
            tenants: 5,
            sessions_per_s: 20.0,
            think_s: 0.5,
            seed,
            ..Chatbot::default()
        }
        .build(),
        1 => SharedPrefixes {
            prefixes: 8,
            prefix_tokens: 2000,
            duration_s: 4.0,
            seed,
            ..SharedPrefixes::default()
        }
        .build(),
        2 => Bursts { prefix_tokens: 1500, duration_s: 3.0, seed, ..Bursts::default() }.build(),
        _ => {
            let tools = vec![(0.7, 1500), (0.3, 700)];
            AgentLoops { tools, duration_s: 3.0, seed, ..AgentLoops::default() }.build()
        }
    }
}

fn all_names() -> Vec<&'static str> {
    Rule::NAMES.into_iter().chain(PEERS).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever the traffic, the rule, the memory and the mishaps: every request is answered once, in order of its times,
    /// and no worker holds more than it can.
    #[test]
    fn every_request_is_answered_once_and_no_worker_overflows(
        kind in 0usize..4,
        seed in 0u64..1000,
        name in proptest::sample::select(all_names()),
        workers in 2usize..5,
        kv_tokens in 9_000u64..60_000,
        host_tokens in prop_oneof![Just(0u64), 5_000u64..50_000],
        preemption: bool,
        slow in 0.3f64..1.0,
        mishap in 0usize..4,
    ) {
        let workload = workload(kind, seed);
        let profile = Profile { kv_tokens, host_tokens, preemption, max_sequences: 16, ..Profile::default() };
        let mut options = Options { workers, speeds: vec![slow], ..Options::default() };
        match mishap {
            1 => options.losses = vec![Loss { down_s: 1.0, up_s: 2.5 }],
            2 => options.scale = vec![(0.7, workers + 2), (2.0, 1), (3.0, workers)],
            3 => options.clients = Some(5),
            _ => {}
        }
        let inner = policy_named(name, workers + 2, &profile, &workload);
        let watched = Box::new(Watched { inner, capacity_blocks: profile.kv_blocks() });
        let mut simulation = Simulation::new(&workload, profile, options, watched).expect("in range");
        simulation.run(|_| ControlFlow::Continue(()));

        let mut answered = vec![0; workload.requests().len()];
        for answer in simulation.answers() {
            answered[answer.request as usize] += 1;
            let asked = &workload.requests()[answer.request as usize];
            prop_assert!(answer.arrived_s < answer.first_token_s && answer.first_token_s <= answer.done_s);
            prop_assert!(answer.cached_tokens <= asked.prompt_tokens);
        }
        prop_assert!(answered.iter().all(|&times| times <= 1));
        prop_assert_eq!(answered.iter().sum::<usize>() + simulation.refused(), workload.requests().len());
        let report = Report::of(&simulation, 0.0);
        prop_assert_eq!(report.unanswered, 0);
        prop_assert!((0.0..=1.0).contains(&report.hit_rate));
        prop_assert!((0.0..=1.0 + 1e-9).contains(&report.utilisation));
    }
}

/// One short session each second, a hundred of them, of which the last goes on after `think_s`.
fn one_each_second(think_s: Option<f64>) -> Workload {
    let mut build = WorkloadBuilder::new();
    let mut prompt = Vec::new();
    build.extend(&mut prompt, 4000);
    let turn = Turn { prompt: &prompt, output_tokens: 10, answer: None, group: 0 };
    for second in 0..100 {
        let head = build.begin(f64::from(second), &turn);
        if let Some(think_s) = think_s.filter(|_| second == 99) {
            build.follow(head, think_s, &turn);
        }
    }
    build.build()
}

fn report_of(workload: &Workload) -> Report {
    let profile = Profile::default();
    let options = Options { workers: 2, ..Options::default() };
    let policy = policy_named("round_robin", 2, &profile, workload);
    let mut simulation = Simulation::new(workload, profile, options, policy).expect("in range");
    simulation.run(|_| ControlFlow::Continue(()));
    Report::of(&simulation, 0.0)
}

#[test]
fn a_late_last_turn_makes_the_fleet_no_idler() {
    let (without, with) = (report_of(&one_each_second(None)), report_of(&one_each_second(Some(10_000.0))));
    assert_eq!((without.requests, with.requests), (100, 101));
    assert!(with.duration_s > 10_000.0);
    assert!(without.utilisation > 0.0);
    assert_eq!(with.utilisation, without.utilisation);
    assert_eq!(with.throughput_rps, without.throughput_rps);
}

#[test]
fn a_fleet_that_gets_all_at_once_is_measured_to_its_last_answer() {
    let mut workload = one_each_second(None);
    workload.stretch(0.0);
    let report = report_of(&workload);
    assert!((report.throughput_rps - 100.0 / report.duration_s).abs() < 1e-9);
    assert!(report.utilisation > 0.9, "{}", report.utilisation);
}

fn run(spec: &str) -> Vec<u8> {
    let spec = Spec::parse(spec.as_bytes()).expect("a specification");
    spec.run(None, |_| ControlFlow::Continue(())).expect("in range").to_json()
}

#[test]
fn equal_seeds_give_equal_figures_and_others_do_not() {
    for policy in all_names() {
        let spec = |seed| {
            format!(
                r#"{{"source": {{"scenario": {{"name": "agent3@35", "size": 0.1, "seed": {seed}}}}},
                    "policy": "{policy}", "seed": {seed}}}"#
            )
        };
        let first = run(&spec(1));
        assert!(first == run(&spec(1)), "{policy}");
        assert!(first != run(&spec(2)), "{policy}");
    }
}

#[test]
fn memory_for_growing_answers_runs_out_and_sequences_are_pre_empted() {
    let spec = |preemption| {
        format!(
            r#"{{"source": {{"chatbot": {{"sessions": 200, "tenants": 20, "system_tokens": 1000, "turns": 1.0,
                    "answer_tokens": [400, 800], "sessions_per_s": 100.0}}}},
                "policy": "least_outstanding", "options": {{"workers": 2}},
                "profile": {{"step": {{"prefill_tokens_per_s": 22000, "step_s": 0.014, "weight_read_s": 0.008,
                    "per_sequence_s": 4e-5, "per_kv_token_s": 1.8e-8, "per_attention_pair_s": 7e-10}},
                    "step_token_budget": 8192, "max_sequences": 256, "kv_tokens": 40000, "host_tokens": 0,
                    "host_cost": 0.06, "preemption": {preemption}, "gpus": 8}}}}"#
        )
    };
    let figures = |preemption: bool| -> serde_json::Value {
        serde_json::from_slice(&run(&spec(preemption))).expect("JSON")
    };
    let preempted = |found: &serde_json::Value| -> u64 {
        let workers = found["report"]["workers"].as_array().expect("workers");
        workers.iter().filter_map(|worker| worker["preemptions"].as_u64()).sum()
    };
    let (with, without) = (figures(true), figures(false));
    assert!(preempted(&with) > 0);
    assert_eq!(preempted(&without), 0);
    assert_eq!(with["report"]["requests"], without["report"]["requests"]);
}

/// Notes all that a policy is told, with what it chose.
#[derive(Clone)]
struct Noted {
    router: Arc<Router>,
    open: Arc<Mutex<HashMap<u32, DecisionId>>>,
    differ: Arc<Mutex<usize>>,
}

/// Drives a router of its own beside the simulation's and counts where they differ.
struct Shadowed(Trunkline, Noted);

impl Policy for Shadowed {
    fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize {
        let chosen = self.0.place(arrival, fleet);
        let tokens = trunkline_sim::des::spelled(arrival.prompt);
        let now = Millis((arrival.now_s * 1e3) as u64);
        let noted = &self.1;
        let decision =
            noted.router.route(&RouteRequest::new(Prompt::Tokens(&tokens)), now).expect("somebody is live");
        noted.open.lock().insert(arrival.request, decision.id);
        *noted.differ.lock() += usize::from(decision.worker.0 as usize != chosen);
        chosen
    }

    fn first_token(&mut self, request: u32, now_s: f64) {
        self.0.first_token(request, now_s);
        let id = self.1.open.lock()[&request];
        self.1.router.first_token(id, Millis((now_s * 1e3) as u64));
    }

    fn complete(&mut self, outcome: &Outcome<'_>) {
        self.0.complete(outcome);
        let id = self.1.open.lock().remove(&outcome.request).expect("placed before");
        let usage = trunkline_core::Usage {
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: Some(outcome.cached_tokens),
            completion_tokens: outcome.output_tokens,
        };
        self.1.router.complete(id, Some(usage), Millis((outcome.now_s * 1e3) as u64));
    }

    fn scale(&mut self, live: usize, now_s: f64) {
        self.0.scale(live, now_s);
    }
}

/// How many decisions of a router of these settings differ from the simulation's, of how many.
fn differing(config: RouterConfig) -> (usize, usize) {
    let workload = AgentLoops { duration_s: 10.0, ..AgentLoops::default() }.build();
    let profile = Profile::default();
    let capacity_tokens = Some(profile.kv_tokens);
    let router = Router::new(config).expect("in range");
    for worker in 0..4 {
        let spec = WorkerSpec { capacity_tokens, ..WorkerSpec::new(format!("worker-{worker:04}")) };
        router.add_worker(spec).expect("a new name");
    }
    let noted = Noted { router: Arc::new(router), open: Arc::default(), differ: Arc::default() };
    let ours = Trunkline::new(&TrunklineOptions { capacity_tokens, ..TrunklineOptions::default() })
        .expect("in range");
    let options = Options { workers: 4, ..Options::default() };
    let policy = Box::new(Shadowed(ours, noted.clone()));
    let mut simulation = Simulation::new(&workload, profile, options, policy).expect("in range");
    simulation.run(|_| ControlFlow::Continue(()));
    let differ = *noted.differ.lock();
    (differ, simulation.answers().len())
}

#[test]
fn the_router_in_the_simulation_is_that_of_the_core() {
    let (differ, decisions) = differing(RouterConfig::default());
    assert_eq!(differ, 0);
    // One constant of the core changed: it chooses otherwise.
    let (differ, _) = differing(RouterConfig { block_size: 256, ..RouterConfig::default() });
    assert!(differ > decisions / 100, "{differ} of {decisions}");
}

#[test]
fn a_setting_of_the_core_changes_the_figures() {
    let workload = Chatbot { sessions: 300, sessions_per_s: 40.0, ..Chatbot::default() }.build();
    let figures = |concurrency_threshold| {
        let policy = Rule::PrefixAware { prefix_length: 8192, concurrency_threshold };
        let router =
            Trunkline::new(&TrunklineOptions { policy, ..TrunklineOptions::default() }).expect("in range");
        let mut simulation =
            Simulation::new(&workload, Profile::default(), Options::default(), Box::new(router))
                .expect("in range");
        simulation.run(|_| ControlFlow::Continue(()));
        Report::of(&simulation, 0.0)
    };
    let (strict, loose) = (figures(Some(2)), figures(Some(1024)));
    assert!(strict.hit_rate < loose.hit_rate, "{} {}", strict.hit_rate, loose.hit_rate);
    assert!(strict.busiest_over_mean < loose.busiest_over_mean);
}

/// Hit rate of `kv_aware` on new prefixes, each of which is used eight times within two seconds.
fn hit_rate_of_bursts(event_delay_s: Option<f64>) -> f64 {
    let workload = Bursts { gap_s: 0.25, duration_s: 60.0, ..Bursts::default() }.build();
    let profile = Profile::named("study-30k").expect("a known name");
    let told = TrunklineOptions {
        event_delay_s,
        capacity_tokens: Some(profile.kv_tokens),
        ..TrunklineOptions::default()
    };
    let policy = Box::new(Trunkline::new(&told).expect("in range"));
    let mut simulation = Simulation::new(&workload, profile, Options::default(), policy).expect("in range");
    simulation.run(|_| ControlFlow::Continue(()));
    Report::of(&simulation, 0.1).hit_rate
}

#[test]
fn events_a_second_late_cost_a_burst_of_new_prefixes_nothing() {
    let [own, on_time, late] = [None, Some(0.02), Some(1.0)].map(hit_rate_of_bursts);
    println!("hit rate of bursts: {own:.4} own view, {on_time:.4} events on time, {late:.4} events 1 s late");
    assert!(on_time > 0.8, "{on_time}");
    assert!((on_time - late).abs() <= 0.01, "{late} beside {on_time} on time");
    assert!(on_time.min(late) >= own - 0.01, "{on_time}, {late} beside {own} without events");
}
