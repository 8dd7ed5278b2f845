//! Addresses and times as Python gives them to the objects that own sockets.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error;

/// The first address of a host, a name or an IP address. Errors: `OSError` if there is none.
pub(crate) fn address(py: Python<'_>, host: &str, port: u16) -> PyResult<SocketAddr> {
    let found = py.detach(|| (host, port).to_socket_addrs().map(|mut all| all.next()));
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(error::no_address(host)),
        Err(cause) => Err(error::io(&format!("cannot resolve host {host:?}"), &cause)),
    }
}

/// A time in seconds. Errors: `ConfigError` for what is no time.
pub(crate) fn seconds(py: Python<'_>, key: &'static str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| error::config(py, key, &value, "a number of seconds >= 0"))
}
