//! What a client may not do: be too large, too slow, too many, or ambiguous about where a request ends.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use support::{DEADLINE, FakeWorker, Front, STREAM_HEAD, Then, chat, request, wait_until};
use trunkline_core::Policy;
use trunkline_gateway::GatewayConfig;

fn limited(worker: &FakeWorker, change: impl FnOnce(&mut GatewayConfig)) -> Front {
    Front::with(Policy::RoundRobin, &[worker], change)
}

/// All that comes back for these bytes until the gateway ends the connection, which it must.
fn exchange(front: &Front, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(front.gateway.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all);
    let text = String::from_utf8_lossy(&all).into_owned();
    // A reset after the answer is an end as well.
    let is_open = end.is_err_and(|error| error.kind() != ErrorKind::ConnectionReset);
    assert!(
        !is_open,
        "the connection goes on after {bytes:?}: {text}",
        bytes = String::from_utf8_lossy(bytes)
    );
    text
}

#[test]
fn large_heads_are_refused() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |config| {
        config.max_header_bytes = 8 << 10;
        config.max_headers = 10;
    });
    let long = format!("x-long: {}\r\n", "y".repeat(9 << 10));
    assert_eq!(front.ask(request("POST", "/v1/completions", &long, b"{}")).status, 431);
    let many: String = (0..9).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(front.ask(request("POST", "/v1/completions", &many, b"{}")).status, 431);
    let fitting: String = (0..8).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(front.ask(request("POST", "/v1/completions", &fitting, b"{}")).status, 200);
    assert_eq!(worker.seen().len(), 1);
}

#[test]
fn a_slow_head_is_cut_off_and_an_idle_connection_is_not() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |config| {
        config.header_timeout = Duration::from_millis(100);
        config.client_idle_timeout = Duration::from_secs(60);
    });
    let mut idle = front.client();
    idle.send(request("GET", "/version", "", b""));
    assert_eq!(idle.reply().unwrap().status, 200);
    for before in [b"".as_slice(), &request("GET", "/version", "", b"")] {
        let mut slow = TcpStream::connect(front.gateway.local_addr().unwrap()).unwrap();
        slow.set_read_timeout(Some(DEADLINE)).unwrap();
        slow.write_all(before).unwrap();
        if !before.is_empty() {
            assert!(slow.read(&mut [0; 4096]).unwrap() > 0);
        }
        let begun = Instant::now();
        let head =
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-slow: ".iter().chain([b'y'].iter().cycle());
        for byte in head {
            std::thread::sleep(Duration::from_millis(5));
            if slow.write_all(&[*byte]).is_err() {
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "a byte now and then keeps it open");
        }
        assert!(begun.elapsed() >= Duration::from_millis(95));
    }
    idle.send(request("GET", "/version", "", b""));
    assert_eq!(idle.reply().unwrap().status, 200, "it waited longer than a head may take");
}

#[test]
fn an_idle_connection_ends_in_its_time() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |config| config.client_idle_timeout = Duration::from_millis(100));
    let mut silent = front.client();
    let mut used = front.client();
    used.send(request("GET", "/version", "", b""));
    assert_eq!(used.reply().unwrap().status, 200);
    assert!(used.head().is_none());
    assert!(silent.head().is_none());
}

#[test]
fn a_slow_answer_is_no_idle_connection() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            peer.chunk("data: 1\n\n");
        }
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let front = limited(&worker, |config| {
        config.client_idle_timeout = Duration::from_millis(60);
        config.header_timeout = Duration::from_millis(60);
    });
    let reply = front.chat("x");
    assert!(reply.is_whole);
    assert_eq!(reply.text(), "data: 1\n\n".repeat(5));
}

#[test]
fn a_client_has_so_many_connections() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |config| config.max_connections_per_client = Some(2));
    let mut clients = [front.client(), front.client()];
    for client in &mut clients {
        client.send(request("GET", "/version", "", b""));
        assert_eq!(client.reply().unwrap().status, 200);
    }
    let mut third = TcpStream::connect(front.gateway.local_addr().unwrap()).unwrap();
    third.set_read_timeout(Some(DEADLINE)).unwrap();
    assert!(!matches!(third.read(&mut [0; 1]), Ok(1..)), "it is closed");
    assert_eq!(front.metric("trunkline_refused_connections_total"), 1.0);
    drop(clients);
    wait_until("its places are free again", || {
        let mut again = TcpStream::connect(front.gateway.local_addr().unwrap()).unwrap();
        again.set_read_timeout(Some(DEADLINE)).unwrap();
        again.write_all(&request("GET", "/version", "", b"")).is_ok()
            && again.read(&mut [0; 64]).is_ok_and(|read| read > 0)
    });
}

/// A request that would be a second one if the first ended where it seems to.
const HIDDEN: &str = "POST /hidden HTTP/1.1\r\nhost: c\r\ncontent-length: 4\r\n\r\nevil";

#[test]
fn ambiguous_requests_are_refused_and_nothing_behind_them_is_served() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |_| {});
    let post = "POST /v1/completions HTTP/1.1\r\n";
    let cases = [
        (
            "two lengths",
            format!("{post}host: c\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("a list of lengths", format!("{post}host: c\r\ncontent-length: 5, 6\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a signed length", format!("{post}host: c\r\ncontent-length: +5\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a length in hexadecimal", format!("{post}host: c\r\ncontent-length: 0x5\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a folded line", format!("{post}host: c\r\nx-a: b\r\n c: d\r\ncontent-length: 2\r\n\r\n{{}}")),
        (
            "a folded coding",
            format!("{post}host: c\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("a space before the colon", format!("{post}host: c\r\ncontent-length : 5\r\n\r\n0\r\n\r\n{HIDDEN}")),
        ("a space before a name", format!("{post} host: c\r\ncontent-length: 2\r\n\r\n{{}}")),
        (
            "an unknown coding",
            format!("{post}host: c\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "a coding before chunked",
            format!("{post}host: c\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "a coding after chunked",
            format!("{post}host: c\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n{HIDDEN}"),
        ),
        (
            "identity",
            format!(
                "{post}host: c\r\ntransfer-encoding: identity\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "two codings",
            format!(
                "{post}host: c\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "a coding in HTTP/1.0",
            format!(
                "POST /v1/completions HTTP/1.0\r\nhost: c\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "a chunk size that is none",
            format!("{post}host: c\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n{HIDDEN}"),
        ),
        ("a negative chunk", format!("{post}host: c\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n{HIDDEN}")),
        (
            "a huge chunk",
            format!("{post}host: c\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff1\r\n{HIDDEN}"),
        ),
        (
            "a chunk without its end",
            format!("{post}host: c\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}0\r\n\r\n{HIDDEN}"),
        ),
        (
            "a line feed alone in a chunk's extension",
            format!("{post}host: c\r\ntransfer-encoding: chunked\r\n\r\n2;\n{{}}\r\n0\r\n\r\n{HIDDEN}"),
        ),
        ("no host", format!("{post}content-length: 2\r\n\r\n{{}}")),
        ("two hosts", format!("{post}host: c\r\nhost: d\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("a null in a name", format!("{post}host: c\r\nx\0y: 1\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("a null in a value", format!("{post}host: c\r\nx: \0\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("HTTP/0.9", "GET /v1/models\r\n".into()),
        ("HTTP/3.0", "GET /version HTTP/3.0\r\nhost: c\r\n\r\n".into()),
        ("a preface cut short", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".into()),
    ];
    for (what, bytes) in cases {
        let answer = exchange(&front, bytes.as_bytes());
        let status = answer.split(' ').nth(1).unwrap_or_default();
        let is_refused = answer.is_empty() || ["400", "501", "505"].contains(&status);
        assert!(is_refused, "{what}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), usize::from(!answer.is_empty()), "{what}: {answer}");
    }
    assert!(
        worker.seen().is_empty(),
        "{:?}",
        worker.seen().iter().map(|seen| seen.line()).collect::<Vec<_>>()
    );
    assert_eq!(front.chat("x").status, 200);
}

#[test]
fn what_can_be_understood_in_one_way_is_put_right() {
    let worker = FakeWorker::start();
    let front = limited(&worker, |_| {});
    let cases = [
        // A list of equal lengths, and a chunked body beside a length: the framing is ours from here on.
        "POST /v1/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        // The target's authority counts, not the header; neither reaches the worker.
        "POST http://other.example/v1/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 2\r\n\r\n{}",
        // Line feeds alone end lines (RFC 9112, section 2.2); what we send has both.
        "POST /v1/completions HTTP/1.1\nhost: c\ncontent-length: 2\n\n{}",
        "POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nhost: c\r\nTransfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ];
    for (number, bytes) in cases.into_iter().enumerate() {
        assert_eq!(front.ask(bytes).status, 200, "{bytes:?}");
        let seen = worker.seen();
        assert_eq!(seen.len(), number + 1);
        let last = &seen[number];
        assert_eq!(
            (last.line().as_str(), last.body.as_slice()),
            ("POST /v1/completions HTTP/1.1", b"{}".as_slice())
        );
        let framing: Vec<_> = last
            .headers()
            .into_iter()
            .filter(|line| {
                ["host", "content-length", "transfer-encoding"].iter().any(|name| line.starts_with(name))
            })
            .collect();
        assert_eq!(framing.len(), 2, "{bytes:?}: {framing:?}");
        assert!(framing.contains(&format!("host: {}", worker.address)), "{framing:?}");
        assert!(framing.contains(&"content-length: 2".into()), "{framing:?}");
    }
}

#[test]
fn a_body_that_stands_behind_a_refusal_is_no_request() {
    let (worker, body) = (FakeWorker::start(), HIDDEN.as_bytes());
    let front = limited(&worker, |config| config.max_headers = 3);
    let refused = request("POST", "/v1/completions", "a: 1\r\nb: 2\r\n", body);
    let answer =
        exchange(&front, &[refused.as_slice(), &request("POST", "/v1/completions", "", &chat("x"))].concat());
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert!(!worker.seen().iter().any(|seen| seen.line().contains("hidden")));
}
