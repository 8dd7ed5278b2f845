//! A request's place in the books: opened by a decision, closed exactly once, whatever happens.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use trunkline_core::{Decision, Usage};

use crate::fleet::Worker;
use crate::keys::Key;
use crate::server::Shared;

/// A booked request. Dropping it completes it: a client that leaves, a panic and a fault all end here.
pub(crate) struct Booking {
    shared: Arc<Shared>,
    pub(crate) worker: Arc<Worker>,
    decision: Decision,
    /// Whose tokens these are.
    key: Option<Arc<Key>>,
    open: bool,
    waits_for_first_token: bool,
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
    /// Takes over what `decision` booked on `worker`; `key` pays for it.
    pub(crate) fn new(
        shared: Arc<Shared>,
        worker: Arc<Worker>,
        decision: Decision,
        key: Option<Arc<Key>>,
    ) -> Self {
        worker.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { shared, worker, decision, key, open: true, waits_for_first_token: true }
    }

    /// The first token of a generation arrived; `since` is when the request did.
    pub(crate) fn first_token(&mut self, since: Instant) {
        if std::mem::take(&mut self.waits_for_first_token) {
            self.shared.fleet.router.first_token(self.decision.id, self.shared.now());
            self.shared.metrics.first_token(since.elapsed());
        }
    }

    /// The request is over.
    pub(crate) fn complete(mut self, usage: Option<Usage>) {
        self.close(usage);
    }

    fn close(&mut self, usage: Option<Usage>) {
        if std::mem::take(&mut self.open) {
            self.shared.fleet.router.complete(self.decision.id, usage, self.shared.now());
            self.worker.in_flight.fetch_sub(1, Ordering::Relaxed);
            // What was tried in vain is not paid for.
            if let Some(key) = self.key.take()
                && (usage.is_some() || !self.waits_for_first_token)
            {
                key.charge(self.shared.now(), usage, self.decision.prompt_tokens.into());
            }
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.close(None);
    }
}
