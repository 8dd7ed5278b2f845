//! The admin API: metrics, readiness, the fleet, and questions about decisions.
//!
//! | route | answer |
//! | --- | --- |
//! | `GET /metrics` | all figures, in the OpenMetrics text format |
//! | `GET /livez`, `GET /readyz` | 200, or 503 while draining or without a live worker |
//! | `GET /admin/workers` | the fleet |
//! | `POST /admin/workers` | adds `{"url": ..., "max_in_flight": ...}` or `?url=...`: 201, 400 for no URL of a worker, 409 if it is there |
//! | `DELETE /admin/workers` | removes `{"url": ...}` or `?url=...`: 200, 404 if it is not there |
//! | `POST /admin/workers/{id}/drain` | drains the worker of this id or percent-encoded URL: 200, 404 |
//! | `POST /admin/explain?path=...` | what a request with this body would get (`path` is `/v1/chat/completions` if left out) |
//! | `GET /admin/state` | the fleet, the router's counters, the gateway's phase |
//!
//! Errors have OpenAI's shape, but for a path or method that does not exist: see [`problem`]. With an admin token, every
//! route but `/livez` and `/readyz` wants it as `Authorization: Bearer`; without one, who reaches the port may change the
//! fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use trunkline_core::{CandidateView, Explanation, Prompt, Reason, RouteRequest, WorkerId, WorkerView};

use crate::answer::Refusal;
use crate::error::Error;
use crate::fleet::{Snapshot, Worker};
use crate::keys::bearer;
use crate::path::PathClass;
use crate::problem;
use crate::prompt::Located;
use crate::pulse::Standing;
use crate::sagemaker::RuntimePath;
use crate::server::{Phase, Shared};

type Shareds = State<Arc<Shared>>;

/// Serves the API until its runtime ends.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let max_body_bytes = shared.config.max_body_bytes;
    let api = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { StatusCode::OK }))
        .route("/readyz", get(ready))
        .route("/admin/workers", get(workers).post(add).delete(remove))
        .route("/admin/workers/{id}/drain", post(drain))
        .route("/admin/explain", post(explain))
        .route("/admin/state", get(state))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(DefaultBodyLimit::max(max_body_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authorize))
        .with_state(shared);
    // Never ends by itself: errors of accepting are slept off.
    let _ = axum::serve(listener, api).await;
}

/// Lets those in who know the token, if there is one. Whether somebody is alive and ready is no secret.
async fn authorize(State(shared): Shareds, request: Request, next: Next) -> Response {
    let token = shared.edge.admin_token.load_full();
    let is_open = token.is_none() || matches!(request.uri().path(), "/livez" | "/readyz");
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    if is_open || token.zip(given).is_some_and(|(token, given)| token.is_of(given)) {
        return next.run(request).await;
    }
    let refused =
        Refused { status: StatusCode::UNAUTHORIZED, message: "The admin token is wanted.".to_owned() };
    ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}

/// A refusal in OpenAI's shape.
struct Refused {
    status: StatusCode,
    message: String,
}

impl Refused {
    fn bad(message: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_owned() }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::UnknownWorker { .. } | Error::Router(trunkline_core::Error::UnknownWorker { .. }) => {
                StatusCode::NOT_FOUND
            }
            Error::Router(trunkline_core::Error::DuplicateWorker { .. }) => StatusCode::CONFLICT,
            Error::Config { .. } => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, message: error.to_string() }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error =
            json!({"message": self.message, "type": kind, "param": null, "code": self.status.as_u16()});
        (self.status, axum::Json(json!({"error": error}))).into_response()
    }
}

async fn metrics(State(shared): Shareds) -> impl IntoResponse {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], shared.metrics.render())
}

async fn ready(State(shared): Shareds) -> StatusCode {
    if shared.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// A worker as the API shows it.
#[derive(Serialize)]
struct WorkerRow {
    id: u32,
    url: String,
    engine: &'static str,
    healthy: bool,
    draining: bool,
    weight: u32,
    in_flight: u32,
    queued_tokens: u64,
    cached_blocks: u64,
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
            max_in_flight: worker.map(|worker| worker.cap).filter(|&cap| cap > 0),
            suspect: worker.is_some_and(|worker| worker.pulse.standing() == Standing::Silent),
            id: view.id.0,
            url: view.name,
            engine: worker.map_or("unknown", |worker| worker.engine.get().name),
            healthy: view.healthy,
            draining: view.draining,
            weight: view.weight,
            in_flight: view.in_flight,
            queued_tokens: view.queued_tokens,
            cached_blocks: view.cached_blocks,
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

fn rows(shared: &Shared) -> Vec<WorkerRow> {
    let (fleet, snapshot) = (&shared.fleet, shared.fleet.snapshot());
    fleet.look(&snapshot, shared.now());
    let row = |view: WorkerView| {
        let worker = snapshot.get(view.id).map(Arc::as_ref);
        WorkerRow::new(view, worker)
    };
    fleet.router.workers().into_iter().map(row).collect()
}

async fn workers(State(shared): Shareds) -> axum::Json<Value> {
    axum::Json(json!({"workers": rows(&shared)}))
}

/// A worker's URL, in the query or in a JSON body, and its cap.
#[derive(Deserialize)]
struct Named {
    url: Option<String>,
    max_in_flight: Option<u32>,
}

impl Named {
    fn url(query: Self, body: &Bytes) -> Result<String, Refused> {
        if let Some(url) = query.url {
            return Ok(url);
        }
        let body: Option<Self> = serde_json::from_slice(body).ok();
        body.and_then(|body| body.url)
            .ok_or_else(|| Refused::bad(r#"say which worker: {"url": "http://host:port"} or ?url="#))
    }

    fn cap(query: &Self, body: &Bytes) -> Option<u32> {
        query.max_in_flight.or_else(|| serde_json::from_slice::<Self>(body).ok()?.max_in_flight)
    }
}

async fn add(
    State(shared): Shareds,
    Query(query): Query<Named>,
    body: Bytes,
) -> Result<impl IntoResponse, Refused> {
    let cap = Named::cap(&query, &body);
    let worker = shared.join_fleet(&Named::url(query, &body)?, cap)?;
    Ok((StatusCode::CREATED, axum::Json(json!({"id": worker.id.0, "url": worker.endpoint.url}))))
}

async fn remove(
    State(shared): Shareds,
    Query(query): Query<Named>,
    body: Bytes,
) -> Result<axum::Json<Value>, Refused> {
    let url = Named::url(query, &body)?;
    shared.fleet.remove(&url)?;
    Ok(axum::Json(json!({"removed": url})))
}

async fn drain(State(shared): Shareds, Path(id): Path<String>) -> Result<axum::Json<Value>, Refused> {
    let by_number =
        id.parse().ok().and_then(|id| Some(shared.fleet.snapshot().get(WorkerId(id))?.endpoint.url.clone()));
    let url = by_number.unwrap_or(id);
    shared.fleet.drain(&url)?;
    Ok(axum::Json(json!({"draining": url})))
}

#[derive(Deserialize)]
struct AskedPath {
    path: Option<String>,
}

async fn explain(
    State(shared): Shareds,
    Query(asked): Query<AskedPath>,
    body: Bytes,
) -> Result<axum::Json<Value>, Refused> {
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
            "replication": view.replication,
            "memory": view.memory,
            "over_mean": view.over_mean,
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

async fn state(State(shared): Shareds) -> axum::Json<Value> {
    let stats = shared.fleet.router.stats();
    let decisions: serde_json::Map<String, Value> = Reason::ALL
        .iter()
        .zip(stats.decisions)
        .map(|(reason, count)| (reason.as_str().to_owned(), count.into()))
        .collect();
    let gateway_in_flight: u32 =
        shared.fleet.snapshot().workers.iter().map(|worker| worker.in_flight.load(Ordering::Relaxed)).sum();
    axum::Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": shared.fleet.router.policy().name(),
        "draining": shared.phase() >= Phase::Draining,
        "ready": shared.is_ready(),
        "uptime_s": shared.now().0 as f64 / 1e3,
        "in_flight": gateway_in_flight,
        "queued": shared.fleet.queue.len(),
        "workers": rows(&shared),
        "router": {
            "decisions": decisions,
            "in_flight": stats.in_flight,
            "prompt_tokens": stats.prompt_tokens,
            "matched_tokens": stats.matched_tokens,
            "index_bytes": stats.index_bytes,
            "index_blocks": stats.index_blocks,
            "evicted_blocks": stats.evicted_blocks,
        },
    }))
}
