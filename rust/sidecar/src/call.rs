//! Calls that nobody makes for each request, in JSON: the fleet, counters, the policy.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trunkline_core::{CacheView, Explanation, Policy, Reason, Router, WorkerId, WorkerSpec};
use trunkline_events::Feeds;

use crate::wire::Refused;

/// A call, with the arguments of the method of [`Router`] that it names.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the arguments")]
pub enum Call {
    AddWorker { id: String, url: Option<String>, weight: u32, capacity_tokens: Option<u64> },
    RemoveWorker { id: String },
    DrainWorker { id: String, draining: bool },
    ResetWorker { id: String },
    SetLoad { id: String, capacity_tokens: Option<u64>, healthy: Option<bool> },
    SetCacheView { id: String, view: String },
    ForgetEvents { id: String },
    SetPolicy { policy: String, prefix_length: u32, concurrency_threshold: Option<u32> },
    Workers,
    Stats,
}

impl Call {
    /// Appends the question.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(6);
        serde_json::to_writer(out, self).expect("numbers, texts and memory to write them to");
    }
}

/// Does what a JSON object says.
pub(crate) fn call(router: &Router, feeds: &Feeds, body: &[u8]) -> Result<Value, Refused> {
    let asked =
        serde_json::from_slice(body).map_err(|error| Refused::malformed(&format!("no call: {error}")))?;
    let number = |name: &str| router.worker(name).ok_or_else(|| Refused::unknown_worker(name));
    match asked {
        Call::AddWorker { id, url, weight, capacity_tokens } => {
            router.add_worker(WorkerSpec {
                endpoint: url,
                weight,
                capacity_tokens,
                ..WorkerSpec::new(id)
            })?;
        }
        Call::RemoveWorker { id } => {
            let number = number(&id)?;
            feeds.forget(number);
            router.remove_worker(number)?;
        }
        Call::DrainWorker { id, draining } => router.drain_worker(number(&id)?, draining)?,
        Call::ResetWorker { id } => router.reset_worker(number(&id)?)?,
        Call::SetLoad { id, capacity_tokens, healthy } => {
            let number = number(&id)?;
            capacity_tokens.map_or(Ok(()), |tokens| router.set_capacity(number, Some(tokens)))?;
            healthy.map_or(Ok(()), |healthy| router.set_healthy(number, healthy))?;
        }
        Call::SetCacheView { id, view } => {
            router.set_cache_view(number(&id)?, CacheView::parse(&view)?)?;
        }
        Call::ForgetEvents { id } => {
            let number = number(&id)?;
            feeds.forget(number);
            router.forget_events(number)?;
        }
        Call::SetPolicy { policy, prefix_length, concurrency_threshold } => {
            router.set_policy(match Policy::parse(&policy)? {
                Policy::PrefixAware { .. } => Policy::PrefixAware { prefix_length, concurrency_threshold },
                other => other,
            })?;
        }
        Call::Workers => return Ok(workers(router)),
        Call::Stats => return Ok(stats(router)),
    }
    Ok(Value::Null)
}

fn workers(router: &Router) -> Value {
    let row = |worker: trunkline_core::WorkerView| {
        json!({
            "id": worker.name, "url": worker.endpoint, "slot": worker.id.0, "weight": worker.weight,
            "healthy": worker.healthy, "draining": worker.draining, "capacity_tokens": worker.capacity_tokens,
            "in_flight": worker.in_flight, "queued_tokens": worker.queued_tokens,
            "cached_blocks": worker.cached_blocks, "cache_view": worker.cache_view.as_str(),
            "slowness": worker.slowness, "decisions": worker.decisions, "prompt_tokens": worker.prompt_tokens,
            "matched_tokens": worker.matched_tokens,
            "reported_prompt_tokens": worker.reported_prompt_tokens,
            "reported_cached_tokens": worker.reported_cached_tokens,
        })
    };
    router.workers().into_iter().map(row).collect()
}

fn stats(router: &Router) -> Value {
    let stats = router.stats();
    let reasons = Reason::ALL.iter().map(|reason| reason.as_str().to_owned());
    let decisions: serde_json::Map<_, _> =
        reasons.zip(stats.decisions.iter().map(|&count| count.into())).collect();
    json!({
        "policy": router.policy().name(), "decisions": decisions, "in_flight": stats.in_flight,
        "workers": stats.workers, "live_workers": stats.live_workers, "prompt_tokens": stats.prompt_tokens,
        "matched_tokens": stats.matched_tokens, "index_bytes": stats.index_bytes,
        "index_blocks": stats.index_blocks, "evicted_blocks": stats.evicted_blocks,
        "events_bytes": stats.events_bytes, "events_blocks": stats.events_blocks,
    })
}

/// An explanation; workers are numbers.
pub(crate) fn explained(explained: &Explanation) -> Value {
    let id = |worker: WorkerId| worker.0;
    let candidates = explained.candidates.iter().map(|view| {
        json!({
            "worker": id(view.worker), "matched_tokens": view.matched_tokens,
            "queued_tokens": view.queued_tokens, "in_flight": view.in_flight, "unseen": view.unseen,
            "replication": view.replication, "memory": view.memory, "over_mean": view.over_mean, "held": view.held,
            "home_bonus": view.home_bonus,
            "slowness": view.slowness, "cost": view.cost,
        })
    });
    json!({
        "worker": id(explained.worker), "reason": explained.reason.as_str(),
        "preferred": explained.preferred.map(id), "prompt_tokens": explained.prompt_tokens,
        "prompt_blocks": explained.prompt_blocks, "candidates": candidates.collect::<Value>(),
    })
}
