//! `cache_aware` of sglang-router and vllm-router: an approximate tree, and shortest queue when loads part.
//!
//! Source: github.com/sgl-project/sglang, sgl-router, policies/cache_aware.rs (cache_threshold 0.5, balance_abs_threshold 64,
//! balance_rel_threshold 1.5): if the largest load exceeds the smallest by both thresholds, the shortest queue; else the best
//! match if it covers more than the threshold, else the smallest tree.

use super::peer::{Rule, View};

const MATCH: f64 = 0.5;
const ABSOLUTE: i64 = 64;
const RELATIVE: f64 = 1.5;

/// The rule.
pub(super) struct CacheAware;

impl Rule for CacheAware {
    fn choose(&mut self, view: &mut View<'_>) -> usize {
        let in_flight = view.loads[..view.live].iter().map(|load| load.in_flight);
        let (most, least) = (in_flight.clone().max().unwrap_or(0), in_flight.min().unwrap_or(0));
        if most - least > ABSOLUTE && most as f64 > RELATIVE * least as f64 {
            return first(view, |view, worker| view.loads[worker].in_flight == least);
        }
        let deepest = view.deepest();
        if f64::from(deepest) > MATCH * f64::from(view.arrival.prompt_tokens) {
            return first(view, |view, worker| view.hits[worker] == deepest);
        }
        let router = view.arrival.router;
        view.least(|view, worker| view.index.map_or(0, |index| index.size_tokens(router, worker)) as f64)
    }
}

fn first(view: &View<'_>, is: impl Fn(&View<'_>, usize) -> bool) -> usize {
    (0..view.live).find(|&worker| is(view, worker)).unwrap_or(0)
}
