//! An answer as server-sent events: one event per token, sent when its step ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::answer::{Answer, Kind};
use crate::driver::{Delivery, Generation};

/// A response body. Dropping it, as the server does when the client leaves, cancels what still runs.
pub(crate) struct EventStream {
    /// `None` once all tokens are delivered.
    generation: Option<Generation>,
    answer: Answer,
    include_usage: bool,
    events: VecDeque<Bytes>,
}

impl EventStream {
    pub(crate) fn new(generation: Generation, answer: Answer, include_usage: bool) -> Self {
        Self { generation: Some(generation), answer, include_usage, events: VecDeque::new() }
    }

    fn push(&mut self, data: &str) {
        // TGI's own events have no space.
        let space = if self.answer.kind == Kind::Tgi { "" } else { " " };
        self.events.push_back(Bytes::from(format!("data:{space}{data}\n\n")));
    }

    fn push_token(&mut self, delivery: Delivery) {
        self.answer.count(delivery);
        if delivery.index == 0 && self.answer.kind == Kind::Chat {
            self.push(&self.answer.role_chunk(delivery.sequence));
        }
        self.push(&self.answer.token_chunk(delivery));
    }

    fn push_end(&mut self) {
        if self.include_usage {
            self.push(&self.answer.usage_chunk());
        }
        if self.answer.kind != Kind::Tgi {
            self.push("[DONE]");
        }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let stream = self.get_mut();
        while stream.events.is_empty() {
            let Some(generation) = &mut stream.generation else {
                return Poll::Ready(None);
            };
            match ready!(generation.poll_next(context)) {
                Some(delivery) => stream.push_token(delivery),
                None => {
                    stream.generation = None;
                    stream.push_end();
                }
            }
        }
        Poll::Ready(stream.events.pop_front().map(|event| Ok(Frame::data(event))))
    }
}
