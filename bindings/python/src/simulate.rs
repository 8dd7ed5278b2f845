//! `_simulate`: a simulated fleet, described by JSON; `python/trunkline/simulate` gives it types.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;
use trunkline_sim::des::{Scenario, Spec};

use crate::error;
use crate::watch::Watch;

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
    let mut watch = Watch::new(progress);
    let found = py.detach(|| {
        spec.run(trace.as_deref(), |at| {
            watch.look(false, |py, progress| progress.call1(py, (at.answered, at.requests)))
        })
    });
    watch.raised()?;
    let found = found.map_err(|refused| error::simulation(py, refused))?;
    Ok(PyBytes::new(py, &found.to_json()))
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
