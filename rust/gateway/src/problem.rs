//! What the admin port answers to a path or a method that it does not have: a problem document (RFC 9457) that names
//! what it does have.

use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, Uri, header};
use serde_json::json;

use crate::admin::openapi;

/// 404.
pub(crate) async fn not_found(uri: Uri) -> Response {
    problem(StatusCode::NOT_FOUND, &format!("{} is not served here", uri.path()))
}

/// 405.
pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    problem(StatusCode::METHOD_NOT_ALLOWED, &format!("{} does not take {method}", uri.path()))
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let mut allowed = openapi::operations();
    allowed.push("HEAD of every GET".to_owned());
    let document = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
        "allowed": allowed,
    });
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, content_type, document.to_string()).into_response()
}
