//! Answers that are made here, not by a worker: errors in OpenAI's shape, readiness, the merged model list.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::body::AnswerBody;
use crate::endpoint::MAX_TARGET_BYTES;
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
    /// No worker is in rotation for this request.
    NoWorker,
    /// All workers that could take this request were busy for as long as it may wait.
    Busy,
    /// So were they, and no more requests may wait.
    QueueFull,
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
            Self::NoWorker | Self::Busy | Self::QueueFull => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(FaultKind::FirstByteTimeout) => StatusCode::GATEWAY_TIMEOUT,
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Method => "This method cannot be forwarded.".into(),
            Self::LongTarget => format!("Path and query are over the limit of {MAX_TARGET_BYTES} bytes."),
            Self::BrokenBody => "The body of the request is incomplete or malformed.".into(),
            Self::SlowBody => "The body of the request did not arrive in time.".into(),
            Self::LargeBody { max_bytes } => {
                format!("The body of the request is over the limit of {max_bytes} bytes.")
            }
            Self::NoWorker => "No worker can take this request now.".into(),
            Self::Busy => "All workers are busy.".into(),
            Self::QueueFull => "All workers are busy, and too many requests wait already.".into(),
            Self::Failed(fault) => format!("No worker began to answer this request: {fault}."),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Method | Self::LongTarget | Self::BrokenBody | Self::SlowBody | Self::LargeBody { .. } => {
                "invalid_request_error"
            }
            Self::NoWorker | Self::Busy | Self::QueueFull => "service_unavailable",
            Self::Failed(_) => "upstream_error",
        }
    }

    /// The answer: `{"error": {"message", "type", "param", "code"}}`, with `Retry-After` where trying again may help.
    pub(crate) fn answer(&self) -> Response<AnswerBody> {
        let status = self.status();
        let error = serde_json::json!({
            "error": {"message": self.message(), "type": self.kind(), "param": null, "code": status.as_u16()}
        });
        let mut answer = json(status, Bytes::from(error.to_string()));
        if status.is_server_error() {
            answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S.into());
        }
        answer
    }
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
        ] {
            let answer = refusal.answer();
            assert_eq!(answer.headers().contains_key(RETRY_AFTER), retry, "{refusal:?}");
            let AnswerBody::Own(Some(body)) = answer.into_body() else { panic!("no body") };
            let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(document["error"]["message"].is_string());
            assert_eq!(document["error"]["code"], refusal.status().as_u16());
        }
    }
}
