//! Connections to workers: a pool per thread and worker, and one exchange on one connection.
//!
//! A connection lives on the thread that opened it, in a task that moves its bytes; who holds its [`Lease`] may use
//! it. A lease that is dropped before its answer was read to the end closes the connection at once, so that a worker
//! learns within a moment that nobody waits any more. Idle connections are dropped before engines close them
//! (uvicorn: 5 s); the race that is left, a close that crosses a request, shows as [`Fault::is_stale`] and is worth
//! one try on a new connection.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::fleet::Worker;
use crate::metrics::Cause;

/// Idle connections are dropped after this long: a second below uvicorn's 5 s.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Idle connections kept per worker over all threads.
const MAX_IDLE: usize = 512;
/// Largest read buffer of a connection: bounds the head of an answer and the memory of a stream that its client does
/// not read.
const MAX_BUFFER_BYTES: usize = 64 << 10;

/// Sends requests whose body is in memory.
type Sender = SendRequest<Full<Bytes>>;

/// An idle connection.
#[derive(Debug)]
struct Idle {
    sender: Sender,
    task: AbortHandle,
    since: Instant,
}

/// The idle connections of one worker, newest last, apart for each thread.
#[derive(Debug)]
pub(crate) struct Pool {
    threads: Box<[Mutex<Vec<Idle>>]>,
}

impl Pool {
    /// An empty pool for so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// The newest idle connection of this thread; older ones of the past are dropped.
    fn take(&self, thread: usize, now: Instant) -> Option<Idle> {
        let mut idle = self.threads[thread].lock();
        let newest = idle.pop()?;
        if now.duration_since(newest.since) < IDLE_LIMIT {
            return Some(newest);
        }
        // The newest is too old, so all are.
        idle.clear();
        None
    }

    fn put(&self, thread: usize, idle: Idle) {
        let mut kept = self.threads[thread].lock();
        if kept.len() < MAX_IDLE.div_ceil(self.threads.len()) {
            kept.push(idle);
        }
    }

    /// Drops what has been idle for too long, and what the worker closed.
    pub(crate) fn reap(&self, thread: usize, now: Instant) {
        self.threads[thread]
            .lock()
            .retain(|idle| now.duration_since(idle.since) < IDLE_LIMIT && !idle.sender.is_closed());
    }

    /// Drops all idle connections.
    pub(crate) fn clear(&self) {
        for thread in &self.threads {
            thread.lock().clear();
        }
    }
}

/// A connection in use. Dropped early, it closes the connection.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` once it was given back.
    connection: Option<(Sender, AbortHandle)>,
    worker: Arc<Worker>,
    thread: usize,
}

impl Lease {
    /// The worker at its other end.
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Gives the connection back for the next request; its answer was read to the end.
    pub(crate) fn give_back(mut self) {
        let Some((sender, task)) = self.connection.take() else { return };
        if !sender.is_closed() {
            self.worker.pool.put(self.thread, Idle { sender, task, since: Instant::now() });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((_, task)) = self.connection.take() {
            task.abort();
        }
    }
}

/// Why an exchange brought no answer. Always the worker's side's fault, never the client's.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// A connection that had served before ended without an answer: a new one may well work.
    pub(crate) is_stale: bool,
    /// No byte of the request can have been acted upon, so any request may be sent again.
    pub(crate) unsent: bool,
}

/// What happened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FaultKind {
    #[error("the worker does not accept connections")]
    Connect(#[source] io::Error),
    #[error("the worker did not accept a connection in time")]
    ConnectTimeout,
    #[error("the worker closed the connection before its answer")]
    Closed,
    #[error("the worker's answer is not HTTP")]
    Malformed,
    #[error("the worker's answer did not begin in time")]
    FirstByteTimeout,
    #[error("the worker stopped before its answer")]
    Gone,
}

impl FaultKind {
    /// The label in `trunkline_retries_total`.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::Connect(_) => Cause::Connect,
            Self::ConnectTimeout | Self::FirstByteTimeout => Cause::Timeout,
            Self::Closed | Self::Gone => Cause::Closed,
            Self::Malformed => Cause::Malformed,
        }
    }
}

impl Fault {
    fn before_sending(kind: FaultKind) -> Self {
        Self { kind, is_stale: false, unsent: true }
    }

    /// A fault of the worker after the request went out.
    pub(crate) fn after_sending(kind: FaultKind) -> Self {
        Self { kind, is_stale: false, unsent: false }
    }
}

/// An exchange whose answer's head has arrived.
pub(crate) struct Exchange {
    pub(crate) answer: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// Sends `request` to `worker` from this `thread` and waits for the head of the answer, however long that takes.
///
/// Cancel-safe: dropping the future closes the connection.
pub(crate) async fn exchange(
    worker: &Arc<Worker>,
    thread: usize,
    request: Request<Full<Bytes>>,
    connect_timeout: Duration,
    may_reuse: bool,
) -> Result<Exchange, Fault> {
    let pooled = if may_reuse { pooled(worker, thread).await } else { None };
    let reused = pooled.is_some();
    let mut lease = match pooled {
        Some(lease) => lease,
        None => open(worker, thread, connect_timeout).await?,
    };
    let (sender, _) = lease.connection.as_mut().expect("a lease holds its connection until it is given back");
    match sender.try_send_request(request).await {
        Ok(answer) => Ok(Exchange { answer, lease }),
        Err(error) => {
            let unsent = error.message().is_some();
            if error.error().is_parse() {
                return Err(Fault { kind: FaultKind::Malformed, is_stale: false, unsent });
            }
            Err(Fault { kind: FaultKind::Closed, is_stale: reused, unsent })
        }
    }
}

/// A pooled connection that still works as far as we know.
async fn pooled(worker: &Arc<Worker>, thread: usize) -> Option<Lease> {
    let now = Instant::now();
    while let Some(Idle { sender, task, .. }) = worker.pool.take(thread, now) {
        let mut lease = Lease { connection: Some((sender, task)), worker: Arc::clone(worker), thread };
        let (sender, _) = lease.connection.as_mut()?;
        if sender.ready().await.is_ok() {
            return Some(lease);
        }
    }
    None
}

async fn open(worker: &Arc<Worker>, thread: usize, connect_timeout: Duration) -> Result<Lease, Fault> {
    let stream = match tokio::time::timeout(connect_timeout, worker.endpoint.connect()).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Fault::before_sending(FaultKind::Connect(error))),
        Err(_) => return Err(Fault::before_sending(FaultKind::ConnectTimeout)),
    };
    let handshake =
        http1::Builder::new().max_buf_size(MAX_BUFFER_BYTES).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|_| Fault::before_sending(FaultKind::Closed))?;
    let task = tokio::spawn(async move {
        // What goes wrong here reaches whoever waits for the answer.
        let _ = connection.await;
    });
    Ok(Lease { connection: Some((sender, task.abort_handle())), worker: Arc::clone(worker), thread })
}
