//! Errors of SageMaker's runtime: their names, codes and shape.
//!
//! `{"Message": ..., "message": ...}` with the name in `x-amzn-ErrorType`, where AWS's SDKs look for it. Used on the Invoke
//! paths only; everywhere else errors have OpenAI's shape.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::answer::{self, RETRY_AFTER_S, Refusal};
use crate::body::AnswerBody;
use crate::keys::Denied;

/// Where AWS's SDKs look for an error's name.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
/// Bytes of a worker's error that are handed on.
pub(crate) const MAX_ORIGINAL_BYTES: usize = 64 << 10;

/// What is wrong with a request that names an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("No endpoint of this name is configured.")]
    UnknownEndpoint,
    #[error("The endpoint has no variant of the name in X-Amzn-SageMaker-Target-Variant.")]
    UnknownVariant,
    #[error("The endpoint has no component of the name in X-Amzn-SageMaker-Inference-Component.")]
    UnknownComponent,
    #[error("The endpoint serves inference components: X-Amzn-SageMaker-Inference-Component must name one.")]
    ComponentNeeded,
    #[error("Header {name}: allowed is {allowed}.")]
    Header { name: &'static str, allowed: &'static str },
}

/// Name and status of a refusal in SageMaker's words.
fn named(refusal: &Refusal) -> (&'static str, StatusCode) {
    match refusal {
        Refusal::NoWorker | Refusal::Busy | Refusal::QueueFull => {
            ("ServiceUnavailable", StatusCode::SERVICE_UNAVAILABLE)
        }
        Refusal::NotReady => ("ModelNotReadyException", StatusCode::TOO_MANY_REQUESTS),
        Refusal::Failed(_) => ("ModelError", StatusCode::FAILED_DEPENDENCY),
        Refusal::Denied(Denied::Unknown) => ("AccessDeniedException", StatusCode::FORBIDDEN),
        Refusal::Denied(Denied::Requests { .. } | Denied::Tokens { .. }) => {
            ("ThrottlingException", StatusCode::TOO_MANY_REQUESTS)
        }
        Refusal::Method
        | Refusal::LongTarget
        | Refusal::Host
        | Refusal::TransferCoding
        | Refusal::LargeHead
        | Refusal::BrokenBody
        | Refusal::SlowBody
        | Refusal::LargeBody { .. }
        | Refusal::UnknownModel
        | Refusal::Invalid(_) => ("ValidationError", StatusCode::BAD_REQUEST),
    }
}

/// A refusal of ours as SageMaker says it.
pub(crate) fn answer(refusal: &Refusal) -> Response<AnswerBody> {
    let (name, status) = named(refusal);
    let message = refusal.message();
    let mut fields = json!({"Message": message, "message": message});
    if let Refusal::Failed(fault) = refusal {
        // As SageMaker does it for a container that did not answer.
        fields["OriginalStatusCode"] = 0.into();
        fields["OriginalMessage"] = fault.to_string().into();
    }
    let mut answer = shaped(name, status, &fields);
    if matches!(refusal, Refusal::NoWorker | Refusal::NotReady | Refusal::Busy | Refusal::QueueFull) {
        answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S.into());
    }
    answer
}

/// What a worker answered with an error, as SageMaker says it.
///
/// A worker that has no room (429, 503) is no fault of its model: `ServiceUnavailable`, which AWS's SDKs try again.
pub(crate) fn of_worker(status: StatusCode, original: &[u8]) -> Response<AnswerBody> {
    let original = String::from_utf8_lossy(original);
    let side = if status.is_client_error() { "client" } else { "server" };
    let code = status.as_u16();
    let message = format!("Received {side} error ({code}) from primary with message \"{original}\".");
    let mut fields = json!({"Message": message, "message": message});
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let mut answer = shaped("ServiceUnavailable", StatusCode::SERVICE_UNAVAILABLE, &fields);
        answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S.into());
        return answer;
    }
    fields["OriginalStatusCode"] = code.into();
    fields["OriginalMessage"] = original.into();
    shaped("ModelError", StatusCode::FAILED_DEPENDENCY, &fields)
}

fn shaped(name: &'static str, status: StatusCode, fields: &Value) -> Response<AnswerBody> {
    let mut answer = answer::json(status, Bytes::from(fields.to_string()));
    answer.headers_mut().insert(ERROR_TYPE, HeaderValue::from_static(name));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::FaultKind;

    fn read(answer: Response<AnswerBody>) -> (u16, String, Value) {
        let name = answer.headers()[ERROR_TYPE].to_str().unwrap().to_owned();
        let status = answer.status().as_u16();
        let AnswerBody::Own(Some(body)) = answer.into_body() else { panic!("no body") };
        (status, name, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn refusals_have_sagemakers_names_and_codes() {
        for (refusal, status, name) in [
            (Refusal::Invalid(Invalid::UnknownEndpoint), 400, "ValidationError"),
            (Refusal::LargeBody { max_bytes: 7 }, 400, "ValidationError"),
            (Refusal::NotReady, 429, "ModelNotReadyException"),
            (Refusal::NoWorker, 503, "ServiceUnavailable"),
            (Refusal::Failed(FaultKind::Closed), 424, "ModelError"),
        ] {
            let (code, kind, body) = read(answer(&refusal));
            assert_eq!((code, kind.as_str()), (status, name), "{refusal:?}");
            assert_eq!(body["Message"], refusal.message());
        }
    }

    #[test]
    fn a_workers_error_keeps_its_code_and_text() {
        let (status, name, body) = read(of_worker(StatusCode::NOT_FOUND, b"no \xffsuch"));
        assert_eq!((status, name.as_str()), (424, "ModelError"));
        assert_eq!(body["OriginalStatusCode"], 404);
        assert_eq!(body["OriginalMessage"], "no \u{fffd}such");
        assert!(body["Message"].as_str().unwrap().starts_with("Received client error (404) from primary"));
        let (status, name, _) = read(of_worker(StatusCode::TOO_MANY_REQUESTS, b""));
        assert_eq!((status, name.as_str()), (503, "ServiceUnavailable"));
    }
}
