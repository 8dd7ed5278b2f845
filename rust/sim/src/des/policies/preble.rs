//! E2 of Preble, simplified: exploit the holder when more is cached than not, else explore by load over a window.
//!
//! Source: Srivatsa et al., ICLR 2025 (arXiv:2407.00023): among the holders the least loaded of the last 3 minutes; a worker with
//! twice the load of the lightest gives its request to that one. Its per-GPU regressions are the profile's prefill rate here.

use std::collections::VecDeque;

use super::peer::{Rule, View};
use crate::des::Outcome;
use crate::des::profile::BLOCK_TOKENS;

const WINDOW_S: f64 = 180.0;
const IMBALANCE: f64 = 2.0;
/// Slack of the imbalance, and load of one token of an answer, in seconds.
const SLACK_S: f64 = 1.0;
const DECODE_S: f64 = 0.0005;
const ANSWER_WEIGHT: f64 = 0.02;

/// The rule.
pub(super) struct Preble {
    /// By worker: what was sent there within the window, and its sum.
    sent: Vec<VecDeque<(f64, f64)>>,
    loads_s: Vec<f64>,
    mean_answer: f64,
}

impl Default for Preble {
    fn default() -> Self {
        Self { sent: Vec::new(), loads_s: Vec::new(), mean_answer: 200.0 }
    }
}

impl Rule for Preble {
    fn choose(&mut self, view: &mut View<'_>) -> usize {
        let now_s = view.arrival.now_s;
        let most = view.live.max(self.sent.len());
        self.sent.resize_with(most, VecDeque::new);
        self.loads_s.resize(most, 0.0);
        for (sent, load_s) in self.sent.iter_mut().zip(&mut self.loads_s) {
            while let Some((_, cost_s)) = sent.pop_front_if(|(at_s, _)| *at_s < now_s - WINDOW_S) {
                *load_s -= cost_s;
            }
        }
        let per_token_s = 1.0 / view.fleet.profile().step.prefill_tokens_per_s;
        let prompt = view.arrival.prompt_tokens;
        let deepest = view.deepest();
        let loads_s = &self.loads_s;
        let lightest = |among: &dyn Fn(usize) -> bool| {
            let some = (0..view.live).filter(|&worker| among(worker));
            some.min_by(|&a, &b| loads_s[a].total_cmp(&loads_s[b])).unwrap_or(0)
        };
        let worker = if deepest > prompt - deepest {
            let holder = lightest(&|worker| view.hits[worker] + BLOCK_TOKENS >= deepest);
            let least = lightest(&|_| true);
            if loads_s[holder] > IMBALANCE * loads_s[least] + SLACK_S { least } else { holder }
        } else {
            view.least(|view, worker| loads_s[worker] + per_token_s * f64::from(prompt - view.hits[worker]))
        };
        let cost_s = per_token_s * f64::from(prompt - view.hits[worker]) + self.mean_answer * DECODE_S;
        self.sent[worker].push_back((now_s, cost_s));
        self.loads_s[worker] += cost_s;
        worker
    }

    fn ended(&mut self, outcome: &Outcome<'_>) {
        if outcome.output_tokens > 0 {
            self.mean_answer += ANSWER_WEIGHT * (f64::from(outcome.output_tokens) - self.mean_answer);
        }
    }
}
