//! Faults of a request, answered in the two shapes that vLLM uses.

use http::header::ALLOW;
use http::{HeaderValue, StatusCode};
use serde_json::json;

use super::{Reply, json_reply};

/// A request that is answered with an error.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// The body cannot be read as what the route takes.
    Malformed {
        /// Where, as `body.field`.
        param: Option<String>,
        message: String,
    },
    /// The body can be read, but not be done.
    BadValue {
        /// The field.
        param: Option<&'static str>,
        message: String,
    },
    /// The model is not served here.
    UnknownModel { model: String, served: String },
    /// No such route.
    UnknownPath,
    /// The route exists for another method.
    WrongMethod { allowed: &'static str },
}

impl ApiError {
    /// Something at `place` of the body (`body`, `body.field`) is not what it should be.
    pub(crate) fn malformed(place: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::Malformed { param: Some(place.into()), message: format!("1 validation error: {message}") }
    }

    /// The value of `field` is out of range.
    pub(crate) fn bad_value(field: &'static str, message: impl Into<String>) -> Self {
        Self::BadValue { param: Some(field), message: message.into() }
    }

    pub(crate) fn into_reply(self) -> Reply {
        let bad_request = StatusCode::BAD_REQUEST;
        match self {
            Self::Malformed { param, message } => {
                shaped(bad_request, "Bad Request", param.as_deref(), &message)
            }
            Self::BadValue { param, message } => shaped(bad_request, "BadRequestError", param, &message),
            Self::UnknownModel { model, served } => {
                let message = format!("The model `{model}` does not exist. Valid aliases: {served}.");
                shaped(StatusCode::NOT_FOUND, "NotFoundError", Some("model"), &message)
            }
            Self::UnknownPath => json_reply(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"})),
            Self::WrongMethod { allowed } => {
                let mut reply =
                    json_reply(StatusCode::METHOD_NOT_ALLOWED, &json!({"detail": "Method Not Allowed"}));
                reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                reply
            }
        }
    }
}

fn shaped(status: StatusCode, kind: &str, param: Option<&str>, message: &str) -> Reply {
    let error = json!({"message": message, "type": kind, "param": param, "code": status.as_u16()});
    json_reply(status, &json!({ "error": error }))
}
