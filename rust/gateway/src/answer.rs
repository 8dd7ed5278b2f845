//! Answers that are made here, not by a worker: errors in OpenAI's shape, readiness, the merged model list.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use crate::body::AnswerBody;
use crate::endpoint::MAX_TARGET_BYTES;
use crate::keys::Denied;
use crate::sagemaker::Invalid;
use crate::upstream::FaultKind;

/// Seconds that a client is asked to wait when all workers are busy or gone.
pub(crate) const RETRY_AFTER_S: u16 = 1;

/// A refusal of ours.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The method cannot be forwarded.
    Method,
    /// The path and query are longer than what is forwarded.
    LongTarget,
    /// The body ended early or its framing is broken.
    BrokenBody,
    /// The body did not arrive in time.
    SlowBody,
    /// The body is over the limit.
    LargeBody { max_bytes: usize },
    /// No `Host`, or more than one.
    Host,
    /// A transfer encoding that is not simply `chunked`.
    TransferCoding,
    /// More header lines than are allowed.
    LargeHead,
    /// Who may call, or how much, is limited, and this is too much.
    Denied(Denied),
    /// No worker is in rotation for this request.
    NoWorker,
    /// All workers that could take this request were busy for as long as it may wait.
    Busy,
    /// So were they, and no more requests may wait.
    QueueFull,
    /// None of the workers that could serve it has been well yet: their models are being loaded.
    NotReady,
    /// No worker serves the model that it asks for.
    UnknownModel,
    /// What it says in SageMaker's words is wrong.
    Invalid(Invalid),
    /// The workers that were asked failed, the last one in this way.
    Failed(FaultKind),
}

impl Refusal {
    /// The answer's status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::LongTarget => StatusCode::URI_TOO_LONG,
            Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::LargeBody { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Host => StatusCode::BAD_REQUEST,
            Self::TransferCoding => StatusCode::NOT_IMPLEMENTED,
            Self::LargeHead => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Denied(Denied::Unknown) => StatusCode::UNAUTHORIZED,
            Self::Denied(Denied::Requests { .. } | Denied::Tokens { .. }) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoWorker | Self::NotReady | Self::Busy | Self::QueueFull => StatusCode::SERVICE_UNAVAILABLE,
            Self::UnknownModel => StatusCode::NOT_FOUND,
            Self::Invalid(Invalid::UnknownEndpoint) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Failed(FaultKind::FirstByteTimeout) => StatusCode::GATEWAY_TIMEOUT,
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// What is wrong, for people.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Method => "This method cannot be forwarded.".into(),
            Self::LongTarget => format!("Path and query are over the limit of {MAX_TARGET_BYTES} bytes."),
            Self::BrokenBody => "The body of the request is incomplete or malformed.".into(),
            Self::SlowBody => "The body of the request did not arrive in time.".into(),
            Self::LargeBody { max_bytes } => {
                format!("The body of the request is over the limit of {max_bytes} bytes.")
            }
            Self::Host => "A request has exactly one Host header.".into(),
            Self::TransferCoding => "The only transfer encoding that is understood is chunked.".into(),
            Self::LargeHead => "The request has too many header lines.".into(),
            Self::Denied(Denied::Unknown) => "No valid API key was given.".into(),
            Self::Denied(Denied::Requests { .. }) => {
                "This API key has used up its requests per minute.".into()
            }
            Self::Denied(Denied::Tokens { .. }) => "This API key has used up its tokens per minute.".into(),
            Self::NoWorker => "No worker can take this request now.".into(),
            Self::Busy => "All workers are busy.".into(),
            Self::QueueFull => "All workers are busy, and too many requests wait already.".into(),
            Self::NotReady => "The workers of this model are still starting.".into(),
            Self::UnknownModel => {
                "No worker serves this model; GET /v1/models lists those that are served.".into()
            }
            Self::Invalid(invalid) => invalid.to_string(),
            Self::Failed(fault) => format!("No worker began to answer this request: {fault}."),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Method
            | Self::LongTarget
            | Self::BrokenBody
            | Self::SlowBody
            | Self::LargeBody { .. }
            | Self::Host
            | Self::TransferCoding
            | Self::LargeHead
            | Self::UnknownModel
            | Self::Invalid(_) => "invalid_request_error",
            Self::Denied(Denied::Unknown) => "authentication_error",
            Self::Denied(Denied::Requests { .. } | Denied::Tokens { .. }) => "rate_limit_error",
            Self::NoWorker | Self::NotReady | Self::Busy | Self::QueueFull => "service_unavailable",
            Self::Failed(_) => "upstream_error",
        }
    }

    /// The answer: `{"error": {"message", "type", "param", "code"}}`, with `Retry-After` where trying again may help.
    pub(crate) fn answer(&self) -> Response<AnswerBody> {
        let status = self.status();
        let mut error = serde_json::json!({
            "error": {"message": self.message(), "type": self.kind(), "param": null, "code": status.as_u16()}
        });
        if matches!(self, Self::UnknownModel) {
            // OpenAI's own words for it, which clients look for.
            error["error"]["param"] = "model".into();
            error["error"]["code"] = "model_not_found".into();
        }
        let mut answer = json(status, Bytes::from(error.to_string()));
        let headers = answer.headers_mut();
        match self {
            Self::Denied(Denied::Unknown) => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Denied(Denied::Requests { wait } | Denied::Tokens { wait }) => {
                headers.insert(RETRY_AFTER, whole_seconds(*wait).into());
            }
            // Who frames a request oddly may mean another end of it than we do: nothing behind it is read.
            Self::Host | Self::TransferCoding => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::NoWorker | Self::NotReady | Self::Busy | Self::QueueFull | Self::Failed(_) => {
                headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
            }
            _ => {}
        }
        answer
    }
}

/// Rounded up: a client that comes back earlier comes in vain.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response<AnswerBody> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A health check's answer: 200 when `ready`, else 503, both empty as vLLM's.
pub(crate) fn health(ready: bool) -> Response<AnswerBody> {
    let mut answer = Response::new(Bytes::new().into());
    if !ready {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_openai_shaped_and_shedding_says_when_to_return() {
        for (refusal, retry) in [
            (Refusal::LargeBody { max_bytes: 7 }, false),
            (Refusal::NoWorker, true),
            (Refusal::Busy, true),
            (Refusal::QueueFull, true),
            (Refusal::Failed(FaultKind::Closed), true),
            (Refusal::TransferCoding, false),
            (Refusal::Denied(Denied::Unknown), false),
            (Refusal::Denied(Denied::Tokens { wait: Duration::from_millis(1_200) }), true),
        ] {
            let answer = refusal.answer();
            assert_eq!(answer.headers().contains_key(RETRY_AFTER), retry, "{refusal:?}");
            let AnswerBody::Own(Some(body)) = answer.into_body() else { panic!("no body") };
            let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(document["error"]["message"].is_string());
            assert_eq!(document["error"]["code"], refusal.status().as_u16());
        }
        let limited = Refusal::Denied(Denied::Requests { wait: Duration::from_millis(1_200) }).answer();
        assert_eq!(
            (limited.status(), &limited.headers()[RETRY_AFTER]),
            (StatusCode::TOO_MANY_REQUESTS, &"2".parse().unwrap())
        );
    }
}
