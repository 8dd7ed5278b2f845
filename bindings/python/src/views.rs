//! The router seen from outside: `WorkerView` and `Stats`, copies of one moment.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use trunkline_core as core;
use trunkline_core::Reason;

use crate::names::Named;

/// One worker at one moment.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct WorkerView {
    /// Its id.
    id: Py<PyString>,
    /// Its endpoint, if one was given.
    url: Option<Py<PyString>>,
    /// Its number in the arrays of the batch calls.
    slot: u32,
    /// Its share of the prompts that nobody holds, relative to the others.
    weight: u32,
    /// Whether probes and requests succeed.
    healthy: bool,
    /// Whether it takes nothing new.
    draining: bool,
    /// Size of its KV cache in tokens, if known.
    capacity_tokens: Option<u64>,
    /// Requests sent and not finished.
    in_flight: u32,
    /// Prefill tokens sent that have produced no first byte yet.
    queued_tokens: u64,
    /// Blocks that it is believed to hold, by the view that counts.
    cached_blocks: u64,
    /// From where its cache is known: events, own or none.
    cache_view: &'static str,
    /// Slowness in use, 1 = like the fleet.
    slowness: f64,
    /// Requests sent so far.
    decisions: u64,
    /// Prompt tokens sent so far, as estimated.
    prompt_tokens: u64,
    /// Prompt tokens that were believed cached when they were sent.
    matched_tokens: u64,
    /// Prompt tokens that its answers reported (`complete(cached_tokens=...)`).
    reported_prompt_tokens: u64,
    /// Cached prompt tokens that its answers reported.
    reported_cached_tokens: u64,
}

impl WorkerView {
    pub(crate) fn new(view: &core::WorkerView, named: Named) -> Self {
        Self {
            id: named.name,
            url: named.url,
            slot: view.id.0,
            weight: view.weight,
            healthy: view.healthy,
            draining: view.draining,
            capacity_tokens: view.capacity_tokens,
            in_flight: view.in_flight,
            queued_tokens: view.queued_tokens,
            cached_blocks: view.cached_blocks,
            cache_view: view.cache_view.as_str(),
            slowness: view.slowness,
            decisions: view.decisions,
            prompt_tokens: view.prompt_tokens,
            matched_tokens: view.matched_tokens,
            reported_prompt_tokens: view.reported_prompt_tokens,
            reported_cached_tokens: view.reported_cached_tokens,
        }
    }
}

#[pymethods]
impl WorkerView {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "WorkerView(id={}, in_flight={}, queued_tokens={}, cached_blocks={})",
            self.id.bind(py).repr()?,
            self.in_flight,
            self.queued_tokens,
            self.cached_blocks
        ))
    }
}

/// Counters and sizes of a router at one moment.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct Stats {
    /// Decisions so far, by reason.
    decisions: Py<PyDict>,
    /// Decisions that are not completed.
    in_flight: usize,
    /// Workers in the fleet.
    workers: usize,
    /// Of these, healthy and not draining.
    live_workers: usize,
    /// Prompt tokens routed so far, as estimated.
    prompt_tokens: u64,
    /// Of these, believed cached where they went.
    matched_tokens: u64,
    /// Bytes that the index owns; never more than the memory budget.
    index_bytes: usize,
    /// Distinct blocks in the index.
    index_blocks: usize,
    /// Blocks that workers lost to their capacity or to the budget.
    evicted_blocks: u64,
    /// Bytes that what events told owns.
    events_bytes: usize,
    /// Distinct blocks that events told of.
    events_blocks: usize,
}

impl Stats {
    pub(crate) fn new(py: Python<'_>, stats: &core::Stats) -> PyResult<Self> {
        let decisions = PyDict::new(py);
        for (reason, count) in Reason::ALL.iter().zip(stats.decisions) {
            decisions.set_item(reason.as_str(), count)?;
        }
        Ok(Self {
            decisions: decisions.unbind(),
            in_flight: stats.in_flight,
            workers: stats.workers,
            live_workers: stats.live_workers,
            prompt_tokens: stats.prompt_tokens,
            matched_tokens: stats.matched_tokens,
            index_bytes: stats.index_bytes,
            index_blocks: stats.index_blocks,
            evicted_blocks: stats.evicted_blocks,
            events_bytes: stats.events_bytes,
            events_blocks: stats.events_blocks,
        })
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Stats(decisions={}, in_flight={}, workers={}, live_workers={}, index_blocks={}, index_bytes={})",
            self.decisions.bind(py).repr()?,
            self.in_flight,
            self.workers,
            self.live_workers,
            self.index_blocks,
            self.index_bytes
        ))
    }
}
