//! Whether a worker shows signs of life: a byte on any of its answers, against what the fleet needs for such a one.
//!
//! A worker that hangs accepts connections, answers its probes and never says a word: nothing fails, so nothing takes
//! it out, and every request that is sent there is stuck. What gives it away is silence. Each worker's *pulse* knows
//! how many requests wait for their first byte and since when nothing came; the fleet's *expectation* is a line fitted
//! through what others needed, time = a + b * prompt tokens that waited on the worker, with its mean deviation, so
//! that a long prompt or a long queue explains a long silence. Streams and answers in one piece have an expectation
//! each, because the latter begin with their last token.
//!
//! Doubt comes in three steps, because a hang swallows requests much faster than one can be sure of it. Half an
//! expected time without any byte is rare on a worker that has many requests: it is [`Standing::Late`], and the policy's
//! soft bound on its load becomes a hard one. Beyond expectation plus four deviations, TCP's bound for its
//! retransmissions (RFC 6298), it is [`Standing::Quiet`] and gets no more than its share. Beyond four times that it is
//! [`Standing::Silent`], and gets nothing until it shows a byte or its requests end.
//!
//! Bytes are noted by a flag, so that a stream's next chunk costs one load; clocks are read when somebody looks.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trunkline_core::Millis;

/// Answers that must have been seen before silence means anything.
const MIN_SAMPLES: u32 = 16;
/// Weight of the past in the fitted line, per answer: about the last hundred count.
const DECAY: f64 = 0.99;
/// Weight of an answer in the mean deviation.
const DEVIATION_GAIN: f64 = 1.0 / 16.0;
/// Weight of the past in the largest prompt that was seen, per answer.
const RANGE_DECAY: f64 = 0.999;
/// Deviations above the expectation that are normal.
const DEVIATIONS: f64 = 4.0;
/// Silences below these say nothing, however fast the fleet is: schedulers and collectors pause as long.
const LATE_FLOOR_MS: f64 = 10.0;
const QUIET_FLOOR_MS: f64 = 20.0;
const SILENT_FLOOR_MS: f64 = 250.0;
/// Part of the expected time after which a silence is late.
const LATE_SHARE: f64 = 0.5;
/// A silence of so many times the normal one is a hang.
const SILENT_FACTOR: f64 = 4.0;

/// How an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// With its first token.
    Stream,
    /// When it is complete.
    Whole,
}

const KINDS: usize = 2;

/// What a worker's silence means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Standing {
    /// Nothing.
    Normal,
    /// A byte could have come: no more than the policy's bound.
    Late,
    /// One should have come: no more than its share.
    Quiet,
    /// It hangs: nothing.
    Silent,
}

/// Requests of one kind that wait for their first byte.
#[derive(Debug, Default)]
struct Waiting {
    requests: AtomicU32,
    /// Their prompt tokens that the worker is not believed to hold.
    tokens: AtomicU64,
    /// When the first of them was sent.
    since_ms: AtomicU64,
}

/// One worker's signs of life. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    waiting: [Waiting; KINDS],
    /// A byte came since somebody looked.
    shown: AtomicBool,
    shown_ms: AtomicU64,
    standing: AtomicU8,
}

impl Pulse {
    /// A byte came. Costs one load while nobody has looked since the last one.
    pub(crate) fn show(&self) {
        if !self.shown.load(Ordering::Relaxed) {
            self.shown.store(true, Ordering::Relaxed);
        }
    }

    /// What it looked like when somebody looked last.
    pub(crate) fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            0 => Standing::Normal,
            1 => Standing::Late,
            2 => Standing::Quiet,
            _ => Standing::Silent,
        }
    }

    /// Looks: judges the silence up to `now`.
    pub(crate) fn look(&self, now: Millis, normal: &Normal) -> Standing {
        if self.shown.swap(false, Ordering::Relaxed) {
            self.shown_ms.store(now.0, Ordering::Relaxed);
        }
        let shown_ms = self.shown_ms.load(Ordering::Relaxed);
        let standing = (self.waiting.iter().zip(&normal.0))
            .filter(|(waiting, _)| waiting.requests.load(Ordering::Relaxed) > 0)
            .map(|(waiting, line)| {
                let since = waiting.since_ms.load(Ordering::Relaxed).max(shown_ms);
                line.judge(now.0.saturating_sub(since) as f64, waiting.tokens.load(Ordering::Relaxed) as f64)
            })
            .max()
            .unwrap_or(Standing::Normal);
        self.standing.store(standing as u8, Ordering::Relaxed);
        standing
    }

    /// A request was sent; `uncached_tokens` of its prompt are to be computed. It waits until the result is dropped.
    pub(crate) fn wait<'a>(
        &'a self,
        expectation: &'a Expectation,
        kind: Kind,
        uncached_tokens: u32,
        now: Millis,
    ) -> Wait<'a> {
        let waiting = &self.waiting[kind as usize];
        if waiting.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            waiting.since_ms.store(now.0, Ordering::Relaxed);
        }
        let uncached_tokens = u64::from(uncached_tokens);
        let queued_tokens = waiting.tokens.fetch_add(uncached_tokens, Ordering::Relaxed) + uncached_tokens;
        Wait { pulse: self, expectation, kind, uncached_tokens, queued_tokens, since: Instant::now() }
    }
}

/// A request that waits for its first byte. Dropped, it waits no longer.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    pulse: &'a Pulse,
    expectation: &'a Expectation,
    kind: Kind,
    uncached_tokens: u64,
    queued_tokens: u64,
    since: Instant,
}

impl Wait<'_> {
    /// The answer begins; `is_good` if it is what was asked for, and so tells how long that takes.
    pub(crate) fn answered(self, is_good: bool) {
        self.pulse.show();
        if is_good {
            self.expectation.observe(self.kind, self.queued_tokens, self.since.elapsed());
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let waiting = &self.pulse.waiting[self.kind as usize];
        waiting.tokens.fetch_sub(self.uncached_tokens, Ordering::Relaxed);
        waiting.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the fleet needs to begin an answer.
#[derive(Debug, Default)]
pub(crate) struct Expectation([Mutex<Line>; KINDS]);

/// What is normal at this moment, for every kind of answer.
#[derive(Debug)]
pub(crate) struct Normal([Line; KINDS]);

impl Expectation {
    /// Adds an answer that began `after` its request was sent to a worker on which `queued_tokens` waited, its own
    /// included.
    fn observe(&self, kind: Kind, queued_tokens: u64, after: Duration) {
        self.0[kind as usize].lock().observe(queued_tokens as f64, after.as_secs_f64() * 1e3);
    }

    pub(crate) fn normal(&self) -> Normal {
        Normal(std::array::from_fn(|kind| *self.0[kind].lock()))
    }
}

/// A line fitted by least squares with decay, and the mean deviation from it. Times are in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    samples: u32,
    n: f64,
    x: f64,
    t: f64,
    xx: f64,
    xt: f64,
    deviation: f64,
    /// Largest x of late: nothing is known beyond it.
    range: f64,
}

impl Line {
    fn observe(&mut self, x: f64, t: f64) {
        if self.samples > 0 {
            self.deviation += ((t - self.at(x)).abs() - self.deviation) * DEVIATION_GAIN;
        }
        for (sum, value) in [
            (&mut self.n, 1.0),
            (&mut self.x, x),
            (&mut self.t, t),
            (&mut self.xx, x * x),
            (&mut self.xt, x * t),
        ] {
            *sum = *sum * DECAY + value;
        }
        self.range = (self.range * RANGE_DECAY).max(x);
        self.samples = self.samples.saturating_add(1);
    }

    /// Expected time for `x` tokens; beyond what was seen it grows in proportion.
    fn at(&self, x: f64) -> f64 {
        let known = x.min(self.range);
        let spread = self.n * self.xx - self.x * self.x;
        let slope =
            if spread > 1e-6 * self.n * self.n { (self.n * self.xt - self.x * self.t) / spread } else { 0.0 }
                .max(0.0);
        let base = ((self.t - slope * self.x) / self.n).max(0.0);
        (base + slope * known) * (x / self.range.max(1.0)).max(1.0)
    }

    fn judge(&self, silence_ms: f64, tokens: f64) -> Standing {
        if self.samples < MIN_SAMPLES || silence_ms < LATE_FLOOR_MS {
            return Standing::Normal;
        }
        let expected_ms = self.at(tokens);
        let normal_ms = expected_ms + DEVIATIONS * self.deviation;
        if silence_ms > (SILENT_FACTOR * normal_ms).max(SILENT_FLOOR_MS) {
            Standing::Silent
        } else if silence_ms > normal_ms.max(QUIET_FLOOR_MS) {
            Standing::Quiet
        } else if silence_ms > LATE_SHARE * expected_ms {
            Standing::Late
        } else {
            Standing::Normal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet that begins an answer after 20 ms and 1 ms per 100 tokens, give or take 2 ms.
    fn expectation(most_tokens: u64) -> Expectation {
        let expectation = Expectation::default();
        for round in 0..200 {
            let tokens = round * 37 % (most_tokens + 1);
            let noise = [0.0, 2.0, -2.0][round as usize % 3];
            let after = Duration::from_secs_f64((20.0 + tokens as f64 / 100.0 + noise) / 1e3);
            expectation.observe(Kind::Stream, tokens, after);
        }
        expectation
    }

    fn standing_after(pulse: &Pulse, expectation: &Expectation, ms: u64) -> Standing {
        pulse.look(Millis(ms), &expectation.normal())
    }

    #[test]
    fn silence_is_noticed_in_steps_and_a_byte_ends_it() {
        let (pulse, expectation) = (Pulse::default(), expectation(1000));
        let waits = pulse.wait(&expectation, Kind::Stream, 100, Millis(1000));
        assert_eq!(standing_after(&pulse, &expectation, 1009), Standing::Normal);
        assert_eq!(standing_after(&pulse, &expectation, 1020), Standing::Late);
        assert_eq!(standing_after(&pulse, &expectation, 1060), Standing::Quiet);
        assert_eq!(standing_after(&pulse, &expectation, 1300), Standing::Silent);
        assert_eq!(pulse.standing(), Standing::Silent);
        pulse.show();
        assert_eq!(standing_after(&pulse, &expectation, 1301), Standing::Normal, "on any of its requests");
        assert_eq!(standing_after(&pulse, &expectation, 1700), Standing::Silent, "and again");
        drop(waits);
        assert_eq!(standing_after(&pulse, &expectation, 1701), Standing::Normal, "its requests ended");
    }

    #[test]
    fn a_long_prompt_explains_a_long_silence() {
        let (pulse, expectation) = (Pulse::default(), expectation(1000));
        let _waits = pulse.wait(&expectation, Kind::Stream, 100_000, Millis(0));
        // 30 ms for the 1000 tokens that were seen, a hundred times that for these.
        assert_eq!(standing_after(&pulse, &expectation, 1300), Standing::Normal);
        assert_eq!(standing_after(&pulse, &expectation, 2900), Standing::Late);
        assert_eq!(standing_after(&pulse, &expectation, 13_000), Standing::Silent);
    }

    #[test]
    fn a_queue_of_prompts_counts_together() {
        let (pulse, expectation) = (Pulse::default(), expectation(10_000));
        let _waits: Vec<_> =
            (0..5).map(|_| pulse.wait(&expectation, Kind::Stream, 1500, Millis(0))).collect();
        assert_eq!(standing_after(&pulse, &expectation, 45), Standing::Normal);
        assert_eq!(standing_after(&pulse, &expectation, 90), Standing::Late);
        assert_eq!(standing_after(&pulse, &expectation, 130), Standing::Quiet);
    }

    #[test]
    fn kinds_are_apart_and_nothing_is_judged_without_samples() {
        let (pulse, expectation) = (Pulse::default(), expectation(1000));
        let whole = pulse.wait(&expectation, Kind::Whole, 100, Millis(0));
        assert_eq!(standing_after(&pulse, &expectation, 60_000), Standing::Normal, "none was ever seen");
        let _stream = pulse.wait(&expectation, Kind::Stream, 100, Millis(60_000));
        assert_eq!(standing_after(&pulse, &expectation, 60_010), Standing::Normal, "it was sent just now");
        whole.answered(true);
        assert_eq!(expectation.0[Kind::Whole as usize].lock().samples, 1);
    }
}
