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
//! | `GET /admin/trial` | what a trial and a shadow have come to |
//! | `POST /admin/trial/share` | gives arm B `{"share": ...}`: 200, 400, 409 without a trial or once its ramp has stopped by itself |
//! | `POST /admin/trial/ramp` | begins a ramp: 200, 400, 409 |
//! | `POST /admin/trial/stop` | takes everything from arm B: 200, 409 |
//! | `POST /admin/trial/reset` | begins the figures anew and forgets a stop: 200, 409 |
//! | `GET /admin/state` | the fleet, the router's counters, the gateway's phase |
//! | `GET /admin/openapi.json` | all of this as an OpenAPI 3.1 document |
//!
//! Errors have OpenAI's shape, but for a path or method that does not exist: see [`problem`]. With an admin token, every
//! route but `/livez` and `/readyz` wants it as `Authorization: Bearer`; without one, who reaches the port may change the
//! fleet.

mod change;
mod explain;
pub(crate) mod openapi;
mod refused;
mod rows;
mod trial;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use trunkline_core::Reason;

use self::change::{add, drain, remove};
use self::explain::explain;
use self::refused::Refused;
use self::rows::rows;
use crate::keys::bearer;
use crate::problem;
use crate::server::{Phase, Shared};

type Shareds = State<Arc<Shared>>;

/// Serves the API until its runtime ends.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let max_body_bytes = shared.config.max_body_bytes;
    let api = routes()
        .into_iter()
        .fold(Router::new(), |api, (path, methods)| api.route(path, methods))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(DefaultBodyLimit::max(max_body_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authorize))
        .with_state(shared);
    // Never ends by itself: errors of accepting are slept off.
    let _ = axum::serve(listener, api).await;
}

/// Everything that is served, by its path.
fn routes() -> [(&'static str, MethodRouter<Arc<Shared>>); 13] {
    [
        ("/metrics", get(metrics)),
        ("/livez", get(|| async { StatusCode::OK })),
        ("/readyz", get(ready)),
        ("/admin/workers", get(workers).post(add).delete(remove)),
        ("/admin/workers/{id}/drain", post(drain)),
        ("/admin/explain", post(explain)),
        ("/admin/trial", get(trial::show)),
        ("/admin/trial/share", post(trial::share)),
        ("/admin/trial/ramp", post(trial::ramp)),
        ("/admin/trial/stop", post(trial::stop)),
        ("/admin/trial/reset", post(trial::reset)),
        ("/admin/state", get(state)),
        ("/admin/openapi.json", get(openapi::document)),
    ]
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

async fn metrics(State(shared): Shareds) -> impl IntoResponse {
    const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], shared.metrics.render())
}

async fn ready(State(shared): Shareds) -> StatusCode {
    if shared.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn workers(State(shared): Shareds) -> axum::Json<Value> {
    axum::Json(json!({"workers": rows(&shared)}))
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
