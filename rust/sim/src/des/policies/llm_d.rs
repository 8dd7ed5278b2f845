//! The endpoint picker of llm-d: a weighted sum of normalised scores over polled metrics.
//!
//! Source: github.com/llm-d/llm-d-inference-scheduler, precise prefix cache scorer 3, queue scorer 2, KV cache utilisation
//! scorer 2. The prefix score is the cached share of the prompt; the queue score is linear between the longest and the
//! shortest queue; ties by chance.

use super::peer::{Rule, View};

const PREFIX: f64 = 3.0;
const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;

/// The rule.
pub(super) struct LlmD;

impl Rule for LlmD {
    fn polls(&self) -> bool {
        true
    }

    fn choose(&mut self, view: &mut View<'_>) -> usize {
        let queues = view.polled[..view.live].iter().map(|status| status.waiting);
        let (longest, shortest) = (queues.clone().max().unwrap_or(0), queues.min().unwrap_or(0));
        view.least(|view, worker| {
            let status = &view.polled[worker];
            let queue = if longest == shortest {
                1.0
            } else {
                f64::from(longest - status.waiting) / f64::from(longest - shortest)
            };
            let prefix = f64::from(view.hits[worker]) / f64::from(view.arrival.prompt_tokens);
            -(PREFIX * prefix + QUEUE * queue + KV * (1.0 - status.kv_use))
        })
    }
}
