//! Where prefixes live: figures of a time within a run, and what moved between two times.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::report::{Times, ttft_s};
use super::run::Answer;
use super::workload::Workload;

/// Requests of a prefix that make its main worker known. Source: policy study, section 7.
const KNOWN_FROM: usize = 3;

/// Arrivals from the first of these times up to the second, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window(pub f64, pub f64);

impl Window {
    fn of(self, answers: &[Answer]) -> impl Iterator<Item = &Answer> {
        answers.iter().filter(move |answer| (self.0..self.1).contains(&answer.arrived_s))
    }
}

/// Figures of the requests that arrived in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Windowed {
    /// How many.
    pub requests: usize,
    /// Time to first token.
    pub ttft_s: Times,
    /// Prompt tokens that caches had / prompt tokens.
    pub hit_rate: f64,
    /// Workers that answered requests of the commonest prefix.
    pub hottest_workers: usize,
}

/// What became of the prefixes that were seen often enough in both of two windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Moves {
    /// How many.
    pub prefixes: usize,
    /// Of these, how many have another main worker afterwards.
    pub changed: usize,
    /// Of these, how many lost their main worker because it left.
    pub forced: usize,
    /// How many no longer use their main worker, although it is there.
    pub abandoned: usize,
}

pub(crate) fn windowed(answers: &[Answer], workload: &Workload, window: Window) -> Windowed {
    let (mut times, mut prompt, mut cached) = (Vec::new(), 0u64, 0u64);
    for answer in window.of(answers) {
        times.push(ttft_s(answer));
        prompt += u64::from(workload.requests()[answer.request as usize].prompt_tokens);
        cached += u64::from(answer.cached_tokens);
    }
    let hottest =
        uses(answers, workload, window).into_values().max_by_key(|workers| workers.iter().sum::<usize>());
    Windowed {
        requests: times.len(),
        hit_rate: if prompt == 0 { 0.0 } else { cached as f64 / prompt as f64 },
        ttft_s: Times::of(times),
        hottest_workers: hottest.map_or(0, |workers| workers.iter().filter(|&&uses| uses > 0).count()),
    }
}

/// Requests by worker, for each group.
fn uses(answers: &[Answer], workload: &Workload, window: Window) -> HashMap<u32, Vec<usize>> {
    let mut groups: HashMap<u32, Vec<usize>> = HashMap::new();
    for answer in window.of(answers) {
        let workers = groups.entry(workload.requests()[answer.request as usize].group).or_default();
        let worker = answer.worker as usize;
        workers.resize(workers.len().max(worker + 1), 0);
        workers[worker] += 1;
    }
    groups
}

/// The worker with the most requests, if there are enough to know.
fn main_worker(workers: &[usize]) -> Option<usize> {
    let most = workers.iter().copied().max()?;
    if workers.iter().sum::<usize>() < KNOWN_FROM {
        return None;
    }
    workers.iter().position(|&uses| uses == most)
}

pub(crate) fn moves(
    answers: &[Answer],
    workload: &Workload,
    before: Window,
    after: Window,
    alive: usize,
) -> Moves {
    let (before, after) = (uses(answers, workload, before), uses(answers, workload, after));
    let mut found = Moves::default();
    for (group, workers) in &before {
        let (Some(old), Some(now)) = (main_worker(workers), after.get(group)) else { continue };
        let Some(new) = main_worker(now) else { continue };
        found.prefixes += 1;
        found.changed += usize::from(new != old);
        found.forced += usize::from(old >= alive);
        found.abandoned += usize::from(old < alive && now.get(old).is_none_or(|&uses| uses == 0));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::des::{Segment, Turn, WorkloadBuilder};

    #[test]
    fn a_prefix_that_leaves_a_worker_that_is_there_is_abandoned() {
        let mut builder = WorkloadBuilder::new();
        let mut answers = Vec::new();
        // Prefixes 0 to 2; before, all on worker 0; after, on 0, on 1, and one too seldom to know.
        for (group, count, worker, at_s) in [
            (0, 3, 0, 0.0),
            (1, 3, 0, 0.0),
            (2, 3, 0, 0.0),
            (0, 3, 0, 10.0),
            (1, 3, 1, 10.0),
            (2, 2, 1, 10.0),
        ] {
            for _ in 0..count {
                let prompt = [Segment { id: builder.fresh(), tokens: 10 }];
                let turn = Turn { prompt: &prompt, output_tokens: 1, answer: None, group };
                let request = builder.begin(at_s, &turn);
                let done_s = at_s + 1.0;
                let answer = Answer {
                    request,
                    worker,
                    arrived_s: at_s,
                    first_token_s: done_s,
                    done_s,
                    cached_tokens: 5,
                };
                answers.push(answer);
            }
        }
        let workload = builder.build();
        let found = moves(&answers, &workload, Window(0.0, 5.0), Window(5.0, 15.0), 2);
        assert_eq!(found, Moves { prefixes: 2, changed: 1, forced: 0, abandoned: 1 });
        let found = moves(&answers, &workload, Window(0.0, 5.0), Window(5.0, 15.0), 0);
        assert_eq!((found.forced, found.abandoned), (2, 0));
        let window = windowed(&answers, &workload, Window(0.0, 5.0));
        assert_eq!((window.requests, window.hit_rate, window.hottest_workers), (9, 0.5, 1));
    }
}
