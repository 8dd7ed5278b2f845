//! How a gateway starts, is changed and ends.
//!
//! Each data thread runs its own event loop and shares nothing with the others on a request's way but the router, the
//! fleet and counters. There is one listener: a task on the first thread accepts, and hands each connection to the
//! thread that has the fewest open. One more thread probes the workers and serves the admin API, so that neither
//! waits for requests.

mod shard;
mod shared;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use trunkline_core::Router;

use self::shard::{accept, carry};
use self::shared::{Gate, GateState};
use crate::admin;
use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::config::GatewayConfig;
use crate::edge::Edge;
use crate::error::Error;
use crate::exact::Exact;
use crate::fleet::Fleet;
use crate::listen::{Listen, Listener, bind_tcp};
use crate::metrics::Metrics;
use crate::outbound::Outbound;
use crate::sagemaker::{Layout, Sessions};
use crate::trial::Trials;

pub(crate) use self::shard::{Counted, Shard};
pub(crate) use self::shared::{DRAIN_GRACE, Phase, Shared, reached};

/// A running gateway. Dropping it closes it.
///
/// All methods may be called from any thread, but not from inside an async runtime: some wait.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    local: Listen,
    admin_addr: Option<SocketAddr>,
}

impl Gateway {
    /// Starts to listen and to serve with the workers at `worker_urls` (`http[s]://host[:port][/prefix]` or
    /// `unix:/path[:/prefix]`).
    ///
    /// Returns as soon as clients can connect: a worker is used before its first probe. Workers are named by their
    /// URLs in `router`; one that it knows already is taken over with what it is believed to hold. The
    /// router may know workers of others as well; requests are placed among the gateway's own.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting or a URL out of range, [`Error::File`] for a certificate, key or token that cannot
    /// be used, [`Error::Listen`] if an address is taken, [`Error::Thread`], [`Error::Router`] for a worker that is named twice.
    pub fn start(config: GatewayConfig, router: Arc<Router>, worker_urls: &[String]) -> Result<Self, Error> {
        config.check()?;
        let thread_count = config.thread_count();
        let control = runtime()?;
        let runtimes = (0..thread_count).map(|_| runtime()).collect::<Result<Vec<_>, _>>()?;
        let edge = Arc::new(Edge::new(Arc::new(Outbound::new(config.worker_protocol))));
        let listener = Listener::bind(&runtimes[0], &config.listen)?;
        let refuse = |address: &Listen| {
            let address = address.clone();
            move |source| Error::Listen { address, source }
        };
        let local = listener.local().map_err(refuse(&config.listen))?;
        let admin = config.admin_listen.map(|address| listen_admin(&control, address)).transpose()?;
        let admin_addr = match &admin {
            Some(listener) => Some(listener.local_addr().map_err(refuse(&config.listen))?),
            None => None,
        };

        let layout = Layout::new(&config.endpoints)?;
        let exact = Exact::new(config.events, &config.tokenizers, config.check_every)?;
        let outbound = Arc::clone(&edge.outbound);
        let fleet = Arc::new(Fleet::new(router, thread_count, outbound, layout, exact, &config));
        let trials = Arc::<Trials>::default();
        let shared = Arc::new(Shared {
            retries: RetryBudget::new(config.retry_budget),
            metrics: Metrics::new(Arc::clone(&fleet), Arc::clone(&edge), Arc::clone(&trials)),
            trials,
            clients: config.max_connections_per_client.map(|limit| Arc::new(Clients::new(limit))),
            config,
            edge,
            fleet,
            configured: Mutex::default(),
            sessions: Sessions::default(),
            phase: watch::Sender::new(Phase::Serving),
            gate: Gate::new(),
            control: control.handle().clone(),
        });
        shared.reload(&shared.config.files, worker_urls, None)?;
        for url in shared.fleet.layout.urls() {
            if shared.fleet.find(url).is_err() {
                shared.add_worker(url, None)?;
            }
        }
        shared.set_trial(shared.prepare_trial(shared.config.tried.clone())?);
        let (shards, inboxes): (Vec<_>, Vec<_>) =
            (0..thread_count).map(|number| Shard::new(number, &shared)).unzip();
        runtimes[0].spawn(accept(listener, shards.clone()));

        let threads = Mutex::default();
        let gateway = Self { shared: Arc::clone(&shared), threads, local, admin_addr };
        for ((shard, arrivals), runtime) in shards.into_iter().zip(inboxes).zip(runtimes) {
            let name = format!("trunkline-{}", shard.number);
            gateway.spawn(name, runtime, carry(shard, arrivals))?;
        }
        gateway.spawn("trunkline-control".into(), control, supervise(shared, admin))?;
        Ok(gateway)
    }

    /// Runs `task` to its end on a new thread.
    fn spawn(
        &self,
        name: String,
        runtime: Runtime,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let run = move || {
            runtime.block_on(task);
            // Do not wait for a name that is being resolved.
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name(name).spawn(run).map_err(|source| Error::Thread { source })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Where clients connect.
    #[must_use]
    pub fn listens_on(&self) -> &Listen {
        &self.local
    }

    /// The TCP address that clients connect to; `None` on a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.local {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        }
    }

    /// Where the admin API is served, if it is.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// Adds a worker; it may get requests at once.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no worker's URL, [`Error::Router`] if it is in the fleet already.
    pub fn add_worker(&self, url: &str) -> Result<(), Error> {
        self.shared.join_fleet(url, None).map(drop)
    }

    /// Removes a worker. What runs there finishes.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove_worker(&self, url: &str) -> Result<(), Error> {
        self.shared.fleet.remove(url)
    }

    /// Drains a worker: it gets nothing new and finishes what it has.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn drain_worker(&self, url: &str) -> Result<(), Error> {
        self.shared.fleet.drain(url)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops listening and reports "not ready"; running requests finish. Returns when the port is closed.
    pub fn drain(&self) {
        self.shared.phase.send_if_modified(|phase| {
            let is_new = *phase == Phase::Serving;
            *phase = (*phase).max(Phase::Draining);
            is_new
        });
        // The listener's thread closes it at its next turn.
        self.shared.gate.wait(Duration::from_secs(1), |state| !state.is_listening);
    }

    /// Waits until the last connection of a drained gateway has ended, its last byte written. `false` after
    /// `timeout`, and when the gateway is closed meanwhile with connections open.
    #[must_use]
    pub fn wait_drained(&self, timeout: Duration) -> bool {
        let gate = &self.shared.gate;
        let is_drained = |state: &GateState| !state.is_listening && state.connections == 0;
        gate.wait(timeout, |state| state.is_closed || is_drained(state));
        let state = gate.state.lock();
        !state.was_cut && is_drained(&state)
    }

    /// Stops at once: connections are cut, threads end, and who waits in [`wait_drained`](Self::wait_drained) is let go.
    /// The second time is a no-op.
    pub fn close(&self) {
        self.shared.gate.change(|state| {
            state.was_cut |= !state.is_closed && state.connections > 0;
            state.is_closed = true;
        });
        self.shared.phase.send_replace(Phase::Closed);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A thread that panicked has said so on stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.close();
    }
}

fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Thread { source })
}

/// Listens for the admin API within `runtime`.
fn listen_admin(runtime: &Runtime, address: SocketAddr) -> Result<TcpListener, Error> {
    let _context = runtime.enter();
    bind_tcp(address).map_err(|source| Error::Listen { address: address.into(), source })
}

/// The control thread's main task; probes run beside it.
async fn supervise(shared: Arc<Shared>, admin: Option<TcpListener>) {
    let mut phase = shared.phase.subscribe();
    if let Some(listener) = admin {
        tokio::spawn(admin::serve(listener, Arc::clone(&shared)));
    }
    reached(Phase::Closed, &mut phase).await;
}
