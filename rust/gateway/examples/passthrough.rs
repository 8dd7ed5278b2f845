//! The floor of a gateway on hyper: `passthrough --port 8080 --worker http://127.0.0.1:8000 ...` on one thread.
//!
//! Passes requests on, worker after worker, over kept-alive connections, and nothing else: no routing, no retry, no
//! health, no limits, no books. What a gateway costs beyond this is what it does.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{Request, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Headers that stop at each hop.
const HOPS: [HeaderName; 3] = [header::CONNECTION, header::TRANSFER_ENCODING, header::TE];

struct Worker {
    address: SocketAddr,
    idle: RefCell<Vec<SendRequest<Incoming>>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut workers) = (8080, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--worker" => {
                let uri: Uri = value.parse()?;
                let address = uri.authority().ok_or("a worker needs an address")?.as_str().parse()?;
                workers.push(Worker { address, idle: RefCell::default() });
            }
            _ => return Err(format!("{name}: no such argument").into()),
        }
    }
    let (workers, turn) = (Rc::new(workers), Rc::new(Cell::new(0)));
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), port)).await?;
    println!("listening on {}", listener.local_addr()?);
    tokio::task::LocalSet::new()
        .run_until(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (workers, turn) = (Rc::clone(&workers), Rc::clone(&turn));
                let service = service_fn(move |request| {
                    turn.set((turn.get() + 1) % workers.len());
                    forward(Rc::clone(&workers), turn.get(), request)
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::task::spawn_local(async move {
                    // How a connection ends is the client's business.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        })
        .await
}

/// Sends one request to worker `number`; 502 if that fails.
async fn forward(
    workers: Rc<Vec<Worker>>,
    number: usize,
    request: Request<Incoming>,
) -> Result<Response<Passed>, Infallible> {
    Ok(exchange(workers, number, request).await.unwrap_or_else(|_| {
        let mut answer = Response::new(Passed { incoming: None, connection: None });
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
        answer
    }))
}

async fn exchange(
    workers: Rc<Vec<Worker>>,
    number: usize,
    mut request: Request<Incoming>,
) -> Result<Response<Passed>, Box<dyn Error>> {
    let pooled = workers[number].idle.borrow_mut().pop();
    let mut sender = match pooled {
        Some(sender) => sender,
        None => {
            let stream = TcpStream::connect(workers[number].address).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::task::spawn_local(connection);
            sender
        }
    };
    sender.ready().await?;
    for hop in &HOPS {
        request.headers_mut().remove(hop);
    }
    let mut answer = sender.send_request(request).await?;
    for hop in &HOPS {
        answer.headers_mut().remove(hop);
    }
    Ok(answer
        .map(|incoming| Passed { incoming: Some(incoming), connection: Some((sender, workers, number)) }))
}

/// The body of an answer; gives its connection back at its end.
struct Passed {
    incoming: Option<Incoming>,
    connection: Option<(SendRequest<Incoming>, Rc<Vec<Worker>>, usize)>,
}

impl Passed {
    fn end(&mut self) {
        if let Some((sender, workers, number)) = self.connection.take() {
            workers[number].idle.borrow_mut().push(sender);
        }
    }
}

impl Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *incoming).poll_frame(context));
        if incoming.is_end_stream() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}
