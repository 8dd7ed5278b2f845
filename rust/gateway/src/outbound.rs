//! How workers are reached, whoever they are: the protocol, the certificates, and the token that they want to see.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::HeaderValue;
use parking_lot::Mutex;
use rustls::ClientConfig;

use crate::config::{Files, WorkerProtocol};
use crate::error::Error;
use crate::tls;

/// One gateway's way to its workers. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    pub(crate) protocol: WorkerProtocol,
    /// `None` until some worker needs it.
    tls: ArcSwapOption<ClientConfig>,
    /// What `tls` is made from. Held while it is made.
    files: Mutex<Files>,
    /// The value of `Authorization` for every worker.
    token: ArcSwapOption<HeaderValue>,
}

impl Outbound {
    /// Workers spoken to in this protocol; [`replace`](Self::replace) says the rest.
    pub(crate) fn new(protocol: WorkerProtocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// The configuration for `https://` workers, made on its first use.
    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, Error> {
        if let Some(config) = self.tls.load_full() {
            return Ok(config);
        }
        let files = self.files.lock();
        if let Some(config) = self.tls.load_full() {
            return Ok(config);
        }
        let config = tls::client(&files, self.protocol)?;
        self.tls.store(Some(Arc::clone(&config)));
        Ok(config)
    }

    /// What workers want to see as `Authorization`, if anything.
    pub(crate) fn token(&self) -> Option<Arc<HeaderValue>> {
        self.token.load_full()
    }

    /// Whether a worker needed TLS so far.
    pub(crate) fn uses_tls(&self) -> bool {
        self.tls.load().is_some()
    }

    /// Puts new certificates and a new token in force for connections and requests from now on. Without `tls`, the first
    /// worker that needs it reads `files`.
    pub(crate) fn replace(&self, files: &Files, tls: Option<Arc<ClientConfig>>, token: Option<HeaderValue>) {
        let mut held = self.files.lock();
        held.clone_from(files);
        self.tls.store(tls);
        self.token.store(token.map(Arc::new));
    }
}
