//! Workers as the router sees them: what is booked on each, whether it may take requests, how fast it proved to be.

use std::num::NonZeroU64;

use crate::error::Error;
use crate::index::ViewId;
use crate::router::Millis;
use crate::view::{Cache, CacheView, Known};

/// Names a worker of one router. Ids are small and never given to a worker of another name; a worker that returns while
/// its slots are free has its id again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct WorkerId(pub u32);

/// Largest weight of a worker: its share of the prompts that nobody holds, in slots.
pub const MAX_WEIGHT: u32 = 64;

/// What to add to a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSpec {
    /// Its stable name, usually its URL. Replicas that use equal names agree on homes.
    pub name: String,
    /// Where it is reached, if its name does not say so. Handed back, never looked at.
    pub endpoint: Option<String>,
    /// Slots in the selector, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Size of its KV cache in tokens (`num_gpu_blocks * block_size`); `None` if unknown.
    pub capacity_tokens: Option<u64>,
    /// Time it needs relative to the fleet (2 = half as fast), 0.1 to 10; `None` to learn it.
    pub slowness: Option<f64>,
}

impl WorkerSpec {
    /// A worker of weight 1 of which nothing else is known.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), endpoint: None, weight: 1, capacity_tokens: None, slowness: None }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            let allowed = format!("1 to {MAX_WEIGHT}");
            return Err(Error::Config { key: "weight", value: self.weight.to_string(), allowed });
        }
        match self.slowness {
            Some(slowness) if !(0.1..=10.0).contains(&slowness) => Err(Error::Config {
                key: "slowness",
                value: slowness.to_string(),
                allowed: "0.1 to 10".into(),
            }),
            _ => Ok(()),
        }
    }
}

/// A worker's state at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// Its stable name.
    pub name: String,
    /// Where it is reached, if that was told.
    pub endpoint: Option<String>,
    /// Slots in the selector.
    pub weight: u32,
    /// Whether probes and requests succeed.
    pub healthy: bool,
    /// Whether it takes nothing new.
    pub draining: bool,
    /// Size of its KV cache in tokens, if known.
    pub capacity_tokens: Option<u64>,
    /// Requests sent and not finished.
    pub in_flight: u32,
    /// Requests of others there, as it told a moment ago.
    pub other_in_flight: u32,
    /// Prefill tokens sent that have produced no first byte yet.
    pub queued_tokens: u64,
    /// Blocks that it is believed to hold, by the view that counts.
    pub cached_blocks: u64,
    /// From where its cache is known.
    pub cache_view: CacheView,
    /// Slowness in use, 1 = like the fleet.
    pub slowness: f64,
    /// Requests sent so far.
    pub decisions: u64,
    /// Prompt tokens sent so far, as estimated.
    pub prompt_tokens: u64,
    /// Prompt tokens that were believed cached when they were sent.
    pub matched_tokens: u64,
    /// Prompt tokens that its answers reported.
    pub reported_prompt_tokens: u64,
    /// Cached prompt tokens that its answers reported.
    pub reported_cached_tokens: u64,
}

/// What the router keeps of a worker beside its [`Standing`].
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) spec: WorkerSpec,
    pub(crate) healthy: bool,
    pub(crate) draining: bool,
    pub(crate) speed: Speed,
    pub(crate) counters: Counters,
    pub(crate) cache: Cache,
    /// Until when what it told of others' requests counts.
    pub(crate) others_until: Millis,
}

impl Worker {
    /// A worker that may take requests and has had none.
    pub(crate) fn new(spec: WorkerSpec) -> Self {
        Self {
            spec,
            healthy: true,
            draining: false,
            speed: Speed::default(),
            counters: Counters::default(),
            cache: Cache::default(),
            others_until: Millis(0),
        }
    }

    /// Whether it may take requests.
    pub(crate) fn is_live(&self) -> bool {
        self.healthy && !self.draining
    }
}

/// What a choice reads of a worker and a booking changes: one cache line.
///
/// Loads are whole numbers, so that a worker that is idle again is exactly like one that never worked.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Standing {
    pub(crate) view: ViewId,
    pub(crate) known: Known,
    /// Requests of others, as the worker itself told a moment ago.
    pub(crate) other_in_flight: u16,
    pub(crate) in_flight: u32,
    pub(crate) queued_tokens: u64,
    /// KV tokens beside the pinned blocks: expected answers and the part of a prompt that is no whole block.
    pub(crate) answer_tokens: u64,
    /// Blocks of its view that bookings pin, a block that several of them share counted once.
    pub(crate) pinned_blocks: u32,
    /// `None` if unknown.
    pub(crate) capacity_tokens: Option<NonZeroU64>,
    pub(crate) slowness: f64,
    /// Bookings of an earlier incarnation under the same id count nowhere; `None` for a worker that left.
    pub(crate) incarnation: Option<NonZeroU64>,
}

impl Standing {
    /// All requests there, ours and others'.
    #[inline]
    pub(crate) fn requests(&self) -> u32 {
        self.in_flight + u32::from(self.other_in_flight)
    }

    /// Of a worker that left.
    pub(crate) fn left() -> Self {
        Self {
            view: ViewId::NONE,
            known: Known::Own,
            other_in_flight: 0,
            in_flight: 0,
            queued_tokens: 0,
            answer_tokens: 0,
            pinned_blocks: 0,
            capacity_tokens: None,
            slowness: 1.0,
            incarnation: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) decisions: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) matched_tokens: u64,
    pub(crate) reported_prompt_tokens: u64,
    pub(crate) reported_cached_tokens: u64,
}

/// Pairs of queued tokens and time to first token that a worker must have shown before its slowness counts. With 200 a
/// fleet of mixed speeds learns too late (P99 1.07 times that of a rule that learns nothing, in the study's `mixlong`),
/// with 32 it is 0.75 times, with 20 0.65 times.
const SPEED_PAIRS: u32 = 20;

/// A worker's time to first token against what the fleet would have needed.
///
/// Source: policy study, section 2 (`s_w`), with steps of 1/4 so that small drifts do not break ties.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Speed {
    observed_s: f64,
    expected_s: f64,
    pairs: u32,
}

impl Speed {
    /// Seconds observed, seconds expected, pairs: for a snapshot.
    pub(crate) fn parts(&self) -> (f64, f64, u32) {
        (self.observed_s, self.expected_s, self.pairs)
    }

    pub(crate) fn of_parts(observed_s: f64, expected_s: f64, pairs: u32) -> Self {
        Self { observed_s, expected_s, pairs }
    }

    /// 1 unless the worker is clearly off the fleet.
    pub(crate) fn slowness(&self) -> f64 {
        // Shrunk towards 1 by one second of evidence.
        let ratio = (self.observed_s + 1.0) / (self.expected_s + 1.0);
        if self.pairs < SPEED_PAIRS || (0.8..=1.25).contains(&ratio) {
            return 1.0;
        }
        ((ratio * 4.0).round() / 4.0).clamp(0.5, 4.0)
    }
}

/// The fleet's line `time to first token = a + b * queued tokens`, fitted with decay 0.998 per sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FleetSpeed {
    n: f64,
    x: f64,
    t: f64,
    xx: f64,
    xt: f64,
}

impl FleetSpeed {
    /// The sums of the fit: for a snapshot.
    pub(crate) fn sums(&self) -> [f64; 5] {
        [self.n, self.x, self.t, self.xx, self.xt]
    }

    pub(crate) fn of_sums([n, x, t, xx, xt]: [f64; 5]) -> Self {
        Self { n, x, t, xx, xt }
    }

    /// Adds one pair: tokens queued on the worker when the request was sent (its own included), seconds to the first token.
    pub(crate) fn observe(&mut self, worker: &mut Speed, tokens: f64, seconds: f64) {
        const DECAY: f64 = 0.998;
        const WORKER_DECAY: f64 = 0.98;
        for (sum, value) in [
            (&mut self.n, 1.0),
            (&mut self.x, tokens),
            (&mut self.t, seconds),
            (&mut self.xx, tokens * tokens),
            (&mut self.xt, tokens * seconds),
        ] {
            *sum = *sum * DECAY + value;
        }
        let spread = self.n * self.xx - self.x * self.x;
        let slope =
            if spread > 1e-6 * self.n * self.n { (self.n * self.xt - self.x * self.t) / spread } else { 0.0 }
                .max(1e-6);
        let base = ((self.t - slope * self.x) / self.n).max(0.005);
        worker.observed_s = worker.observed_s * WORKER_DECAY + seconds;
        worker.expected_s = worker.expected_s * WORKER_DECAY + base + slope * tokens;
        worker.pairs = worker.pairs.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three workers fed alike; the last one needs `factor` times as long.
    fn learnt(factor: f64, rounds: u32) -> Vec<f64> {
        let (mut fleet, mut workers) = (FleetSpeed::default(), [Speed::default(); 3]);
        for round in 0..rounds {
            for (number, worker) in workers.iter_mut().enumerate() {
                let tokens = f64::from(500 + 700 * (round % 7));
                let seconds = (0.015 + tokens / 22_000.0) * if number == 2 { factor } else { 1.0 };
                fleet.observe(worker, tokens, seconds);
            }
        }
        workers.iter().map(Speed::slowness).collect()
    }

    #[test]
    fn a_fleet_of_equals_is_exactly_one() {
        assert_eq!(learnt(1.0, 1000), [1.0; 3]);
        assert_eq!(learnt(1.1, 1000), [1.0; 3]);
    }

    #[test]
    fn a_slow_worker_stands_out_after_enough_pairs() {
        assert_eq!(learnt(3.0, SPEED_PAIRS - 1), [1.0; 3], "too few pairs");
        let speeds = learnt(3.0, 1000);
        assert!(speeds[2] >= 1.5, "{speeds:?}");
        assert!(speeds[2] / speeds[0] >= 2.0, "{speeds:?}");
        assert!(speeds.iter().all(|speed| (speed * 4.0).fract() == 0.0));
    }

    #[test]
    fn refuses_odd_weights_and_speeds() {
        for (weight, slowness) in [(0, None), (65, None), (1, Some(0.0)), (1, Some(f64::NAN))] {
            let spec = WorkerSpec { weight, slowness, ..WorkerSpec::new("w") };
            assert!(matches!(spec.check(), Err(Error::Config { .. })), "{weight} {slowness:?}");
        }
    }
}
