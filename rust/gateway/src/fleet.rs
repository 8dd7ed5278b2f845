//! The workers: who they are, what they serve, how they are. One truth for all threads.
//!
//! Requests read an immutable [`Snapshot`] without locking; changes (a worker added, a model list that differs) build
//! a new one. The router knows workers by [`WorkerId`], which is also their place in the snapshot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use smallvec::SmallVec;
use trunkline_core::{Millis, Router, WorkerId, WorkerSpec};

use crate::backoff::Backoff;
use crate::config::{GatewayConfig, MAX_CAP, Rules};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::health::Health;
use crate::metrics::RequestTable;
use crate::outbound::Outbound;
use crate::profile::{self, Profile, Recognised};
use crate::pulse::{Expectation, Pulse};
use crate::queue::Queue;
use crate::sagemaker::{Layout, Pools};
use crate::upstream::Pool;

/// Time between two requests for unknown models that make us ask for all lists.
const LISTING_MS: u64 = 1_000;

/// Ids of a few workers.
pub(crate) type Ids = SmallVec<[WorkerId; 8]>;

/// One model in a worker's list, as the worker wrote it.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) id: String,
    pub(crate) entry: Box<RawValue>,
}

/// A worker and all that we keep about it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) endpoint: Endpoint,
    pub(crate) pool: Pool,
    pub(crate) health: Health,
    pub(crate) requests: RequestTable,
    /// Requests booked here and not finished, as this gateway counts them.
    pub(crate) in_flight: AtomicU32,
    /// Most of them at once; 0 for no cap.
    pub(crate) cap: u32,
    pub(crate) draining: AtomicBool,
    pub(crate) engine: Recognised,
    pub(crate) pulse: Pulse,
    /// When its slow start ends.
    pub(crate) ramping_until_ms: AtomicU64,
    pub(crate) backoff: Backoff,
    /// What it serves; `None` while nobody could ask it.
    models: ArcSwapOption<Vec<Model>>,
}

impl Worker {
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

/// All workers at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Ascending by id.
    pub(crate) workers: Vec<Arc<Worker>>,
    by_id: Vec<Option<Arc<Worker>>>,
    /// All of them, for a router that knows workers of others as well.
    ids: Vec<WorkerId>,
    /// Whether any worker has a cap.
    pub(crate) has_caps: bool,
    /// Who serves each model that is listed; `None` if everybody does.
    models: HashMap<String, Option<Vec<WorkerId>>>,
    /// Whether a model that nobody lists is refused here.
    refuses_unlisted: bool,
    /// The merged answer to `GET /v1/models`; `None` while no worker could be asked.
    pub(crate) model_list: Option<Bytes>,
    /// The workers of each variant and component.
    pub(crate) pools: Pools,
}

impl Snapshot {
    fn new(workers: Vec<Arc<Worker>>, layout: &Layout) -> Self {
        let id_of =
            |url: &str| workers.iter().find(|worker| worker.endpoint.url == url).map(|worker| worker.id);
        let pools = layout.pools(id_of);
        let mut by_id = vec![None; workers.last().map_or(0, |last| last.id.0 as usize + 1)];
        let mut first_entries: Vec<Model> = Vec::new();
        let mut servers: HashMap<String, Vec<WorkerId>> = HashMap::new();
        let (mut unknown, mut known) = (Vec::new(), 0);
        for worker in &workers {
            by_id[worker.id.0 as usize] = Some(Arc::clone(worker));
            let Some(models) = worker.models.load_full() else {
                unknown.push(worker.id);
                continue;
            };
            known += 1;
            for model in models.iter() {
                let serving = servers.entry(model.id.clone()).or_default();
                if serving.is_empty() {
                    first_entries.push(model.clone());
                }
                if serving.last() != Some(&worker.id) {
                    serving.push(worker.id);
                }
            }
        }
        let restricted = |mut serving: Vec<WorkerId>| {
            if serving.len() == known {
                return None;
            }
            // Who could not be asked yet may well serve it.
            serving.extend(&unknown);
            serving.sort_unstable();
            Some(serving)
        };
        let models: HashMap<_, _> =
            servers.into_iter().map(|(name, serving)| (name, restricted(serving))).collect();
        // Engines that serve whatever they are asked for would answer with another model where there are several.
        let several = models.values().any(Option::is_some);
        let strict = workers.iter().all(|worker| worker.engine.get().checks_model);
        let refuses_unlisted = known > 0 && unknown.is_empty() && (several || strict);
        let model_list = (known > 0).then(|| {
            let entries: Vec<&str> = first_entries.iter().map(|model| model.entry.get()).collect();
            Bytes::from(format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(",")))
        });
        let ids = workers.iter().map(|worker| worker.id).collect();
        let has_caps = workers.iter().any(|worker| worker.cap > 0);
        Self { workers, by_id, ids, has_caps, models, refuses_unlisted, model_list, pools }
    }

    /// The worker with this id.
    pub(crate) fn get(&self, id: WorkerId) -> Option<&Arc<Worker>> {
        self.by_id.get(id.0 as usize)?.as_ref()
    }

    /// Who serves `model`; `None` means anybody. Nobody serves what no worker lists, if all workers could be asked and either
    /// check the name themselves or serve different models; else it may be an alias that is not listed.
    pub(crate) fn eligible(&self, model: Option<&str>) -> Option<&[WorkerId]> {
        let model = model.filter(|model| !model.is_empty())?;
        match self.models.get(model) {
            Some(serving) => serving.as_deref(),
            None => self.refuses_unlisted.then_some(&[]),
        }
    }

    /// All workers.
    pub(crate) fn ids(&self) -> &[WorkerId] {
        &self.ids
    }

    fn named(&self, url: &str) -> Option<&Arc<Worker>> {
        self.workers.iter().find(|worker| worker.endpoint.url == url)
    }
}

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
    started: Instant,
    pub(crate) rules: Rules,
    pub(crate) queue: Queue,
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
        config: &GatewayConfig,
    ) -> Self {
        Self {
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
        let endpoint = Endpoint::parse(url, &self.outbound)?;
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
        let worker = Arc::new(Worker {
            id,
            endpoint,
            pool: Pool::new(self.threads),
            health: Health::default(),
            requests: RequestTable::default(),
            in_flight: AtomicU32::new(0),
            cap,
            draining: AtomicBool::new(false),
            engine: Recognised::told(told),
            pulse: Pulse::default(),
            ramping_until_ms: AtomicU64::new(0),
            backoff: Backoff::default(),
            models: ArcSwapOption::empty(),
        });
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
        let (url, _) = profile::of_url(url).map_err(|_| unknown())?;
        let name = Endpoint::parse(url, &self.outbound).map_err(|_| unknown())?.url;
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

    /// Takes a worker out of rotation.
    pub(crate) fn take_out(&self, worker: &Worker) {
        worker.health.change(false, || self.tell(worker, false));
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
mod tests {
    use trunkline_core::RouterConfig;

    use super::*;

    fn fleet(urls: &[&str]) -> Fleet {
        let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
        let fleet = Fleet::new(router, 1, Arc::default(), Layout::default(), &GatewayConfig::default());
        for url in urls {
            fleet.add(url, None).unwrap();
        }
        fleet
    }

    fn models(ids: &[&str]) -> Vec<Model> {
        let model = |id: &&str| Model {
            id: (*id).to_owned(),
            entry: RawValue::from_string(format!(r#"{{"id":"{id}"}}"#)).unwrap(),
        };
        ids.iter().map(model).collect()
    }

    #[test]
    fn urls_are_normal_and_unique() {
        let fleet = fleet(&["http://a:1"]);
        assert!(matches!(
            fleet.add("http://a:1/", None),
            Err(Error::Router(trunkline_core::Error::DuplicateWorker { .. }))
        ));
        assert!(fleet.find("http://a:1/").is_ok());
        assert!(matches!(fleet.remove("http://b:1"), Err(Error::UnknownWorker { .. })));
        fleet.remove("http://a:1").unwrap();
        assert!(!fleet.is_ready());
        fleet.add("http://a:1", None).unwrap();
        assert!(fleet.is_ready());
    }

    #[test]
    fn a_worker_that_the_router_knows_is_taken_over() {
        let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
        let id = router.add_worker(WorkerSpec { weight: 3, ..WorkerSpec::new("http://a:1") }).unwrap();
        router.drain_worker(id, true).unwrap();
        let config = GatewayConfig::default();
        let fleet = Fleet::new(Arc::clone(&router), 1, Arc::default(), Layout::default(), &config);
        assert_eq!(fleet.add("http://a:1/", None).unwrap().id, id);
        let view = &router.workers()[0];
        assert_eq!((view.weight, view.draining, view.healthy), (3, false, true));
        assert!(fleet.add("http://a:1", None).is_err(), "but only once");
    }

    #[test]
    fn a_model_restricts_to_those_who_list_it_and_those_who_were_not_asked() {
        let fleet = fleet(&["http://a:1", "http://b:1", "http://c:1"]);
        let ids: Vec<_> = fleet.snapshot().workers.iter().map(|worker| worker.id).collect();
        let set = |number: usize, names: &[&str]| {
            let worker = Arc::clone(&fleet.snapshot().workers[number]);
            fleet.set_models(&worker, models(names));
        };
        assert!(fleet.snapshot().model_list.is_none());
        set(0, &["base", "only-a"]);
        assert_eq!(fleet.snapshot().eligible(Some("only-a")), None, "one list says nothing about the others");
        set(1, &["base", "only-b", "only-b"]);
        assert_eq!(fleet.snapshot().eligible(Some("only-a")), Some([ids[0], ids[2]].as_slice()));
        set(2, &["base"]);
        assert_eq!(fleet.snapshot().eligible(Some("only-a")), Some([ids[0]].as_slice()));
        assert_eq!(fleet.snapshot().eligible(Some("base")), None);
        assert_eq!(fleet.snapshot().eligible(Some("nobody")), Some([].as_slice()));
        assert_eq!(fleet.snapshot().eligible(Some("")), None);
        assert_eq!(fleet.snapshot().eligible(None), None);
        let list = fleet.snapshot().model_list.clone().unwrap();
        assert_eq!(list, r#"{"object":"list","data":[{"id":"base"},{"id":"only-a"},{"id":"only-b"}]}"#);
    }

    #[test]
    fn one_model_is_enforced_only_where_all_engines_check_it() {
        let fleet = fleet(&["http://a:1#engine=vllm", "http://b:1"]);
        let set = |number: usize, owner: &str| {
            let worker = Arc::clone(&fleet.snapshot().workers[number]);
            fleet.set_engine(&worker, Profile::recognise(Some(owner), ""));
            fleet.set_models(&worker, models(&["base"]));
        };
        set(0, "sglang");
        set(1, "sglang");
        assert_eq!(fleet.snapshot().eligible(Some("alias")), None, "SGLang serves any name");
        set(1, "vllm");
        assert_eq!(
            fleet.snapshot().eligible(Some("alias")),
            Some([].as_slice()),
            "the first one was told to be vLLM"
        );
        fleet.add("http://c:1#engine=vllm", None).unwrap();
        assert_eq!(fleet.snapshot().eligible(Some("alias")), None, "who was not asked yet may serve it");
        assert!(fleet.remove("http://c:1#engine=vllm").is_ok());
        assert!(matches!(fleet.add("http://d:1#engine=x", None), Err(Error::Config { key: "worker", .. })));
    }

    #[test]
    fn the_lightest_takes_turns_among_equals() {
        let fleet = fleet(&["http://a:1", "http://b:1", "http://c:1"]);
        let snapshot = fleet.snapshot();
        let mut seen: Vec<_> = (0..3).map(|_| fleet.lightest(&snapshot, None, &[]).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, snapshot.workers.iter().map(|worker| worker.id).collect::<Vec<_>>());
        snapshot.workers[0].in_flight.store(1, Ordering::Relaxed);
        fleet.take_out(&snapshot.workers[1]);
        assert_eq!(fleet.lightest(&snapshot, None, &[]), Some(snapshot.workers[2].id));
        assert_eq!(fleet.lightest(&snapshot, None, &[snapshot.workers[2].id]), Some(snapshot.workers[0].id));
        assert_eq!(fleet.lightest(&snapshot, Some(&[snapshot.workers[1].id]), &[]), None);
    }

    #[test]
    fn pauses_end() {
        let fleet = fleet(&["http://a:1", "http://b:1"]);
        let snapshot = fleet.snapshot();
        let resting = |now| fleet.avoid(&snapshot, Millis(now)).resting;
        assert!(resting(0).is_empty());
        fleet.busy(&snapshot.workers[1], Millis(100), None);
        assert_eq!(resting(100).as_slice(), [snapshot.workers[1].id]);
        assert_eq!(fleet.avoid(&snapshot, Millis(100)).busy_until, Some(Millis(350)));
        assert!(resting(350).is_empty());
    }
}
