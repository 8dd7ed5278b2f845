//! A client's connection: TLS if it is set, then HTTP/2 or HTTP/1.1.
//!
//! With TLS the client chooses by ALPN; without, its first bytes say: an HTTP/2 client that knows beforehand begins with the
//! preface, which begins no HTTP/1 request. Every stream of an HTTP/2 connection is a task; one that the client resets is
//! dropped with all that belongs to it, as a closed HTTP/1 connection is. Flow control reaches from end to end: the next
//! piece of an answer is asked for when its stream has room.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::listen::Accepted;
use crate::patience::{Heard, Patience};
use crate::proxy;
use crate::server::{Counted, DRAIN_GRACE, Phase, Shard, reached};
use crate::tls;
use crate::wire::{Socket, Wire};

/// What an HTTP/2 connection begins with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Header lines that hyper reads unless it is told otherwise.
const HYPER_MAX_HEADERS: usize = 100;
/// Bytes of one answer that may wait in an HTTP/2 connection for its client.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 10;
/// Time between two pings of a silent HTTP/2 connection, and the wait for their answer: a client that is gone is noticed
/// while its answers still run.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for an HTTP/2 client to agree that its connection ends, once its streams have.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves one client's connection until it ends.
pub(crate) async fn converse(client: Counted, accepted: Accepted) {
    // An error means that the client is gone already.
    let Ok(socket) = accepted.into_socket() else { return };
    let shard = client.shard();
    match shard.shared.edge.tls.load_full() {
        Some(config) => Box::pin(secured(shard, TlsAcceptor::from(config), socket)).await,
        None => {
            let mut wire = Wire::Plain(socket);
            match beginning(shard, shard.shared.config.client_idle_timeout, first_bytes(&mut wire)).await {
                Some(Ok((ahead, true))) => Box::pin(serve_h2(shard, wire, ahead)).await,
                Some(Ok((ahead, false))) => serve_http1(shard, wire, ahead).await,
                Some(Err(_)) | None => {}
            }
        }
    }
}

/// Waits for what comes before the first request: not for ever, and not once the gateway drains.
async fn beginning<T>(shard: &Shard, limit: Duration, what: impl Future<Output = T>) -> Option<T> {
    let mut phase = shard.shared.subscribe();
    tokio::select! {
        biased;
        begun = timeout(limit, what) => begun.ok(),
        () = reached(Phase::Draining, &mut phase) => None,
    }
}

async fn secured(shard: &Arc<Shard>, acceptor: TlsAcceptor, socket: Socket) {
    let shared = &shard.shared;
    match beginning(shard, shared.config.header_timeout, acceptor.accept(socket)).await {
        Some(Ok(stream)) => {
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
            let wire = Wire::Tls(Box::new(TlsStream::Server(stream)));
            if is_h2 {
                serve_h2(shard, wire, Bytes::new()).await;
            } else {
                serve_http1(shard, wire, Bytes::new()).await;
            }
        }
        Some(Err(_)) | None => {
            shared.metrics.edge.tls_failures.inc();
        }
    }
}

/// Reads until it is clear whether this is the preface of HTTP/2: up to the first byte that differs.
async fn first_bytes(wire: &mut Wire) -> std::io::Result<(Bytes, bool)> {
    let mut ahead = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && PREFACE.starts_with(&ahead[..length]) {
        match wire.read(&mut ahead[length..]).await? {
            0 => break,
            read => length += read,
        }
    }
    Ok((Bytes::copy_from_slice(&ahead[..length]), ahead == *PREFACE))
}

async fn serve_http1(shard: &Arc<Shard>, wire: Wire, ahead: Bytes) {
    let config = &shard.shared.config;
    let patience = Patience::new(config.header_timeout);
    let stream = Heard::new(wire, ahead, &patience);
    let mut server = http1::Builder::new();
    server
        .timer(patience)
        .header_read_timeout(config.client_idle_timeout)
        .max_buf_size(config.max_header_bytes);
    // Told a number, hyper makes room for it at each request, which costs a few per cent of one.
    if config.max_headers != HYPER_MAX_HEADERS {
        server.max_headers(config.max_headers);
    }
    let has_asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_asked.store(true, Ordering::Relaxed);
        proxy::serve(Arc::clone(shard), request)
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let mut phase = shard.shared.subscribe();
    tokio::select! {
        biased;
        // How a connection ends is the client's business.
        _ = &mut connection => return,
        () = reached(Phase::Draining, &mut phase) => connection.as_mut().graceful_shutdown(),
    }
    // Idle connections end here by themselves, and whose body does not arrive is told so. One that has sent no whole head
    // yet is cut: only who has asked is owed an answer.
    if timeout(DRAIN_GRACE, connection.as_mut()).await.is_err() && has_asked.load(Ordering::Relaxed) {
        let _ = connection.await;
    }
}

async fn serve_h2(shard: &Arc<Shard>, wire: Wire, ahead: Bytes) {
    let config = &shard.shared.config;
    let streams = Streams::default();
    let mut server = http2::Builder::new(streams.clone());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.max_streams)
        .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let stream = Heard::new(wire, ahead, &Patience::new(config.header_timeout));
    let service = {
        let shard = Arc::clone(shard);
        service_fn(move |request| proxy::serve(Arc::clone(&shard), request))
    };
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let mut phase = shard.shared.subscribe();
    let mut look = tokio::time::interval(config.client_idle_timeout / 2);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle_looks = 0;
    loop {
        tokio::select! {
            biased;
            _ = &mut connection => return,
            () = reached(Phase::Draining, &mut phase) => break,
            _ = look.tick() => {
                idle_looks = if streams.take_was_busy() { 0 } else { idle_looks + 1 };
                // The first look is at once.
                if idle_looks > 2 {
                    break;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    // A client that is gone answers no goodbye; with nothing running it is not waited for.
    while timeout(GOODBYE, connection.as_mut()).await.is_err() && streams.take_was_busy() {}
}

/// Runs the streams of one HTTP/2 connection, and knows whether there are any.
#[derive(Debug, Clone, Default)]
struct Streams(Arc<Ran>);

#[derive(Debug, Default)]
struct Ran {
    /// Each running stream holds one more.
    running: Arc<()>,
    some: AtomicBool,
}

impl Streams {
    /// Whether a stream runs, or has since the last call.
    fn take_was_busy(&self) -> bool {
        let is_busy = Arc::strong_count(&self.0.running) > 1;
        self.0.some.swap(false, Ordering::Relaxed) || is_busy
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        self.0.some.store(true, Ordering::Relaxed);
        let running = Arc::clone(&self.0.running);
        tokio::spawn(async move {
            let _ = stream.await;
            drop(running);
        });
    }
}
