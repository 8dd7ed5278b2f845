//! Whose words an answer is handed over in: the worker's own, or SageMaker's around a worker's error.

use http::{HeaderValue, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Begun, Call};
use crate::body::AnswerBody;
use crate::booking::Booking;
use crate::collect::BODY_PAUSE;
use crate::fleet::Worker;
use crate::{headers, sagemaker};

impl Call {
    /// Hands an answer over: as it is, or an error in SageMaker's words where those are spoken.
    pub(super) async fn deliver(
        mut self,
        begun: Begun,
        worker: &Worker,
        annotation: Option<HeaderValue>,
        booking: Option<Booking>,
    ) -> Response<AnswerBody> {
        let status = begun.parts.status;
        if !self.is_invoke() || status.is_success() {
            return self.pass_on(begun, worker, annotation, booking);
        }
        let Begun { incoming, lease, first, .. } = begun;
        let mut original = first.unwrap_or_default().to_vec();
        if read_some(incoming, &mut original).await {
            lease.give_back();
        }
        self.answered = true;
        let answer = sagemaker::of_worker(status, &original);
        worker.requests.count(self.class, answer.status().as_u16());
        let (mut parts, body) = answer.into_parts();
        self.annotate(&mut parts, worker, annotation);
        drop(booking);
        Response::from_parts(parts, body)
    }

    /// Says in an answer where it comes from.
    pub(super) fn annotate(
        &self,
        parts: &mut http::response::Parts,
        worker: &Worker,
        annotation: Option<HeaderValue>,
    ) {
        if let Some(annotation) = annotation {
            parts.headers.insert(headers::WORKER, worker.endpoint.url_header.clone());
            parts.headers.insert(headers::DECISION, annotation);
        }
        if let Some(invocation) = &self.invocation {
            let shared = &self.shard.shared;
            invocation.prepare_answer(&mut parts.headers, &shared.sessions, worker.id, shared.now());
        }
    }
}

/// Appends a worker's error to `text` up to the limit of what is handed on. Returns whether that was all of it; one that breaks
/// or pauses for too long ends where it is.
async fn read_some(mut incoming: Incoming, text: &mut Vec<u8>) -> bool {
    while let Ok(next) = tokio::time::timeout(BODY_PAUSE, incoming.frame()).await {
        let Some(frame) = next else { return true };
        let Ok(frame) = frame else { break };
        text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if text.len() > sagemaker::MAX_ORIGINAL_BYTES {
            text.truncate(sagemaker::MAX_ORIGINAL_BYTES);
            break;
        }
    }
    false
}
