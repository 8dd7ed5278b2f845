//! The clock that the core does not have: `now` of a call, in the time of Python's `time.monotonic()`.

use pyo3::prelude::*;
use trunkline_core::Millis;

use crate::error;

/// Reads the time of `time.monotonic()`, to some milliseconds, without calling Python.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    /// The same clock for callers of the C API.
    pub(crate) of_c: trunkline::Clock,
}

impl Clock {
    /// Ties the two clocks together at this moment.
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        let now_s: f64 = py.import("time")?.call_method0("monotonic")?.extract()?;
        Ok(Self { of_c: trunkline::Clock::showing(Millis((now_s * 1e3) as u64)) })
    }

    /// `given` seconds, or the present.
    #[inline]
    pub(crate) fn millis(&self, given: Option<f64>) -> PyResult<Millis> {
        match given {
            None => Ok(self.of_c.now()),
            Some(seconds) if seconds >= 0.0 && seconds.is_finite() => Ok(Millis((seconds * 1e3) as u64)),
            Some(seconds) => Err(error::bad_time(seconds)),
        }
    }
}
