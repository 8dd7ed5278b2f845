//! How many requests may be sent once more: a share of the traffic, so that an outage is never amplified.
//!
//! Every retry is work that the fleet does twice. When one worker fails, retries are few and save the day; when all of
//! them fail or drown, retries are what keeps them down. So within a sliding window of ten seconds, at most a share of the
//! requests that came or are still running, and a few more for quiet hours, are sent again. Attempts that reached no
//! worker (a refused connection) or lost it (it died with what it had) leave no work behind and are not counted: neither a
//! small fleet that loses a half of itself nor a client that provokes errors may cost others their rescue.

use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_core::Millis;

/// The window, in slots of a second.
const SLOTS: u64 = 10;
/// Retries per window that are always allowed: one worker of a small, idle fleet may die with what it has.
const FLOOR: f64 = 32.0;

/// Counts per second over the last ten seconds.
#[derive(Debug, Default)]
struct Window([AtomicU64; SLOTS as usize]);

/// A slot holds its second (above 32 bits) and its count (below).
const COUNT_BITS: u32 = 32;

impl Window {
    fn add(&self, second: u64) {
        let slot = &self.0[(second % SLOTS) as usize];
        let seen = slot.load(Ordering::Relaxed);
        if seen >> COUNT_BITS == second & u64::from(u32::MAX) {
            slot.fetch_add(1, Ordering::Relaxed);
        } else {
            // Another thread may begin the second as well; then one of them counts on.
            let fresh = second << COUNT_BITS | 1;
            if slot.compare_exchange(seen, fresh, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                slot.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn sum(&self, second: u64) -> u64 {
        let slots = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        slots
            .filter(|slot| second.saturating_sub(slot >> COUNT_BITS) < SLOTS)
            .map(|slot| slot & u64::from(u32::MAX))
            .sum()
    }
}

/// The retries of one gateway. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    share: f64,
    requests: Window,
    retries: Window,
}

impl RetryBudget {
    /// Allows `share` retries per request.
    pub(crate) fn new(share: f64) -> Self {
        Self { share, requests: Window::default(), retries: Window::default() }
    }

    /// A request came.
    pub(crate) fn request(&self, now: Millis) {
        self.requests.add(now.0 / 1000);
    }

    /// Whether one more retry is within the budget; counts it if so. `in_flight` are the requests that run. Threads
    /// that ask at the same moment may exceed it by one each.
    pub(crate) fn retry(&self, now: Millis, in_flight: u64) -> bool {
        let second = now.0 / 1000;
        let traffic = self.requests.sum(second).max(in_flight) as f64;
        let allowed = if self.share > 0.0 { self.share * traffic + FLOOR } else { 0.0 };
        let is_within = (self.retries.sum(second) as f64) < allowed;
        if is_within {
            self.retries.add(second);
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(budget: &RetryBudget, now: Millis, in_flight: u64) -> usize {
        (0..10_000).take_while(|_| budget.retry(now, in_flight)).count()
    }

    #[test]
    fn a_share_of_the_window_and_a_floor() {
        let budget = RetryBudget::new(0.2);
        assert_eq!(retries(&budget, Millis(0), 0), 32);
        for number in 0..1000 {
            budget.request(Millis(number * 10));
        }
        assert_eq!(retries(&budget, Millis(9_999), 0), 200, "20 % of 1000; the floor is used up");
        assert_eq!(
            retries(&budget, Millis(15_000), 0),
            0,
            "half of the requests have left the window, no retry has"
        );
        assert_eq!(retries(&budget, Millis(30_000), 0), 32, "all have");
    }

    #[test]
    fn what_still_runs_is_traffic() {
        let budget = RetryBudget::new(0.5);
        assert_eq!(retries(&budget, Millis(60_000), 100), 82);
    }

    #[test]
    fn none_without_a_share() {
        assert_eq!(retries(&RetryBudget::new(0.0), Millis(0), 1000), 0);
    }
}
