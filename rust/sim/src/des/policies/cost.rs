//! The cost rules of the policy study: those that our own policy was chosen among, to be measured beside it.
//!
//! ```text
//! cost(w) = s_w * (Q_w + u_w * (base + own * n_w) + R_w + per_request * n_w + held * D_w) + memory_w (+ off_home)
//! ```
//!
//! in tokens: `Q` queued, `u` uncached, `n` requests in flight, `D` KV tokens in flight, `R` the price of copying what another
//! worker holds. LMetric is `(Q_w + u_w) * (n_w + 1)`. Source: policy study, sections 1 and 2, and `sim/gen.py` and
//! `sim/rules.py` for the constants; LMetric is arXiv:2603.15202.

use std::collections::HashMap;

use super::book::{Booking, Load};
use super::peer::{Rule, View};
use crate::des::rng::mix;
use crate::des::{Arrival, Outcome, Segment};

const HEAT_S: f64 = 10.0;
const ANSWER_WEIGHT: f64 = 0.02;

/// Price of a full cache.
#[derive(Debug, Clone, Copy)]
enum Memory {
    /// Tokens per unit of occupancy above a share.
    Fixed { above: f64, tokens: f64 },
    /// Prompt lengths per unit of occupancy above a share.
    Relative { above: f64, prompts: f64 },
}

/// The constants of one rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    base: f64,
    /// Added to the base for each request in flight on the worker, and on the mean worker.
    own: f64,
    mean: f64,
    per_request: f64,
    held: f64,
    memory: Memory,
    off_home: f64,
    heat: f64,
    learns_speed: bool,
    counts_shared_once: bool,
    is_lmetric: bool,
}

impl Terms {
    /// The study's first rule.
    pub(super) const ECT: Self = Self {
        base: 3.0,
        own: 0.0,
        mean: 0.0,
        per_request: 220.0,
        held: 0.0,
        memory: Memory::Fixed { above: 0.9, tokens: 440_000.0 },
        off_home: 0.0,
        heat: 0.0,
        learns_speed: false,
        counts_shared_once: false,
        is_lmetric: false,
    };
    /// The rule of the other study.
    pub(super) const E1: Self = Self {
        base: 1.0,
        own: 0.3,
        per_request: 0.0,
        held: 0.05,
        memory: Memory::Relative { above: 0.85, prompts: 8.0 },
        off_home: 32.0,
        ..Self::ECT
    };
    /// The same with weaker couplings.
    pub(super) const E1_LEAN: Self = Self { own: 0.15, held: 0.02, ..Self::E1 };
    /// Parameter-free.
    pub(super) const LMETRIC: Self = Self { is_lmetric: true, ..Self::ECT };
    /// The study's recommendation, without the soft guards that `kv_aware` has.
    pub(super) const ECT2: Self = Self {
        base: 1.5,
        mean: 0.1,
        per_request: 330.0,
        memory: Memory::Fixed { above: 0.9, tokens: 40_000.0 },
        heat: 2.0,
        learns_speed: true,
        counts_shared_once: true,
        ..Self::ECT
    };
}

/// A rule of that family.
pub(super) struct CostRule {
    terms: Terms,
    mean_answer: f64,
    /// Uses of each segment, decayed, and when.
    heat: HashMap<u32, (f64, f64)>,
    /// Requests in flight by segment and worker, and tokens in use by worker.
    in_use: HashMap<(u32, usize), u32>,
    used: Vec<f64>,
    booked: HashMap<u32, f64>,
    speed: Speeds,
}

impl CostRule {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            mean_answer: 150.0,
            heat: HashMap::new(),
            in_use: HashMap::new(),
            used: Vec::new(),
            booked: HashMap::new(),
            speed: Speeds::default(),
        }
    }

    fn uses(&self, segment: u32, now_s: f64) -> Option<f64> {
        self.heat.get(&segment).map(|&(uses, at_s)| uses * ((at_s - now_s) / HEAT_S).exp())
    }

    /// Price for each worker of computing what the deepest holder has and it lacks.
    fn replication(&self, view: &View<'_>, price: f64) -> Vec<f64> {
        let deepest = view.deepest();
        let (mut tokens, mut sum) = (0, 0.0);
        let mut steps = vec![(0, 0.0)];
        for segment in view.arrival.prompt {
            if tokens >= deepest {
                break;
            }
            tokens += segment.tokens;
            let copies =
                view.index.map_or(0, |index| index.holders(view.arrival.router, segment.id).count_ones());
            let uses = self.uses(segment.id, view.arrival.now_s).unwrap_or(0.0);
            sum += f64::from(segment.tokens) * price / (1.0 + self.terms.heat * uses / f64::from(copies + 1));
            steps.push((tokens, sum));
        }
        let at =
            |hit: u32| steps.iter().rev().find(|&&(tokens, _)| tokens <= hit).map_or(0.0, |&(_, sum)| sum);
        view.hits.iter().map(|&hit| sum - at(hit)).collect()
    }
}

impl Rule for CostRule {
    fn choose(&mut self, view: &mut View<'_>) -> usize {
        let terms = self.terms;
        self.used.resize(self.used.len().max(view.live), 0.0);
        let (live, prompt) = (view.live, f64::from(view.arrival.prompt_tokens));
        let in_flight: i64 = view.loads[..live].iter().map(|load| load.in_flight).sum();
        let base = terms.base + terms.mean * in_flight as f64 / live as f64;
        let deepest = view.deepest();
        let replication = (terms.heat > 0.0 && deepest > 0).then(|| self.replication(view, base - 1.0));
        let base = if terms.heat > 0.0 { 1.0 } else { base };
        let capacity = view.fleet.profile().kv_tokens as f64;
        let home =
            (terms.off_home > 0.0).then(|| rendezvous(first_unheld(view.arrival.prompt, deepest), live));
        let costs: Vec<f64> = (0..live)
            .map(|worker| {
                let Load { in_flight, queued_tokens, kv_tokens } = view.loads[worker];
                let (n, queued) = (in_flight as f64, queued_tokens as f64);
                let uncached = (prompt - f64::from(view.hits[worker])).max(1.0);
                if terms.is_lmetric {
                    return (queued + uncached) * (n + 1.0);
                }
                let held = if terms.counts_shared_once { self.used[worker] } else { kv_tokens };
                let copied = replication.as_ref().map_or(0.0, |replication| replication[worker]);
                let work = queued
                    + uncached * (base + terms.own * n)
                    + terms.per_request * n
                    + terms.held * held
                    + copied;
                let occupancy = (held + prompt + self.mean_answer) / capacity;
                let memory = match terms.memory {
                    Memory::Fixed { above, tokens } => (occupancy - above).max(0.0) * tokens,
                    Memory::Relative { above, prompts } => (occupancy - above).max(0.0) * prompts * prompt,
                };
                let off_home = if home.is_some_and(|home| home != worker) { terms.off_home } else { 0.0 };
                work * self.speed.slowness(worker) + memory + off_home
            })
            .collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let bound = least + least.abs() * 1e-9;
        let key = view.arrival.prompt.last().map_or(0, |segment| u64::from(segment.id));
        let key = mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(77));
        let equals = (0..live).filter(|&worker| costs[worker] <= bound);
        let luck = |worker: usize| mix(key ^ (worker as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        equals.max_by_key(|&worker| luck(worker)).unwrap_or(0)
    }

    fn load(&self, view: &View<'_>, worker: usize) -> Load {
        let hit = view.hits[worker];
        Load {
            in_flight: 1,
            queued_tokens: i64::from(view.arrival.prompt_tokens.saturating_sub(hit).max(1)),
            kv_tokens: f64::from(view.arrival.prompt_tokens) + self.mean_answer,
        }
    }

    fn sent(&mut self, arrival: &Arrival<'_>, worker: usize) {
        if self.terms.heat > 0.0 {
            for segment in arrival.prompt {
                let uses = self.uses(segment.id, arrival.now_s).unwrap_or(0.0);
                self.heat.insert(segment.id, (uses + 1.0, arrival.now_s));
            }
        }
        if self.terms.counts_shared_once {
            let mut tokens = self.mean_answer;
            for segment in arrival.prompt {
                let uses = self.in_use.entry((segment.id, worker)).or_default();
                *uses += 1;
                if *uses == 1 {
                    tokens += f64::from(segment.tokens);
                }
            }
            self.used[worker] += tokens;
            self.booked.insert(arrival.request, self.mean_answer);
        }
    }

    fn first_token(&mut self, booking: &Booking, now_s: f64) {
        if self.terms.learns_speed {
            self.speed.observe(booking.worker, booking.queue_at_start, now_s - booking.sent_s);
        }
    }

    fn ended(&mut self, outcome: &Outcome<'_>) {
        if outcome.output_tokens > 0 {
            self.mean_answer += ANSWER_WEIGHT * (f64::from(outcome.output_tokens) - self.mean_answer);
        }
        let Some(mut tokens) = self.booked.remove(&outcome.request) else { return };
        for segment in outcome.prompt {
            let key = (segment.id, outcome.worker);
            let Some(uses) = self.in_use.get_mut(&key) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.in_use.remove(&key);
                tokens += f64::from(segment.tokens);
            }
        }
        self.used[outcome.worker] -= tokens;
    }
}

/// The first segment that nobody holds; the last one if all are held.
fn first_unheld(prompt: &[Segment], deepest: u32) -> u32 {
    let mut tokens = 0;
    for segment in prompt {
        if tokens >= deepest {
            return segment.id;
        }
        tokens += segment.tokens;
    }
    prompt.last().map_or(0, |segment| segment.id)
}

fn rendezvous(key: u32, live: usize) -> usize {
    let key = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(11);
    let luck = |worker: usize| mix(key.wrapping_add((worker as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)));
    (0..live).max_by_key(|&worker| luck(worker)).unwrap_or(0)
}

/// Learnt slowness: observed time to first token over what the fleet's line says, decayed.
#[derive(Default)]
struct Speeds {
    /// Decayed sums of 1, x, t, x*x, x*t.
    sums: [f64; 5],
    /// By worker: seconds observed, seconds expected.
    workers: Vec<(f64, f64)>,
}

impl Speeds {
    fn observe(&mut self, worker: usize, tokens: f64, seconds: f64) {
        let values = [1.0, tokens, seconds, tokens * tokens, tokens * seconds];
        self.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = *sum * 0.998 + value);
        let [n, x, t, xx, xt] = self.sums;
        let spread = n * xx - x * x;
        let slope = if spread > 1e-6 * n * n { (n * xt - x * t) / spread } else { 0.0 };
        let slope = if slope <= 0.0 { 1e-6 } else { slope };
        let start = ((t - slope * x) / n).max(0.005);
        self.workers.resize(self.workers.len().max(worker + 1), (0.0, 0.0));
        let (observed, expected) = &mut self.workers[worker];
        *observed = *observed * 0.98 + seconds;
        *expected = *expected * 0.98 + start + slope * tokens;
    }

    fn slowness(&self, worker: usize) -> f64 {
        let Some((observed, expected)) = self.workers.get(worker) else { return 1.0 };
        let ratio = (observed + 1.0) / (expected + 1.0);
        if ratio > 0.8 && ratio < 1.25 { 1.0 } else { ratio.clamp(0.5, 4.0) }
    }
}
