//! Addresses and times as Python gives them to the objects that own sockets.

use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use trunkline_gateway::{Files, Listen, LoadSignals, WorkerProtocol};

use crate::error;

/// The first address of a host, a name or an IP address, in brackets or not. Errors: `OSError` if there is none.
pub(crate) fn address(py: Python<'_>, host: &str, port: u16) -> PyResult<SocketAddr> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = py.detach(|| (host, port).to_socket_addrs().map(|mut all| all.next()));
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(error::no_address(host)),
        Err(cause) => Err(error::io(&format!("cannot resolve host {host:?}"), &cause)),
    }
}

/// `unix:/path` or `host:port`. Errors: `ConfigError`, and `OSError` for a host without an address.
pub(crate) fn listen(py: Python<'_>, text: &str) -> PyResult<Listen> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    let found = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    match found {
        Some((host, port)) => address(py, host, port).map(Listen::Tcp),
        None => Err(error::config(py, "listen", &text, "unix:/path or host:port")),
    }
}

/// Files by the names of their settings. Errors: `ConfigError` for a name that is none.
pub(crate) fn files(py: Python<'_>, named: HashMap<String, PathBuf>) -> PyResult<Files> {
    let mut files = Files::default();
    for (name, path) in named {
        let place = match name.as_str() {
            "tls_cert" => &mut files.tls_cert,
            "tls_key" => &mut files.tls_key,
            "tls_client_ca" => &mut files.tls_client_ca,
            "worker_tls_ca" => &mut files.worker_tls_ca,
            "worker_tls_cert" => &mut files.worker_tls_cert,
            "worker_tls_key" => &mut files.worker_tls_key,
            "worker_token_file" => &mut files.worker_token,
            "api_keys_file" => &mut files.api_keys,
            "admin_token_file" => &mut files.admin_token,
            _ => return Err(error::config(py, "files", &name, "the names of settings for files")),
        };
        *place = Some(path);
    }
    Ok(files)
}

/// How workers are spoken to. Errors: `ConfigError`.
pub(crate) fn protocol(py: Python<'_>, name: &str) -> PyResult<WorkerProtocol> {
    match name {
        "http1" => Ok(WorkerProtocol::Http1),
        "h2" => Ok(WorkerProtocol::H2),
        _ => Err(error::config(py, "worker_protocol", &name, "http1 or h2")),
    }
}

/// Whether workers are asked for their load. Errors: `ConfigError`.
pub(crate) fn load_signals(py: Python<'_>, name: &str) -> PyResult<LoadSignals> {
    match name {
        "auto" => Ok(LoadSignals::Auto),
        "on" => Ok(LoadSignals::On),
        "off" => Ok(LoadSignals::Off),
        _ => Err(error::config(py, "load_signals", &name, "auto, on or off")),
    }
}

/// A time in seconds. Errors: `ConfigError` for what is no time.
pub(crate) fn seconds(py: Python<'_>, key: &'static str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| error::config(py, key, &value, "a number of seconds >= 0"))
}
