//! What can be replaced while a gateway serves: certificates, API keys, tokens.
//!
//! All files are read and checked before any of them takes effect, so a gateway never serves with half of a change.
//! Connections that exist keep what they were opened with; a key that is gone is refused from its next request on.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::HeaderValue;
use rustls::{ClientConfig, ServerConfig};

use crate::config::Files;
use crate::digest::Digest;
use crate::error::{Error, FileFault};
use crate::keys::Keys;
use crate::outbound::Outbound;
use crate::tls;

/// Shortest token that is accepted: anything shorter can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// What is in force. Reading it takes no lock.
#[derive(Debug)]
pub(crate) struct Edge {
    /// `None` serves clients without TLS.
    pub(crate) tls: ArcSwapOption<ServerConfig>,
    /// `None` serves everybody.
    pub(crate) keys: ArcSwapOption<Keys>,
    /// `None` lets everybody who reaches the admin port use it.
    pub(crate) admin_token: ArcSwapOption<Digest>,
    pub(crate) outbound: Arc<Outbound>,
}

/// Files that were read and found good.
pub(crate) struct Loaded {
    files: Files,
    server_tls: Option<Arc<ServerConfig>>,
    worker_tls: Option<Arc<ClientConfig>>,
    worker_token: Option<HeaderValue>,
    keys: Option<Keys>,
    admin_token: Option<Digest>,
}

impl Edge {
    /// Nothing in force yet.
    pub(crate) fn new(outbound: Arc<Outbound>) -> Self {
        Self {
            tls: ArcSwapOption::empty(),
            keys: ArcSwapOption::empty(),
            admin_token: ArcSwapOption::empty(),
            outbound,
        }
    }

    /// Reads all files. Changes nothing. `needs_worker_tls` says that some worker is to be reached over TLS.
    pub(crate) fn load(&self, files: &Files, needs_worker_tls: bool) -> Result<Loaded, Error> {
        let names_worker_tls = [&files.worker_tls_ca, &files.worker_tls_cert, &files.worker_tls_key]
            .iter()
            .any(|file| file.is_some());
        let worker_tls = (needs_worker_tls || names_worker_tls || self.outbound.uses_tls())
            .then(|| tls::client(files, self.outbound.protocol))
            .transpose()?;
        let worker_token =
            files.worker_token.as_deref().map(|path| token("worker_token_file", path)).transpose()?;
        let worker_token = worker_token.map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .expect("a token of visible ASCII makes a header value");
            value.set_sensitive(true);
            value
        });
        let admin_token =
            files.admin_token.as_deref().map(|path| token("admin_token_file", path)).transpose()?;
        Ok(Loaded {
            server_tls: tls::server(files)?,
            worker_tls,
            worker_token,
            keys: files.api_keys.as_deref().map(Keys::read).transpose()?,
            admin_token: admin_token.map(|token| Digest::of(token.as_bytes())),
            files: files.clone(),
        })
    }

    /// Puts `loaded` in force. A key that stays the same keeps what it has used of its limits.
    pub(crate) fn install(&self, loaded: Loaded) {
        let before = self.keys.load_full();
        self.tls.store(loaded.server_tls);
        self.keys.store(loaded.keys.map(|keys| Arc::new(keys.succeeding(before.as_deref()))));
        self.admin_token.store(loaded.admin_token.map(Arc::new));
        self.outbound.replace(&loaded.files, loaded.worker_tls, loaded.worker_token);
    }
}

/// The one line of a file that holds a token.
fn token(key: &'static str, path: &Path) -> Result<String, Error> {
    let refuse = |source| Error::File { key, path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(|source| refuse(source.into()))?;
    let token = text.trim();
    if token.len() < MIN_TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refuse(FileFault::Token));
    }
    Ok(token.to_owned())
}
