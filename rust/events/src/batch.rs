//! One message of a feed, decoded: its events in order, in memory that the next message uses again.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use trunkline_core::{CacheEvent, Handle, Medium, Root, Stored};

use crate::decode::Fault;

/// Words that an arena keeps for the next message; what a larger one took beyond them is given back.
const KEPT_WORDS: usize = 1 << 18;

/// The events of one message. Filled by a decoder, read by [`events`](Self::events).
///
/// Reuse one for many messages: filling it allocates nothing once its arenas have grown to the size of the usual message.
/// They never grow beyond eight times the message, whatever lengths it declares.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// When the engine made it, in seconds since 1970 by its own clock; 0 if it did not say.
    pub ts: f64,
    /// Data-parallel rank of the engine, if it said.
    pub rank: Option<u32>,
    /// Events that were left out because they contradict themselves.
    pub refused: u32,
    /// Events that were left out because they are of an unknown type or about another kind of cache than the attention of
    /// whole prompts.
    pub skipped: u32,
    /// Why the first of the refused ones was.
    pub fault: Option<Fault>,
    pub(crate) records: Vec<Record>,
    pub(crate) handles: Vec<Handle>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) extras: Vec<u64>,
}

/// An event, with ranges of the arenas in place of slices.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    Stored {
        handles: Range<u32>,
        parent: Option<Handle>,
        tokens: Range<u32>,
        block_size: u32,
        root: Root,
        extras: Range<u32>,
        medium: Medium,
    },
    Removed {
        handles: Range<u32>,
        medium: Medium,
    },
    Cleared,
}

/// How full the arenas were, to come back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    handles: usize,
    tokens: usize,
    extras: usize,
}

impl Mark {
    /// Length of the arena of extras.
    pub(crate) fn extras(self) -> usize {
        self.extras
    }
}

impl Batch {
    /// A batch without events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The events, in the order in which they happened. Cost: O(1) for each.
    pub fn events(&self) -> impl ExactSizeIterator<Item = CacheEvent<'_>> {
        let within = |range: &Range<u32>| range.start as usize..range.end as usize;
        self.records.iter().map(move |record| match record {
            Record::Stored { handles, parent, tokens, block_size, root, extras, medium } => {
                CacheEvent::Stored(Stored {
                    handles: &self.handles[within(handles)],
                    parent: *parent,
                    tokens: &self.tokens[within(tokens)],
                    block_size: *block_size,
                    root: *root,
                    extras: &self.extras[within(extras)],
                    medium: *medium,
                })
            }
            Record::Removed { handles, medium } => {
                CacheEvent::Removed { handles: &self.handles[within(handles)], medium: *medium }
            }
            Record::Cleared => CacheEvent::Cleared,
        })
    }

    /// Its age by this machine's clock in milliseconds; `None` if its engine did not say when it made it, or its clock is ahead.
    #[must_use]
    pub fn age_ms(&self) -> Option<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        (self.ts > 0.0 && self.ts <= now).then_some(((now - self.ts) * 1000.0) as u64)
    }

    /// Whether one of the events empties the cache, so that from there on everything in it is known.
    #[must_use]
    pub fn clears(&self) -> bool {
        self.records.iter().any(|record| matches!(record, Record::Cleared))
    }

    pub(crate) fn clear(&mut self) {
        self.ts = 0.0;
        self.rank = None;
        (self.refused, self.skipped, self.fault) = (0, 0, None);
        self.records.clear();
        self.handles.clear();
        self.tokens.clear();
        self.extras.clear();
        if self.handles.capacity() + self.tokens.capacity() + self.extras.capacity() > KEPT_WORDS {
            self.records.shrink_to(KEPT_WORDS / 8);
            self.handles.shrink_to(KEPT_WORDS / 8);
            self.tokens.shrink_to(KEPT_WORDS / 2);
            self.extras.shrink_to(KEPT_WORDS / 8);
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { handles: self.handles.len(), tokens: self.tokens.len(), extras: self.extras.len() }
    }

    /// Forgets what was put into the arenas since `mark`.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        self.handles.truncate(mark.handles);
        self.tokens.truncate(mark.tokens);
        self.extras.truncate(mark.extras);
    }

    pub(crate) fn refuse(&mut self, fault: Fault) {
        self.refused += 1;
        self.fault.get_or_insert(fault);
    }

    /// What was put there since `mark`.
    pub(crate) fn handles_since(&self, mark: Mark) -> Range<u32> {
        mark.handles as u32..self.handles.len() as u32
    }

    /// What was put there since `mark`.
    pub(crate) fn tokens_since(&self, mark: Mark) -> Range<u32> {
        mark.tokens as u32..self.tokens.len() as u32
    }

    /// What was put there since `mark`.
    pub(crate) fn extras_since(&self, mark: Mark) -> Range<u32> {
        mark.extras as u32..self.extras.len() as u32
    }
}
