//! Consistent hashing with bounded loads, on the first tokens of a prompt.
//!
//! Source: Mirrokni, Thorup and Zadimoghaddam, 2016 (arXiv:1608.01350), as KubeAI uses it: a ring of 100 points per worker; walk
//! on from the key until a worker has at most 1.25 times the mean. The key covers whole segments.

use super::peer::{Rule, View};
use crate::des::rng::mix;

const POINTS: u64 = 100;
const BOUND: f64 = 1.25;

/// The rule.
pub(super) struct BoundedRing {
    prefix_tokens: u32,
    ring: Vec<(u64, usize)>,
    workers: usize,
}

impl BoundedRing {
    pub(super) fn new(prefix_tokens: u32) -> Self {
        Self { prefix_tokens, ring: Vec::new(), workers: 0 }
    }

    fn build(&mut self, workers: usize) {
        let point = |worker: usize, number| mix(worker as u64 * 1_000_003 + number * 7_919 + 5);
        self.ring =
            (0..workers).flat_map(|worker| (0..POINTS).map(move |at| (point(worker, at), worker))).collect();
        self.ring.sort_unstable();
        self.workers = workers;
    }
}

impl Rule for BoundedRing {
    fn choose(&mut self, view: &mut View<'_>) -> usize {
        if self.workers != view.live {
            self.build(view.live);
        }
        let mut tokens = 0;
        let mut key = 0;
        for segment in view.arrival.prompt {
            if tokens >= self.prefix_tokens {
                break;
            }
            (key, tokens) = (u64::from(segment.id), tokens + segment.tokens);
        }
        let key = mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(77));
        let all: i64 = view.loads[..view.live].iter().map(|load| load.in_flight).sum();
        let bound = (BOUND * (all + 1) as f64 / view.live as f64).max(1.0);
        let start = self.ring.partition_point(|&(point, _)| point < key);
        let onwards = self.ring[start..].iter().chain(&self.ring[..start]);
        let fits = |worker: usize| (view.loads[worker].in_flight + 1) as f64 <= bound;
        let found = onwards.map(|&(_, worker)| worker).find(|&worker| fits(worker));
        found.unwrap_or_else(|| view.least(|view, worker| view.loads[worker].in_flight as f64))
    }
}
