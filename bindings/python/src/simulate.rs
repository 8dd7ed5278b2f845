//! `_simulate`: a simulated fleet, described by JSON; `python/trunkline/simulate` gives it types.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;
use trunkline_sim::des::{Progress, Scenario, Spec};

use crate::error;

/// Time between two looks at signals and two reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Run a simulation without the GIL and return its figures as JSON.
///
/// spec: JSON, see `trunkline.simulate.spec.Spec`.  trace: text of the file that the source of the workload reads.  progress:
/// called every 100 ms with the requests answered so far and those in all; False ends the run, and what was answered
/// until then counts. What it or a signal handler raises ends the run too and is raised here.
///
/// Raises ConfigError for a value out of range, TrunklineError for a specification or a trace that cannot be read.
#[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts them by value")]
#[pyfunction]
#[pyo3(name = "_simulate", signature = (spec, *, trace=None, progress=None))]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    spec: &[u8],
    trace: Option<PyBackedStr>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let spec = Spec::parse(spec).map_err(|refused| error::simulation(py, refused))?;
    let mut raised = None;
    let found = py.detach(|| {
        let mut reported = Instant::now();
        spec.run(trace.as_deref(), |at| {
            if reported.elapsed() < REPORT_EVERY {
                return ControlFlow::Continue(());
            }
            reported = Instant::now();
            match Python::attach(|py| goes_on(py, progress.as_ref(), at)) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    let found = found.map_err(|refused| error::simulation(py, refused))?;
    Ok(PyBytes::new(py, &found.to_json()))
}

/// Lets signal handlers run and asks `progress`.
fn goes_on(py: Python<'_>, progress: Option<&Py<PyAny>>, at: Progress) -> PyResult<bool> {
    py.check_signals()?;
    let Some(progress) = progress else { return Ok(true) };
    let said = progress.call1(py, (at.answered, at.requests))?;
    Ok(said.is_none(py) || said.is_truthy(py)?)
}

/// Names of the policy study's scenarios, each with the name of the trace that it replays, or None.
#[pyfunction]
#[pyo3(name = "_scenarios")]
pub(crate) fn scenarios() -> Vec<(&'static str, Option<&'static str>)> {
    Scenario::ALL.iter().map(|&name| (name, Scenario::needs(name).map(|needs| needs.name()))).collect()
}

/// Names of the profiles, each as JSON.
#[pyfunction]
#[pyo3(name = "_profiles")]
pub(crate) fn profiles() -> Vec<(&'static str, String)> {
    trunkline_sim::des::Profile::all_json()
}
