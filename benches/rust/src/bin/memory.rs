//! The soak: routes 10 million different prompts through one router and watches what the process keeps resident.
//!
//! `memory [PROMPTS] [BUDGET_MIB]` prints one JSON object: a sample after each twentieth of the prompts, and whether memory
//! stayed within the budget and a fifth, and flat over the second half, with as much remembered at its end as at its
//! beginning. Exit code 1 if not. `make bench-memory` runs it.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Instant;

use trunkline_benches::workload::Numbers;
use trunkline_benches::{cpu, memory};
use trunkline_core::{Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerId, WorkerSpec};

const WORKERS: usize = 64;
const SAMPLES: usize = 20;
/// System prompts that questions begin with, in tokens.
const SYSTEM_TOKENS: [usize; 4] = [0, 64, 512, 2048];
/// Longest question, in tokens.
const QUESTION_TOKENS: usize = 512;
/// Requests that run at any time.
const IN_FLIGHT: usize = 256;
/// One prompt in so many is hot: it goes to 2 workers or more, at most so many.
const HOT_EVERY: usize = 8;
const HOT_WORKERS: usize = 12;
/// The process may keep this much of the budget resident, all that it needs besides included.
const WITHIN: f64 = 1.2;
/// Growth over the second half that counts as flat, in MiB.
const FLAT_MIB: f64 = 1.0;
/// Share of the blocks that must be left after the second half.
const KEPT: f64 = 0.95;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let prompts: usize = arguments.next().unwrap_or(10_000_000);
    let budget_mib: usize = arguments.next().unwrap_or(64);
    let config = RouterConfig { memory_budget: budget_mib << 20, ..RouterConfig::default() };
    let router = Router::new(config).expect("a valid configuration");
    let add = |worker| router.add_worker(WorkerSpec::new(format!("w{worker}"))).expect("a new name");
    let workers: Vec<WorkerId> = (0..WORKERS).map(add).collect();
    let mut numbers = Numbers::new(7);
    let systems = SYSTEM_TOKENS.map(|tokens| {
        let mut system = Vec::new();
        numbers.tokens(tokens, &mut system);
        system
    });
    let (started, cpu_started) = (Instant::now(), cpu::now());
    let (mut running, mut samples, mut prompt) = (VecDeque::new(), Vec::new(), Vec::new());
    for number in 1..=prompts {
        prompt.clone_from(&systems[numbers.below(systems.len())]);
        let question = 16 + numbers.below(QUESTION_TOKENS - 16);
        numbers.tokens(question, &mut prompt);
        let now = Millis(started.elapsed().as_millis() as u64);
        let is_hot = numbers.below(HOT_EVERY) == 0;
        let copies = if is_hot { 2 + numbers.below(HOT_WORKERS - 1) } else { 1 };
        let first = numbers.below(WORKERS - copies);
        for at in workers[first..first + copies].chunks(1) {
            let eligible = is_hot.then_some(at);
            let request = RouteRequest { eligible, ..RouteRequest::new(Prompt::Tokens(&prompt)) };
            let decision = router.route(&request, now).expect("workers live");
            running.push_back(decision.id);
            if running.len() > IN_FLIGHT {
                let done = running.pop_front().expect("some run");
                assert!(router.complete(done, None, now));
            }
        }
        if number % (prompts / SAMPLES).max(1) == 0 {
            samples.push((number, resident_mib(), router.stats()));
        }
    }
    let cpu_s = (cpu::now() - cpu_started).as_secs_f64();
    let peak_mib = samples.iter().map(|&(_, resident, _)| resident).fold(0.0, f64::max);
    let second_half = samples[samples.len() / 2..].iter().map(|&(_, resident, _)| resident);
    let growth_mib = second_half.clone().fold(0.0, f64::max) - samples[samples.len() / 2].1;
    let blocks = |at: usize| samples[at].2.index_blocks as f64;
    let keeps = blocks(samples.len() - 1) >= KEPT * blocks(samples.len() / 2);
    let passed = peak_mib <= WITHIN * budget_mib as f64 && growth_mib <= FLAT_MIB && keeps;
    let lines: Vec<String> = samples
        .iter()
        .map(|(number, resident, stats)| {
            format!(
                "    {{\"prompts\": {number}, \"resident_mib\": {resident:.1}, \"index_mib\": {:.1}, \"index_blocks\": {}, \
                 \"evicted_blocks\": {}}}",
                stats.index_bytes as f64 / f64::from(1 << 20),
                stats.index_blocks,
                stats.evicted_blocks
            )
        })
        .collect();
    println!(
        "{{\n  \"prompts\": {prompts}, \"budget_mib\": {budget_mib}, \"workers\": {WORKERS}, \"cpu_s\": {cpu_s:.1},\n  \
         \"peak_resident_mib\": {peak_mib:.1}, \"second_half_growth_mib\": {growth_mib:.2}, \"passed\": {passed},\n  \
         \"samples\": [\n{}\n  ]\n}}",
        lines.join(",\n")
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the process keeps in memory.
fn resident_mib() -> f64 {
    memory::resident() as f64 / f64::from(1 << 20)
}
