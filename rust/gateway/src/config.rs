//! Settings of a gateway: their meaning and their defaults. `check` keeps their ranges.

mod check;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use trunkline_text::ContentFormat;

use crate::endpoint::Endpoint;
use crate::listen::Listen;
use crate::sagemaker::EndpointConfig;
use crate::trial::Tried;

/// Files with certificates, keys and tokens. [`Gateway::reload`](crate::Gateway::reload) reads them again while the
/// gateway serves. Default: none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files {
    /// The gateway's certificate chain, PEM. With it the data port speaks TLS, HTTP/2 and HTTP/1.1 as the client
    /// wishes; without, plain text.
    pub tls_cert: Option<PathBuf>,
    /// The private key of `tls_cert`, PEM.
    pub tls_key: Option<PathBuf>,
    /// Authorities, PEM; a client must then show a certificate of theirs.
    pub tls_client_ca: Option<PathBuf>,
    /// Authorities for `https://` workers, PEM; without it, the system's.
    pub worker_tls_ca: Option<PathBuf>,
    /// The certificate chain that we show to `https://` workers, PEM.
    pub worker_tls_cert: Option<PathBuf>,
    /// The private key of `worker_tls_cert`, PEM.
    pub worker_tls_key: Option<PathBuf>,
    /// A token that workers want as `Authorization: Bearer`. Clients' own `Authorization` is then replaced.
    pub worker_token: Option<PathBuf>,
    /// Keys of clients, one per line (`docs/edge.md`); with it, a request without one of them is refused.
    pub api_keys: Option<PathBuf>,
    /// A token, 16 bytes or more, that the admin API wants as `Authorization: Bearer`, for all but `/livez` and
    /// `/readyz`.
    pub admin_token: Option<PathBuf>,
}

/// How workers are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkerProtocol {
    /// HTTP/1.1, which every engine speaks: a connection per request in flight.
    #[default]
    Http1,
    /// HTTP/2: many requests on one connection. Plain workers must know it (prior knowledge); `https://` workers may
    /// decline it.
    H2,
}

/// Whether workers' KV events are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsMode {
    /// Never.
    Off,
    /// Where there is a tokenizer: most prompts are text, and match events through it only.
    #[default]
    Auto,
    /// Also without one: then prompts of token ids are matched, and no others.
    On,
}

/// Whether workers are asked for the load that others give them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadSignals {
    /// Never.
    Off,
    /// Where other routers send to them as well.
    #[default]
    Auto,
    /// Always: somebody else may send to them.
    On,
}

/// How a model's prompts become the text that its tokenizer gets: as its workers were started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextConfig {
    /// The model that it is for, as requests name it; `None` for all that have none of their own.
    pub model: Option<String>,
    /// Where `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` are.
    pub directory: PathBuf,
    /// The workers' time zone, for templates that tell the date; an IANA name. Default UTC.
    pub time_zone: String,
    /// A template instead of the model's own.
    pub chat_template: Option<PathBuf>,
    /// How the template takes a message's content; `None` reads it off the template.
    pub content_format: Option<ContentFormat>,
    /// Variables for the template, a JSON object.
    pub template_kwargs: Option<String>,
    /// Whether `tool_choice: none` takes the tools away.
    pub excludes_unused_tools: bool,
}

impl TextConfig {
    /// The text of all models, as their directory has it.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            model: None,
            directory: directory.into(),
            time_zone: "UTC".into(),
            chat_template: None,
            content_format: None,
            template_kwargs: None,
            excludes_unused_tools: false,
        }
    }
}

/// Largest cap of a worker's requests in flight, and largest queue: nobody needs more.
pub(crate) const MAX_CAP: u32 = 1_000_000;

/// Settings of a [`Gateway`](crate::Gateway). Every default is what a fleet of GPU workers wants.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Where clients connect. Port 0 takes a free port. Default 127.0.0.1:8080.
    pub listen: Listen,
    /// Where `/metrics`, `/livez`, `/readyz` and `/admin` are served; `None` serves none of them. Default
    /// 127.0.0.1:8081: the admin API changes the fleet, so it is on loopback until somebody decides otherwise.
    pub admin_listen: Option<SocketAddr>,
    /// Threads that carry requests, 0 to 256; 0 takes one per core. Default 0.
    pub threads: usize,
    /// Largest request body in bytes, 1 KiB to 4 GiB; more is answered with 413. Default 64 MiB: a prompt with a few
    /// images.
    pub max_body_bytes: usize,
    /// Longest wait for a connection to a worker, 1 ms to 60 s. Default 2 s: workers are near, and another one can
    /// serve.
    pub connect_timeout: Duration,
    /// Longest wait for the head of a worker's answer, at least 1 ms; then another worker is asked. Default `None`: a
    /// long prompt in a long queue is not a fault.
    pub first_byte_timeout: Option<Duration>,
    /// Longest silence of a worker in the middle of its answer, at least 10 ms; then the answer ends as a cut one does.
    /// It ends between one and one and a quarter times this. Default 5 min: a preempted sequence may pause for long, and
    /// a worker that died is noticed in other ways.
    pub idle_timeout: Option<Duration>,
    /// Most requests in flight on one worker, 1 to 1,000,000; more go elsewhere or wait. Default `None`: engines queue
    /// well themselves, and see more than we do.
    pub max_in_flight: Option<u32>,
    /// The same for single workers, by their URL; 0 is no cap.
    pub worker_caps: Vec<(String, u32)>,
    /// Most requests that wait because all workers are busy or at their caps, 0 to 1,000,000; 0 turns them away at once.
    /// Default 1,024: with 8 KB each that is 8 MB, and more than a fleet serves within `queue_timeout`.
    pub max_queued: usize,
    /// Longest wait of such a request, 1 ms to 1 h; then it is answered with 503, or with the refusal of a worker.
    /// Default 3 s: a moment's burst passes, and a client that must go elsewhere still has the time.
    pub queue_timeout: Duration,
    /// Requests that may be sent once more, as a share of the traffic of ten seconds, 0 to 1; 0 forbids it. A few per
    /// window are always allowed. Default 0.2: enough for the loss of one worker in five, too little to double the load
    /// of a fleet that drowns.
    pub retry_budget: f64,
    /// Whether workers that have requests and show no byte for much longer than the fleet needs get nothing new. Default
    /// true.
    pub hang_detection: bool,
    /// Time in which a new or recovered worker comes up to its share, 0 to 10 min. Default 2 s: a burst that meets a cold
    /// worker is spread, and a fleet that grows has the newcomer's help soon.
    pub slow_start: Duration,
    /// Time between two health probes of a worker, 20 ms to 60 s. Default 1 s.
    pub probe_interval: Duration,
    /// Whether answers carry `x-trunkline-worker` and `x-trunkline-decision`. Default true.
    pub annotate: bool,
    /// Whether standard error is told of workers that leave or come back, and of views that cannot be used. Default false: a
    /// library's process has a log of its own.
    pub log: bool,
    /// Endpoints of SageMaker that are served below `/endpoints/{name}`. Default none: then any name stands for the whole
    /// fleet.
    pub endpoints: Vec<EndpointConfig>,
    /// How workers are spoken to. Default HTTP/1.1.
    pub worker_protocol: WorkerProtocol,
    /// Largest head of a request in bytes, 8 KiB to 1 MiB; more is answered with 431. Default 64 KiB: long tokens and
    /// cookies fit.
    pub max_header_bytes: usize,
    /// Most header lines of a request, 1 to 10,000; more are answered with 431. Default 100.
    pub max_headers: usize,
    /// Most connections of one client address (of one /64 in IPv6) at a time, at least 1; more are closed at once.
    /// Default `None`: behind a load balancer all clients have one address.
    pub max_connections_per_client: Option<u32>,
    /// Longest time from the first byte of a request's head to its last, 10 ms to 1 h, and for a TLS handshake. Default
    /// 10 s: nobody sends a head that slowly in good faith.
    pub header_timeout: Duration,
    /// Longest time that a client's connection stays open without a request, 10 ms to 24 h. Default 75 s, as long as
    /// nginx.
    pub client_idle_timeout: Duration,
    /// Most requests at a time on one HTTP/2 connection of a client, 1 to 10,000. Default 128, as nginx has it.
    pub max_streams: u32,
    /// Whether workers' KV events are followed. Default: where there is a tokenizer.
    pub events: EventsMode,
    /// The models whose prompts are matched with events. Default: none.
    pub tokenizers: Vec<TextConfig>,
    /// One in so many prompts is compared with the engine's own, which costs it a token; 0 for none. Default 0: answers tell
    /// whether prompts are right in the long run; this tells where one is wrong.
    pub check_every: u32,
    /// Whether workers are asked for the load that others give them. Default: where there are replicas; a gateway that is alone
    /// knows all that it sends, sooner than they do.
    pub load_signals: LoadSignals,
    /// What is tried beside the policy. Default: nothing.
    pub tried: Tried,
    /// Files that may change while the gateway serves.
    pub files: Files,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)).into(),
            admin_listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 8081))),
            threads: 0,
            max_body_bytes: 64 << 20,
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: None,
            idle_timeout: Some(Duration::from_secs(300)),
            max_in_flight: None,
            worker_caps: Vec::new(),
            max_queued: 1024,
            queue_timeout: Duration::from_secs(3),
            retry_budget: 0.2,
            hang_detection: true,
            slow_start: Duration::from_secs(2),
            probe_interval: Duration::from_secs(1),
            annotate: true,
            log: false,
            endpoints: Vec::new(),
            worker_protocol: WorkerProtocol::Http1,
            max_header_bytes: 64 << 10,
            max_headers: 100,
            max_connections_per_client: None,
            header_timeout: Duration::from_secs(10),
            client_idle_timeout: Duration::from_secs(75),
            max_streams: 128,
            events: EventsMode::default(),
            tokenizers: Vec::new(),
            check_every: 0,
            load_signals: LoadSignals::default(),
            tried: Tried::default(),
            files: Files::default(),
        }
    }
}

/// What the fleet needs of the settings.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) hang_detection: bool,
    pub(crate) slow_start: Duration,
    max_in_flight: u32,
    /// By a worker's normal URL.
    caps: Vec<(String, u32)>,
}

impl Rules {
    /// The cap of the worker with this normal URL; 0 is none.
    pub(crate) fn cap(&self, url: &str) -> u32 {
        let own = self.caps.iter().rev().find(|(other, _)| other == url);
        own.map_or(self.max_in_flight, |(_, cap)| *cap)
    }
}

impl GatewayConfig {
    /// What the fleet needs of them.
    pub(crate) fn rules(&self) -> Rules {
        let normal =
            |(url, cap): &(String, u32)| Some((Endpoint::parse(url, &Arc::default()).ok()?.url, *cap));
        Rules {
            hang_detection: self.hang_detection,
            slow_start: self.slow_start,
            max_in_flight: self.max_in_flight.unwrap_or(0),
            caps: self.worker_caps.iter().filter_map(normal).collect(),
        }
    }

    /// Threads to start: the setting, or one per core.
    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}
