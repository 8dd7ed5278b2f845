//! What the gateway would do with a request, and why, without doing it.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use trunkline_core::{CandidateView, Explanation, Prompt, RouteRequest, WorkerId};

use super::Shareds;
use super::refused::Refused;
use crate::answer::Refusal;
use crate::fleet::Snapshot;
use crate::path::PathClass;
use crate::prompt::Located;
use crate::sagemaker::RuntimePath;

#[derive(Deserialize)]
pub(super) struct AskedPath {
    path: Option<String>,
}

/// `POST /admin/explain`.
pub(super) async fn explain(
    State(shared): Shareds,
    asked: Result<Query<AskedPath>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let (Query(asked), body) = (asked?, body?);
    let path = asked.path.as_deref().unwrap_or("/v1/chat/completions");
    let class = PathClass::of(RuntimePath::of(path).map_or(path, |found| found.path));
    let located =
        Located::read(class, &body).ok_or_else(|| Refused::bad("the body is not JSON that could be read"))?;
    let snapshot = shared.fleet.snapshot();
    let eligible = snapshot.eligible(located.model.as_deref());
    if eligible.is_some_and(<[WorkerId]>::is_empty) {
        let message = Refusal::UnknownModel.message();
        return Err(Refused { status: StatusCode::NOT_FOUND, message });
    }
    let ask = |prompt: Prompt<'_>| {
        let (root, text_model) = (located.root(None), located.model_key());
        shared
            .fleet
            .router
            .explain(&RouteRequest { root, eligible, text_model, ..RouteRequest::new(prompt) }, shared.now())
    };
    let explanation = located
        .with_prompt(ask)
        .ok_or_else(|| Refused::bad("the body holds no prompt that would place it"))?;
    match explanation {
        Ok(explanation) => Ok(axum::Json(explained(&explanation, &snapshot))),
        Err(error @ trunkline_core::Error::NoWorkerAvailable { .. }) => {
            Err(Refused { status: StatusCode::SERVICE_UNAVAILABLE, message: error.to_string() })
        }
        Err(error) => Err(Refused::bad(&error.to_string())),
    }
}

fn explained(explanation: &Explanation, snapshot: &Snapshot) -> Value {
    let url = |id: WorkerId| snapshot.get(id).map(|worker| worker.endpoint.url.clone());
    let candidate = |view: &CandidateView| {
        json!({
            "worker": url(view.worker),
            "matched_tokens": view.matched_tokens,
            "queued_tokens": view.queued_tokens,
            "in_flight": view.in_flight,
            "unseen": view.unseen,
            "replication": view.replication,
            "memory": view.memory,
            "over_mean": view.over_mean,
            "held": view.held,
            "home_bonus": view.home_bonus,
            "slowness": view.slowness,
            "cost": view.cost,
        })
    };
    json!({
        "worker": url(explanation.worker),
        "reason": explanation.reason.as_str(),
        "preferred": explanation.preferred.and_then(url),
        "prompt_tokens": explanation.prompt_tokens,
        "prompt_blocks": explanation.prompt_blocks,
        "candidates": explanation.candidates.iter().map(candidate).collect::<Vec<_>>(),
    })
}
