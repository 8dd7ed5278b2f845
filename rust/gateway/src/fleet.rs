//! The workers: who they are, what they serve, how they are. One truth for all threads.
//!
//! Requests read an immutable [`Snapshot`] without locking; changes (a worker added, a model list that differs) build
//! a new one. The router knows workers by [`WorkerId`], which is also their place in the snapshot.

mod snapshot;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use smallvec::SmallVec;
use trunkline_core::{Millis, Router, WorkerId, WorkerSpec};

use crate::config::{GatewayConfig, MAX_CAP, Rules};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::exact::Exact;
use crate::log::Log;
use crate::outbound::Outbound;
use crate::probe::Failure;
use crate::profile::{self, Profile};
use crate::pulse::Expectation;
use crate::queue::Queue;
use crate::sagemaker::Layout;
use crate::signals::Signals;

pub(crate) use self::snapshot::Snapshot;
pub(crate) use self::worker::{Model, Worker};

/// Time between two requests for unknown models that make us ask for all lists.
const LISTING_MS: u64 = 1_000;

/// Ids of a few workers.
pub(crate) type Ids = SmallVec<[WorkerId; 8]>;

/// The fleet of one gateway.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) router: Arc<Router>,
    snapshot: ArcSwap<Snapshot>,
    /// Which workers belong to which variant.
    pub(crate) layout: Layout,
    /// Held while a new snapshot is made.
    change: Mutex<()>,
    threads: usize,
    outbound: Arc<Outbound>,
    pub(crate) log: Log,
    started: Instant,
    pub(crate) rules: Rules,
    pub(crate) queue: Queue,
    pub(crate) exact: Exact,
    pub(crate) signals: Signals,
    pub(crate) expectation: Expectation,
    /// Workers that were silent for longer than normal when somebody looked last, and when that was.
    pub(crate) doubted: AtomicUsize,
    pub(crate) looked_ms: AtomicU64,
    /// When the last of all pauses, and of all slow starts, ends: lets requests skip the search for such workers.
    pub(crate) paused_until_ms: AtomicU64,
    pub(crate) ramping_until_ms: AtomicU64,
    /// Whether the router chose a worker that is not ours.
    is_shared: AtomicBool,
    /// When all lists of models may be asked for out of turn again.
    next_listing_ms: AtomicU64,
    turn: AtomicUsize,
}

impl Fleet {
    /// An empty fleet for a gateway of so many threads that reaches its workers in this way.
    pub(crate) fn new(
        router: Arc<Router>,
        threads: usize,
        outbound: Arc<Outbound>,
        layout: Layout,
        exact: Exact,
        config: &GatewayConfig,
    ) -> Self {
        let replicas = router.config().replicas;
        Self {
            log: Log(config.log),
            signals: Signals::new(config.load_signals, replicas, config.probe_interval),
            exact,
            router,
            snapshot: ArcSwap::new(Arc::new(Snapshot::new(Vec::new(), &layout))),
            layout,
            change: Mutex::default(),
            threads,
            outbound,
            started: Instant::now(),
            rules: config.rules(),
            queue: Queue::new(config.max_queued),
            expectation: Expectation::default(),
            doubted: AtomicUsize::new(0),
            looked_ms: AtomicU64::new(0),
            paused_until_ms: AtomicU64::new(0),
            next_listing_ms: AtomicU64::new(0),
            ramping_until_ms: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }
    }

    /// Time since the start: the clock of everything that is kept about workers.
    pub(crate) fn now(&self) -> Millis {
        Millis(self.started.elapsed().as_millis() as u64)
    }

    /// When that time is.
    pub(crate) fn instant(&self, time: Millis) -> Instant {
        self.started + Duration::from_millis(time.0)
    }

    /// The workers now. Lock-free.
    pub(crate) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// The workers once the change under way, if any, is made.
    pub(crate) fn settled(&self) -> Guard<Arc<Snapshot>> {
        drop(self.change.lock());
        self.snapshot.load()
    }

    /// Whether any worker may get a new request.
    pub(crate) fn is_ready(&self) -> bool {
        self.snapshot().workers.iter().any(|worker| worker.is_live())
    }

    /// Whether the router has chosen a worker that is not of this fleet, and so must be told who is.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// The router chose a worker that is not of this fleet.
    pub(crate) fn found_shared(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Adds a worker that may be used at once. The caller starts its probes.
    ///
    /// A worker of this name that the router knows already, with its weight and what it is believed to hold, is taken
    /// over. `cap` bounds its requests in flight (0: not at all); `None` takes what the settings say of it.
    pub(crate) fn add(&self, url: &str, cap: Option<u32>) -> Result<Arc<Worker>, Error> {
        let (url, told) = profile::of_url(url)?;
        let endpoint = Endpoint::parse(url, &self.outbound)?.of_rank(told.rank);
        let source = told.source(&endpoint)?;
        if endpoint.tls_name.is_some() {
            // What is wrong with the certificates is said now rather than by the first request.
            self.outbound.tls()?;
        }
        let cap = cap.unwrap_or_else(|| self.rules.cap(&endpoint.url));
        if cap > MAX_CAP {
            let allowed = "0 to 1000000";
            return Err(Error::Config { key: "max_in_flight", value: cap.to_string(), allowed });
        }
        let _guard = self.change.lock();
        if self.snapshot().named(&endpoint.url).is_some() {
            return Err(trunkline_core::Error::DuplicateWorker { name: endpoint.url }.into());
        }
        let id = match self.router.worker(&endpoint.url) {
            Some(id) => {
                self.router.set_healthy(id, true)?;
                self.router.drain_worker(id, false)?;
                id
            }
            None => self.router.add_worker(WorkerSpec::new(&endpoint.url))?,
        };
        let worker = Arc::new(Worker::new(id, endpoint, cap, told, source, self.threads));
        let mut workers = self.snapshot().workers.clone();
        workers.push(Arc::clone(&worker));
        workers.sort_by_key(|worker| worker.id);
        self.snapshot.store(Arc::new(Snapshot::new(workers, &self.layout)));
        Ok(worker)
    }

    /// Removes a worker; what runs there finishes.
    pub(crate) fn remove(&self, url: &str) -> Result<(), Error> {
        let _guard = self.change.lock();
        let worker = self.find(url)?;
        // An error means that somebody has removed it from the router already.
        let _ = self.router.remove_worker(worker.id);
        worker.health.retire();
        let workers = self.snapshot().workers.iter().filter(|other| other.id != worker.id).cloned().collect();
        self.snapshot.store(Arc::new(Snapshot::new(workers, &self.layout)));
        worker.pool.clear();
        worker.following.end();
        Ok(())
    }

    /// Starts draining a worker: nothing new, what runs there finishes.
    pub(crate) fn drain(&self, url: &str) -> Result<(), Error> {
        let _guard = self.change.lock();
        let worker = self.find(url)?;
        self.router.drain_worker(worker.id, true)?;
        worker.draining.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The worker of this URL, in any spelling of it.
    pub(crate) fn find(&self, url: &str) -> Result<Arc<Worker>, Error> {
        let unknown = || Error::UnknownWorker { url: url.to_owned() };
        let (url, told) = profile::of_url(url).map_err(|_| unknown())?;
        let name = Endpoint::parse(url, &self.outbound).map_err(|_| unknown())?.of_rank(told.rank).url;
        self.snapshot().named(&name).cloned().ok_or_else(unknown)
    }

    /// Notes which engine a worker was found to be.
    pub(crate) fn set_engine(&self, worker: &Worker, found: Option<&'static Profile>) {
        if worker.engine.note(found) {
            let _guard = self.change.lock();
            let workers = self.snapshot().workers.clone();
            self.snapshot.store(Arc::new(Snapshot::new(workers, &self.layout)));
        }
    }

    /// Notes what a worker serves. A new snapshot is made only if that differs from what was known.
    pub(crate) fn set_models(&self, worker: &Worker, models: Vec<Model>) {
        let same = worker.models.load().as_ref().is_some_and(|known| {
            known.len() == models.len()
                && known.iter().zip(&models).all(|(a, b)| a.entry.get() == b.entry.get())
        });
        if same {
            return;
        }
        let _guard = self.change.lock();
        worker.models.store(Some(Arc::new(models)));
        let workers = self.snapshot().workers.clone();
        self.snapshot.store(Arc::new(Snapshot::new(workers, &self.layout)));
    }

    /// Somebody asked for a model that nobody lists: an adapter may have been loaded a moment ago. All workers are asked for
    /// their lists, once in [`LISTING_MS`] at most.
    pub(crate) fn list_again(&self, now: Millis) {
        let due = self.next_listing_ms.load(Ordering::Relaxed);
        let next = now.0 + LISTING_MS;
        let is_due = now.0 >= due
            && self.next_listing_ms.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due {
            self.snapshot().workers.iter().for_each(|worker| worker.health.list_again());
        }
    }

    /// `worker` said that it is busy.
    pub(crate) fn busy(&self, worker: &Worker, now: Millis, retry_after: Option<Duration>) {
        self.paused_until_ms.fetch_max(worker.backoff.busy(now, retry_after).0, Ordering::Relaxed);
    }

    /// `worker` failed with a server error.
    pub(crate) fn failed(&self, worker: &Worker, now: Millis) {
        self.paused_until_ms.fetch_max(worker.backoff.failed(now).0, Ordering::Relaxed);
    }

    /// `worker` said that it is shutting down: nothing new until its probes have found out.
    pub(crate) fn leaves(&self, worker: &Worker, now: Millis) {
        self.paused_until_ms.fetch_max(worker.backoff.leaves(now).0, Ordering::Relaxed);
        worker.health.suspect();
    }

    /// The live worker with the fewest requests in flight, in turn among equals; for requests without a prompt.
    pub(crate) fn lightest(
        &self,
        snapshot: &Snapshot,
        eligible: Option<&[WorkerId]>,
        exclude: &[WorkerId],
    ) -> Option<WorkerId> {
        let count = snapshot.workers.len().max(1);
        let start = self.turn.fetch_add(1, Ordering::Relaxed) % count;
        (snapshot.workers.iter().cycle().skip(start).take(snapshot.workers.len()))
            .filter(|worker| worker.is_live() && !exclude.contains(&worker.id))
            .filter(|worker| eligible.is_none_or(|eligible| eligible.contains(&worker.id)))
            .min_by_key(|worker| worker.in_flight.load(Ordering::Relaxed))
            .map(|worker| worker.id)
    }

    /// Takes a worker out of rotation, and says so on standard error.
    pub(crate) fn take_out(&self, worker: &Worker, failure: Failure) {
        worker.health.change(false, || {
            self.log.say(format_args!("{} is out of rotation: {failure}", worker.endpoint.url));
            self.tell(worker, false);
        });
    }

    /// Puts a worker back into rotation. If it was seen to refuse connections, it restarted, and its cache is lost.
    pub(crate) fn bring_back(&self, worker: &Worker) {
        if worker.health.take_cache_lost() {
            worker.health.unless_retired(|| {
                // An error means that the router's worker was removed by somebody else.
                let _ = self.router.reset_worker(worker.id);
            });
        }
        worker.health.change(true, || {
            self.log.say(format_args!("{} is back in rotation", worker.endpoint.url));
            self.ramp_up(worker, self.now());
            self.tell(worker, true);
        });
        self.queue.wake();
    }

    fn tell(&self, worker: &Worker, healthy: bool) {
        // An error means that it was removed meanwhile; its id is never given to a worker of another name.
        let _ = self.router.set_healthy(worker.id, healthy);
    }
}

#[cfg(test)]
mod tests;
