//! Leaves a worker alone for a moment after it said "busy" or failed, without taking it out of rotation.
//!
//! A worker that refuses at once looks idle, so without a pause it would attract every request (a black hole). The
//! pause is short, grows while the refusals go on, and ends with the first good answer; when every worker is paused,
//! none is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use trunkline_core::Millis;

/// Shortest pause.
const SHORT_MS: u64 = 250;
/// Longest pause of a busy worker: its queue moves all the time.
const BUSY_MS: u64 = 1_000;
/// Longest pause of a worker that answers with server errors. Below the 5 s in which a cured worker must be back.
const FAILING_MS: u64 = 3_000;

/// One worker's pause. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    until_ms: AtomicU64,
    /// The part of it that is due to the worker's own word that it is busy.
    busy_until_ms: AtomicU64,
    refusals: AtomicU32,
}

impl Backoff {
    /// The worker said 429 or 503, perhaps with a `Retry-After`. Returns the end of the pause.
    pub(crate) fn busy(&self, now: Millis, retry_after: Option<Duration>) -> Millis {
        let before = self.refusals.fetch_add(1, Ordering::Relaxed);
        let asked = retry_after.map_or(0, |wait| wait.as_millis() as u64);
        let until = self.pause(now, (SHORT_MS << before.min(4)).max(asked).min(BUSY_MS));
        self.busy_until_ms.fetch_max(until.0, Ordering::Relaxed);
        until
    }

    /// A request was finished there while others wait: there is room for one.
    pub(crate) fn has_room(&self, now: Millis) {
        if self.busy_until(now).is_some() {
            self.busy_until_ms.store(0, Ordering::Relaxed);
            self.until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// When it is worth another try, if it said at last that it is busy.
    pub(crate) fn busy_until(&self, now: Millis) -> Option<Millis> {
        let until_ms = self.busy_until_ms.load(Ordering::Relaxed);
        (now.0 < until_ms).then_some(Millis(until_ms))
    }

    /// The worker failed with a server error. One failure may be the request's own doing, so the pause begins with
    /// the second in a row. Returns the end of the pause.
    pub(crate) fn failed(&self, now: Millis) -> Millis {
        match self.refusals.fetch_add(1, Ordering::Relaxed) {
            0 => now,
            before => self.pause(now, (SHORT_MS << (before - 1).min(8)).min(FAILING_MS)),
        }
    }

    /// The worker is shutting down, which its health page may not say. Returns the end of the pause.
    pub(crate) fn leaves(&self, now: Millis) -> Millis {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        self.pause(now, FAILING_MS)
    }

    fn pause(&self, now: Millis, pause_ms: u64) -> Millis {
        let until = now.0 + pause_ms;
        self.until_ms.fetch_max(until, Ordering::Relaxed);
        Millis(until)
    }

    /// The worker answered well.
    pub(crate) fn succeeded(&self) {
        // Reads are shared, writes are not: the common case writes nothing.
        if self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the worker is to be left alone at `now`.
    pub(crate) fn is_paused(&self, now: Millis) -> bool {
        now.0 < self.until_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_pauses_grow_to_a_second_and_honour_a_small_retry_after() {
        let pauses = |retry_after| {
            let backoff = Backoff::default();
            (0..6).map(|_| backoff.busy(Millis(1000), retry_after).0 - 1000).collect::<Vec<_>>()
        };
        assert_eq!(pauses(None), [250, 500, 1000, 1000, 1000, 1000]);
        assert_eq!(pauses(Some(Duration::from_secs(7))), [1000; 6]);
        assert_eq!(pauses(Some(Duration::from_millis(300))), [300, 500, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn room_ends_a_busy_pause_but_not_one_for_failures() {
        let backoff = Backoff::default();
        backoff.busy(Millis(0), None);
        assert_eq!(backoff.busy_until(Millis(249)), Some(Millis(250)));
        backoff.has_room(Millis(10));
        assert!(!backoff.is_paused(Millis(11)));
        let backoff = Backoff::default();
        backoff.failed(Millis(0));
        backoff.failed(Millis(0));
        backoff.has_room(Millis(10));
        assert!(backoff.is_paused(Millis(11)) && backoff.busy_until(Millis(11)).is_none());
    }

    #[test]
    fn one_failure_is_forgiven_and_success_ends_the_series() {
        let backoff = Backoff::default();
        assert_eq!(backoff.failed(Millis(10)), Millis(10));
        assert!(!backoff.is_paused(Millis(10)));
        assert_eq!(backoff.failed(Millis(10)), Millis(260));
        assert!(backoff.is_paused(Millis(259)) && !backoff.is_paused(Millis(260)));
        for _ in 0..40 {
            assert!(backoff.failed(Millis(0)).0 <= FAILING_MS);
        }
        backoff.succeeded();
        assert_eq!(backoff.failed(Millis(9000)), Millis(9000));
        assert_eq!(Backoff::default().leaves(Millis(0)), Millis(FAILING_MS), "once is enough");
    }
}
