//! HTTP/2 on both sides: in front by prior knowledge, and to workers. The client is the `h2` crate, frame by frame.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Response};
use support::{DEADLINE, FakeWorker, Front, STREAM_HEAD, Then, chat, ok, wait_until};
use tokio::runtime::Runtime;
use trunkline_core::Policy;
use trunkline_gateway::{GatewayConfig, WorkerProtocol};

/// A client's HTTP/2 connection.
struct Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    /// Becomes true when the connection has ended.
    ended: Arc<Mutex<Option<Result<(), h2::Error>>>>,
}

impl Client {
    fn connect(front: &Front) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ended = Arc::new(Mutex::new(None));
        let sender = runtime.block_on(async {
            let socket = tokio::net::TcpStream::connect(front.gateway.local_addr().unwrap()).await.unwrap();
            // Room for other streams beside one that is not read.
            let mut client = h2::client::Builder::new();
            client.initial_connection_window_size(1 << 20);
            let (sender, connection) = client.handshake(socket).await.unwrap();
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                let end = connection.await;
                *ended.lock().unwrap() = Some(end);
            });
            sender
        });
        Self { runtime, sender, ended }
    }

    /// Begins a POST of a chat.
    fn begin(&mut self, text: &str) -> ResponseFuture {
        let request = Request::post("http://client.example/v1/chat/completions").body(()).unwrap();
        self.send(request, chat(text))
    }

    fn send(&mut self, request: Request<()>, body: Vec<u8>) -> ResponseFuture {
        let sender = &mut self.sender;
        let ready = std::future::poll_fn(|context| sender.poll_ready(context));
        self.runtime.block_on(ready).unwrap();
        let (answer, mut stream) = self.sender.send_request(request, false).unwrap();
        stream.send_data(body.into(), true).unwrap();
        answer
    }

    fn head(&self, answer: ResponseFuture) -> Result<Response<h2::RecvStream>, h2::Error> {
        self.runtime.block_on(async { tokio::time::timeout(DEADLINE, answer).await.expect("no head") })
    }

    /// The rest of a body, its trailers, and how it ended.
    fn rest(&self, mut body: h2::RecvStream) -> (Vec<u8>, Option<HeaderMap>, Result<(), h2::Error>) {
        let read = async {
            let mut bytes = Vec::new();
            while let Some(data) = body.data().await {
                match data {
                    Ok(data) => {
                        body.flow_control().release_capacity(data.len()).unwrap();
                        bytes.extend_from_slice(&data);
                    }
                    Err(error) => return (bytes, None, Err(error)),
                }
            }
            match body.trailers().await {
                Ok(trailers) => (bytes, trailers, Ok(())),
                Err(error) => (bytes, None, Err(error)),
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(DEADLINE, read).await.expect("no end") })
    }

    /// One chat and its whole answer.
    fn chat(&mut self, text: &str) -> (u16, String) {
        let answer = self.begin(text);
        let (parts, body) = self.head(answer).unwrap().into_parts();
        let (bytes, _, end) = self.rest(body);
        end.unwrap();
        (parts.status.as_u16(), String::from_utf8(bytes).unwrap())
    }

    fn has_ended(&self) -> bool {
        self.ended.lock().unwrap().is_some()
    }
}

/// A worker whose streams go on when they are told, each a `data:` event, and end with `None`.
fn told() -> (FakeWorker, mpsc::Sender<Option<&'static str>>) {
    let worker = FakeWorker::start();
    let (say, said) = mpsc::channel();
    let said = Mutex::new(said);
    worker.behave(move |_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        while let Ok(Some(event)) = said.lock().unwrap().recv() {
            peer.chunk(event);
        }
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    (worker, say)
}

#[test]
fn a_request_by_prior_knowledge_reaches_the_worker_as_http1() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::KvAware, &[&worker], |_| {});
    let mut client = Client::connect(&front);
    let request = Request::post("http://client.example/v1/chat/completions?a=%20b")
        .header("cookie", "a=1")
        .header("x-repeated", "one")
        .header("cookie", "b=2")
        .header("x-repeated", "two")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let answer = client.send(request, chat("x"));
    let answer = client.head(answer).unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-trunkline-worker"], worker.url());
    assert!(client.rest(answer.into_body()).0.starts_with(b"{\"object\""));
    let seen = worker.seen().pop().unwrap();
    assert_eq!(seen.line(), "POST /v1/chat/completions?a=%20b HTTP/1.1");
    assert_eq!(seen.body, chat("x"));
    let mut lines = seen.headers();
    lines.sort();
    let length = format!("content-length: {}", seen.body.len());
    let host = format!("host: {}", worker.address);
    assert_eq!(
        lines,
        [length.as_str(), "cookie: a=1; b=2", host.as_str(), "x-repeated: one", "x-repeated: two"]
    );
    front.assert_nothing_in_flight();
}

#[test]
fn requests_of_one_connection_run_side_by_side() {
    let worker = FakeWorker::start();
    let waiting = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waiting);
    worker.behave(move |seen, peer| {
        count.fetch_add(1, Ordering::SeqCst);
        wait_until("all are here", || count.load(Ordering::SeqCst) >= 20);
        peer.send(ok(&String::from_utf8_lossy(&seen.body)));
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let answers: Vec<_> = (0..20).map(|number| client.begin(&format!("number {number}"))).collect();
    for (number, answer) in answers.into_iter().enumerate() {
        let (body, _, end) = client.rest(client.head(answer).unwrap().into_body());
        end.unwrap();
        assert_eq!(body, chat(&format!("number {number}")));
    }
    front.assert_nothing_in_flight();
}

#[test]
fn streams_per_connection_are_limited() {
    let (worker, say) = told();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.max_streams = 1);
    let mut client = Client::connect(&front);
    let first = client.begin("x");
    let first = client.head(first).unwrap();
    wait_until("the limit was told", || client.sender.current_max_send_streams() == 1);
    let second = Request::post("http://c/v1/chat/completions").body(()).unwrap();
    // h2 keeps it back until the first has ended.
    let (second, _) = client.sender.send_request(second, true).unwrap();
    assert_eq!(worker.seen().len(), 1);
    say.send(None).unwrap();
    assert!(client.rest(first.into_body()).2.is_ok());
    say.send(None).unwrap();
    assert!(client.head(second).is_ok());
}

#[test]
fn a_reset_stream_frees_its_worker_and_no_other_stream() {
    let (worker, say) = told();
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let other = client.begin("x");
    let other = client.head(other).unwrap();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        peer.wait_for_leave()
    });
    for before_head in [false, true] {
        let left = worker.left();
        if before_head {
            worker.behave(|_, peer| peer.wait_for_leave());
        }
        let seen = worker.seen().len();
        let answer = client.begin("y");
        wait_until("it runs", || worker.seen().len() == seen + 1);
        if before_head {
            drop(answer);
        } else {
            drop(client.head(answer).unwrap());
        }
        let reset_at = std::time::Instant::now();
        wait_until("the worker sees that nobody waits", || worker.left() == left + 1);
        assert!(reset_at.elapsed() < Duration::from_secs(1), "{:?}", reset_at.elapsed());
        wait_until("its booking is closed", || front.view(&worker).in_flight == 1);
    }
    say.send(Some("data: 2\n\n")).unwrap();
    say.send(None).unwrap();
    let (body, _, end) = client.rest(other.into_body());
    end.unwrap();
    assert_eq!(body, b"data: 1\n\ndata: 2\n\n");
    front.assert_nothing_in_flight();
}

#[test]
fn a_client_that_leaves_frees_all_its_workers() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        peer.wait_for_leave()
    });
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let answers: Vec<_> = (0..3).map(|_| client.begin("x")).collect();
    let heads: Vec<_> = answers.into_iter().map(|answer| client.head(answer).unwrap()).collect();
    assert_eq!(front.view(&worker).in_flight, 3);
    drop((heads, client));
    wait_until("all are free", || worker.left() == 3);
    front.assert_nothing_in_flight();
}

#[test]
fn a_stream_that_is_not_read_holds_its_worker_back_and_no_other_stream() {
    let worker = FakeWorker::start();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    worker.behave(move |seen, peer| {
        if seen.body != chat("slow") {
            peer.send(ok("{}"));
            return Then::Keep;
        }
        peer.send(STREAM_HEAD);
        let piece = vec![b'x'; 16 << 10];
        for _ in 0..(64 << 20) / piece.len() {
            peer.chunk(&piece);
            count.fetch_add(piece.len(), Ordering::SeqCst);
        }
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let slow = client.begin("slow");
    let slow = client.head(slow).unwrap();
    let mut last = 0;
    wait_until("the worker is held back", || {
        let now = sent.load(Ordering::SeqCst);
        let stands = now > 0 && now == last;
        last = now;
        std::thread::sleep(Duration::from_millis(20));
        stands
    });
    assert!(last < 16 << 20, "{last} bytes were taken from the worker for a stream that nobody reads");
    assert_eq!(client.chat("quick").0, 200);
    let (body, _, end) = client.rest(slow.into_body());
    end.unwrap();
    assert_eq!(body.len(), 64 << 20, "and nothing is lost");
    front.assert_nothing_in_flight();
}

#[test]
fn trailers_of_an_answer_pass() {
    let worker = FakeWorker::start();
    worker.answer_with(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\n{}\r\n0\r\nx-sum: 7\r\n\r\n"
            .to_vec(),
    );
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let answer = client.begin("x");
    let (body, trailers, end) = client.rest(client.head(answer).unwrap().into_body());
    end.unwrap();
    assert_eq!((body.as_slice(), &trailers.unwrap()["x-sum"]), (b"{}".as_slice(), &"7".parse().unwrap()));
    front.assert_nothing_in_flight();
}

#[test]
fn a_cut_answer_is_told_and_its_stream_reset() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        Then::Close
    });
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let answer = client.begin("x");
    let (body, _, end) = client.rest(client.head(answer).unwrap().into_body());
    let text = String::from_utf8(body).unwrap();
    assert!(end.is_err(), "an end that looks good would hide the cut");
    assert!(text.starts_with("data: 1\n\ndata: {\"error\""), "{text}");
    worker.answer_with(ok("{}"));
    assert_eq!(client.chat("y").0, 200, "the connection goes on");
    front.assert_nothing_in_flight();
}

#[test]
fn refusals_and_limits_are_those_of_http1() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| {
        config.max_body_bytes = 2_000;
        config.max_headers = 20;
        config.max_header_bytes = 8 << 10;
    });
    let mut client = Client::connect(&front);
    let large = Request::post("http://c/v1/chat/completions").body(()).unwrap();
    let answer = client.send(large, vec![b'x'; 2_001]);
    assert_eq!(client.head(answer).unwrap().status(), 413);
    let mut many = Request::post("http://c/v1/chat/completions");
    for number in 0..21 {
        many = many.header(format!("x-{number}"), "1");
    }
    let answer = client.send(many.body(()).unwrap(), chat("x"));
    assert_eq!(client.head(answer).unwrap().status(), 431);
    let long = Request::post("http://c/v1/chat/completions").header("x-long", "y".repeat(10 << 10));
    let answer = client.send(long.body(()).unwrap(), chat("x"));
    assert_eq!(client.head(answer).unwrap().status(), 431);
    assert_eq!(client.chat("x").0, 200);
    assert_eq!(worker.seen().len(), 1);
}

#[test]
fn a_drain_finishes_streams_and_ends_the_connection() {
    let (worker, say) = told();
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let idle = Client::connect(&front);
    let answer = client.begin("x");
    let answer = client.head(answer).unwrap();
    front.gateway.drain();
    wait_until("the idle connection ends", || idle.has_ended());
    assert!(!front.gateway.wait_drained(Duration::from_millis(50)), "a stream is running");
    say.send(None).unwrap();
    assert_eq!(client.rest(answer.into_body()).0, b"data: 1\n\n");
    assert!(front.gateway.wait_drained(DEADLINE));
    assert!(
        client.has_ended() || {
            wait_until("it ends", || client.has_ended());
            true
        }
    );
}

#[test]
fn a_drain_does_not_wait_for_a_silent_client() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let mut silent = std::net::TcpStream::connect(front.gateway.local_addr().unwrap()).unwrap();
    silent.set_read_timeout(Some(DEADLINE)).unwrap();
    // The preface and empty settings; then it acknowledges nothing.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    assert!(silent.read(&mut [0; 9]).unwrap() > 0, "the gateway's settings");
    front.gateway.drain();
    assert!(front.gateway.wait_drained(DEADLINE));
}

#[test]
fn a_drain_does_not_wait_for_a_half_sent_request() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let mut client = Client::connect(&front);
    let request = Request::post("http://client.example/v1/chat/completions").body(()).unwrap();
    let half_sent = client.sender.send_request(request, false).unwrap();
    // What comes later on the same connection was answered, so the head before it was read.
    assert_eq!(client.chat("x").0, 200);
    front.gateway.drain();
    assert!(front.gateway.wait_drained(DEADLINE));
    drop(half_sent);
    assert_eq!(worker.seen().len(), 1);
}

#[test]
fn an_idle_connection_ends_and_a_busy_one_does_not() {
    let (worker, say) = told();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| {
        config.client_idle_timeout = Duration::from_millis(40)
    });
    let mut busy = Client::connect(&front);
    let idle = Client::connect(&front);
    let answer = busy.begin("x");
    let answer = busy.head(answer).unwrap();
    wait_until("the idle connection ends", || idle.has_ended());
    assert!(!busy.has_ended());
    say.send(None).unwrap();
    assert!(busy.rest(answer.into_body()).2.is_ok());
    wait_until("it is idle now", || busy.has_ended());
}

/// Two gateways: the first speaks HTTP/2 to the second, which speaks HTTP/1.1 to the worker.
///
/// Questions of the first gateway reach the worker as any request does; these pages keep them apart.
fn chained(worker: &FakeWorker) -> (Front, Front) {
    worker.models(&["m"]);
    worker.page("/metrics", ok(""));
    let inner = Front::start(&[worker]);
    let outer = Front::with(Policy::RoundRobin, &[], |config: &mut GatewayConfig| {
        config.worker_protocol = WorkerProtocol::H2;
    });
    outer.gateway.add_worker(&format!("http://{}/", inner.gateway.local_addr().unwrap())).unwrap();
    (outer, inner)
}

#[test]
fn workers_are_spoken_to_in_http2_on_few_connections() {
    let worker = FakeWorker::start();
    let (outer, inner) = chained(&worker);
    std::thread::scope(|scope| {
        for number in 0..20 {
            let outer = &outer;
            scope.spawn(move || assert_eq!(outer.chat(&format!("number {number}")).status, 200));
        }
    });
    let posts = worker.seen();
    assert_eq!(posts.len(), 20);
    let host = format!("host: {}", worker.address);
    assert!(posts.iter().all(|seen| seen.headers().contains(&host)));
    wait_until("probes are good", || outer.admin("GET", "/readyz", "").status == 200);
    let reply = outer.chat("x");
    assert!(reply.head.starts_with("HTTP/1.1 200"), "{}", reply.head);
    outer.assert_nothing_in_flight();
    inner.assert_nothing_in_flight();
}

#[test]
fn a_cancel_passes_through_http2_workers() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| peer.wait_for_leave());
    let (outer, inner) = chained(&worker);
    let mut client = outer.client();
    client.send(support::request("POST", "/v1/chat/completions", "", &chat("x")));
    wait_until("it runs", || worker.seen().len() == 1);
    drop(client);
    wait_until("the worker sees that nobody waits", || worker.left() == 1);
    outer.assert_nothing_in_flight();
    inner.assert_nothing_in_flight();
}

#[test]
fn an_http2_worker_that_ends_is_replaced() {
    let worker = FakeWorker::start();
    let (outer, inner) = chained(&worker);
    assert_eq!(outer.chat("x").status, 200);
    let address = inner.gateway.local_addr().unwrap();
    drop(inner);
    let spare = FakeWorker::start();
    let again = Front::with(Policy::RoundRobin, &[&spare], |config| config.listen = address.into());
    wait_until("it is back", || outer.chat("y").status == 200);
    assert!(!spare.seen().is_empty());
    again.assert_nothing_in_flight();
}
