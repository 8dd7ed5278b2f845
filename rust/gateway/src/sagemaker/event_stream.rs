//! A worker's answer as an AWS event stream: each piece becomes a `PayloadPart` as it arrives, and an answer that breaks ends
//! with an exception that the client can read.
//!
//! A message is handed on in its three parts; the payload is the worker's bytes where they are, and hyper writes all parts
//! that are ready with one system call.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use super::frame::{self, Kind, Message};
use crate::body::{Cut, Relay};

/// What ends an answer whose worker stopped half-way.
const BROKEN: &[u8] =
    br#"{"Message":"The worker stopped before the end of its answer.","ErrorCode":"StreamBroken"}"#;

/// The body of an answer to `InvokeEndpointWithResponseStream`.
#[derive(Debug)]
pub(crate) struct EventStream {
    /// `None` once an exception was made.
    relay: Option<Relay>,
    /// What was read of the worker and is in no message yet.
    rest: Bytes,
    /// The message under way.
    parts: std::array::IntoIter<Bytes, 3>,
}

impl EventStream {
    /// Frames what `relay` passes on. The relay leaves it to this stream to tell of a cut.
    pub(crate) fn new(relay: Relay) -> Self {
        let mut parts = Message::default().into_iter();
        parts.by_ref().for_each(drop);
        Self { relay: Some(relay), rest: Bytes::new(), parts }
    }

    /// Whether nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.len() == 0 && self.rest.is_empty() && self.relay.as_ref().is_none_or(Relay::is_over)
    }

    /// The next part of a message. Never fails: a cut is told as an exception.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        loop {
            if let Some(part) = self.parts.find(|part| !part.is_empty()) {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if !self.rest.is_empty() {
                self.parts = frame::next(Kind::Part, &mut self.rest).into_iter();
                continue;
            }
            let Some(relay) = &mut self.relay else { return Poll::Ready(None) };
            match std::task::ready!(relay.poll(context)) {
                // Trailers have no place in an event stream.
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(Cut)) => {
                    self.relay = None;
                    let kind = Kind::Exception("ModelStreamError");
                    self.parts = frame::next(kind, &mut Bytes::from_static(BROKEN)).into_iter();
                }
                None => return Poll::Ready(None),
            }
        }
    }
}
