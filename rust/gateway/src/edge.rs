//! What a gateway reads from files at its start: certificates.
//!
//! All files are read and checked before any of them takes effect.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::{ClientConfig, ServerConfig};

use crate::config::Files;
use crate::error::Error;
use crate::outbound::Outbound;
use crate::tls;

/// What is in force. Reading it takes no lock.
#[derive(Debug)]
pub(crate) struct Edge {
    /// `None` serves clients without TLS.
    pub(crate) tls: ArcSwapOption<ServerConfig>,
    pub(crate) outbound: Arc<Outbound>,
}

/// Files that were read and found good.
pub(crate) struct Loaded {
    files: Files,
    server_tls: Option<Arc<ServerConfig>>,
    worker_tls: Option<Arc<ClientConfig>>,
}

impl Edge {
    /// Nothing in force yet.
    pub(crate) fn new(outbound: Arc<Outbound>) -> Self {
        Self { tls: ArcSwapOption::empty(), outbound }
    }

    /// Reads all files. Changes nothing. `needs_worker_tls` says that some worker is to be reached over TLS.
    pub(crate) fn load(&self, files: &Files, needs_worker_tls: bool) -> Result<Loaded, Error> {
        let names_worker_tls = [&files.worker_tls_ca, &files.worker_tls_cert, &files.worker_tls_key]
            .iter()
            .any(|file| file.is_some());
        let worker_tls = (needs_worker_tls || names_worker_tls)
            .then(|| tls::client(files, self.outbound.protocol))
            .transpose()?;
        Ok(Loaded { server_tls: tls::server(files)?, worker_tls, files: files.clone() })
    }

    /// Puts `loaded` in force.
    pub(crate) fn install(&self, loaded: Loaded) {
        self.tls.store(loaded.server_tls);
        self.outbound.replace(&loaded.files, loaded.worker_tls);
    }
}
