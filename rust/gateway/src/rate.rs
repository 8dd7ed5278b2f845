//! A token bucket that can also be charged afterwards, as one atomic word.
//!
//! The word is the time at which everything taken so far will have been earned (GCRA's theoretical arrival time). It is ours
//! because the crates for it (governor) only ask in advance: how many tokens an answer has is known when it is over, and
//! then the bucket must be able to go into debt.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trunkline_core::Millis;

/// What may be taken at once after a quiet time: one minute's worth.
const WINDOW_NS: u64 = 60_000_000_000;

/// So many units per minute. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) per_minute: NonZeroU32,
    earned_at_ns: AtomicU64,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(per_minute: NonZeroU32) -> Self {
        Self { per_minute, earned_at_ns: AtomicU64::new(0) }
    }

    fn cost_ns(&self, units: u64) -> u64 {
        units.saturating_mul(WINDOW_NS / u64::from(self.per_minute.get()))
    }

    /// Whether a unit is left. Errors: how long until there is.
    pub(crate) fn peek(&self, now: Millis) -> Result<(), Duration> {
        within(self.after(self.earned_at_ns.load(Ordering::Relaxed), now, 1), now)
    }

    /// Takes one unit. Errors: how long until there is one; nothing is taken then.
    pub(crate) fn take(&self, now: Millis) -> Result<(), Duration> {
        let mut earned_at = self.earned_at_ns.load(Ordering::Relaxed);
        loop {
            let after = self.after(earned_at, now, 1);
            within(after, now)?;
            let taken = self.earned_at_ns.compare_exchange_weak(
                earned_at,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => return Ok(()),
                Err(other) => earned_at = other,
            }
        }
    }

    /// Takes so many units, whether they are left or not.
    pub(crate) fn charge(&self, now: Millis, units: u64) {
        // The closure never refuses.
        let _ = self.earned_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |earned_at| {
            Some(self.after(earned_at, now, units))
        });
    }

    fn after(&self, earned_at_ns: u64, now: Millis, units: u64) -> u64 {
        earned_at_ns.max(nanos(now)).saturating_add(self.cost_ns(units))
    }
}

fn nanos(now: Millis) -> u64 {
    now.0.saturating_mul(1_000_000)
}

fn within(after_ns: u64, now: Millis) -> Result<(), Duration> {
    match after_ns.saturating_sub(nanos(now)).saturating_sub(WINDOW_NS) {
        0 => Ok(()),
        wait_ns => Err(Duration::from_nanos(wait_ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_minute: u32) -> Bucket {
        Bucket::new(NonZeroU32::new(per_minute).unwrap())
    }

    #[test]
    fn a_minutes_worth_at_once_then_one_at_a_time() {
        let bucket = bucket(60);
        let start = Millis(5_000);
        for _ in 0..60 {
            bucket.take(start).unwrap();
        }
        assert_eq!(bucket.take(start), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(Millis(5_500)), Err(Duration::from_millis(500)));
        bucket.take(Millis(6_000)).unwrap();
        assert!(bucket.take(Millis(6_000)).is_err());
    }

    #[test]
    fn a_debt_is_earned_back_before_anything_else() {
        let bucket = bucket(600);
        bucket.peek(Millis(0)).unwrap();
        bucket.charge(Millis(0), 1_200);
        assert_eq!(bucket.peek(Millis(0)), Err(Duration::from_millis(60_100)));
        assert!(bucket.peek(Millis(60_099)).is_err());
        bucket.peek(Millis(60_100)).unwrap();
    }

    #[test]
    fn absurd_charges_do_not_wrap() {
        let bucket = bucket(1);
        bucket.charge(Millis(u64::MAX), u64::MAX);
        bucket.charge(Millis(0), u64::MAX);
        assert!(bucket.peek(Millis(0)).is_err());
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let bucket = bucket(1_000);
        let taken: usize = std::thread::scope(|scope| {
            let run = || (0..1_000).filter(|_| bucket.take(Millis(7)).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1_000);
    }
}
