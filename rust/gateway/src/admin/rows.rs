//! The fleet as the admin API shows it: a row for each worker that the router knows.

use std::sync::Arc;

use serde::Serialize;
use trunkline_core::WorkerView;

use crate::exact::view_reason;
use crate::fleet::Worker;
use crate::pulse::Standing;
use crate::server::Shared;

/// A worker as the API shows it.
#[derive(Serialize)]
pub(super) struct WorkerRow {
    id: u32,
    url: String,
    engine: &'static str,
    /// The pool that it belongs to in a trial.
    pool: Option<String>,
    healthy: bool,
    draining: bool,
    weight: u32,
    in_flight: u32,
    queued_tokens: u64,
    cached_blocks: u64,
    /// From where its cache is known: events, own or none; and why.
    cache_view: &'static str,
    cache_view_reason: &'static str,
    capacity_tokens: Option<u64>,
    slowness: f64,
    /// Cap of `in_flight`, if there is one.
    max_in_flight: Option<u32>,
    /// Whether it hangs as far as one can see: requests wait, and no byte comes.
    suspect: bool,
    decisions: u64,
    prompt_tokens: u64,
    matched_tokens: u64,
    reported_prompt_tokens: u64,
    reported_cached_tokens: u64,
}

impl WorkerRow {
    /// `worker` is `None` for one of the router's that is not of this fleet.
    fn new(view: WorkerView, worker: Option<&Worker>) -> Self {
        Self {
            cache_view_reason: view_reason(view.cache_view, worker.map(|worker| &worker.following)),
            max_in_flight: worker.map(|worker| worker.cap).filter(|&cap| cap > 0),
            suspect: worker.is_some_and(|worker| worker.pulse.standing() == Standing::Silent),
            id: view.id.0,
            url: view.name,
            engine: worker.map_or("unknown", |worker| worker.engine.get().name),
            pool: worker.and_then(|worker| worker.told.pool.clone()),
            healthy: view.healthy,
            draining: view.draining,
            weight: view.weight,
            in_flight: view.in_flight,
            queued_tokens: view.queued_tokens,
            cached_blocks: view.cached_blocks,
            cache_view: view.cache_view.as_str(),
            capacity_tokens: view.capacity_tokens,
            slowness: view.slowness,
            decisions: view.decisions,
            prompt_tokens: view.prompt_tokens,
            matched_tokens: view.matched_tokens,
            reported_prompt_tokens: view.reported_prompt_tokens,
            reported_cached_tokens: view.reported_cached_tokens,
        }
    }
}

/// All workers that the router knows.
pub(super) fn rows(shared: &Shared) -> Vec<WorkerRow> {
    let (fleet, snapshot) = (&shared.fleet, shared.fleet.snapshot());
    fleet.look(&snapshot, shared.now());
    let row = |view: WorkerView| {
        let worker = snapshot.get(view.id).map(Arc::as_ref);
        WorkerRow::new(view, worker)
    };
    fleet.router.workers().into_iter().map(row).collect()
}
