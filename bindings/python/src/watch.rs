//! Long work without the GIL that Python may watch and end.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Time between two looks at signals and two reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Who watches, and what they raised.
pub(crate) struct Watch {
    progress: Option<Py<PyAny>>,
    reported: Instant,
    raised: Option<PyErr>,
}

impl Watch {
    /// `progress` says by a false value other than None that it is enough.
    pub(crate) fn new(progress: Option<Py<PyAny>>) -> Self {
        Self { progress, reported: Instant::now(), raised: None }
    }

    /// Lets signal handlers run and asks who watches, at most every 100 ms unless it `is_urgent`. To be called without the GIL.
    pub(crate) fn look(
        &mut self,
        is_urgent: bool,
        ask: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<Py<PyAny>>,
    ) -> ControlFlow<()> {
        if !is_urgent && self.reported.elapsed() < REPORT_EVERY {
            return ControlFlow::Continue(());
        }
        self.reported = Instant::now();
        let goes_on = Python::attach(|py| {
            py.check_signals()?;
            let Some(progress) = &self.progress else { return Ok(true) };
            let said = ask(py, progress)?;
            Ok(said.is_none(py) || said.is_truthy(py)?)
        });
        match goes_on {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// # Errors
    /// What was raised while somebody looked.
    pub(crate) fn raised(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}
