//! What goes into a sequencer and what comes out of it.

use trunkline_core::Millis;
use xxhash_rust::xxh3::xxh3_64;

use crate::decode;

/// What a worker's view is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// There was no connection yet.
    Connecting,
    /// The view is the worker's cache, as fresh as its last message.
    Live,
    /// Messages are missing and were asked for.
    Replaying,
    /// The connection is gone; the view was right when it was.
    Lost {
        /// When it went.
        since: Millis,
    },
    /// The view lacks blocks that the worker holds, or has some that it lost.
    Partial {
        /// Why; one of few words, for metrics.
        reason: &'static str,
    },
}

impl Health {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Replaying => "replaying",
            Self::Lost { .. } => "lost",
            Self::Partial { .. } => "partial",
        }
    }
}

/// A message as it came from a socket.
#[derive(Debug, Clone, PartialEq)]
pub struct Message<P> {
    /// The publisher's number for it.
    pub sequence: u64,
    /// Its batch of events, packed.
    pub payload: P,
    pub(super) print: u64,
    pub(super) ts: f64,
    pub(super) bytes: usize,
    /// How many were applied when it was, itself included.
    pub(super) ordinal: u64,
}

impl<P: AsRef<[u8]>> Message<P> {
    /// Cost: one hash of the payload.
    #[must_use]
    pub fn new(sequence: u64, payload: P) -> Self {
        let bytes = payload.as_ref();
        let (print, ts) = (xxh3_64(bytes), decode::timestamp(bytes).unwrap_or(f64::NEG_INFINITY));
        Self { sequence, print, ts, bytes: bytes.len(), ordinal: 0, payload }
    }
}

/// What the feed is to do, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<P> {
    /// Apply this message to the view.
    Apply(Message<P>),
    /// Empty the view, for this reason.
    Reset(&'static str),
    /// Ask the replay socket for everything from this number on; end a replay that is under way.
    Replay {
        /// The first number.
        from: u64,
    },
    /// End the replay that is under way.
    StopReplay,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that messages were missing.
    pub gaps: u64,
    /// Replays that were asked for.
    pub replays: u64,
    /// Replays that failed.
    pub failed_replays: u64,
    /// Times that the publisher began anew.
    pub restarts: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages that no replay knows of.
    pub strays: u64,
    /// Times that more came during a replay than is held.
    pub overflows: u64,
}

/// What came of a message that was to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its events are in the view.
    Applied,
    /// They are, and one of them emptied the cache: all of it is known from there on.
    Cleared,
    /// It could not be read.
    Unreadable,
}
