//! Workers that come and go at run time.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use http::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use trunkline_core::WorkerId;

use super::Shareds;
use super::refused::Refused;

/// A worker's URL and the cap of its requests in flight, each in the query or in a JSON body.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    /// There or not there: `null` is neither.
    #[serde(default, deserialize_with = "some_text")]
    url: Option<String>,
    max_in_flight: Option<u32>,
}

fn some_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

impl Named {
    /// The URL, and the cap if one is given. What is said twice is refused, and so is a body that cannot be read, even if the
    /// query says everything.
    fn read(
        query: Result<Query<Self>, QueryRejection>,
        body: Result<Bytes, BytesRejection>,
    ) -> Result<(String, Option<u32>), Refused> {
        let (Query(query), body) = (query?, body?);
        let body = if body.is_empty() {
            Self::default()
        } else {
            serde_json::from_slice(&body).map_err(|error| Refused::bad(&format!("the body: {error}")))?
        };
        let url = once("url", query.url, body.url)?
            .ok_or_else(|| Refused::bad(r#"say which worker: {"url": "http://host:port"} or ?url="#))?;
        Ok((url, once("max_in_flight", query.max_in_flight, body.max_in_flight)?))
    }
}

/// What the query or the body says; which of them is meant when both do, nobody can know.
fn once<T>(name: &str, query: Option<T>, body: Option<T>) -> Result<Option<T>, Refused> {
    match (query, body) {
        (Some(_), Some(_)) => Err(Refused::bad(&format!("{name} is in the query and in the body"))),
        (query, body) => Ok(query.or(body)),
    }
}

/// `POST /admin/workers`.
pub(super) async fn add(
    State(shared): Shareds,
    query: Result<Query<Named>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, Refused> {
    let (url, cap) = Named::read(query, body)?;
    let worker = shared.join_fleet(&url, cap)?;
    Ok((StatusCode::CREATED, axum::Json(json!({"id": worker.id.0, "url": worker.endpoint.url}))))
}

/// `DELETE /admin/workers`.
pub(super) async fn remove(
    State(shared): Shareds,
    query: Result<Query<Named>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let (url, cap) = Named::read(query, body)?;
    if cap.is_some() {
        return Err(Refused::bad("max_in_flight is for a worker that is added"));
    }
    shared.fleet.remove(&url)?;
    Ok(axum::Json(json!({"removed": url})))
}

/// `POST /admin/workers/{id}/drain`.
pub(super) async fn drain(
    State(shared): Shareds,
    id: Result<Path<String>, PathRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let Path(id) = id?;
    let by_number =
        id.parse().ok().and_then(|id| Some(shared.fleet.snapshot().get(WorkerId(id))?.endpoint.url.clone()));
    let url = by_number.unwrap_or(id);
    shared.fleet.drain(&url)?;
    Ok(axum::Json(json!({"draining": url})))
}
