//! Ends an answer that has begun and does not go on.
//!
//! The limit is watched in quarters: a timer runs, bytes set a flag, and four quarters without any are the end. So a
//! chunk costs no clock and no change of the timer, and the end comes between one and one and a quarter times the limit.
//! Time in which nobody asks the worker for more, because the client does not read, does not count.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

const QUARTERS: u8 = 4;

/// Watches one answer.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    /// `None` waits for ever.
    quarter: Option<Duration>,
    /// Made when the answer first keeps somebody waiting.
    timer: Option<Pin<Box<Sleep>>>,
    moved: bool,
    quiet: u8,
}

impl IdleWatch {
    /// Allows silences up to `limit`.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { quarter: limit.map(|limit| limit / u32::from(QUARTERS)), timer: None, moved: false, quiet: 0 }
    }

    /// Bytes came.
    pub(crate) fn moved(&mut self) {
        self.moved = true;
    }

    /// Somebody waits for bytes: ready once that has lasted too long.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(quarter) = self.quarter else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(quarter)));
        while timer.as_mut().poll(context).is_ready() {
            self.quiet = if std::mem::take(&mut self.moved) { 0 } else { self.quiet + 1 };
            if self.quiet >= QUARTERS {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + quarter);
        }
        Poll::Pending
    }
}
