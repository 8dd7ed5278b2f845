//! `Sidecar`: a router for other processes, on a Unix socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use trunkline_sidecar as sidecar;

use crate::error;
use crate::router::Router;
use crate::running::Running;

/// A decision service: one router for many processes, which reach it with `SidecarRouter`. Its threads run until `close`.
///
/// It listens on a Unix socket, for processes of this user, and accepts connections when the constructor returns. Use it as
/// a context manager, or close it. All methods may be called from any thread; it does not survive a fork.
///
/// router: the one that decides; it can be used here as well.  path: of the socket; one that nobody listens on is
/// replaced.  max_connections: at once.  frame_timeout_s: how long a question may take to arrive, and an answer to be
/// taken.  grace_s: how long the bookings of a client that is gone are kept.
///
/// Raises ConfigError, OSError.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Sidecar {
    running: Running<sidecar::Sidecar>,
    path: PathBuf,
}

#[pymethods]
impl Sidecar {
    #[new]
    #[pyo3(signature = (router, path, *, max_connections = 1024, frame_timeout_s = 5.0, grace_s = 5.0))]
    fn new(
        py: Python<'_>,
        router: &Router,
        path: PathBuf,
        max_connections: usize,
        frame_timeout_s: f64,
        grace_s: f64,
    ) -> PyResult<Self> {
        let options = sidecar::Options {
            max_connections,
            frame_timeout: seconds(py, "frame_timeout_s", frame_timeout_s)?,
            grace: seconds(py, "grace_s", grace_s)?,
            ..sidecar::Options::default()
        };
        let (core, clock) = (Arc::clone(&router.shared.core), router.shared.clock);
        let running = sidecar::Sidecar::start(core, &path, options, move || clock.of_c.now())
            .map_err(|refused| error::sidecar(py, &refused))?;
        Ok(Self { running: Running::new("sidecar", running), path })
    }

    /// Where it listens.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// End all connections and remove the socket. A second call does nothing, nor does one in a forked child.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.running.take()));
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
        format!("Sidecar({:?})", self.path)
    }
}

/// A time of 1 ms to an hour, else ConfigError.
pub(crate) fn seconds(py: Python<'_>, key: &'static str, value: f64) -> PyResult<Duration> {
    match value {
        0.001..=3600.0 => Ok(Duration::from_secs_f64(value)),
        _ => Err(error::config(py, key, &value, "0.001 to 3600 seconds")),
    }
}
