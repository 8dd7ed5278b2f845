//! A mock worker: its thread, its listener, and the handle that starts, observes and stops it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::api::Api;
use crate::config::MockWorkerConfig;
use crate::driver::Driver;
use crate::engine::Engine;
use crate::error::Error;
use crate::events::Teller;

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// What a mock worker has done since it was started or reset.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MockStats {
    /// Sequences received (a request with several prompts or choices is several).
    pub requests: u64,
    /// Prompt tokens of admitted sequences.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Sequences whose client left before their end.
    pub cancelled: u64,
    /// Sequences that prefill or decode now.
    pub running: u64,
    /// Sequences that wait for room now.
    pub waiting: u64,
    /// Blocks evicted from the prefix cache.
    pub evicted_blocks: u64,
    /// Messages of KV events, since it was started; 0 if it publishes none.
    pub event_messages: u64,
}

/// A running mock worker: one thread with its own event loop. Several may live in one process.
///
/// All methods may be called from any thread. Dropping it closes it.
///
/// ```
/// use trunkline_sim::{MockWorker, MockWorkerConfig};
///
/// let worker = MockWorker::start(MockWorkerConfig { time_scale: 0.01, ..MockWorkerConfig::default() })?;
/// assert!(worker.url().starts_with("http://127.0.0.1:"));
/// worker.close();
/// # Ok::<(), trunkline_sim::Error>(())
/// ```
#[derive(Debug)]
pub struct MockWorker {
    address: SocketAddr,
    driver: Arc<Driver>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MockWorker {
    /// Starts a worker; it accepts connections when this returns.
    ///
    /// # Errors
    /// [`Error::Config`] for a value out of range, [`Error::Listen`] if the address is taken, [`Error::Thread`] if the
    /// system gives no thread or event loop.
    #[expect(clippy::needless_pass_by_value, reason = "a configuration is used up by what it configures")]
    pub fn start(config: MockWorkerConfig) -> Result<Self, Error> {
        let engine = Engine::new(config.engine()?);
        let listen_error = |source| Error::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).map_err(listen_error)?;
        listener.set_nonblocking(true).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;

        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
        let teller = config.events.as_ref().map(|events| {
            let _inside = runtime.enter();
            Teller::start(events, address)
        });
        let teller = teller.transpose().map_err(listen_error)?;
        let driver = Arc::new(Driver::new(engine, config.time_scale, teller));
        let api = Arc::new(Api::new(Arc::clone(&driver), &config));
        let (stop, stopped) = oneshot::channel();
        let stepping = Arc::clone(&driver);
        let thread = std::thread::Builder::new()
            .name(format!("mock-{}", address.port()))
            .spawn(move || serve(&runtime, listener, &api, stepping, stopped))
            .map_err(Error::Thread)?;
        Ok(Self { address, driver, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Its endpoint, `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has done and does now.
    #[must_use]
    pub fn stats(&self) -> MockStats {
        self.driver.inspect(|engine, _| {
            let counters = engine.counters();
            MockStats {
                requests: counters.sequences,
                prompt_tokens: counters.prompt_tokens,
                cached_tokens: counters.cached_tokens,
                cancelled: counters.cancelled,
                running: engine.running() as u64,
                waiting: engine.waiting() as u64,
                evicted_blocks: engine.cache().evicted_blocks(),
                event_messages: self.driver.teller().map_or(0, |teller| teller.messages()),
            }
        })
    }

    /// Empties the prefix cache of what no running request holds, and sets all counters to 0.
    pub fn reset(&self) {
        self.driver.clear_cache(false);
        self.driver.reset_counters();
    }

    /// Empties the prefix cache of what no running request holds; true if nothing is left. Events tell of it with the next step
    /// that runs, as vLLM's do, or never if it is `silent`.
    pub fn clear_cache(&self, silent: bool) -> bool {
        self.driver.clear_cache(silent)
    }

    /// Ends the connections of whoever follows its events and refuses new ones, until it is called with `false`. Messages are
    /// numbered and kept for a replay meanwhile. Does nothing if it publishes none.
    pub fn pause_events(&self, paused: bool) {
        if let Some(teller) = self.driver.teller() {
            teller.pause(paused);
        }
    }

    /// Ports of its events and of their replay; `None` if it publishes none.
    #[must_use]
    pub fn event_ports(&self) -> Option<[u16; 2]> {
        self.driver.teller().map(|teller| teller.ports())
    }

    /// Stops it at once, as a killed process would: open connections are cut.
    pub fn close(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may be gone already, if it has panicked; joining tells.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the worker's thread has panicked");
        }
    }
}

impl Drop for MockWorker {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn serve(
    runtime: &Runtime,
    listener: TcpListener,
    api: &Arc<Api>,
    driver: Arc<Driver>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking");
        tokio::spawn(async move { driver.run().await });
        tokio::select! {
            () = accept(&listener, api) => {}
            _ = stopped => {}
        }
    });
}

/// Serves connections for ever, each in a task that ends with the runtime.
async fn accept(listener: &tokio::net::TcpListener, api: &Arc<Api>) {
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: wait for some to be closed.
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let _ = connection.set_nodelay(true);
        let api = Arc::clone(api);
        tokio::spawn(async move {
            let service = service_fn(move |request| Arc::clone(&api).answer(request));
            // An error here is a client that left or spoke no HTTP: its own affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
        });
    }
}
