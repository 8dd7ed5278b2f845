//! What a feed counts, and the pace that it allows its publisher.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_core::CacheEvent;

use crate::batch::Batch;
use crate::sequencer::Counts;

/// Messages and bytes that are taken from one publisher in a tenth of a second. An engine sends one message a step, a hundred in
/// that time if it is fast. Replays run at this pace: a buffer of 10,000 messages takes half a second.
const MESSAGES: u32 = 2_000;
const BYTES: usize = 64 << 20;
const WINDOW: Duration = Duration::from_millis(100);

/// What a feed did since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that were made.
    pub connects: u64,
    /// Connections that failed or ended.
    pub disconnects: u64,
    /// Batches that were applied.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Blocks that were stored.
    pub blocks_stored: u64,
    /// Blocks that were removed.
    pub blocks_removed: u64,
    /// Events that contradicted themselves.
    pub refused: u64,
    /// Events of unknown types, or about other cache groups.
    pub skipped: u64,
    /// Batches that could not be read.
    pub decode_errors: u64,
    /// Messages of another form than a sequence and a payload.
    pub garbage: u64,
    /// Times that the publisher was too fast and had to wait.
    pub throttled: u64,
    /// Seconds from the engine's time stamp to the view, of live messages; mean over about the last sixteen. The clocks of two
    /// machines are in it.
    pub delay_s: f64,
    /// The longest one.
    pub max_delay_s: f64,
    /// What was missing, came again, or began anew.
    pub sequence: Counts,
}

impl Stats {
    pub(super) fn count(&mut self, batch: &Batch) {
        self.batches += 1;
        self.events += batch.events().len() as u64;
        self.refused += u64::from(batch.refused);
        self.skipped += u64::from(batch.skipped);
        for event in batch.events() {
            match event {
                CacheEvent::Stored(stored) => self.blocks_stored += stored.handles.len() as u64,
                CacheEvent::Removed { handles, .. } => self.blocks_removed += handles.len() as u64,
                CacheEvent::Cleared => {}
            }
        }
    }

    pub(super) fn delayed(&mut self, delay_s: f64) {
        let delay_s = delay_s.max(0.0);
        self.delay_s += (delay_s - self.delay_s) / 16.0;
        self.max_delay_s = self.max_delay_s.max(delay_s);
    }
}

/// How much was taken in this tenth of a second.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    messages: u32,
    bytes: usize,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, messages: 0, bytes: 0 }
    }

    /// Takes a message. Returns until when to wait before the next one, if it was too much.
    pub(super) fn take(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        if now >= self.since + WINDOW {
            *self = Self::new(now);
        }
        self.messages += 1;
        self.bytes += bytes;
        (self.messages >= MESSAGES || self.bytes >= BYTES).then(|| self.since + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept_per_tenth_of_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let after = |ms| start + Duration::from_millis(ms);
        assert!((1..MESSAGES).all(|_| pace.take(1, after(50)).is_none()));
        assert_eq!(pace.take(1, after(60)), Some(after(100)));
        assert_eq!(pace.take(1, after(100)), None, "a new window");
        assert_eq!(pace.take(BYTES, after(120)), Some(after(200)));
    }

    #[test]
    fn delays_are_a_mean_and_a_maximum() {
        let mut stats = Stats::default();
        (0..200).for_each(|_| stats.delayed(0.5));
        stats.delayed(2.0);
        assert!((stats.delay_s - 0.594).abs() < 0.001 && stats.max_delay_s == 2.0);
        (0..200).for_each(|_| stats.delayed(-1.0));
        assert!(stats.delay_s < 0.001, "a clock that is ahead");
    }
}
