//! `Gateway`: the data plane as an object with a beginning and an end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use trunkline_gateway as gateway;
use trunkline_gateway::{EndpointConfig, GatewayConfig, Listen};

use crate::endpoints::Endpoint;
use crate::error;
use crate::net::{self, seconds};
use crate::router::Router;
use crate::running::Running;
use crate::size;
use crate::text::{self, TextArguments};
use crate::trial::Trial;

/// A router in front of workers, over HTTP. Its threads run until `close`.
///
/// It accepts connections when the constructor returns. Use it as a context manager, or close it. All methods may be called
/// from any thread; they raise RuntimeError once it is closed. It does not survive `fork`: start it in the process that
/// serves.
///
/// router: decides. Look into it from Python (`peek`, `workers`, `stats`) as you like, but leave routing to the gateway:
/// the two do not read one clock.  host, port: where clients connect; port 0 takes
/// a free one.  admin_host, admin_port: metrics, health and fleet changes; None for none.  workers: their URLs.
/// threads: that carry requests, 0 for one per core.  max_body: largest request body, bytes or text like "64MiB".
/// connect_timeout_s: longest wait for a connection to a worker.  first_byte_timeout_s: longest wait for the head of an
/// answer; None waits for ever.  idle_timeout_s: longest silence within an answer; None allows any.  max_in_flight: most
/// requests in flight on one worker; None for no cap.  worker_caps: the same for single workers, as (url, cap), 0 for no
/// cap.  max_queued, queue_timeout_s: how many requests wait, and how long, when all workers are busy; 0 for none.
/// retry_budget: requests that may be sent again, as a share of the traffic.  hang_detection: whether workers that show
/// no byte for too long get nothing new.  slow_start_s: time in which a new or recovered worker comes up to its share.
/// probe_interval_s: time between two health probes of a worker.  annotate: whether answers carry x-trunkline-* headers.
/// log: whether standard error is told of workers that leave or come back, and of views of caches that cannot be used.
/// endpoints: SageMaker's, as mappings with the keys of the configuration file.
/// listen: instead of host and port "unix:/path" or "host:port".
/// worker_protocol: "http1" or "h2".  max_header, max_headers: bytes and lines of a request's head.
/// max_connections_per_client: of one address; None for no limit.  header_timeout_s: longest time for a head or a TLS
/// handshake.  client_idle_timeout_s: longest time without a request.  max_streams: requests at a time on an HTTP/2
/// connection.
/// files: certificates, keys and tokens by the names of their settings (tls_cert, api_keys_file, ...).
/// events: whether workers' KV events are followed: "auto" (where there is a tokenizer), "on" or "off".  tokenizers: of
/// models whose prompts are matched with events, as (model or None, directory); None is for all that have no other.
/// time_zone, chat_template, chat_template_content_format, chat_template_kwargs, exclude_unused_tools: as for
/// `Renderer`, for all of them.  check_every: one in so many prompts is compared with the engine's own; 0 for none.
/// load_signals: whether workers are asked for the load that others give them: "auto" (with replicas), "on" or "off".
/// trial: another policy or pool for a part of the traffic, and a policy in the shadow, as a mapping with the keys
/// trial_policy, trial_pool, trial_share, trial_by, shadow_policy, prefix_length and concurrency_threshold, each as its
/// setting; all but trial_by may be left out. None for none.
///
/// Raises ConfigError, TokenizerError, DuplicateWorkerError, OSError if an address cannot be listened on.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Gateway {
    /// Who waits in `wait_drained` while it is closed has its own hold of it, and is let go by that.
    running: Running<Arc<gateway::Gateway>>,
    listens_on: Listen,
    has_tls: bool,
    admin_port: Option<u16>,
}

#[pymethods]
impl Gateway {
    #[new]
    #[pyo3(signature = (
        router,
        *,
        host = "127.0.0.1",
        port = 8080,
        admin_host = "127.0.0.1",
        admin_port = Some(8081),
        workers = Vec::new(),
        threads = 0,
        max_body = None,
        connect_timeout_s = 2.0,
        first_byte_timeout_s = None,
        idle_timeout_s = Some(300.0),
        max_in_flight = None,
        worker_caps = Vec::new(),
        max_queued = 1024,
        queue_timeout_s = 3.0,
        retry_budget = 0.2,
        hang_detection = true,
        slow_start_s = 2.0,
        probe_interval_s = 1.0,
        annotate = true,
        log = false,
        endpoints = Vec::new(),
        listen = None,
        worker_protocol = "http1",
        max_header = None,
        max_headers = 100,
        max_connections_per_client = None,
        header_timeout_s = 10.0,
        client_idle_timeout_s = 75.0,
        max_streams = 128,
        files = HashMap::new(),
        events = "auto",
        tokenizers = Vec::new(),
        time_zone = "UTC",
        chat_template = None,
        chat_template_content_format = "auto",
        chat_template_kwargs = None,
        exclude_unused_tools = false,
        check_every = 0,
        load_signals = "auto",
        trial = None,
    ))]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts a list of str by value")]
    fn new(
        py: Python<'_>,
        router: &Bound<'_, Router>,
        host: &str,
        port: u16,
        admin_host: &str,
        admin_port: Option<u16>,
        workers: Vec<String>,
        threads: usize,
        max_body: Option<&Bound<'_, PyAny>>,
        connect_timeout_s: f64,
        first_byte_timeout_s: Option<f64>,
        idle_timeout_s: Option<f64>,
        max_in_flight: Option<u32>,
        worker_caps: Vec<(String, u32)>,
        max_queued: usize,
        queue_timeout_s: f64,
        retry_budget: f64,
        hang_detection: bool,
        slow_start_s: f64,
        probe_interval_s: f64,
        annotate: bool,
        log: bool,
        endpoints: Vec<Endpoint>,
        listen: Option<&str>,
        worker_protocol: &str,
        max_header: Option<&Bound<'_, PyAny>>,
        max_headers: usize,
        max_connections_per_client: Option<u32>,
        header_timeout_s: f64,
        client_idle_timeout_s: f64,
        max_streams: u32,
        files: HashMap<String, PathBuf>,
        events: &str,
        tokenizers: Vec<(Option<String>, PathBuf)>,
        time_zone: &str,
        chat_template: Option<PathBuf>,
        chat_template_content_format: &str,
        chat_template_kwargs: Option<&str>,
        exclude_unused_tools: bool,
        check_every: u32,
        load_signals: &str,
        trial: Option<Trial>,
    ) -> PyResult<Self> {
        let arguments = TextArguments {
            time_zone,
            chat_template,
            content_format: Some(chat_template_content_format),
            template_kwargs: chat_template_kwargs,
            excludes_unused_tools: exclude_unused_tools,
        };
        let tokenizers = tokenizers
            .iter()
            .map(|(model, directory)| arguments.config(py, model.as_deref(), directory))
            .collect::<PyResult<_>>()?;
        let tried = trial.map(|trial| trial.tried(py)).transpose()?.unwrap_or_default();
        let defaults = GatewayConfig::default();
        let config = GatewayConfig {
            listen: match listen {
                Some(text) => net::listen(py, text)?,
                None => net::address(py, host, port)?.into(),
            },
            admin_listen: admin_port.map(|port| net::address(py, admin_host, port)).transpose()?,
            threads,
            max_body_bytes: max_body
                .map_or(Ok(defaults.max_body_bytes), |size| size::bytes("max_body", size))?,
            connect_timeout: seconds(py, "connect_timeout_s", connect_timeout_s)?,
            first_byte_timeout: first_byte_timeout_s
                .map(|value| seconds(py, "first_byte_timeout_s", value))
                .transpose()?,
            idle_timeout: idle_timeout_s.map(|value| seconds(py, "idle_timeout_s", value)).transpose()?,
            max_in_flight,
            worker_caps,
            max_queued,
            queue_timeout: seconds(py, "queue_timeout_s", queue_timeout_s)?,
            retry_budget,
            hang_detection,
            slow_start: seconds(py, "slow_start_s", slow_start_s)?,
            probe_interval: seconds(py, "probe_interval_s", probe_interval_s)?,
            annotate,
            log,
            endpoints: endpoints
                .into_iter()
                .map(EndpointConfig::try_from)
                .collect::<Result<_, _>>()
                .map_err(|refused| error::gateway(py, refused))?,
            worker_protocol: net::protocol(py, worker_protocol)?,
            max_header_bytes: max_header
                .map_or(Ok(defaults.max_header_bytes), |size| size::bytes("max_header", size))?,
            max_headers,
            max_connections_per_client,
            header_timeout: seconds(py, "header_timeout_s", header_timeout_s)?,
            client_idle_timeout: seconds(py, "client_idle_timeout_s", client_idle_timeout_s)?,
            max_streams,
            events: text::events_mode(py, events)?,
            tokenizers,
            check_every,
            load_signals: net::load_signals(py, load_signals)?,
            tried,
            files: net::files(py, files)?,
        };
        let has_tls = config.files.tls_cert.is_some();
        let core = Arc::clone(&router.get().shared.core);
        let running = py
            .detach(|| gateway::Gateway::start(config, core, &workers))
            .map_err(|refused| error::gateway(py, refused))?;
        Ok(Self {
            listens_on: running.listens_on().clone(),
            has_tls,
            admin_port: running.admin_addr().map(|address| address.port()),
            running: Running::new("gateway", Arc::new(running)),
        })
    }

    /// The address that clients connect to; None on a Unix socket.
    #[getter]
    fn host(&self) -> Option<String> {
        match &self.listens_on {
            Listen::Tcp(address) => Some(address.ip().to_string()),
            Listen::Unix(_) => None,
        }
    }

    /// The port that clients connect to; None on a Unix socket.
    #[getter]
    fn port(&self) -> Option<u16> {
        match &self.listens_on {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(_) => None,
        }
    }

    /// Where clients connect, as it was started: http://host:port, https://host:port or unix:/path.
    #[getter]
    fn url(&self) -> String {
        match (&self.listens_on, self.has_tls) {
            (Listen::Tcp(address), true) => format!("https://{address}"),
            (Listen::Tcp(address), false) => format!("http://{address}"),
            (unix @ Listen::Unix(_), _) => unix.to_string(),
        }
    }

    /// The port of metrics, health and fleet changes, if there is one.
    #[getter]
    fn admin_port(&self) -> Option<u16> {
        self.admin_port
    }

    /// Add a worker by its `url`. Raises DuplicateWorkerError, ConfigError.
    fn add_worker(&self, py: Python<'_>, url: &str) -> PyResult<()> {
        self.with(py, |running| running.add_worker(url).map(drop))
    }

    /// Remove a worker by its `url`; requests that run there go on. Raises UnknownWorkerError.
    fn remove_worker(&self, py: Python<'_>, url: &str) -> PyResult<()> {
        self.with(py, |running| running.remove_worker(url))
    }

    /// Send a worker, named by its `url`, nothing new; it finishes what it has. Raises UnknownWorkerError.
    fn drain_worker(&self, py: Python<'_>, url: &str) -> PyResult<()> {
        self.with(py, |running| running.drain_worker(url))
    }

    /// Read `files` again and make `workers` the workers of the configuration; those added by `add_worker` stay. No request
    /// is dropped. trial: as for `set_trial`; None leaves it as it is. Returns the URLs that were added and those that were
    /// removed. If anything cannot be used, nothing changes.
    ///
    /// Raises ConfigError, DuplicateWorkerError.
    #[pyo3(signature = (*, workers, files = HashMap::new(), trial = None))]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts a list of str by value")]
    fn reload(
        &self,
        py: Python<'_>,
        workers: Vec<String>,
        files: HashMap<String, PathBuf>,
        trial: Option<Trial>,
    ) -> PyResult<(Vec<String>, Vec<String>)> {
        let files = net::files(py, files)?;
        let tried = trial.map(|trial| trial.tried(py)).transpose()?;
        self.with(py, |running| {
            running.reload(&files, &workers, tried).map(|done| (done.added, done.removed))
        })
    }

    /// Put another trial and another shadow in force, as for the constructor; None for none. Figures begin anew, and a ramp ends.
    ///
    /// Raises ConfigError; then nothing has changed.
    #[pyo3(signature = (trial, /))]
    fn set_trial(&self, py: Python<'_>, trial: Option<Trial>) -> PyResult<()> {
        let tried = trial.map(|trial| trial.tried(py)).transpose()?.unwrap_or_default();
        self.with(py, |running| running.set_trial(tried))
    }

    /// Count a reload that was refused before it came here.
    fn reload_refused(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |running| {
            running.reload_refused();
            Ok(())
        })
    }

    /// Accept no new connections and requests; what runs goes on. Returns at once.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |running| {
            running.drain();
            Ok(())
        })
    }

    /// Wait, without the GIL, until nothing runs, `timeout_s` is over, or another thread closes it. Returns whether nothing
    /// runs, or ran when it was closed.
    fn wait_drained(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout: Duration = seconds(py, "timeout_s", timeout_s)?;
        self.with(py, |running| Ok(running.wait_drained(timeout)))
    }

    /// Stop at once: cuts what still runs and joins all threads. The second time is a no-op, and so is a call in a forked
    /// child, which has none of the threads.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.running.take().map(|running| running.close()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (exc_type, exc, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("Gateway({}, admin_port={:?})", self.url(), self.admin_port)
    }
}

impl Gateway {
    /// One call of the running gateway, without the GIL. Errors: `RuntimeError` once it is closed, or in a forked child.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&gateway::Gateway) -> Result<R, gateway::Error> + Send,
    ) -> PyResult<R> {
        let running = self.running.with(Arc::clone)?;
        py.detach(|| call(&running)).map_err(|refused| error::gateway(py, refused))
    }
}
