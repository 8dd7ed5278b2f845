//! `with router.lease(prompt) as decision:` books on entry and completes on exit, whatever happened in between.
//!
//! The same object serves `async with`: nothing here waits, so the awaitable is ready when it is made.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::decision::Decision;
use crate::error;
use crate::router::{Arguments, Shared};

/// A booking that completes itself: `Router.lease` makes it, `with` and `async with` give its `Decision`.
///
/// One request at a time: RuntimeError if it is entered twice. It can be entered again after it was left.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    prompt: Py<PyAny>,
    arguments: Arguments,
    decision: Mutex<Option<Py<Decision>>>,
}

impl Lease {
    pub(crate) fn new(shared: &Arc<Shared>, prompt: Py<PyAny>, arguments: Arguments) -> Self {
        Self { shared: Arc::clone(shared), prompt, arguments, decision: Mutex::new(None) }
    }

    fn enter(&self, py: Python<'_>) -> PyResult<Py<Decision>> {
        // Routing may run Python code (an `__index__`, a buffer's exporter), so the lock is not held meanwhile.
        let decision = self.shared.route(py, self.prompt.bind(py), &self.arguments)?;
        let mut entered = self.decision.lock();
        if entered.is_some() {
            self.complete(&decision)?;
            return Err(error::lease_entered());
        }
        *entered = Some(decision.clone_ref(py));
        Ok(decision)
    }

    fn leave(&self) -> PyResult<()> {
        let left = self.decision.lock().take();
        left.map_or(Ok(()), |decision| self.complete(&decision))
    }

    fn complete(&self, decision: &Py<Decision>) -> PyResult<()> {
        self.shared.core.complete(decision.get().core.id, None, self.shared.clock.millis(None)?);
        Ok(())
    }
}

#[pymethods]
impl Lease {
    /// Routes, as `Router.route`.
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Decision>> {
        self.enter(py)
    }

    /// Completes, unless `Router.complete` was called inside.
    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __exit__(
        &self,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, exc, traceback);
        self.leave()
    }

    /// Routes, as `Router.route`.
    fn __aenter__(&self, py: Python<'_>) -> PyResult<Ready> {
        Ok(Ready { value: Mutex::new(Some(self.enter(py)?.into_any())) })
    }

    /// Completes, unless `Router.complete` was called inside.
    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __aexit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Ready> {
        let _ = (exc_type, exc, traceback);
        self.leave()?;
        Ok(Ready { value: Mutex::new(Some(py.None())) })
    }
}

/// An awaitable that has its value already.
#[pyclass(frozen, module = "trunkline._core")]
pub(crate) struct Ready {
    value: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl Ready {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let value = self.value.lock().take().unwrap_or_else(|| py.None());
        Err(error::stop_iteration(value))
    }
}
