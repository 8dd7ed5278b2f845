//! How long a client's HTTP/1 connection may be silent, and how long a head may take.
//!
//! hyper has one clock for both: it starts when a head is awaited, idle time included. This clock starts with the time for
//! idling and, once the first byte of the head was read, goes on with the time for a head. So idle connections cost
//! nothing, and a client that sends a byte now and then (slow loris) is cut off all the same. It takes the place of hyper's
//! own timer and costs what that costs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use hyper::rt::{Sleep, Timer};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::Wire;

/// The clock of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// Whether a byte was read since the clock was last started.
    heard: Arc<AtomicBool>,
    header_timeout: Duration,
}

impl Patience {
    /// Start hyper's clock with the time for idling; `header_timeout` is this one's.
    pub(crate) fn new(header_timeout: Duration) -> Self {
        Self { heard: Arc::default(), header_timeout }
    }
}

impl Timer for Patience {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.heard.store(false, Ordering::Relaxed);
        Box::pin(Waiting {
            sleep: tokio::time::sleep_until(deadline.into()),
            patience: self.clone(),
            in_head: false,
        })
    }
}

pin_project! {
    /// The wait for one head.
    struct Waiting {
        #[pin]
        sleep: tokio::time::Sleep,
        patience: Patience,
        in_head: bool,
    }
}

impl Sleep for Waiting {}

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.project();
        // hyper asks each time that it has read a part of a head.
        if !*waiting.in_head && waiting.patience.heard.load(Ordering::Relaxed) {
            *waiting.in_head = true;
            let deadline = tokio::time::Instant::now() + waiting.patience.header_timeout;
            if deadline < waiting.sleep.deadline() {
                waiting.sleep.as_mut().reset(deadline);
            }
        }
        waiting.sleep.poll(context)
    }
}

/// A client's byte stream, which tells the clock when it was read from.
#[derive(Debug)]
pub(crate) struct Heard {
    wire: Wire,
    /// Bytes that were read ahead.
    ahead: Bytes,
    heard: Arc<AtomicBool>,
}

impl Heard {
    /// `ahead` has been read from `wire` already.
    pub(crate) fn new(wire: Wire, ahead: Bytes, patience: &Patience) -> Self {
        Self { wire, ahead, heard: Arc::clone(&patience.heard) }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..length]);
            self.ahead.advance(length);
            self.heard.store(true, Ordering::Relaxed);
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.wire).poll_read(context, buffer);
        if read.is_ready() {
            self.heard.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(context)
    }
}
