//! The body of an answer on its way to the client. It passes every byte on as it is and keeps the books meanwhile.
//!
//! * The first byte that is no SSE comment is the first token.
//! * The request is completed when the worker's last byte was read (or the stream's `[DONE]`), before that byte goes
//!   on: a client's next request finds its load gone.
//! * A worker that stops half-way is never hidden: a stream ends with an error event and without `[DONE]`, and then
//!   as any other answer the client's connection is cut.
//! * So does one that stays silent for longer than the idle time-out.
//! * A client that leaves drops the body: the books are closed and so is the worker's connection.
//!
//! Nothing is queued here: hyper asks for the next frame when the client has room for it, and the worker's connection
//! is read when a frame was asked for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::booking::Booking;
use crate::idle::IdleWatch;
use crate::sagemaker::EventStream;
use crate::server::Shared;
use crate::upstream::Lease;
use crate::usage::{self, Tail};

/// Ends the event that a cut left open, then says what happened in OpenAI's words.
const CUT_EVENT: &[u8] =
    b"\n\ndata: {\"error\":{\"message\":\"The worker stopped before the end of its answer.\",\
    \"type\":\"upstream_error\",\"param\":null,\"code\":502}}\n\n";
const DONE_EVENT: &[u8] = b"data: [DONE]\n\n";

/// The worker stopped before the end of its answer. Ends the client's connection.
#[derive(Debug, thiserror::Error)]
#[error("the worker stopped before the end of its answer")]
pub(crate) struct Cut;

/// The body of any answer of ours.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// Made here.
    Own(Option<Bytes>),
    /// Passed on from a worker.
    Relay(Box<Relay>),
    /// Passed on from a worker in the frames of AWS's event stream.
    Framed(Box<EventStream>),
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Own((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.poll(context),
            Self::Framed(stream) => stream.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_over(),
            Self::Framed(stream) => stream.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Relay(relay) => relay.size_hint(),
            Self::Framed(_) => SizeHint::default(),
        }
    }
}

/// What comes next.
#[derive(Debug)]
enum Stage {
    /// More from the worker.
    Passing,
    /// The error event was handed over; hyper gets one turn to write it before the connection is cut.
    Cutting,
    /// The cut itself.
    Cut,
    /// Nothing.
    Over,
}

/// A worker's answer on its way.
#[derive(Debug)]
pub(crate) struct Relay {
    incoming: Incoming,
    /// Read before the answer was begun, to know that it does begin.
    first: Option<Bytes>,
    stage: Stage,
    lease: Option<Lease>,
    /// `None` once completed, and in answers that were completed before they were passed on.
    booking: Option<Booking>,
    first_token: FirstToken,
    tail: Tail,
    is_event_stream: bool,
    /// Whether a cut is told in an event of the stream.
    tells_cut: bool,
    idle: IdleWatch,
    shared: Arc<Shared>,
}

/// What a relay is made of.
pub(crate) struct RelayParts {
    pub(crate) incoming: Incoming,
    pub(crate) first: Option<Bytes>,
    pub(crate) lease: Lease,
    pub(crate) booking: Option<Booking>,
    pub(crate) is_event_stream: bool,
    /// Whether the answer goes on in frames, which tell of a cut in their own way.
    pub(crate) is_framed: bool,
    /// When the request arrived, if this is a generation, whose time to first token says how fast the worker is.
    pub(crate) since: Option<Instant>,
}

impl Relay {
    /// Begins to pass an answer on.
    pub(crate) fn new(shared: Arc<Shared>, parts: RelayParts) -> Self {
        let RelayParts { incoming, first, lease, mut booking, is_event_stream, is_framed, since } = parts;
        let mut first_token = match since {
            Some(since) => FirstToken::Awaited { since, in_comment: false },
            None => FirstToken::Over,
        };
        if !is_event_stream {
            // An answer in one piece begins when it is complete.
            first_token.arrived(&mut booking);
        }
        // Within a length that was promised there is no room for words of ours.
        let has_room = incoming.size_hint().exact().is_none();
        let mut relay = Self {
            incoming,
            first,
            stage: Stage::Passing,
            lease: Some(lease),
            booking,
            first_token,
            tail: Tail::default(),
            is_event_stream,
            tells_cut: is_event_stream && !is_framed && has_room,
            idle: IdleWatch::new(shared.config.idle_timeout),
            shared,
        };
        if relay.first.is_none() && relay.incoming.is_end_stream() {
            relay.end(None);
        }
        relay
    }

    /// Whether nothing follows.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.first.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.incoming
            .size_hint()
            .exact()
            .map_or_else(SizeHint::default, |rest| SizeHint::with_exact(ahead + rest))
    }

    /// The worker's next bytes, as they are.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.stage {
            Stage::Passing => {}
            Stage::Cutting => {
                self.stage = Stage::Cut;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Stage::Cut => {
                self.stage = Stage::Over;
                return Poll::Ready(Some(Err(Cut)));
            }
            Stage::Over => return Poll::Ready(None),
        }
        let next = match self.first.take() {
            Some(first) => Some(Ok(Frame::data(first))),
            None => match Pin::new(&mut self.incoming).poll_frame(context) {
                Poll::Ready(next) => next,
                // A worker that says nothing for too long is as good as one that ended.
                Poll::Pending => {
                    std::task::ready!(self.idle.poll(context));
                    return Poll::Ready(Some(self.cut()));
                }
            },
        };
        Poll::Ready(match next {
            Some(Ok(frame)) => {
                self.idle.moved();
                if let Some(data) = frame.data_ref() {
                    self.saw(data);
                }
                Some(Ok(frame))
            }
            Some(Err(_)) => Some(self.cut()),
            None => {
                self.end(None);
                None
            }
        })
    }

    /// Keeps the books for the next bytes of the answer.
    fn saw(&mut self, data: &Bytes) {
        if let Some(lease) = &self.lease {
            lease.worker().pulse.show();
        }
        if self.is_event_stream {
            self.first_token.look(data, &mut self.booking);
            self.tail.push(data);
            if self.tail.ends_with(DONE_EVENT) {
                let usage = self.tail.usage();
                if let Some(booking) = self.booking.take() {
                    booking.complete(usage);
                }
            }
            if self.incoming.is_end_stream() {
                self.end(None);
            }
        } else if self.incoming.is_end_stream() {
            self.end(Some(data));
        } else {
            self.tail.push(data);
        }
    }

    /// The worker's last byte was read: closes the books and gives the connection back.
    fn end(&mut self, last: Option<&Bytes>) {
        if let Some(booking) = self.booking.take() {
            // The usual answer is one piece, which is searched where it is.
            let usage = last.and_then(|last| usage::find(last)).or_else(|| {
                last.into_iter().for_each(|last| self.tail.push(last));
                self.tail.usage()
            });
            booking.complete(usage);
        }
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        self.stage = Stage::Over;
    }

    /// The worker stopped before its last byte.
    fn cut(&mut self) -> Result<Frame<Bytes>, Cut> {
        if let Some(booking) = self.booking.take() {
            booking.cut();
        }
        self.lease = None;
        self.shared.metrics.cut_answers.inc();
        if self.tells_cut {
            self.stage = Stage::Cutting;
            let event = if self.tail.ends_with(b"\n\n") { &CUT_EVENT[2..] } else { CUT_EVENT };
            return Ok(Frame::data(Bytes::from_static(event)));
        }
        self.stage = Stage::Over;
        Err(Cut)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Passing) {
            self.shared.metrics.client_disconnects.inc();
        }
    }
}

/// Finds the first token in a stream that may begin with comments.
#[derive(Debug)]
enum FirstToken {
    Awaited {
        since: Instant,
        in_comment: bool,
    },
    /// It came, or there is none to wait for.
    Over,
}

impl FirstToken {
    fn look(&mut self, data: &[u8], booking: &mut Option<Booking>) {
        if let Self::Awaited { in_comment, .. } = self
            && has_event(data, in_comment)
        {
            self.arrived(booking);
        }
    }

    fn arrived(&mut self, booking: &mut Option<Booking>) {
        if let (Self::Awaited { since, .. }, Some(booking)) = (std::mem::replace(self, Self::Over), booking) {
            booking.first_token(since);
        }
    }
}

/// Whether `data` holds more than comments and empty lines; `in_comment` is carried from one piece to the next.
fn has_event(data: &[u8], in_comment: &mut bool) -> bool {
    for &byte in data {
        match byte {
            b'\n' | b'\r' => *in_comment = false,
            b':' => *in_comment = true,
            _ if *in_comment => {}
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_first_token() {
        let sees = |pieces: &[&str]| {
            let mut in_comment = false;
            pieces.iter().position(|piece| has_event(piece.as_bytes(), &mut in_comment))
        };
        assert_eq!(sees(&["data: x\n\n"]), Some(0));
        assert_eq!(sees(&[": keep-alive\n\n", ": keep", "-alive\r\n\r\n", "\n", "event: x"]), Some(4));
        assert_eq!(sees(&[": keep-alive\n\ndata: x"]), Some(0));
        assert_eq!(sees(&[": a: b", ""]), None);
    }

    #[test]
    fn the_cut_event_is_json_in_openais_shape() {
        let text = std::str::from_utf8(CUT_EVENT).unwrap().trim().strip_prefix("data: ").unwrap();
        let event: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(event["error"]["code"], 502);
    }
}
