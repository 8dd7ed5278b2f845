//! The data plane of Trunkline: an HTTP gateway that sends each LLM request to the worker that already holds its
//! prefix.
//!
//! [`Gateway::start`] listens, and from then on its own threads do everything: read a request, locate its prompt, ask
//! [`trunkline_core::Router`] for a worker, pass the client's bytes on unchanged, try another worker if that one
//! fails before its answer has begun, stream the answer back, and keep the books. There is no global state and no
//! runtime to provide; who embeds it holds a [`Gateway`] and calls [`drain`](Gateway::drain) and
//! [`close`](Gateway::close).
//!
//! | module | idea |
//! | --- | --- |
//! | `config`, `error` | settings and their ranges, and why a gateway does not start |
//! | `server`, `listen` | start and end; data threads and what they share; the listener |
//! | `front`, `patience`, `clients`, `wire`, `tls` | a client's connection: TLS, HTTP/1.1 or HTTP/2, how long it may idle |
//! | `edge`, `reload`, `keys`, `rate`, `digest` | who may call, how much, and what can be replaced meanwhile |
//! | `intake` | heads that are refused or put right before anything else |
//! | `proxy`, `collect`, `place` | one request's life (attempts, verdicts, delivery), its body, and the choice of its worker |
//! | `prompt`, `json`, `path` | what a body and a path say |
//! | `sagemaker` | SageMaker's paths, headers, variants and event streams |
//! | `fleet`, `endpoint` | who the workers are, and a snapshot of what they serve |
//! | `exact` | workers' KV events, and prompts as these have them |
//! | `health`, `probe`, `profile`, `backoff`, `pulse`, `avoid` | which of them get requests |
//! | `trial` | another policy or pool for a part of the traffic, ramps, a policy in the shadow |
//! | `signals` | what workers say of the load that others give them |
//! | `queue`, `budget` | when all are busy, and how often a request may be sent again |
//! | `upstream`, `link`, `outbound` | connections to them, and how those fail |
//! | `booking`, `body`, `idle`, `usage` | the answer on its way, and the books |
//! | `answer`, `headers` | what we say ourselves, and what stops here |
//! | `metrics`, `edge_metrics`, `admin`, `problem` | what operators see and change, and its OpenAPI document |
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use trunkline_core::{Router, RouterConfig};
//! use trunkline_gateway::{Gateway, GatewayConfig};
//!
//! let router = Arc::new(Router::new(RouterConfig::default())?);
//! let workers = ["http://10.0.0.1:8000".to_owned(), "http://10.0.0.2:8000".to_owned()];
//! let gateway = Gateway::start(GatewayConfig::default(), router, &workers)?;
//! println!("listening on {}", gateway.listens_on());
//! gateway.drain();
//! assert!(gateway.wait_drained(Duration::from_secs(30)));
//! gateway.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod answer;
mod avoid;
mod backoff;
mod body;
mod booking;
mod budget;
mod clients;
mod collect;
mod config;
mod digest;
mod edge;
mod edge_metrics;
mod endpoint;
mod error;
mod exact;
mod fleet;
mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
mod headers;
mod health;
mod idle;
mod intake;
mod json;
mod keys;
mod link;
mod listen;
mod log;
mod metrics;
mod outbound;
mod path;
mod patience;
mod place;
mod probe;
mod problem;
mod profile;
mod prompt;
mod proxy;
mod pulse;
mod queue;
mod rate;
mod reload;
mod sagemaker;
mod server;
mod signals;
mod tls;
mod trial;
mod upstream;
mod usage;
mod wire;

pub use config::{EventsMode, Files, GatewayConfig, LoadSignals, TextConfig, WorkerProtocol};
pub use error::{Error, FileFault};
pub use listen::Listen;
pub use reload::Reloaded;
pub use sagemaker::{EndpointConfig, VariantConfig, VariantWorker};
pub use server::Gateway;
pub use trial::{TrialBy, TrialConfig, Tried};
pub use trunkline_text::ContentFormat;
