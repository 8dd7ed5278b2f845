//! The KV router of NVIDIA Dynamo: prefill blocks and decode blocks, the least of their sum.
//!
//! Source: github.com/ai-dynamo/dynamo, lib/kv-router, scheduling: `overlap_weight * prefill blocks + decode blocks`, with
//! weight 1 and temperature 0. Prefill blocks are those queued and the request's own uncached ones; decode blocks are those of
//! active requests, of which a shared one counts once. Queued tokens leave at the first token.

use std::collections::HashMap;

use super::index::depths;
use super::peer::{Rule, View};
use crate::des::profile::BLOCK_TOKENS;
use crate::des::{Arrival, Outcome};

const OVERLAP_WEIGHT: f64 = 1.0;

/// The rule.
#[derive(Default)]
pub(super) struct Dynamo {
    /// For each router: active requests by segment and worker, the workers of each segment, and active tokens by worker.
    active: Vec<Active>,
    answers: HashMap<u32, u32>,
}

#[derive(Default)]
struct Active {
    uses: HashMap<(u32, usize), u32>,
    holders: HashMap<u32, u128>,
    tokens: Vec<u64>,
}

impl Dynamo {
    fn active(&mut self, router: usize, workers: usize) -> &mut Active {
        while self.active.len() <= router {
            self.active.push(Active::default());
        }
        let active = &mut self.active[router];
        if active.tokens.len() < workers {
            active.tokens.resize(workers, 0);
        }
        active
    }
}

impl Rule for Dynamo {
    fn choose(&mut self, view: &mut View<'_>) -> usize {
        let active = self.active(view.arrival.router, view.live);
        let mut shared = Vec::new();
        let holders = |segment| active.holders.get(&segment).copied().unwrap_or(0);
        depths(view.arrival.prompt, view.live, holders, &mut shared);
        let tokens = active.tokens.clone();
        let block = f64::from(BLOCK_TOKENS);
        view.least(|view, worker| {
            let own = f64::from(view.arrival.prompt_tokens - view.hits[worker]);
            let prefill = (own + view.loads[worker].queued_tokens as f64) / block;
            let new = f64::from(view.arrival.prompt_tokens - shared[worker]);
            OVERLAP_WEIGHT * prefill + (tokens[worker] as f64 + new) / block
        })
    }

    fn sent(&mut self, arrival: &Arrival<'_>, worker: usize) {
        self.answers.insert(arrival.request, arrival.output_tokens);
        let active = self.active(arrival.router, worker + 1);
        active.tokens[worker] += u64::from(arrival.output_tokens);
        for segment in arrival.prompt {
            let uses = active.uses.entry((segment.id, worker)).or_default();
            *uses += 1;
            if *uses == 1 {
                active.tokens[worker] += u64::from(segment.tokens);
                *active.holders.entry(segment.id).or_default() |= 1 << worker;
            }
        }
    }

    fn ended(&mut self, outcome: &Outcome<'_>) {
        let Some(answer) = self.answers.remove(&outcome.request) else { return };
        let worker = outcome.worker;
        let active = self.active(outcome.router, worker + 1);
        active.tokens[worker] -= u64::from(answer);
        for segment in outcome.prompt {
            let Some(uses) = active.uses.get_mut(&(segment.id, worker)) else { continue };
            *uses -= 1;
            if *uses == 0 {
                active.uses.remove(&(segment.id, worker));
                active.tokens[worker] -= u64::from(segment.tokens);
                if let Some(holders) = active.holders.get_mut(&segment.id) {
                    *holders &= !(1 << worker);
                    if *holders == 0 {
                        active.holders.remove(&segment.id);
                    }
                }
            }
        }
    }
}
