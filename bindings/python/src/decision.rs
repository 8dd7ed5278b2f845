//! What a call answers: `Decision`, `Match`, `Explanation` and `Candidate`. Values: they keep no lock and no borrow, and
//! names are looked up when somebody asks.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use trunkline_core as core;

use crate::error;
use crate::names::Named;
use crate::router::Shared;

/// Where a request goes, and why: an immutable value, equal and hashed by router and id.
///
/// It pickles; in another process it can be read, and completed there with a `SidecarRouter` only.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Decision {
    pub(crate) core: core::Decision,
    /// Tag of the router that made it.
    pub(crate) router: u64,
    worker: Named,
    preferred: Option<Py<PyString>>,
}

impl Decision {
    pub(crate) fn new(py: Python<'_>, shared: &Shared, decision: core::Decision) -> Self {
        Self {
            core: decision,
            router: shared.tag,
            worker: shared.named(py, decision.worker),
            preferred: decision.preferred.map(|id| shared.named(py, id).name),
        }
    }
}

#[pymethods]
impl Decision {
    /// Id of the chosen worker.
    #[getter]
    fn worker(&self) -> &Py<PyString> {
        &self.worker.name
    }

    /// The worker's endpoint, if one was given when it was added.
    #[getter]
    fn url(&self) -> Option<&Py<PyString>> {
        self.worker.url.as_ref()
    }

    /// Why: prefix (it holds most and costs least), session (it alone holds the prompt's own history), home (the prompt's
    /// hash decided), load (it costs least, though another holds more), spill (the preferred one was over its bound), only
    /// (no other was allowed) or baseline (of policies that look at no prefix).
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::intern(py, self.core.reason.as_str())
    }

    /// The worker that the choice left, if it left one.
    #[getter]
    fn preferred(&self) -> Option<&Py<PyString>> {
        self.preferred.as_ref()
    }

    /// Leading tokens of the prompt believed cached on the worker.
    #[getter]
    fn matched_tokens(&self) -> u32 {
        self.core.matched_tokens
    }

    /// What the worker's events alone say of that; None where they do not count.
    #[getter]
    fn told_tokens(&self) -> Option<u32> {
        self.core.told_tokens
    }

    /// Tokens of the prompt; for text an estimate.
    #[getter]
    fn prompt_tokens(&self) -> u32 {
        self.core.prompt_tokens
    }

    /// Leading blocks of the prompt believed cached on the worker.
    #[getter]
    fn matched_blocks(&self) -> u32 {
        self.core.matched_blocks
    }

    /// Whole blocks of the prompt.
    #[getter]
    fn prompt_blocks(&self) -> u32 {
        self.core.prompt_blocks
    }

    /// Believed hit rate of this prompt, 0..1.
    #[getter]
    fn expected_hit(&self) -> f64 {
        match self.core.prompt_tokens {
            0 => 0.0,
            total => f64::from(self.core.matched_tokens) / f64::from(total),
        }
    }

    /// Number of the booking, unique in its router.
    #[getter]
    fn id(&self) -> u64 {
        self.core.id.to_u64()
    }

    /// Tag of the router that made it.
    #[getter]
    fn _router(&self) -> u64 {
        self.router
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            self.router == other.router && self.core.id == other.core.id
        })
    }

    fn __hash__(&self) -> u64 {
        self.router ^ self.core.id.to_u64()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Decision(worker={:?}, reason={:?}, matched_tokens={}, prompt_tokens={}, id={})",
            self.worker.name.bind(py).to_string_lossy(),
            self.core.reason.as_str(),
            self.core.matched_tokens,
            self.core.prompt_tokens,
            self.id()
        )
    }

    /// Pickles by value. In another process the copy can be read; `complete` there belongs to another router.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = py.import("trunkline._core")?.getattr("_restore_decision")?;
        let decision = &self.core;
        let numbers = (
            self.router,
            decision.id.to_u64(),
            decision.worker.0,
            decision.preferred.map(|id| id.0),
            decision.matched_blocks,
            decision.prompt_blocks,
            decision.matched_tokens,
            decision.told_tokens,
            decision.prompt_tokens,
        );
        let names = (&self.worker.name, self.worker.url.as_ref(), self.preferred.as_ref());
        Ok((restore, (numbers, names, decision.reason.as_str()).into_pyobject(py)?))
    }
}

type Numbers = (u64, u64, u32, Option<u32>, u32, u32, u32, Option<u32>, u32);
type Strings = (Py<PyString>, Option<Py<PyString>>, Option<Py<PyString>>);

/// What `pickle` calls to make a `Decision` again.
#[pyfunction]
#[pyo3(name = "_restore_decision")]
pub(crate) fn restore_decision(numbers: Numbers, names: Strings, reason: &str) -> PyResult<Decision> {
    let (
        router,
        id,
        worker,
        preferred_id,
        matched_blocks,
        prompt_blocks,
        matched_tokens,
        told_tokens,
        prompt_tokens,
    ) = numbers;
    let (name, url, preferred) = names;
    let reason = *core::Reason::ALL
        .iter()
        .find(|known| known.as_str() == reason)
        .ok_or_else(|| error::unknown_reason(reason))?;
    let core = core::Decision {
        id: core::DecisionId::from_u64(id),
        worker: core::WorkerId(worker),
        reason,
        preferred: preferred_id.map(core::WorkerId),
        matched_blocks,
        prompt_blocks,
        matched_tokens,
        told_tokens,
        prompt_tokens,
    };
    Ok(Decision { core, router, worker: Named { name, url }, preferred })
}

/// Who holds how much of a prompt, at one moment.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Match {
    core: core::Match,
    shared: Arc<Shared>,
}

impl Match {
    pub(crate) fn new(shared: &Arc<Shared>, found: core::Match) -> Self {
        Self { core: found, shared: Arc::clone(shared) }
    }
}

#[pymethods]
impl Match {
    /// Leading tokens of the prompt on the worker that holds most of it.
    #[getter]
    fn matched_tokens(&self) -> u32 {
        self.core.matched_tokens
    }

    /// Tokens of the prompt; for text an estimate.
    #[getter]
    fn prompt_tokens(&self) -> u32 {
        self.core.prompt_tokens
    }

    /// Whole blocks of the prompt.
    #[getter]
    fn prompt_blocks(&self) -> u32 {
        self.core.prompt_blocks
    }

    /// Worker id to matched tokens, deepest first; workers that hold nothing are left out. A new dict each time.
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut deepest_first = self.core.workers.clone();
        deepest_first.sort_unstable_by_key(|&(id, tokens)| (std::cmp::Reverse(tokens), id));
        let workers = PyDict::new(py);
        for (id, tokens) in deepest_first {
            workers.set_item(self.shared.named(py, id).name, tokens)?;
        }
        Ok(workers)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Match(matched_tokens={}, prompt_tokens={}, workers={})",
            self.core.matched_tokens,
            self.core.prompt_tokens,
            self.workers(py)?.repr()?
        ))
    }
}

/// One worker's row in an `Explanation`.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct Candidate {
    /// Its id.
    worker: Py<PyString>,
    /// Tokens of the prompt believed cached there.
    matched_tokens: u32,
    /// Prefill tokens sent there that have produced no first byte yet.
    queued_tokens: u64,
    /// Requests sent there and not finished.
    in_flight: u32,
    /// Tokens that routers of whose requests this one hears late may have sent there: by chance, up to what is uncached.
    unseen: f64,
    /// Price in tokens of computing there what another worker already holds.
    replication: f64,
    /// Penalty in tokens for a full KV cache.
    memory: f64,
    /// Penalty in tokens for being over the fleet's mean.
    over_mean: f64,
    /// Price in tokens of placing a new prompt there, by what it holds beside the others' mean; negative if less.
    held: f64,
    /// Home bonus in tokens, 0 for all others.
    home_bonus: f64,
    /// Learnt slowness, 1 = like the fleet.
    slowness: f64,
    /// The sum that the policy compares; lower wins.
    cost: f64,
}

#[pymethods]
impl Candidate {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Candidate(worker={:?}, cost={:.0}, matched_tokens={}, in_flight={}, queued_tokens={})",
            self.worker.bind(py).to_string_lossy(),
            self.cost,
            self.matched_tokens,
            self.in_flight,
            self.queued_tokens
        )
    }
}

/// What a decision would be and how each candidate scored.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct Explanation {
    /// Where the request would go.
    worker: Py<PyString>,
    /// Why: prefix, session, home, load, spill, only or baseline.
    reason: Py<PyString>,
    /// The worker that the choice would leave, if it leaves one.
    preferred: Option<Py<PyString>>,
    /// Tokens of the prompt; for text an estimate.
    prompt_tokens: u32,
    /// Whole blocks of the prompt.
    prompt_blocks: u32,
    /// All candidates, cheapest first.
    candidates: Py<PyTuple>,
}

impl Explanation {
    pub(crate) fn new(py: Python<'_>, shared: &Shared, explained: core::Explanation) -> PyResult<Self> {
        let mut candidates = Vec::with_capacity(explained.candidates.len());
        for view in explained.candidates {
            let candidate = Candidate {
                worker: shared.named(py, view.worker).name,
                matched_tokens: view.matched_tokens,
                queued_tokens: view.queued_tokens,
                in_flight: view.in_flight,
                unseen: view.unseen,
                replication: view.replication,
                memory: view.memory,
                over_mean: view.over_mean,
                held: view.held,
                home_bonus: view.home_bonus,
                slowness: view.slowness,
                cost: view.cost,
            };
            candidates.push(Py::new(py, candidate)?);
        }
        Ok(Self {
            worker: shared.named(py, explained.worker).name,
            reason: PyString::intern(py, explained.reason.as_str()).unbind(),
            preferred: explained.preferred.map(|id| shared.named(py, id).name),
            prompt_tokens: explained.prompt_tokens,
            prompt_blocks: explained.prompt_blocks,
            candidates: PyTuple::new(py, candidates)?.unbind(),
        })
    }
}

#[pymethods]
impl Explanation {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Explanation(worker={}, reason={}, candidates={})",
            self.worker.bind(py).repr()?,
            self.reason.bind(py).repr()?,
            self.candidates.bind(py).repr()?
        ))
    }
}
