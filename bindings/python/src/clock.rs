//! The clock that the core does not have: `now` of a call, in the time of Python's `time.monotonic()`.

use std::time::Instant;

use pyo3::prelude::*;
use trunkline_core::Millis;

use crate::error;

/// Reads the time of `time.monotonic()` without calling Python.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
    origin_s: f64,
}

impl Clock {
    /// Ties the two clocks together at this moment.
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        let origin_s = py.import("time")?.call_method0("monotonic")?.extract()?;
        Ok(Self { origin: Instant::now(), origin_s })
    }

    /// The present.
    pub(crate) fn now(&self) -> Millis {
        Millis(((self.origin_s + self.origin.elapsed().as_secs_f64()) * 1e3) as u64)
    }

    /// The same clock for callers of the C API.
    pub(crate) fn of_c(&self) -> trunkline::Clock {
        trunkline::Clock { origin: self.origin, origin_ms: self.origin_s * 1e3 }
    }

    /// `given` seconds, or the present.
    pub(crate) fn millis(&self, given: Option<f64>) -> PyResult<Millis> {
        match given {
            None => Ok(self.now()),
            Some(seconds) if seconds >= 0.0 && seconds.is_finite() => Ok(Millis((seconds * 1e3) as u64)),
            Some(seconds) => Err(error::bad_time(seconds)),
        }
    }
}
