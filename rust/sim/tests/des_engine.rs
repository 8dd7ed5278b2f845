//! The simulated worker against the policy study's: the same requests on the same workers, request by request.
//!
//! `data/study_engine.json` holds four small workloads with the placements and the times that the study's Python simulator
//! gave them. Placements are replayed, so only the worker model is compared: batching, prefix cache, eviction, host tier,
//! speeds, a lost worker. Times must agree within 1 microsecond, cached tokens exactly.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use serde::Deserialize;
use trunkline_sim::des::{
    Arrival, Fleet, Loss, Options, Policy, Profile, Segment, Simulation, Turn, Workload, WorkloadBuilder,
};

const TOLERANCE_S: f64 = 1e-6;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    workers: usize,
    segments: u32,
    profile: Profile,
    speeds: Vec<f64>,
    losses: Vec<(f64, f64)>,
    requests: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    at_s: f64,
    think_s: f64,
    next: Option<u32>,
    output_tokens: u32,
    prompt: Vec<(u32, u32)>,
    answer: Option<u32>,
    head: bool,
    workers: Vec<usize>,
    ttft_s: f64,
    e2e_s: f64,
    cached: u32,
}

/// Sends each request where it was sent before.
struct Recorded(Vec<VecDeque<usize>>);

impl Policy for Recorded {
    fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize {
        let worker = self.0[arrival.request as usize].pop_front().expect("as many arrivals as recorded");
        assert!(worker < fleet.live());
        worker
    }
}

fn workload(case: &Case) -> Workload {
    let mut builder = WorkloadBuilder::new();
    (0..case.segments).for_each(|_| {
        builder.fresh();
    });
    let mut before: Vec<Option<u32>> = vec![None; case.requests.len()];
    for (number, asked) in case.requests.iter().enumerate() {
        if let Some(next) = asked.next {
            before[next as usize] = Some(number as u32);
        }
        let prompt: Vec<Segment> = asked.prompt.iter().map(|&(id, tokens)| Segment { id, tokens }).collect();
        let turn =
            Turn { prompt: &prompt, output_tokens: asked.output_tokens, answer: asked.answer, group: 0 };
        let made = match before[number] {
            Some(previous) => builder.follow(previous, asked.think_s, &turn),
            None => {
                assert!(asked.head, "requests come session by session");
                builder.begin(asked.at_s, &turn)
            }
        };
        assert_eq!(made as usize, number);
    }
    builder.build()
}

#[test]
fn every_request_takes_as_long_as_in_the_study() {
    let golden: Golden = serde_json::from_str(include_str!("data/study_engine.json")).unwrap();
    assert_eq!(golden.cases.len(), 4);
    for case in golden.cases {
        let workload = workload(&case);
        let placements = case.requests.iter().map(|asked| asked.workers.iter().copied().collect()).collect();
        let options = Options {
            workers: case.workers,
            speeds: case.speeds.clone(),
            losses: case.losses.iter().map(|&(down_s, up_s)| Loss { down_s, up_s }).collect(),
            ..Options::default()
        };
        let policy = Box::new(Recorded(placements));
        let mut simulation = Simulation::new(&workload, case.profile, options, policy).unwrap();
        simulation.run(|_| ControlFlow::Continue(()));
        assert_eq!(simulation.answers().len(), case.requests.len(), "{}", case.name);
        for answer in simulation.answers() {
            let asked = &case.requests[answer.request as usize];
            let (ttft_s, e2e_s) = (answer.first_token_s - answer.arrived_s, answer.done_s - answer.arrived_s);
            let of = format!("{}, request {}", case.name, answer.request);
            assert_eq!(answer.cached_tokens, asked.cached, "{of}");
            assert!((ttft_s - asked.ttft_s).abs() < TOLERANCE_S, "{of}: {ttft_s} for {}", asked.ttft_s);
            assert!((e2e_s - asked.e2e_s).abs() < TOLERANCE_S, "{of}: {e2e_s} for {}", asked.e2e_s);
        }
    }
}
