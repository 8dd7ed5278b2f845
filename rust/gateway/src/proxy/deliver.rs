//! How an answer is handed over, and in whose words: the worker's own, or SageMaker's around a worker's error.

use std::sync::Arc;

use http::header::{self, HeaderValue};
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::Call;
use super::attempt::Begun;
use crate::answer::RETRY_AFTER_S;
use crate::body::{AnswerBody, Relay, RelayParts};
use crate::booking::Booking;
use crate::collect::BODY_PAUSE;
use crate::fleet::Worker;
use crate::headers;
use crate::sagemaker::{self, EventStream, Invocation};

impl Call {
    /// Hands an answer over: as it is, or an error in SageMaker's words where those are spoken.
    pub(super) async fn deliver(
        mut self,
        begun: Begun,
        worker: &Worker,
        annotation: Option<HeaderValue>,
        mut booking: Option<Booking>,
    ) -> Response<AnswerBody> {
        let status = begun.parts.status;
        let is_timed = booking.is_some() && self.is_generation() && status == StatusCode::OK;
        if let Some(part) = self.part() {
            part.answered(status.as_u16(), is_timed);
        }
        if let Some(booking) = &mut booking {
            booking.take_part(self.part.take().flatten());
        }
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

    /// Passes an answer on to the client.
    fn pass_on(
        mut self,
        begun: Begun,
        worker: &Worker,
        annotation: Option<HeaderValue>,
        booking: Option<Booking>,
    ) -> Response<AnswerBody> {
        self.answered = true;
        let shared = &self.shard.shared;
        let Begun { mut parts, incoming, first, lease } = begun;
        worker.requests.count(self.class, parts.status.as_u16());
        // Whatever the worker speaks, the client is answered in its own protocol.
        parts.version = Version::HTTP_11;
        headers::strip_answer(&mut parts.headers);
        let is_busy = matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if is_busy && !parts.headers.contains_key(header::RETRY_AFTER) {
            parts.headers.insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        }
        let content_type =
            parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_event_stream = content_type.starts_with(b"text/event-stream");
        let since = (self.is_generation() && parts.status == StatusCode::OK).then_some(self.since);
        let is_framed = self.invocation.as_deref().is_some_and(Invocation::is_framed);
        self.annotate(&mut parts, worker, annotation);
        let parts_of_relay =
            RelayParts { incoming, first, lease, booking, is_event_stream, is_framed, since };
        let relay = Relay::new(Arc::clone(shared), parts_of_relay);
        if is_framed {
            Invocation::announce_frames(&mut parts.headers);
            return Response::from_parts(parts, AnswerBody::Framed(Box::new(EventStream::new(relay))));
        }
        Response::from_parts(parts, AnswerBody::Relay(Box::new(relay)))
    }

    /// Says in an answer where it comes from.
    fn annotate(&self, parts: &mut http::response::Parts, worker: &Worker, annotation: Option<HeaderValue>) {
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
