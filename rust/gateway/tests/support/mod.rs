//! Fake workers, a client that hides nothing, and a gateway between them, all on loopback and port 0.
//!
//! Both ends are blocking sockets and raw bytes, so that they share nothing with what they test.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use trunkline_core::{Policy, Router, RouterConfig};
use trunkline_gateway::{Gateway, GatewayConfig};

/// Longest wait for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds; fails with `what` after [`DEADLINE`].
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A request as it arrived at a worker.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Request line and headers, as bytes, without the empty line.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// Requests that came before on the same connection.
    pub(crate) before: usize,
}

impl Seen {
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.head).lines().next().unwrap_or_default().to_owned()
    }

    /// Header lines as `name: value`, in order.
    pub(crate) fn headers(&self) -> Vec<String> {
        self.head
            .split(|&byte| byte == b'\n')
            .skip(1)
            .map(|line| line.trim_ascii().iter().map(|&b| b as char).collect())
            .collect()
    }
}

/// What a worker does with its connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Keep,
    Close,
}

type Behaviour = dyn Fn(&Seen, &mut Peer) -> Then + Send + Sync;

/// The gateway's end of a connection, as a worker's behaviour sees it.
pub(crate) struct Peer {
    stream: TcpStream,
    left: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
}

impl Peer {
    /// Sends bytes; what the peer no longer wants is dropped.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a chunk of a chunked body.
    pub(crate) fn chunk(&mut self, data: impl AsRef<[u8]>) {
        let data = data.as_ref();
        self.send([format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat());
    }

    /// Waits until the peer closes the connection, and counts that. Answers nothing.
    pub(crate) fn wait_for_leave(&mut self) -> Then {
        while self.open.load(Ordering::SeqCst) {
            match self.stream.read(&mut [0; 64]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    continue;
                }
                Err(_) => break,
            }
        }
        self.left.fetch_add(1, Ordering::SeqCst);
        Then::Close
    }
}

/// A worker in this process.
pub(crate) struct FakeWorker {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    seen: Mutex<Vec<Seen>>,
    behaviour: Mutex<Arc<Behaviour>>,
    /// Answers to GETs on our own account, by path; anything else is 404.
    pages: Mutex<Vec<(String, Vec<u8>)>>,
    connections: Mutex<Vec<TcpStream>>,
    left: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
    listening: AtomicBool,
}

/// A complete answer with this status line's rest, content type and body.
pub(crate) fn answer(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A good JSON answer.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", "application/json", body)
}

/// The head of a stream.
pub(crate) const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

impl FakeWorker {
    /// A healthy worker that answers every request well.
    ///
    /// Each has a loopback address of its own (Linux has 16 million), so that the port of one that was killed is not
    /// given to another one meanwhile.
    pub(crate) fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        let [process, high, low] =
            [std::process::id() as usize % 250, number / 250, number % 250].map(|part| part as u8 + 1);
        Self::at(SocketAddr::from(([127, process, high, low], 0)))
    }

    /// The same at a given address, waiting until it is free.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let start = Instant::now();
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) => assert!(start.elapsed() < DEADLINE, "cannot listen on {address}: {error}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            seen: Mutex::default(),
            behaviour: Mutex::new(Arc::new(|_: &Seen, peer: &mut Peer| {
                peer.send(ok(r#"{"object":"chat.completion","choices":[]}"#));
                Then::Keep
            })),
            pages: Mutex::new(vec![("/health".into(), ok(""))]),
            connections: Mutex::default(),
            left: Arc::default(),
            open: Arc::new(AtomicBool::new(true)),
            listening: AtomicBool::new(true),
        });
        let worker = Self { address, state: Arc::clone(&state) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !state.listening.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                state.connections.lock().unwrap().push(stream.try_clone().unwrap());
                let state = Arc::clone(&state);
                thread::spawn(move || state.converse(stream));
            }
        });
        worker
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets what it does with requests that are not its probes.
    pub(crate) fn behave(&self, behaviour: impl Fn(&Seen, &mut Peer) -> Then + Send + Sync + 'static) {
        *self.state.behaviour.lock().unwrap() = Arc::new(behaviour);
    }

    /// Answers every request with these bytes and keeps the connection.
    pub(crate) fn answer_with(&self, bytes: Vec<u8>) {
        self.behave(move |_, peer| {
            peer.send(&bytes);
            Then::Keep
        });
    }

    /// Sets the answer to a GET that the gateway sends on its own account.
    pub(crate) fn page(&self, path: &str, bytes: Vec<u8>) {
        let mut pages = self.state.pages.lock().unwrap();
        pages.retain(|(other, _)| other != path);
        pages.push((path.into(), bytes));
    }

    /// Lists these models.
    pub(crate) fn models(&self, ids: &[&str]) {
        let entries: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"id":"{id}","by":"{}"}}"#, self.address.port())).collect();
        self.page("/v1/models", ok(&format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))));
    }

    /// Requests that were not probes.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Peers that left while they were waited for.
    pub(crate) fn left(&self) -> usize {
        self.state.left.load(Ordering::SeqCst)
    }

    /// Closes the port; connections stay.
    pub(crate) fn stop_listening(&self) {
        self.state.listening.store(false, Ordering::SeqCst);
        // Each attempt that gets through wakes the listener, which ends.
        wait_until("the port is closed", || TcpStream::connect(self.address).is_err());
    }

    /// Closes everything at once, as a process that is killed.
    pub(crate) fn kill(&self) {
        self.stop_listening();
        self.state.open.store(false, Ordering::SeqCst);
        for connection in self.state.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    fn converse(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut peer = Peer { stream, left: Arc::clone(&self.left), open: Arc::clone(&self.open) };
        let mut before = 0;
        while let Some((head, body)) = read_message(&mut reader) {
            let seen = Seen { head, body, before };
            before += 1;
            let page = {
                let line = seen.line();
                let pages = self.pages.lock().unwrap();
                pages
                    .iter()
                    .find(|(path, _)| line == format!("GET {path} HTTP/1.1"))
                    .map(|(_, bytes)| bytes.clone())
            };
            let is_probe = seen.headers().iter().any(|line| line == "connection: close");
            let then = match page {
                Some(bytes) if !bytes.is_empty() => {
                    peer.send(bytes);
                    Then::Keep
                }
                // An empty page hangs.
                Some(_) => peer.wait_for_leave(),
                None if is_probe => {
                    peer.send(answer("404 Not Found", "application/json", "{}"));
                    Then::Keep
                }
                None => {
                    self.seen.lock().unwrap().push(seen.clone());
                    let behaviour = Arc::clone(&self.behaviour.lock().unwrap());
                    behaviour(&seen, &mut peer)
                }
            };
            if then == Then::Close || is_probe {
                break;
            }
        }
        let _ = peer.stream.shutdown(Shutdown::Both);
    }
}

/// A head and a body framed by Content-Length; `None` at the end of the connection.
fn read_message(reader: &mut BufReader<TcpStream>) -> Option<(Vec<u8>, Vec<u8>)> {
    let head = read_head(reader)?;
    let length = header(&head, "content-length").map_or(0, |value| value.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn read_head(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        reader.read_until(b'\n', &mut head).ok().filter(|&read| read > 0)?;
        if &head[before..] == b"\r\n" {
            head.truncate(before.saturating_sub(2));
            return Some(head);
        }
    }
}

fn header(head: &[u8], name: &str) -> Option<String> {
    let text: String = head.iter().map(|&byte| byte as char).collect();
    let mut lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
}

/// An answer as the client got it.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as its framing promised.
    pub(crate) is_whole: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header(self.head.as_bytes(), name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// A client's connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// The head of the next answer; `None` if the connection ended.
    pub(crate) fn head(&mut self) -> Option<Reply> {
        let head: String = read_head(&mut self.reader)?.iter().map(|&byte| byte as char).collect();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Some(Reply { status, head, body: Vec::new(), is_whole: false })
    }

    /// One chunk of a chunked body; empty at its end, `None` if it was cut.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|&read| read > 0)?;
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut data = vec![0; size + 2];
        self.reader.read_exact(&mut data).ok()?;
        data.truncate(size);
        Some(data)
    }

    /// Reads a stream until what it sent ends with `end`; returns it.
    pub(crate) fn read_until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            text += &String::from_utf8(self.chunk().unwrap_or_else(|| panic!("cut after {text:?}"))).unwrap();
        }
        text
    }

    /// The next answer with its body.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let mut reply = self.head()?;
        if reply.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk() {
                reply.is_whole = chunk.is_empty();
                if reply.is_whole {
                    break;
                }
                reply.body.extend(chunk);
            }
        } else {
            let length: u64 = reply.header("content-length").map_or(0, |value| value.parse().unwrap());
            let read = (&mut self.reader).take(length).read_to_end(&mut reply.body);
            reply.is_whole = read.is_ok_and(|read| read as u64 == length);
        }
        Some(reply)
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: client\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A chat body with this text.
pub(crate) fn chat(text: &str) -> Vec<u8> {
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": text}]})
        .to_string()
        .into_bytes()
}

/// A gateway under test with its router.
pub(crate) struct Front {
    pub(crate) gateway: Gateway,
    pub(crate) router: Arc<Router>,
}

impl Front {
    /// Round robin, so that every worker gets its turn; probes every 50 ms.
    pub(crate) fn start(workers: &[&FakeWorker]) -> Self {
        Self::with(Policy::RoundRobin, workers, |_| {})
    }

    pub(crate) fn with(
        policy: Policy,
        workers: &[&FakeWorker],
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = GatewayConfig {
            listen: any.into(),
            admin_listen: Some(any),
            threads: 2,
            probe_interval: Duration::from_millis(50),
            ..GatewayConfig::default()
        };
        change(&mut config);
        let router = Arc::new(Router::new(RouterConfig { policy, ..RouterConfig::default() }).unwrap());
        let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
        Self { gateway: Gateway::start(config, Arc::clone(&router), &urls).unwrap(), router }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.gateway.local_addr().unwrap())
    }

    /// Sends one request on a new connection.
    pub(crate) fn ask(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut client = self.client();
        client.send(bytes);
        client.reply().expect("no answer")
    }

    pub(crate) fn chat(&self, text: &str) -> Reply {
        self.ask(request("POST", "/v1/chat/completions", "", &chat(text)))
    }

    pub(crate) fn admin(&self, method: &str, target: &str, body: &str) -> Reply {
        let mut client = Client::connect(self.gateway.admin_addr().unwrap());
        client.send(request(method, target, "connection: close\r\n", body.as_bytes()));
        client.reply().expect("no answer")
    }

    /// The value of one series; 0 if it is not there.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let page = self.admin("GET", "/metrics", "").text();
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Whether the router holds this worker to be healthy.
    pub(crate) fn is_healthy(&self, worker: &FakeWorker) -> bool {
        self.view(worker).healthy
    }

    pub(crate) fn view(&self, worker: &FakeWorker) -> trunkline_core::WorkerView {
        self.router.workers().into_iter().find(|view| view.name == worker.url()).unwrap()
    }

    /// Every booking was closed, once.
    #[track_caller]
    pub(crate) fn assert_nothing_in_flight(&self) {
        wait_until("nothing in flight", || self.router.stats().in_flight == 0);
        for view in self.router.workers() {
            assert_eq!((view.in_flight, view.queued_tokens), (0, 0), "{view:?}");
            // A worker's place is given back a moment after the booking is closed.
            let gauge = format!("trunkline_in_flight{{worker=\"{}\"}}", view.name);
            wait_until("no place is taken", || self.metric(&gauge) == 0.0);
        }
    }
}
