//! Refusals of the admin API, in OpenAI's shape: one for everything that a handler, or the reading of its arguments, refuses.

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::json;

use crate::error::Error;

/// A refusal in OpenAI's shape.
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Refused {
    /// 400.
    pub(super) fn bad(message: &str) -> Self {
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

/// What axum could not read is refused with its status and words, in our shape.
macro_rules! refuse_unread {
    ($($rejection:ty),+) => {$(
        impl From<$rejection> for Refused {
            fn from(rejection: $rejection) -> Self {
                Self { status: rejection.status(), message: rejection.body_text() }
            }
        }
    )+};
}

refuse_unread!(BytesRejection, PathRejection, QueryRejection);
