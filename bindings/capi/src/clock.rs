//! The clock of callers that give no time.

use rustix::time::{ClockId, clock_gettime};
use trunkline_core::Millis;

/// The system's monotonic clock; on Linux the coarse one: it steps every 1 to 4 ms, of which the core feels nothing, and is
/// read in 6 ns instead of 25 to 40.
#[cfg(target_os = "linux")]
const MONOTONIC: ClockId = ClockId::MonotonicCoarse;
#[cfg(not(target_os = "linux"))]
const MONOTONIC: ClockId = ClockId::Monotonic;

/// A monotonic clock that showed a given time once. Cost of reading it: some nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// What its time is ahead of the system's, modulo 2^64.
    ahead_ms: u64,
}

impl Clock {
    /// The clock on which it is `now` now.
    #[must_use]
    pub fn showing(now: Millis) -> Self {
        Self { ahead_ms: now.0.wrapping_sub(system_ms()) }
    }

    /// The present.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Millis {
        Millis(system_ms().wrapping_add(self.ahead_ms))
    }
}

#[inline]
fn system_ms() -> u64 {
    let time = clock_gettime(MONOTONIC);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_goes_on_from_what_it_shows_as_time_does() {
        let (clock, start) = (Clock::showing(Millis(5)), Instant::now());
        assert!((5..50).contains(&clock.now().0));
        thread::sleep(Duration::from_millis(60));
        let passed = clock.now().0 - 5;
        // A step of the coarse clock is up to 10 ms.
        assert!(passed >= 50 && passed <= start.elapsed().as_millis() as u64 + 10, "{passed}");
    }
}
