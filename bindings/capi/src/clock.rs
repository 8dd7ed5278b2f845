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
    use std::time::Instant;

    use super::*;

    /// Longest step of the coarse clock.
    const STEP_MS: u64 = 10;

    #[test]
    fn it_goes_on_from_what_it_shows_as_time_does() {
        let before = Instant::now();
        let clock = Clock::showing(Millis(5));
        let after = Instant::now();
        loop {
            let at_least = after.elapsed().as_millis() as u64;
            let passed = clock.now().0 - 5;
            let at_most = before.elapsed().as_millis() as u64;
            assert!(
                passed + STEP_MS >= at_least && passed <= at_most + STEP_MS,
                "{at_least} {passed} {at_most}"
            );
            if at_least >= 60 {
                return;
            }
        }
    }
}
