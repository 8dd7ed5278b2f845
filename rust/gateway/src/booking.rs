//! A request's place in the books: opened by a decision, closed exactly once, whatever happens.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use trunkline_core::{Decision, Usage};

use crate::fleet::Worker;
use crate::keys::Key;
use crate::server::Shared;
use crate::trial::Part;

/// A booked request. Dropping it completes it: a client that leaves, a panic and a fault all end here.
pub(crate) struct Booking {
    shared: Arc<Shared>,
    pub(crate) worker: Arc<Worker>,
    decision: Decision,
    /// Whose tokens these are.
    key: Option<Arc<Key>>,
    /// Whose rendering its answer tells about.
    watched: Option<usize>,
    /// Its part in what is tried; taken over once its answer is passed on.
    part: Option<Box<Part>>,
    open: bool,
    waits_for_first_token: bool,
    /// Its worker serves it: when it ends, there is room for another one.
    is_served: bool,
}

impl fmt::Debug for Booking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Booking")
            .field("decision", &self.decision)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Booking {
    /// Takes over what `decision` booked on `worker`, and a place that was taken there; `key` pays for it.
    pub(crate) fn new(
        shared: Arc<Shared>,
        worker: Arc<Worker>,
        decision: Decision,
        key: Option<Arc<Key>>,
        watched: Option<usize>,
    ) -> Self {
        Self {
            shared,
            worker,
            decision,
            key,
            watched,
            part: None,
            open: true,
            waits_for_first_token: true,
            is_served: false,
        }
    }

    /// Prompt tokens that the worker is believed to have to compute.
    pub(crate) fn uncached_tokens(&self) -> u32 {
        self.decision.prompt_tokens.saturating_sub(self.decision.matched_tokens)
    }

    /// What was decided.
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Takes over its part in what is tried.
    pub(crate) fn take_part(&mut self, part: Option<Box<Part>>) {
        self.part = part;
    }

    /// Its answer broke; the books are closed.
    pub(crate) fn cut(mut self) {
        if let Some(part) = &mut self.part {
            part.failed();
        }
    }

    /// The worker has begun to serve it.
    pub(crate) fn served(&mut self) {
        self.is_served = true;
    }

    /// The first token of a generation arrived; `since` is when the request did.
    pub(crate) fn first_token(&mut self, since: Instant) {
        if std::mem::take(&mut self.waits_for_first_token) {
            self.shared.fleet.router.first_token(self.decision.id, self.shared.now());
            self.shared.metrics.first_token(since.elapsed());
            if let Some(part) = &mut self.part {
                part.first_token();
            }
        }
    }

    /// The request is over.
    pub(crate) fn complete(mut self, usage: Option<Usage>) {
        self.close(usage);
    }

    fn close(&mut self, usage: Option<Usage>) {
        if std::mem::take(&mut self.open) {
            if let Some(mut part) = self.part.take() {
                part.complete(usage);
            }
            let fleet = &self.shared.fleet;
            fleet.router.complete(self.decision.id, usage, self.shared.now());
            if let (Some(text), Some(told), Some(cached)) =
                (self.watched, self.decision.told_tokens, usage.and_then(|usage| usage.cached_tokens))
                && fleet.exact.text(text).watch.note(
                    told,
                    self.decision.matched_tokens,
                    cached,
                    self.shared.now(),
                )
            {
                // The events may be wrong as well as the text.
                self.worker.following.resync();
            }
            self.worker.in_flight.fetch_sub(1, Ordering::SeqCst);
            // What was tried in vain is not paid for.
            if let Some(key) = self.key.take()
                && (usage.is_some() || !self.waits_for_first_token)
            {
                key.charge(self.shared.now(), usage, self.decision.prompt_tokens.into());
            }
            if fleet.queue.len() > 0 {
                if self.is_served {
                    self.worker.backoff.has_room(self.shared.now());
                }
                fleet.queue.wake();
            }
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.close(None);
    }
}
