//! Who follows a worker's events, and what that does to the router's view of it.
//!
//! A view counts while its feed is live. While messages are missing, or nobody can be reached, the worker's own view does: that
//! is kept up in any case.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use trunkline_core::{CacheView, Millis};
use trunkline_events::{Batch, Drain, Feed, Health, Sink, Source, source};

use super::Exact;
use crate::endpoint::Endpoint;
use crate::fleet::{Fleet, Worker};
use crate::probe;
use crate::profile::EventSource;

/// How often an engine is asked that hands its events out when asked.
const POLL: Duration = Duration::from_millis(100);
/// Shortest time between two replays for the sake of blocks whose parents are unknown.
const RESYNC_MS: u64 = 30_000;

/// A worker's feed, and what it was applied to.
#[derive(Debug, Default)]
pub(crate) struct Following {
    feed: Mutex<Option<Feed>>,
    pub(crate) applied: Mutex<Counts>,
    is_live: AtomicBool,
    /// Whether something that was told could not be used since everything was told: then the view lacks it.
    lacks: AtomicBool,
    /// When what it lacks may ask for a replay again.
    resync_from_ms: AtomicU64,
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
        self.is_live.store(false, Ordering::Relaxed);
    }

    /// What the feed is worth and what it counted; `None` if the worker is not followed.
    pub(crate) fn look(&self) -> Option<(Health, trunkline_events::Stats)> {
        self.feed.lock().as_ref().map(|feed| (feed.health(), feed.stats()))
    }

    /// Whether the view lacks what its worker told.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks.load(Ordering::Relaxed)
    }

    /// Something is missing: asks for everything again, once in a while.
    fn mend(&self, now: Millis) {
        let due = self.resync_from_ms.load(Ordering::Relaxed);
        if now.0 >= due {
            self.resync_from_ms.store(now.0 + RESYNC_MS, Ordering::Relaxed);
            self.resync();
        }
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
    let events = worker.engine.get().events;
    if events == EventSource::Polled && worker.told_source.is_none() {
        poll(fleet, worker);
        return true;
    }
    let told = match &worker.told_source {
        Some(told) => Some(told.clone()),
        None if events == EventSource::Untold => None,
        None => {
            let Ok(answer) = probe::event_sources(&worker.endpoint).await else { return false };
            answer.and_then(|json| {
                let found = source::read(&json, &worker.endpoint.url, worker.endpoint.host()).ok()?;
                found.into_iter().find(|source| source.rank.unwrap_or(0) == worker.told.rank.unwrap_or(0))
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

/// Follows an engine that hands its events out when asked.
fn poll(fleet: &Arc<Fleet>, worker: &Arc<Worker>) {
    let mut following = worker.following.feed.lock();
    if following.is_some() {
        return;
    }
    let source = Source {
        worker: worker.endpoint.url.clone(),
        rank: worker.told.rank,
        // Not used: it is asked over HTTP.
        endpoint: source::Endpoint::Tcp { host: worker.endpoint.host().to_owned(), port: 0 },
        replay: None,
        topic: String::new(),
        bind: false,
    };
    let sink = Arc::new(ToRouter { fleet: Arc::downgrade(fleet), worker: Arc::downgrade(worker) });
    *following = Some(Feed::poll(source, Asking(worker.endpoint.clone()), POLL, sink));
}

/// Asks TensorRT-LLM for its events.
struct Asking(Endpoint);

impl Drain for Asking {
    async fn drain(&mut self) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        let answer = probe::ask(&self.0, "/kv_cache_events", Bytes::from_static(b"{}")).await;
        answer.map_err(|failure| format!("{failure:?}").into())
    }
}

/// Has the worker's events count if its feed is live and nothing is lacking.
fn show(fleet: &Fleet, worker: &Worker) {
    let following = &worker.following;
    let counts = following.is_live.load(Ordering::Relaxed) && !following.lacks();
    let view = if counts { CacheView::Events } else { CacheView::Own };
    // An error means that the router's worker was removed by somebody else.
    let _ = fleet.router.set_cache_view(worker.id, view);
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
            let applied = fleet.router.apply_events(worker.id, events, spelling, batch.age_ms(), fleet.now());
            // An error means that the router's worker was removed by somebody else.
            let Ok(applied) = applied else { return };
            let mut counts = worker.following.applied.lock();
            counts.stored += applied.stored;
            counts.removed += applied.removed;
            counts.orphans += applied.orphans;
            counts.refused += applied.refused + u64::from(batch.refused);
            drop(counts);
            let refused = applied.refused + u64::from(batch.refused);
            if batch.clears() {
                worker.following.lacks.store(false, Ordering::Relaxed);
            }
            if refused > 0 && !worker.following.lacks.swap(true, Ordering::Relaxed) {
                fleet.log.say(format_args!(
                    "{refused} blocks that {} told of could not be used ({}): its own view counts",
                    worker.endpoint.url,
                    batch.fault.map_or_else(
                        || "unknown tokens, another block size, or no memory left".into(),
                        |fault| fault.to_string()
                    ),
                ));
            }
            show(fleet, worker);
            if applied.orphans + refused > 0 {
                worker.following.mend(fleet.now());
            }
        });
    }

    fn reset(&self, _source: &Source, reason: &'static str) {
        self.with(|fleet, _, worker| {
            worker.following.applied.lock().resets += 1;
            worker.following.lacks.store(false, Ordering::Relaxed);
            // A publisher that began anew is a worker that did: its own view is empty as well.
            let _ = match reason {
                "restart" => fleet.router.reset_worker(worker.id),
                _ => fleet.router.forget_events(worker.id),
            };
        });
    }

    fn health(&self, _source: &Source, health: Health) {
        self.with(|fleet, _, worker| {
            worker.following.is_live.store(health == Health::Live, Ordering::Relaxed);
            show(fleet, worker);
        });
    }
}
