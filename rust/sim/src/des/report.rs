//! What a simulation found: times, hits, balance, and what it would have cost.

use std::ops::Range;

use serde::Serialize;

use super::run::{Answer, Simulation};

/// Parts into which the time of a run is cut for its timeline.
const BINS: usize = 60;

/// Quantiles and mean of a time, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Median.
    pub p50: f64,
    /// 90 % are not longer.
    pub p90: f64,
    /// 99 % are not longer.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

impl Times {
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((share * times.len() as f64) as usize).min(times.len() - 1)];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), mean }
    }
}

/// One worker's share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WorkerReport {
    /// Requests that it answered.
    pub requests: u64,
    /// Their prompt tokens that it computed.
    pub uncached_tokens: u64,
    /// Time in which it computed.
    pub busy_s: f64,
    /// Blocks that its cache lost to others.
    pub evicted_blocks: u64,
    /// Sequences that it pre-empted.
    pub preemptions: u64,
}

/// A part of the time of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bin {
    /// Its middle, from the first arrival.
    pub at_s: f64,
    /// Requests that arrived in it.
    pub requests: u64,
    /// Their median time to first token in seconds.
    pub ttft_p50: f64,
    /// Their 99th percentile.
    pub ttft_p99: f64,
    /// Their hit rate.
    pub hit_rate: f64,
    /// Prompt tokens that each worker computed for them.
    pub uncached_tokens: Vec<u64>,
}

/// Figures of one run. Ratios between policies carry over to real fleets, absolute times do not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered.
    pub requests: usize,
    /// Requests longer than a worker's cache, which were not simulated.
    pub refused: usize,
    /// Requests that were not answered when the run was stopped.
    pub unanswered: usize,
    /// Time to first token.
    pub ttft_s: Times,
    /// Time to last token.
    pub e2e_s: Times,
    /// Time per token after the first.
    pub tpot_s: Times,
    /// Prompt tokens that caches had / prompt tokens.
    pub hit_rate: f64,
    /// The same of an endless cache that all workers share.
    pub ideal_hit_rate: f64,
    /// Answers per second while the middle 80 % of the requests arrived: what the fleet keeps up with, and no backlog that it
    /// works off later.
    pub throughput_rps: f64,
    /// Tokens of answers per second.
    pub output_tokens_per_s: f64,
    /// From the first arrival to the last answer.
    pub duration_s: f64,
    /// Most requests of one live worker / mean of them.
    pub busiest_over_mean: f64,
    /// The same of the time in which workers compute.
    pub busy_over_mean: f64,
    /// Share of the time of `throughput_rps` in which live workers compute.
    pub utilisation: f64,
    /// GPU-seconds that the fleet stood there for one answer of that time.
    pub gpu_s_per_request: f64,
    /// GPU-seconds that the fleet computed for one request.
    pub busy_gpu_s_per_request: f64,
    /// Each worker.
    pub workers: Vec<WorkerReport>,
    /// The run in parts.
    pub timeline: Vec<Bin>,
}

impl Report {
    /// The figures of a run; of the first `skip` of the arrivals (a share below 1) nothing counts, while caches warm up.
    #[must_use]
    pub fn of(simulation: &Simulation<'_>, skip: f64) -> Self {
        let workload = simulation.workload();
        let mut answers = simulation.answers().to_vec();
        let all = answers.len();
        answers.sort_by(|a, b| a.arrived_s.total_cmp(&b.arrived_s).then(a.request.cmp(&b.request)));
        answers.drain(..((skip.clamp(0.0, 1.0) * all as f64) as usize).min(all));
        let mut report = Self {
            requests: answers.len(),
            refused: simulation.refused(),
            unanswered: workload.requests().len() - all - simulation.refused(),
            ideal_hit_rate: workload.ideal_hit_rate(),
            ..Self::default()
        };
        let (workers, live) = simulation.workers();
        report.workers = workers
            .iter()
            .map(|worker| WorkerReport {
                busy_s: worker.busy_s(&(0.0..f64::INFINITY)),
                evicted_blocks: worker.evicted_blocks,
                preemptions: worker.preemptions,
                ..WorkerReport::default()
            })
            .collect();
        if answers.is_empty() {
            return report;
        }
        let asked = |answer: &Answer| &workload.requests()[answer.request as usize];
        report.ttft_s = Times::of(answers.iter().map(ttft_s).collect());
        report.e2e_s = Times::of(answers.iter().map(|answer| answer.done_s - answer.arrived_s).collect());
        let several = answers.iter().filter(|answer| asked(answer).output_tokens > 1);
        let per_token = |answer: &Answer| {
            (answer.done_s - answer.first_token_s) / f64::from(asked(answer).output_tokens - 1)
        };
        report.tpot_s = Times::of(several.map(per_token).collect());
        let prompt: u64 = answers.iter().map(|answer| u64::from(asked(answer).prompt_tokens)).sum();
        let cached: u64 = answers.iter().map(|answer| u64::from(answer.cached_tokens)).sum();
        report.hit_rate = cached as f64 / prompt as f64;
        for answer in &answers {
            let worker = &mut report.workers[answer.worker as usize];
            worker.requests += 1;
            worker.uncached_tokens += u64::from(asked(answer).prompt_tokens - answer.cached_tokens);
        }
        let start_s = answers[0].arrived_s;
        let end_s = answers.iter().map(|answer| answer.done_s).fold(1e-9, f64::max);
        report.duration_s = end_s - start_s;
        let (window_s, done) = window(&answers, simulation.answers());
        let width_s = window_s.end - window_s.start;
        report.throughput_rps = done as f64 / width_s;
        let busy_s: f64 = workers[..live].iter().map(|worker| worker.busy_s(&window_s)).sum();
        report.utilisation = busy_s / (live as f64 * width_s);
        let output: u64 = answers.iter().map(|answer| u64::from(asked(answer).output_tokens)).sum();
        report.output_tokens_per_s = output as f64 / report.duration_s.max(1e-9);
        report.balance(live);
        // Busy time of workers counts from the beginning, so it is held against all answers.
        let gpus = f64::from(simulation.profile().gpus);
        let busy_s: f64 = report.workers.iter().map(|worker| worker.busy_s).sum();
        report.busy_gpu_s_per_request = gpus * busy_s / all as f64;
        report.gpu_s_per_request = gpus * live as f64 / report.throughput_rps;
        report.timeline = timeline(&answers, simulation);
        report
    }

    fn balance(&mut self, live: usize) {
        let over_mean = |values: Vec<f64>| {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            if mean > 0.0 { values.iter().copied().fold(0.0, f64::max) / mean } else { 0.0 }
        };
        let live = &self.workers[..live];
        self.busiest_over_mean = over_mean(live.iter().map(|worker| worker.requests as f64).collect());
        self.busy_over_mean = over_mean(live.iter().map(|worker| worker.busy_s).collect());
    }
}

/// The time in which the middle 80 % of `counted`, by arrival, arrived, and how many of `all` were answered in it; if none was
/// (they arrived at once), the time from the first arrival to the last answer with all of `counted`.
fn window(counted: &[Answer], all: &[Answer]) -> (Range<f64>, usize) {
    let n = counted.len();
    let middle_s = counted[n / 10].arrived_s..counted[(n * 9 / 10).min(n - 1)].arrived_s;
    let done = all.iter().filter(|answer| middle_s.contains(&answer.done_s)).count();
    if done > 0 {
        return (middle_s, done);
    }
    let end_s = counted.iter().map(|answer| answer.done_s).fold(0.0, f64::max);
    (counted[0].arrived_s..end_s, n)
}

pub(crate) fn ttft_s(answer: &Answer) -> f64 {
    answer.first_token_s - answer.arrived_s
}

/// The run in [`BINS`] parts of equal time, by arrival.
fn timeline(answers: &[Answer], simulation: &Simulation<'_>) -> Vec<Bin> {
    let (start_s, last_s) = (answers[0].arrived_s, answers[answers.len() - 1].arrived_s);
    let width_s = ((last_s - start_s) / BINS as f64).max(1e-9);
    let (workers, _) = simulation.workers();
    let requests = simulation.workload().requests();
    let bin_of = |answer: &Answer| (((answer.arrived_s - start_s) / width_s) as usize).min(BINS - 1);
    answers
        .chunk_by(|a, b| bin_of(a) == bin_of(b))
        .map(|part| {
            let mut uncached_tokens = vec![0; workers.len()];
            let (mut prompt, mut cached) = (0, 0);
            for answer in part {
                let prompt_tokens = requests[answer.request as usize].prompt_tokens;
                uncached_tokens[answer.worker as usize] += u64::from(prompt_tokens - answer.cached_tokens);
                prompt += u64::from(prompt_tokens);
                cached += u64::from(answer.cached_tokens);
            }
            let times = Times::of(part.iter().map(ttft_s).collect());
            Bin {
                at_s: (bin_of(&part[0]) as f64 + 0.5) * width_s,
                requests: part.len() as u64,
                ttft_p50: times.p50,
                ttft_p99: times.p99,
                hit_rate: cached as f64 / prompt as f64,
                uncached_tokens,
            }
        })
        .collect()
}
