//! Whether a model's exact prompts are right: what events told of them against what answers say was cached.
//!
//! A prompt that is rendered in another way than its engine renders it finds nothing in the events, so what events told falls
//! far below what was cached. Then the model's requests go by the own views for a while, and another try is made; each
//! failure doubles the while.
//!
//! Events come after the answers that they are about. What was sent to the worker a moment ago explains what it had cached as well, so
//! such an answer says little about the text: else a burst of new prompts and a slow feed would look like a wrong template. It
//! does not say nothing: a prefix that everybody sends was always sent a moment ago.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use trunkline_core::Millis;

/// Answers with something cached or told that a verdict needs, and the weight that the sums keep per answer.
const ENOUGH: f64 = 32.0;
const KEPT: f64 = 0.97;
/// What an answer counts whose cached tokens may just not have been told yet.
const EARLY: f64 = 0.02;
/// Share of the cached tokens that events must have told.
const FLOOR: f64 = 0.5;
/// How long a model is off, at first and at most.
const OFF_MS: u64 = 60_000;
const MAX_OFF_MS: u64 = 64 * OFF_MS;

/// The record of one model.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    record: Mutex<Record>,
    off_until_ms: AtomicU64,
    /// Answers that told what was cached, and those where events had told exactly that.
    pub(crate) checked: AtomicU64,
    pub(crate) equal: AtomicU64,
    /// Tokens that events told, and tokens that were cached.
    pub(crate) told_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    /// Times that it was switched off.
    pub(crate) switched_off: AtomicU64,
}

#[derive(Debug, Default)]
struct Record {
    answers: f64,
    told: f64,
    cached: f64,
    failures: u32,
}

impl Watch {
    /// Whether exact prompts are to be made.
    pub(crate) fn is_on(&self, now: Millis) -> bool {
        now.0 >= self.off_until_ms.load(Ordering::Relaxed)
    }

    /// An answer said that `cached` tokens of its prompt were, where events had told `told`, and `expected` together with
    /// decisions that they could not tell yet. Returns whether that switched the model off.
    pub(crate) fn note(&self, told: u32, expected: u32, cached: u32, now: Millis) -> bool {
        let count = |counter: &AtomicU64, by: u32| counter.fetch_add(by.into(), Ordering::Relaxed);
        count(&self.checked, 1);
        count(&self.equal, (told == cached).into());
        count(&self.told_tokens, told);
        count(&self.cached_tokens, cached);
        let is_on_its_way = told < expected.min(cached) && f64::from(expected) >= FLOOR * f64::from(cached);
        if told == 0 && cached == 0 {
            return false;
        }
        let weight = if is_on_its_way { EARLY } else { 1.0 };
        let kept = KEPT.powf(weight);
        let mut record = self.record.lock();
        record.told = record.told * kept + weight * f64::from(told.min(cached));
        record.cached = record.cached * kept + weight * f64::from(cached);
        record.answers += weight;
        if record.answers < ENOUGH {
            return false;
        }
        if record.told >= FLOOR * record.cached {
            record.failures = 0;
            return false;
        }
        self.fail(&mut record, now);
        true
    }

    /// A prompt was rendered in another way than its engine does.
    pub(crate) fn differs(&self, now: Millis) {
        self.fail(&mut self.record.lock(), now);
    }

    fn fail(&self, record: &mut Record, now: Millis) {
        let off_ms = OFF_MS.saturating_mul(1 << record.failures.min(16)).min(MAX_OFF_MS);
        *record = Record { failures: record.failures + 1, ..Record::default() };
        self.off_until_ms.store(now.0 + off_ms, Ordering::Relaxed);
        self.switched_off.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_whose_events_tell_too_little_is_off_for_longer_and_longer() {
        let watch = Watch::default();
        let mut now = 0;
        let fail = |now: u64| (0..1000).find(|_| watch.note(10, 10, 100, Millis(now))).is_some();
        for off_ms in [60_000, 120_000, 240_000] {
            assert!(watch.is_on(Millis(now)));
            assert!(fail(now));
            assert!(!watch.is_on(Millis(now + off_ms - 1)));
            now += off_ms;
        }
        assert!(watch.is_on(Millis(now)));
        assert_eq!(watch.switched_off.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_few_wrong_answers_and_what_was_told_too_much_do_no_harm() {
        let watch = Watch::default();
        for answer in 0..2000 {
            let told = if answer % 3 == 0 { 0 } else { 160 };
            assert!(!watch.note(told, told, 96, Millis(0)), "{answer}");
        }
        for _ in 0..1000 {
            assert!(!watch.note(0, 0, 0, Millis(0)), "nothing is cached and nothing was told");
        }
        assert_eq!(watch.checked.load(Ordering::Relaxed), 3000);
        assert_eq!(watch.equal.load(Ordering::Relaxed), 1000);
    }

    #[test]
    fn what_events_could_not_tell_yet_is_not_held_against_the_text() {
        let watch = Watch::default();
        for _ in 0..1500 {
            assert!(!watch.note(0, 320, 336, Millis(0)), "sent a moment ago");
        }
        assert!((0..300).any(|_| watch.note(0, 320, 336, Millis(0))), "but not for ever");
        // Of what is behind a system prompt that everybody sends, nothing was told.
        assert!((0..1000).any(|_| watch.note(0, 64, 640, Millis(0))));
    }
}
