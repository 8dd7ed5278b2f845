//! What one arm has done: counters and times to first token, by groups of tenants.
//!
//! A [`Record`] is written by requests, with relaxed atomics; [`Figures`] are its numbers at one moment, and what lies between
//! two moments is their difference. Requests that still wait for their first token are kept by the second in which they came,
//! so that a worker that hangs is seen before anybody gives up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use trunkline_core::Millis;

use super::estimate::{Distribution, Estimate, GROUPS, Level, Pair, proportion, quantile, ratio};

/// Bins of times for each doubling: each is 4.4 % wide, and values within it are interpolated.
const PER_OCTAVE: usize = 16;
/// The first bin ends at 2^-13 s (0.12 ms), the last but one at 2^10 s (17 min).
const FIRST_OCTAVE: i32 = -13;
const BINS: usize = 23 * PER_OCTAVE + 2;
/// Seconds for which arrivals of waiting requests are told apart.
const SECONDS: usize = 1024;

/// What is counted of a request, and in which unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Requests that are over.
    Requests,
    /// Of these, those of which an attempt failed, an answer broke, or that got no answer for want of a worker or of room.
    Errors,
    /// Those that the other arm's workers had to take.
    Crossed,
    /// Those whose first choice left the preferred worker because that was over its bound.
    Spills,
    /// Requests that were placed by their prompt.
    Placed,
    /// Prompt tokens of these, as estimated, and those of them believed cached where they went.
    PromptTokens,
    MatchedTokens,
    /// Prompt tokens that answers reported with their cached tokens, and these.
    ReportedTokens,
    CachedTokens,
    /// The sum of the times to first token.
    TtftMicros,
}

const COUNTS: usize = Count::TtftMicros as usize + 1;

/// One arm's counters. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Record {
    groups: Box<[Group]>,
    waiting: Box<[AtomicU32]>,
}

#[derive(Debug)]
struct Group {
    counts: [AtomicU64; COUNTS],
    ttft: [AtomicU32; BINS],
}

impl Default for Record {
    fn default() -> Self {
        let group = || Group {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            ttft: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        Self {
            groups: (0..GROUPS).map(|_| group()).collect(),
            waiting: (0..SECONDS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Record {
    /// Adds to a count of a group.
    pub(crate) fn add(&self, group: usize, count: Count, number: u64) {
        self.groups[group].counts[count as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// Adds a time to first token.
    pub(crate) fn time(&self, group: usize, ttft: Duration) {
        self.add(group, Count::TtftMicros, ttft.as_micros() as u64);
        self.groups[group].ttft[bin(ttft.as_secs_f64())].fetch_add(1, Ordering::Relaxed);
    }

    /// A request waits for its first token from now on. Returns what [`came`](Self::came) wants.
    pub(crate) fn waits(&self, now: Millis) -> usize {
        let second = now.0 as usize / 1000 % SECONDS;
        self.waiting[second].fetch_add(1, Ordering::Relaxed);
        second
    }

    /// It waits no longer.
    pub(crate) fn came(&self, second: usize) {
        self.waiting[second].fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests that have waited for at least `seconds`, to within one second.
    pub(crate) fn waiting_for(&self, seconds: f64, now: Millis) -> u64 {
        let since = now.0 as usize / 1000;
        let oldest = SECONDS.min(since + 1);
        (seconds.ceil() as usize + 1..oldest)
            .map(|age| u64::from(self.waiting[(since - age) % SECONDS].load(Ordering::Relaxed)))
            .sum()
    }

    /// The numbers now. Cost: 24,000 loads.
    pub(crate) fn figures(&self) -> Figures {
        let load = |group: &Group| Totals {
            counts: std::array::from_fn(|at| group.counts[at].load(Ordering::Relaxed)),
            ttft: group.ttft.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
        };
        Figures(self.groups.iter().map(load).collect())
    }
}

/// Whether a time is that of requests that still wait, or of others too long to measure.
pub(crate) fn is_beyond_measure(seconds: f64) -> bool {
    seconds > edge(BINS - 2)
}

fn bin(seconds: f64) -> usize {
    if seconds <= edge(0) {
        return 0;
    }
    let position = (seconds.log2() - f64::from(FIRST_OCTAVE)) * PER_OCTAVE as f64;
    (position.ceil() as usize).min(BINS - 1)
}

/// The upper end of a bin, in seconds.
fn edge(bin: usize) -> f64 {
    (f64::from(FIRST_OCTAVE) + bin as f64 / PER_OCTAVE as f64).exp2()
}

#[derive(Debug, Clone)]
struct Totals {
    counts: [u64; COUNTS],
    ttft: Box<[u32]>,
}

impl Totals {
    fn of(&self, count: Count) -> f64 {
        self.counts[count as usize] as f64
    }

    fn timed(&self) -> u64 {
        self.ttft.iter().map(|&count| u64::from(count)).sum()
    }
}

/// One arm's numbers at one moment, or between two.
#[derive(Debug, Clone)]
pub(crate) struct Figures(Vec<Totals>);

impl Figures {
    /// What has come since `before`, which was taken of the same record.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let minus = |(now, before): (&Totals, &Totals)| Totals {
            counts: std::array::from_fn(|at| now.counts[at].saturating_sub(before.counts[at])),
            ttft: now.ttft.iter().zip(&before.ttft).map(|(a, b)| a.saturating_sub(*b)).collect(),
        };
        Self(self.0.iter().zip(&before.0).map(minus).collect())
    }

    /// Counts `waiting` requests as slower than all that can be measured, spread over the groups.
    pub(crate) fn with_waiting(mut self, waiting: u64) -> Self {
        for number in 0..waiting {
            self.0[number as usize % GROUPS].ttft[BINS - 1] += 1;
        }
        self
    }

    /// The sum of a count.
    pub(crate) fn total(&self, count: Count) -> u64 {
        self.0.iter().map(|group| group.counts[count as usize]).sum()
    }

    /// Requests whose first token was timed.
    pub(crate) fn timed(&self) -> u64 {
        self.0.iter().map(Totals::timed).sum()
    }

    /// Timed requests in at most so many seconds, to within a bin.
    pub(crate) fn timed_within(&self, seconds: f64) -> u64 {
        Times::of(self).below(seconds).iter().map(|pair| pair.0).sum::<f64>().round() as u64
    }

    /// Groups with requests.
    pub(crate) fn groups(&self) -> usize {
        self.0.iter().filter(|group| group.of(Count::Requests) > 0.0).count()
    }

    fn pairs(&self, part: Count, whole: Count) -> Vec<Pair> {
        self.0.iter().map(|group| (group.of(part), group.of(whole))).collect()
    }

    /// Cached tokens of prompt tokens, as engines reported them.
    pub(crate) fn hit_rate(&self, level: Level) -> Option<Estimate> {
        Some(ratio(&self.pairs(Count::CachedTokens, Count::ReportedTokens), level)?.within(0.0, 1.0))
    }

    /// Matched tokens of prompt tokens, as the router believed.
    pub(crate) fn expected_hit(&self, level: Level) -> Option<Estimate> {
        Some(ratio(&self.pairs(Count::MatchedTokens, Count::PromptTokens), level)?.within(0.0, 1.0))
    }

    /// Spills of placed requests.
    pub(crate) fn spill_rate(&self, level: Level) -> Option<Estimate> {
        proportion(&self.pairs(Count::Spills, Count::Placed), level)
    }

    /// Errors of requests.
    pub(crate) fn error_rate(&self, level: Level) -> Option<Estimate> {
        proportion(&self.pairs(Count::Errors, Count::Requests), level)
    }

    /// The time in seconds within which a share `p` of the requests had their first token.
    pub(crate) fn ttft_s(&self, p: f64, level: Level) -> Option<Estimate> {
        quantile(&Times::of(self), p, level)
    }
}

/// Times to first token: by groups, and of all groups together.
struct Times<'f> {
    figures: &'f Figures,
    all: Vec<f64>,
}

impl<'f> Times<'f> {
    fn of(figures: &'f Figures) -> Self {
        let mut all = vec![0.0; BINS];
        for group in &figures.0 {
            all.iter_mut().zip(&group.ttft).for_each(|(sum, &count)| *sum += f64::from(count));
        }
        Self { figures, all }
    }
}

impl Distribution for Times<'_> {
    fn below(&self, value: f64) -> Vec<Pair> {
        let last = bin(value);
        // Of the bin that holds the value, the part below it.
        let from = if last == 0 { 0.0 } else { edge(last - 1) };
        let part = ((value - from) / (edge(last) - from)).clamp(0.0, 1.0);
        let pair = |group: &Totals| {
            let before: u64 = group.ttft[..last].iter().map(|&count| u64::from(count)).sum();
            (before as f64 + part * f64::from(group.ttft[last]), group.timed() as f64)
        };
        self.figures.0.iter().map(pair).collect()
    }

    fn at(&self, share: f64) -> Option<f64> {
        let wanted = share * self.all.iter().sum::<f64>();
        let mut before = 0.0;
        for (at, &here) in self.all.iter().enumerate() {
            if here > 0.0 && before + here >= wanted {
                let from = if at == 0 { 0.0 } else { edge(at - 1) };
                return Some(from + (edge(at) - from) * ((wanted - before) / here).clamp(0.0, 1.0));
            }
            before += here;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures(times: &[f64]) -> Figures {
        let record = Record::default();
        for (number, &seconds) in times.iter().enumerate() {
            record.time(number % GROUPS, Duration::from_secs_f64(seconds));
        }
        record.figures()
    }

    #[test]
    fn counts_and_rates_are_those_that_were_added() {
        let record = Record::default();
        for group in 0..GROUPS {
            record.add(group, Count::Requests, 10);
            record.add(group, Count::Errors, u64::from(group == 3));
            record.add(group, Count::ReportedTokens, 1000);
            record.add(group, Count::CachedTokens, if group % 2 == 0 { 400 } else { 600 });
        }
        let before = record.figures();
        assert_eq!((before.total(Count::Requests), before.groups()), (640, 64));
        let hit = before.hit_rate(Level::Once).unwrap();
        assert!((hit.value - 0.5).abs() < 1e-12);
        // The standard error of a mean of 64 values 0.1 off it.
        let se = 0.1 / 63.0_f64.sqrt();
        assert!((hit.high.unwrap() - 0.5 - 1.998 * se).abs() < 1e-4, "{hit:?}");
        assert_eq!(before.error_rate(Level::Once).unwrap().value, 1.0 / 640.0);
        assert_eq!(before.spill_rate(Level::Once), None, "nothing was placed");
        record.add(0, Count::Requests, 5);
        assert_eq!(record.figures().since(&before).total(Count::Requests), 5);
    }

    #[test]
    fn the_ends_of_the_scale_hold_what_is_beyond_them() {
        let found = figures(&[0.0, 1e-9, 5000.0]);
        assert_eq!(found.timed(), 3);
        assert!(found.ttft_s(0.99, Level::Once).unwrap().value > 1000.0);
        assert_eq!(figures(&[]).ttft_s(0.5, Level::Once), None);
    }

    #[test]
    fn the_interval_of_a_quantile_holds_its_order_statistics() {
        // 640 times from 1 ms to 640 ms: p90 is 576 ms, and 95 % of such samples have it within 576 +- 15 ranks.
        let times: Vec<f64> = (1..=640).map(|rank| f64::from(rank * 37 % 641) * 1e-3).collect();
        let found = figures(&times).ttft_s(0.9, Level::Once).unwrap();
        assert!((found.value - 0.576).abs() < 0.006, "{found:?}");
        let (low, high) = (found.low.unwrap(), found.high.unwrap());
        assert!((0.545..0.566).contains(&low) && (0.586..0.607).contains(&high), "{found:?}");
        let few = figures(&times[..10]).ttft_s(0.9, Level::Once).unwrap();
        assert_eq!(few.high, None, "ten values do not bound their p90");
    }

    #[test]
    fn the_interval_of_a_quantile_holds_the_truth_as_often_as_it_says() {
        let mut state = 5u64;
        let mut chance = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        // 100 tenants with 10 requests each, whose times lie evenly between nothing and a bound of the tenant's own, 1 s to 2 s:
        // the share of all times below x is the mean of min(1, x / bound).
        let share_below = |x: f64| (x - 1.0) + x * (2.0_f64.ln() - x.ln());
        let truth =
            (0..1000).map(|step| 1.0 + f64::from(step) / 1000.0).find(|&x| share_below(x) >= 0.9).unwrap();
        let (runs, mut holds) = (200, 0);
        for _ in 0..runs {
            let record = Record::default();
            for _ in 0..100 {
                let (group, bound) = ((chance() * GROUPS as f64) as usize, 1.0 + chance());
                (0..10).for_each(|_| record.time(group, Duration::from_secs_f64(bound * chance())));
            }
            let found = record.figures().ttft_s(0.9, Level::Once).unwrap();
            holds += i32::from(found.low.unwrap() <= truth && truth <= found.high.unwrap());
        }
        let coverage = f64::from(holds) / f64::from(runs);
        assert!((0.91..=0.99).contains(&coverage), "{coverage} instead of 0.95");
    }

    #[test]
    fn who_waits_is_seen_and_forgotten() {
        let record = Record::default();
        let second = record.waits(Millis(5_500));
        record.waits(Millis(9_000));
        assert_eq!(record.waiting_for(2.0, Millis(7_000)), 0);
        assert_eq!(record.waiting_for(2.0, Millis(8_500)), 1);
        assert_eq!(record.waiting_for(0.1, Millis(60_000)), 2);
        record.came(second);
        assert_eq!(record.waiting_for(0.1, Millis(60_000)), 1);
        let late = figures(&[0.01; 9]).with_waiting(1);
        assert_eq!(late.timed(), 10);
        assert!(late.ttft_s(0.99, Level::Once).unwrap().value > 1000.0);
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_a_sorted_list_within_a_bin(
            mut times in proptest::collection::vec(1e-3f64..100.0, 1..300),
            p in 0.01f64..1.0,
        ) {
            let figures = figures(&times);
            let found = Times::of(&figures).at(p).unwrap();
            times.sort_by(f64::total_cmp);
            let exact = times[((p * times.len() as f64).ceil() as usize).max(1) - 1];
            prop_assert!(found / exact < 1.05 && exact / found < 1.05, "{found} for {exact}");
        }

        #[test]
        fn below_and_at_are_each_others_inverse(
            times in proptest::collection::vec(1e-3f64..100.0, 1..300),
            p in 0.01f64..1.0,
        ) {
            let figures = figures(&times);
            let all = Times::of(&figures);
            let at = all.at(p).unwrap();
            let below: f64 = all.below(at).iter().map(|pair| pair.0).sum();
            prop_assert!((below - p * times.len() as f64).abs() < 1e-6 * times.len() as f64 + 1e-6, "{below}");
        }
    }
}
