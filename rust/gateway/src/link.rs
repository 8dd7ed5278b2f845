//! One connection to a worker: socket, TLS, and the protocol on it.
//!
//! HTTP/1.1 carries one request at a time; HTTP/2 many. A worker gets HTTP/2 if the setting asks for it: over `https://` if
//! it agrees (ALPN), elsewhere by prior knowledge.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::AbortHandle;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::config::WorkerProtocol;
use crate::endpoint::Endpoint;
use crate::tls;
use crate::wire::Wire;

/// Largest read buffer of a connection: bounds the head of an answer and the memory of a stream that its client does
/// not read.
const MAX_BUFFER_BYTES: usize = 64 << 10;
/// Bytes that an HTTP/2 worker may send ahead, of one answer and of all: what a slow client makes us hold.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Time between two pings of an HTTP/2 connection that carries requests, and the wait for their answer.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Sends requests whose body is in memory.
#[derive(Debug)]
pub(crate) enum Sender {
    /// One at a time; the connection ends with its task.
    Http1(http1::SendRequest<Full<Bytes>>, AbortHandle),
    /// Many at once; the connection ends when nobody holds a sender and nothing runs.
    H2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    /// Waits until it can take a request. Errors: the connection has ended.
    pub(crate) async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender, _) => sender.ready().await,
            Self::H2(sender) => sender.ready().await,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender, _) => sender.is_closed(),
            Self::H2(sender) => sender.is_closed(),
        }
    }

    /// Ends a connection that is nobody else's, whatever runs on it.
    pub(crate) fn cut(&self) {
        if let Self::Http1(_, task) = self {
            task.abort();
        }
    }

    /// Sends a request in origin form to `endpoint` and waits for the head of its answer.
    pub(crate) async fn send(
        &mut self,
        endpoint: &Endpoint,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        match self {
            Self::Http1(sender, _) => sender.try_send_request(request).await,
            Self::H2(sender) => {
                let target = std::mem::take(request.uri_mut());
                *request.uri_mut() = endpoint.absolute(target);
                *request.version_mut() = Version::HTTP_2;
                // Its place is `:authority`.
                request.headers_mut().remove(header::HOST);
                sender.try_send_request(request).await
            }
        }
    }
}

/// Connects to a worker, however long that takes.
pub(crate) async fn dial(endpoint: &Endpoint) -> io::Result<Sender> {
    let socket = endpoint.connect().await?;
    let outbound = &endpoint.outbound;
    let (wire, is_h2) = match &endpoint.tls_name {
        None => (Wire::Plain(socket), outbound.protocol == WorkerProtocol::H2),
        Some(name) => {
            let config = outbound.tls().map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name.clone(), socket).await?;
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
            (Wire::Tls(Box::new(TlsStream::Client(stream))), is_h2)
        }
    };
    // What goes wrong on a connection reaches whoever waits for its answer.
    if is_h2 {
        let mut client = http2::Builder::new(TokioExecutor::new());
        client
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_BUFFER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let (sender, connection) = client.handshake(TokioIo::new(wire)).await.map_err(io::Error::other)?;
        tokio::spawn(async move { drop(connection.await) });
        return Ok(Sender::H2(sender));
    }
    let mut client = http1::Builder::new();
    client.max_buf_size(MAX_BUFFER_BYTES);
    let (sender, connection) = client.handshake(TokioIo::new(wire)).await.map_err(io::Error::other)?;
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok(Sender::Http1(sender, task.abort_handle()))
}
