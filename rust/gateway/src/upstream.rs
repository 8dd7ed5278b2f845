//! Connections to workers: a pool per thread and worker, and one exchange on one connection.
//!
//! A connection lives on the thread that opened it, in a task that moves its bytes; who holds its [`Lease`] may use
//! it. A lease that is dropped before its answer was read to the end closes the connection at once, so that a worker
//! learns within a moment that nobody waits any more. Idle connections are dropped before engines close them
//! (uvicorn: 5 s); the race that is left, a close that crosses a request, shows as [`Fault::is_stale`] and is worth
//! one try on a new connection.
//!
//! A connection that speaks HTTP/2 stays in the pool while it is used, and its leases are counted. An answer that is
//! dropped resets its own stream and nothing else.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use parking_lot::Mutex;

use crate::fleet::Worker;
use crate::link::{self, Sender};
use crate::metrics::Cause;

/// Idle connections are dropped after this long: a second below uvicorn's 5 s.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Idle connections kept per worker over all threads.
const MAX_IDLE: usize = 512;
/// Requests on one HTTP/2 connection of ours before the next one is opened: what servers usually allow. On one that allows
/// fewer the rest wait for their turn.
const MAX_STREAMS: usize = 100;

/// An idle connection.
#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
}

/// A connection that many requests share.
#[derive(Debug)]
struct Shared {
    sender: http2::SendRequest<Full<Bytes>>,
    /// Each lease holds one more.
    leases: Arc<()>,
    last_used: Instant,
}

impl Shared {
    fn leases(&self) -> usize {
        Arc::strong_count(&self.leases) - 1
    }

    fn lease(&mut self, now: Instant) -> Connection {
        self.last_used = now;
        Connection { sender: Sender::H2(self.sender.clone()), stream: Some(Arc::clone(&self.leases)) }
    }
}

/// One thread's connections to a worker.
#[derive(Debug, Default)]
struct Kept {
    /// Newest last.
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Vec<Shared>>,
    /// Held while a connection is opened that others may share.
    opening: tokio::sync::Mutex<()>,
}

/// The connections of one worker that can be used again, apart for each thread.
#[derive(Debug)]
pub(crate) struct Pool {
    threads: Box<[Kept]>,
}

impl Pool {
    /// An empty pool for so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: (0..threads).map(|_| Kept::default()).collect() }
    }

    /// The newest idle connection of this thread; older ones of the past are dropped.
    fn take(&self, thread: usize, now: Instant) -> Option<Sender> {
        let mut idle = self.threads[thread].idle.lock();
        let newest = idle.pop()?;
        if now.duration_since(newest.since) < IDLE_LIMIT {
            return Some(newest.sender);
        }
        // The newest is too old, so all are.
        idle.clear();
        None
    }

    fn put(&self, thread: usize, idle: Idle) {
        let mut kept = self.threads[thread].idle.lock();
        if kept.len() < MAX_IDLE.div_ceil(self.threads.len()) {
            kept.push(idle);
        }
    }

    /// A place on a shared connection of this thread.
    fn share(&self, thread: usize, now: Instant) -> Option<Connection> {
        let mut shared = self.threads[thread].shared.lock();
        let free = |shared: &&mut Shared| !shared.sender.is_closed() && shared.leases() < MAX_STREAMS;
        shared.iter_mut().find(free).map(|shared| shared.lease(now))
    }

    /// Keeps a new connection that can be shared, and gives the first place on it.
    fn keep(&self, thread: usize, sender: http2::SendRequest<Full<Bytes>>, now: Instant) -> Connection {
        let mut shared = Shared { sender, leases: Arc::default(), last_used: now };
        let first = shared.lease(now);
        self.threads[thread].shared.lock().push(shared);
        first
    }

    /// Drops what has been idle for too long, and what the worker closed.
    pub(crate) fn reap(&self, thread: usize, now: Instant) {
        let kept = &self.threads[thread];
        let is_fresh = |since| now.duration_since(since) < IDLE_LIMIT;
        kept.idle.lock().retain(|idle| is_fresh(idle.since) && !idle.sender.is_closed());
        kept.shared.lock().retain(|shared| {
            !shared.sender.is_closed() && (shared.leases() > 0 || is_fresh(shared.last_used))
        });
    }

    /// Drops all idle connections, and gives nobody another place on the shared ones.
    pub(crate) fn clear(&self) {
        for kept in &self.threads {
            kept.idle.lock().clear();
            kept.shared.lock().clear();
        }
    }
}

/// A way to send one request.
#[derive(Debug)]
struct Connection {
    sender: Sender,
    /// The count of a shared connection's leases; `None` if this is the only one.
    stream: Option<Arc<()>>,
}

/// A connection in use, or a place on one. Dropped early, it closes the connection that is its own.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` once it was given back.
    connection: Option<Connection>,
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
        let Some(Connection { sender, stream: None }) = self.connection.take() else { return };
        if !sender.is_closed() {
            self.worker.pool.put(self.thread, Idle { sender, since: Instant::now() });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.sender.cut();
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
    /// Whether the worker, or its connection, was lost: nobody works on the request any more.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Closed | Self::Gone)
    }

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
    let connection = lease.connection.as_mut().expect("a lease holds its connection until it is given back");
    match connection.sender.send(&worker.endpoint, request).await {
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
    let lease = |connection| Lease { connection: Some(connection), worker: Arc::clone(worker), thread };
    if worker.endpoint.may_share()
        && let Some(connection) = worker.pool.share(thread, now)
    {
        return Some(lease(connection));
    }
    while let Some(sender) = worker.pool.take(thread, now) {
        let mut lease = lease(Connection { sender, stream: None });
        if lease.connection.as_mut()?.sender.ready().await.is_ok() {
            return Some(lease);
        }
    }
    None
}

async fn open(worker: &Arc<Worker>, thread: usize, connect_timeout: Duration) -> Result<Lease, Fault> {
    let opening = async {
        if !worker.endpoint.may_share() {
            let sender = link::dial(&worker.endpoint).await?;
            return Ok(Connection { sender, stream: None });
        }
        // Many requests may want the first connection at once; one of them opens it.
        let _turn = worker.pool.threads[thread].opening.lock().await;
        if let Some(connection) = worker.pool.share(thread, Instant::now()) {
            return Ok(connection);
        }
        Ok(match link::dial(&worker.endpoint).await? {
            Sender::H2(sender) => worker.pool.keep(thread, sender, Instant::now()),
            sender @ Sender::Http1(..) => Connection { sender, stream: None },
        })
    };
    match tokio::time::timeout(connect_timeout, opening).await {
        Ok(Ok(connection)) => Ok(Lease { connection: Some(connection), worker: Arc::clone(worker), thread }),
        Ok(Err(error)) => Err(Fault::before_sending(FaultKind::Connect(error))),
        Err(_) => Err(Fault::before_sending(FaultKind::ConnectTimeout)),
    }
}
