//! Whether a worker takes requests: one task per worker probes it, and requests that fail to connect add what they
//! see.
//!
//! A worker is used from the moment it is added. It leaves the rotation after one failed probe (two in a row if it
//! merely did not answer in time) or after two requests in a row that could not connect, and returns with the first
//! good probe. A worker that refused or broke connections has restarted when it answers again, so its cache counts as
//! lost. A worker that goes on refusing connections answers nothing any more: requests that wait there for a first
//! byte are sent elsewhere.
//!
//! Each worker's task waits for nobody else, so a probe that hangs delays only itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use trunkline_core::CacheView;

use crate::exact::follow;
use crate::fleet::{Fleet, Worker};
use crate::probe::{self, Failure};
use crate::profile::{self, Profile};

/// Time between two probes of a worker that is out of rotation, unless the setting is shorter.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(500);
/// Model lists are read with every so many probes, and when a model is asked for that no list has; adapters come and go at run
/// time, but seldom.
const PROBES_PER_MODEL_LIST: u32 = 5;
/// Requests that could not connect, in a row, before the worker leaves the rotation.
const CONNECT_FAULTS: u32 = 2;
/// Probes without an answer in time, in a row, after which a worker leaves the rotation, and after which what waits there
/// is given up: its machine is gone.
const DOWN_TIMEOUTS: u32 = 2;
const GONE_TIMEOUTS: u32 = 4;
/// How long a worker refuses connections before what waits there is given up: a worker that ends in order has closed
/// its port as well, but answers what it has.
const GONE_AFTER: Duration = Duration::from_secs(2);

/// One worker's health. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Health {
    up: AtomicBool,
    /// Until it was well once: an engine that loads its model refuses connections for minutes.
    starting: AtomicBool,
    /// Held while the router is told of a change, so that it hears of changes in their order.
    changing: Mutex<()>,
    connect_faults: AtomicU32,
    cache_lost: AtomicBool,
    /// Whether somebody asked for a model that is not in its list.
    list_is_old: AtomicBool,
    probe_now: Notify,
    gone: Notify,
    retired: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            up: AtomicBool::new(true),
            starting: AtomicBool::new(true),
            changing: Mutex::default(),
            connect_faults: AtomicU32::new(0),
            cache_lost: AtomicBool::new(false),
            list_is_old: AtomicBool::new(false),
            probe_now: Notify::new(),
            gone: Notify::new(),
            retired: AtomicBool::new(false),
        }
    }
}

impl Health {
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Whether it has never been well so far.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Relaxed)
    }

    /// Sets the state; calls `tell` if that changed it. A retired worker's state is nobody's business any more: its id may
    /// belong to a worker of the same name that was added since.
    pub(crate) fn change(&self, up: bool, tell: impl FnOnce()) {
        if up && self.is_starting() {
            self.starting.store(false, Ordering::Relaxed);
        }
        self.unless_retired(|| {
            if self.up.swap(up, Ordering::Relaxed) != up {
                tell();
            }
        });
    }

    /// Calls `tell` unless the worker was removed; while it runs, the worker is not.
    pub(crate) fn unless_retired(&self, tell: impl FnOnce()) {
        let _guard = self.changing.lock();
        if !self.retired.load(Ordering::Relaxed) {
            tell();
        }
    }

    /// A request could not connect. `true` if the worker is to leave the rotation; a probe looks at it in any case.
    pub(crate) fn connect_failed(&self, error: Option<&io::Error>) -> bool {
        if error.is_some_and(is_local) {
            return false;
        }
        if error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            self.cache_lost.store(true, Ordering::Relaxed);
        }
        self.probe_now.notify_one();
        self.connect_faults.fetch_add(1, Ordering::Relaxed) + 1 >= CONNECT_FAULTS
    }

    /// Something looked wrong: probe soon.
    pub(crate) fn suspect(&self) {
        self.probe_now.notify_one();
    }

    /// Its list of models may be old: read it anew, soon.
    pub(crate) fn list_again(&self) {
        self.list_is_old.store(true, Ordering::Relaxed);
        self.probe_now.notify_one();
    }

    /// A request was answered.
    pub(crate) fn connected(&self) {
        if self.connect_faults.load(Ordering::Relaxed) != 0 {
            self.connect_faults.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the worker seems to have ended since the last call.
    pub(crate) fn take_cache_lost(&self) -> bool {
        self.cache_lost.swap(false, Ordering::Relaxed)
    }

    /// Ends when the worker is found to be gone for good.
    pub(crate) async fn gone(&self) {
        self.gone.notified().await;
    }

    /// Ends the probes. What waits for a first byte of a worker that was out of rotation goes elsewhere.
    pub(crate) fn retire(&self) {
        let _guard = self.changing.lock();
        self.retired.store(true, Ordering::Relaxed);
        self.probe_now.notify_one();
        if !self.is_up() {
            self.gone.notify_waiters();
        }
    }
}

/// Whether a connection failed for want of something on this machine, which says nothing about the worker.
pub(crate) fn is_local(error: &io::Error) -> bool {
    const LOCAL: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| LOCAL.contains(&code))
}

/// Probes `worker` until it is removed from `fleet`.
pub(crate) async fn watch(fleet: Arc<Fleet>, worker: Arc<Worker>, interval: Duration) {
    let limit = (interval * 3).max(Duration::from_secs(1));
    let mut sick = Sickness::default();
    let (mut is_known, mut probes_to_list) = (false, 0);
    loop {
        let outcome =
            timeout(limit, probe::is_healthy(&worker.endpoint)).await.unwrap_or(Err(Failure::Timeout));
        if worker.health.retired.load(Ordering::Relaxed) {
            return;
        }
        match outcome {
            Ok(()) => {
                sick = Sickness::default();
                worker.health.connected();
                let is_new =
                    !is_known || !worker.health.is_up() || worker.health.cache_lost.load(Ordering::Relaxed);
                fleet.bring_back(&worker);
                if is_new || probes_to_list == 0 || worker.health.list_is_old.swap(false, Ordering::Relaxed) {
                    probes_to_list = PROBES_PER_MODEL_LIST;
                    is_known = get_to_know(&fleet, &worker, limit, is_new).await;
                }
                probes_to_list -= 1;
                fleet.signals.look(&fleet, &worker, limit).await;
            }
            Err(failure) => {
                if matches!(failure, Failure::Refused | Failure::Broken) {
                    worker.health.cache_lost.store(true, Ordering::Relaxed);
                }
                let diagnosis = sick.diagnose(failure, Instant::now());
                if diagnosis.is_down {
                    fleet.take_out(&worker, failure);
                }
                if diagnosis.is_gone {
                    worker.pool.clear();
                    worker.health.gone.notify_waiters();
                }
            }
        }
        let pause = if worker.health.is_up() { interval } else { interval.min(RECOVERY_INTERVAL) };
        tokio::select! {
            () = sleep(pause) => {}
            // Many requests may see the same fault: look at once, but not for each of them.
            () = worker.health.probe_now.notified() => sleep(pause / 10).await,
        }
    }
}

/// Asks a healthy worker what it serves, and one that has come or come back also which engine it is and how much it caches.
/// `false` if it did not answer that in time: then it is worth another try.
async fn get_to_know(fleet: &Arc<Fleet>, worker: &Arc<Worker>, limit: Duration, is_new: bool) -> bool {
    let (mut is_known, mut keeps_none) = (true, false);
    let models = timeout(limit, probe::models(&worker.endpoint)).await.ok().and_then(Result::ok);
    if is_new {
        let metrics = timeout(limit, probe::metrics(&worker.endpoint)).await.ok().and_then(Result::ok);
        is_known = metrics.is_some();
        let metrics = metrics.unwrap_or_default();
        keeps_none = probe::keeps_no_prefixes(&metrics);
        let entries = models.iter().flatten().map(|model| model.entry.get());
        let owner = profile::owner(entries);
        fleet.set_engine(worker, Profile::recognise(owner.as_deref(), &metrics));
        let capacity = probe::capacity_tokens(&worker.endpoint, worker.engine.get().capacity, &metrics);
        let capacity = timeout(limit, capacity).await;
        is_known &= matches!(capacity, Ok(Ok(_)));
        if let Ok(Ok(Some(tokens))) = capacity {
            worker.health.unless_retired(|| {
                // An error means that the router's worker was removed by somebody else.
                let _ = fleet.router.set_capacity(worker.id, Some(tokens));
            });
        }
    }
    if let Some(models) = models {
        fleet.set_models(worker, models);
    }
    if is_new && keeps_none != worker.keeps_none.swap(keeps_none, Ordering::Relaxed) {
        worker.following.end();
        let view = if keeps_none { CacheView::None } else { CacheView::Own };
        // An error means that the router's worker was removed by somebody else.
        let _ = fleet.router.set_cache_view(worker.id, view);
    }
    if !keeps_none && is_new && fleet.exact.wants_events() {
        is_known &= timeout(limit, follow(fleet, worker)).await.unwrap_or(false);
    }
    is_known
}

/// Failed probes in a row.
#[derive(Debug, Default)]
struct Sickness {
    timeouts: u32,
    refused_since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
struct Diagnosis {
    is_down: bool,
    is_gone: bool,
}

impl Sickness {
    fn diagnose(&mut self, failure: Failure, now: Instant) -> Diagnosis {
        match failure {
            // A busy engine may answer a probe late once.
            Failure::Timeout => {
                self.timeouts += 1;
                self.refused_since = None;
                Diagnosis { is_down: self.timeouts >= DOWN_TIMEOUTS, is_gone: self.timeouts >= GONE_TIMEOUTS }
            }
            Failure::Local => Diagnosis { is_down: false, is_gone: false },
            Failure::Refused => {
                let since = *self.refused_since.get_or_insert(now);
                Diagnosis { is_down: true, is_gone: now - since >= GONE_AFTER }
            }
            Failure::Broken | Failure::Unhealthy => {
                self.refused_since = None;
                Diagnosis { is_down: true, is_gone: false }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_probe_is_forgiven_a_refused_one_is_not() {
        let now = Instant::now();
        let mut sick = Sickness::default();
        assert!(!sick.diagnose(Failure::Timeout, now).is_down);
        assert!(sick.diagnose(Failure::Timeout, now).is_down);
        assert!(!sick.diagnose(Failure::Timeout, now).is_gone);
        assert!(sick.diagnose(Failure::Timeout, now).is_gone, "silent for good");
        assert!(!Sickness::default().diagnose(Failure::Local, now).is_down);
        assert!(Sickness::default().diagnose(Failure::Refused, now).is_down);
        assert!(Sickness::default().diagnose(Failure::Unhealthy, now).is_down);
        assert!(Sickness::default().diagnose(Failure::Broken, now).is_down);
    }

    #[test]
    fn gone_only_after_refusing_for_a_while() {
        let (now, mut sick) = (Instant::now(), Sickness::default());
        assert!(!sick.diagnose(Failure::Refused, now).is_gone);
        assert!(!sick.diagnose(Failure::Unhealthy, now + GONE_AFTER).is_gone);
        assert!(!sick.diagnose(Failure::Refused, now + GONE_AFTER).is_gone, "the refusals begin anew");
        assert!(sick.diagnose(Failure::Refused, now + 2 * GONE_AFTER).is_gone);
    }

    #[test]
    fn what_this_machine_lacks_is_not_the_workers_fault() {
        let health = Health::default();
        for _ in 0..10 {
            assert!(!health.connect_failed(Some(&io::Error::from_raw_os_error(libc::EMFILE))));
        }
    }

    #[test]
    fn a_retired_worker_says_nothing_more() {
        let health = Health::default();
        health.retire();
        health.change(false, || panic!("its id may belong to another worker"));
        health.unless_retired(|| panic!("its id may belong to another worker"));
    }

    #[test]
    fn two_connect_faults_in_a_row_take_a_worker_out() {
        let health = Health::default();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(!health.connect_failed(None));
        health.connected();
        assert!(!health.connect_failed(Some(&refused)));
        assert!(health.connect_failed(None));
        assert!(health.take_cache_lost() && !health.take_cache_lost());
    }
}
