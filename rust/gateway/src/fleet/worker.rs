//! One worker: everything that the gateway keeps about it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use serde_json::value::RawValue;
use trunkline_core::WorkerId;
use trunkline_events::Source;

use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::exact::Following;
use crate::health::Health;
use crate::metrics::RequestTable;
use crate::profile::{Recognised, Told};
use crate::pulse::Pulse;
use crate::upstream::Pool;

/// One model in a worker's list, as the worker wrote it.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) id: String,
    /// The model that it adapts, if it is an adapter.
    pub(crate) parent: Option<String>,
    pub(crate) entry: Box<RawValue>,
}

/// A worker and all that we keep about it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) endpoint: Endpoint,
    /// Connections to it.
    pub(crate) pool: Pool,
    /// What its URL says of it: its pool in a trial, and the data-parallel rank that it is.
    pub(crate) told: Told,
    pub(crate) health: Health,
    pub(crate) requests: RequestTable,
    /// Requests booked here and not finished, as this gateway counts them.
    pub(crate) in_flight: AtomicU32,
    /// Most of them at once; 0 for no cap.
    pub(crate) cap: u32,
    pub(crate) draining: AtomicBool,
    pub(crate) engine: Recognised,
    /// Where its events come from, if that was told rather than to be asked.
    pub(crate) told_source: Option<Source>,
    pub(crate) following: Following,
    /// Whether it says that it keeps no prefixes.
    pub(crate) keeps_none: AtomicBool,
    pub(crate) pulse: Pulse,
    /// When its slow start ends.
    pub(crate) ramping_until_ms: AtomicU64,
    pub(crate) backoff: Backoff,
    /// What it serves; `None` while nobody could ask it.
    pub(super) models: ArcSwapOption<Vec<Model>>,
}

impl Worker {
    /// A worker that nobody has asked for anything yet, for a gateway of so many threads.
    pub(super) fn new(
        id: WorkerId,
        endpoint: Endpoint,
        cap: u32,
        told: Told,
        told_source: Option<Source>,
        threads: usize,
    ) -> Self {
        Self {
            id,
            endpoint,
            pool: Pool::new(threads),
            health: Health::default(),
            requests: RequestTable::default(),
            in_flight: AtomicU32::new(0),
            cap,
            draining: AtomicBool::new(false),
            engine: Recognised::told(told.engine),
            told,
            told_source,
            following: Following::default(),
            keeps_none: AtomicBool::new(false),
            pulse: Pulse::default(),
            ramping_until_ms: AtomicU64::new(0),
            backoff: Backoff::default(),
            models: ArcSwapOption::empty(),
        }
    }

    /// The models that it lists, adapters left out.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let models = self.models.load();
        let own = models.iter().flat_map(|models| models.iter()).filter(|model| model.parent.is_none());
        own.map(|model| model.id.clone()).collect()
    }

    /// Whether it may get new requests.
    pub(crate) fn is_live(&self) -> bool {
        self.health.is_up() && !self.draining.load(Ordering::Relaxed)
    }

    /// Whether it has no place left beside so many requests.
    pub(crate) fn is_full(&self, in_flight: u32) -> bool {
        self.cap > 0 && in_flight >= self.cap
    }

    /// Takes a place for one request; `false` if all are taken.
    pub(crate) fn take_place(&self) -> bool {
        let is_free = !self.is_full(self.in_flight.fetch_add(1, Ordering::SeqCst));
        if !is_free {
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        is_free
    }

    /// It answered, so it is neither busy nor failing.
    pub(crate) fn answered(&self) {
        self.backoff.succeeded();
        self.health.connected();
    }
}
