//! Who follows a worker's events, and what that does to the router's view of it.
//!
//! A view counts while its feed is live. While messages are missing, or nobody can be reached, the worker's own view does: that
//! is kept up in any case.

use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use trunkline_core::CacheView;
use trunkline_events::{Batch, Feed, Health, Sink, Source, source};

use super::Exact;
use crate::fleet::{Fleet, Worker};
use crate::probe;

/// A worker's feed, and what it was applied to.
#[derive(Debug, Default)]
pub(crate) struct Following {
    feed: Mutex<Option<Feed>>,
    pub(crate) applied: Mutex<Counts>,
}

/// What became of a worker's events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) stored: u64,
    pub(crate) removed: u64,
    pub(crate) orphans: u64,
    pub(crate) refused: u64,
    pub(crate) resets: u64,
}

impl Following {
    /// Stops following.
    pub(crate) fn end(&self) {
        *self.feed.lock() = None;
    }

    /// What the feed is worth and what it counted; `None` if the worker is not followed.
    pub(crate) fn look(&self) -> Option<(Health, trunkline_events::Stats)> {
        self.feed.lock().as_ref().map(|feed| (feed.health(), feed.stats()))
    }

    /// Asks for everything again.
    pub(crate) fn resync(&self) {
        if let Some(feed) = &*self.feed.lock() {
            feed.resync();
        }
    }
}

/// Asks a worker where its events come from, and follows them. Does nothing if it is followed from there already, or tells
/// none. `false` if it did not answer.
pub(crate) async fn follow(fleet: &Arc<Fleet>, worker: &Arc<Worker>) -> bool {
    let told = match &worker.told_source {
        Some(told) => Some(told.clone()),
        None => {
            let Ok(answer) = probe::event_sources(&worker.endpoint).await else { return false };
            answer.and_then(|json| {
                let found = source::read(&json, &worker.endpoint.url, worker.endpoint.host()).ok()?;
                found.into_iter().find(|source| source.rank.unwrap_or(0) == worker.rank.unwrap_or(0))
            })
        }
    };
    let mut following = worker.following.feed.lock();
    match told {
        Some(source) if following.as_ref().is_none_or(|feed| *feed.source() != source) => {
            let sink = Arc::new(ToRouter { fleet: Arc::downgrade(fleet), worker: Arc::downgrade(worker) });
            // The old one ends first: of two that are bound to one address the second would fail.
            *following = None;
            *following = Some(Feed::start(source, sink));
        }
        Some(_) => {}
        None => {
            if following.take().is_some() {
                let _ = fleet.router.set_cache_view(worker.id, CacheView::Own);
            }
        }
    }
    true
}

/// Hands a feed's events to the router.
struct ToRouter {
    fleet: Weak<Fleet>,
    worker: Weak<Worker>,
}

impl ToRouter {
    fn with(&self, act: impl FnOnce(&Fleet, &Exact, &Worker)) {
        if let (Some(fleet), Some(worker)) = (self.fleet.upgrade(), self.worker.upgrade()) {
            // A worker that was removed has no view any more, and its id may be that of its successor.
            worker.health.unless_retired(|| act(&fleet, &fleet.exact, &worker));
        }
    }
}

impl Sink for ToRouter {
    fn apply(&self, _source: &Source, batch: &Batch) {
        self.with(|fleet, exact, worker| {
            let models: Vec<String> = worker.model_names();
            let spelling = exact.spelling(&models);
            let events = batch.events();
            let applied =
                fleet.router.apply_events(worker.id, events, spelling, delay_ms(batch.ts), fleet.now());
            // An error means that the router's worker was removed by somebody else.
            let Ok(applied) = applied else { return };
            let mut counts = worker.following.applied.lock();
            counts.stored += applied.stored;
            counts.removed += applied.removed;
            counts.orphans += applied.orphans;
            counts.refused += applied.refused + u64::from(batch.refused);
        });
    }

    fn reset(&self, _source: &Source, _reason: &'static str) {
        self.with(|fleet, _, worker| {
            worker.following.applied.lock().resets += 1;
            let _ = fleet.router.forget_events(worker.id);
        });
    }

    fn health(&self, _source: &Source, health: Health) {
        self.with(|fleet, _, worker| {
            let view = if health == Health::Live { CacheView::Events } else { CacheView::Own };
            let _ = fleet.router.set_cache_view(worker.id, view);
        });
    }
}

/// Age of a batch by this machine's clock; `None` if its engine did not say or its clock is ahead.
fn delay_ms(ts: f64) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    (ts > 0.0 && ts <= now).then_some(((now - ts) * 1000.0) as u64)
}
