//! What all threads of a gateway share: settings, fleet, counters, the phase that it is in, and the gate that its end waits at.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::watch;
use trunkline_core::Millis;

use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::config::GatewayConfig;
use crate::edge::Edge;
use crate::error::Error;
use crate::fleet::{Fleet, Worker};
use crate::health;
use crate::metrics::Metrics;
use crate::sagemaker::Sessions;
use crate::trial::Trials;

/// How long a drain waits for a request that is half sent.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// What a gateway is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Nothing new; what runs finishes.
    Draining,
    /// Everything stops.
    Closed,
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) metrics: Metrics,
    /// Which worker keeps which of SageMaker's sessions.
    pub(crate) sessions: Sessions,
    pub(crate) edge: Arc<Edge>,
    /// `None` without a limit.
    pub(super) clients: Option<Arc<Clients>>,
    /// The workers that the configuration names. Held while another one is put in force.
    pub(crate) configured: Mutex<Vec<String>>,
    pub(crate) retries: RetryBudget,
    /// What is tried on a part of the traffic, or in its shadow.
    pub(crate) trials: Arc<Trials>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) gate: Gate,
    /// Where probes run.
    pub(super) control: Handle,
}

impl Shared {
    /// Time since the start.
    pub(crate) fn now(&self) -> Millis {
        self.fleet.now()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Tells of every new phase.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Waits until the gateway drains and what is still on its way has had its time to arrive.
    pub(crate) async fn grace_is_over(&self) {
        reached(Phase::Draining, &mut self.subscribe()).await;
        tokio::time::sleep(DRAIN_GRACE).await;
    }

    /// Whether new requests are welcome.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase() == Phase::Serving && self.fleet.is_ready()
    }

    /// Adds a worker and begins to probe it. `cap` bounds its requests in flight, instead of what the settings say.
    pub(crate) fn add_worker(&self, url: &str, cap: Option<u32>) -> Result<Arc<Worker>, Error> {
        let worker = self.fleet.add(url, cap)?;
        self.control.spawn(health::watch(
            Arc::clone(&self.fleet),
            Arc::clone(&worker),
            self.config.probe_interval,
        ));
        Ok(worker)
    }

    /// Does something beside requests, with the probes.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.control.spawn(task);
    }

    /// The same in a running gateway, with a slow start.
    pub(crate) fn join_fleet(&self, url: &str, cap: Option<u32>) -> Result<Arc<Worker>, Error> {
        let worker = self.add_worker(url, cap)?;
        self.fleet.ramp_up(&worker, self.now());
        self.fleet.queue.wake();
        Ok(worker)
    }
}

/// Counts what must end before a drain is done.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) state: Mutex<GateState>,
    changed: Condvar,
}

/// What it counts, and how the gateway ended.
#[derive(Debug, Default)]
pub(super) struct GateState {
    pub(super) is_listening: bool,
    pub(super) connections: usize,
    pub(super) is_closed: bool,
    /// Whether connections were open when it was closed.
    pub(super) was_cut: bool,
}

impl Gate {
    /// The gate of a gateway that listens and has no connections.
    pub(super) fn new() -> Self {
        let state = Mutex::new(GateState { is_listening: true, ..GateState::default() });
        Self { state, changed: Condvar::new() }
    }

    /// Changes what it counts and lets those who wait look again.
    pub(super) fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `holds`; `false` if it did not within `timeout`.
    pub(super) fn wait(&self, timeout: Duration, holds: impl Fn(&GateState) -> bool) -> bool {
        let mut state = self.state.lock();
        !self.changed.wait_while_for(&mut state, |state| !holds(state), timeout).timed_out()
    }
}

/// Resolves when the gateway reaches `phase` (or is gone).
pub(crate) async fn reached(phase: Phase, watch: &mut watch::Receiver<Phase>) {
    // An error means that the gateway is gone, which is past every phase.
    let _ = watch.wait_for(|now| *now >= phase).await;
}
