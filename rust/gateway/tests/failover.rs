//! Workers that fail before their answer has begun: the client must not notice, and no worker is asked twice.

mod support;

use std::time::Duration;

use support::{FakeWorker, Front, Peer, STREAM_HEAD, Seen, Then, answer, chat, ok, request, wait_until};
use trunkline_core::Policy;

/// Sends chats through a fleet of one that fails and one that does not; every client must be served.
fn survives(what: &str, behaviour: impl Fn(&Seen, &mut Peer) -> Then + Send + Sync + 'static) {
    let (victim, other) = (FakeWorker::start(), FakeWorker::start());
    victim.behave(behaviour);
    let front = Front::start(&[&victim, &other]);
    for number in 0..6 {
        let reply = front.chat(&format!("{what} {number}"));
        assert_eq!((reply.status, reply.is_whole), (200, true), "{what}: {reply:?}");
        assert_eq!(reply.header("x-trunkline-worker"), Some(other.url()), "{what}");
    }
    let mut bodies: Vec<_> = victim.seen().into_iter().map(|seen| seen.body).collect();
    assert!(!bodies.is_empty(), "{what}: the fault was never met");
    let met = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), met, "{what}: a request went twice to the worker that failed it");
    assert_eq!(other.seen().len(), 6, "{what}");
    front.assert_nothing_in_flight();
}

#[test]
fn server_errors() {
    for status in ["500 Internal Server Error", "502 Bad Gateway", "504 Gateway Timeout"] {
        survives(status, move |_, peer| {
            peer.send(answer(status, "application/json", r#"{"error":{"message":"x"}}"#));
            Then::Keep
        });
    }
}

#[test]
fn busy_answers() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        survives(status, move |_, peer| {
            peer.send(answer(status, "application/json", "{}"));
            Then::Keep
        });
    }
}

#[test]
fn connections_that_end_before_the_answer() {
    survives("closed after the request", |_, _| Then::Close);
    survives("closed within the head", |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-le");
        Then::Close
    });
    survives("closed between the head and the body", |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n");
        Then::Close
    });
    survives("closed between the head and the first event", |_, peer| {
        peer.send(STREAM_HEAD);
        Then::Close
    });
}

#[test]
fn answers_that_are_no_http() {
    survives("garbage", |_, peer| {
        peer.send("SSH-2.0-OpenSSH\r\n\r\n");
        Then::Close
    });
    survives("a malformed header", |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\nbad header\0: x\r\ncontent-length: 0\r\n\r\n");
        Then::Close
    });
    survives("two lengths", |_, peer| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx");
        Then::Close
    });
}

#[test]
fn a_stream_that_begins_with_an_error_event() {
    survives("an error as the first event", |_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk(
            "data: {\"error\": {\"message\": \"EngineCore encountered an issue\", \"code\": 500}}\n\n",
        );
        peer.chunk("data: [DONE]\n\n");
        peer.send("0\r\n\r\n");
        Then::Keep
    });
}

#[test]
fn refused_connections() {
    let (victim, other) = (FakeWorker::start(), FakeWorker::start());
    victim.kill();
    let front = Front::start(&[&victim, &other]);
    for number in 0..6 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    wait_until("the dead worker leaves the rotation", || !front.is_healthy(&victim));
    front.assert_nothing_in_flight();
}

#[test]
fn a_worker_that_does_not_begin_in_time_when_a_limit_is_set() {
    let (victim, other) = (FakeWorker::start(), FakeWorker::start());
    victim.behave(|_, peer| peer.wait_for_leave());
    let limit = Some(Duration::from_millis(100));
    let front =
        Front::with(Policy::RoundRobin, &[&victim, &other], |config| config.first_byte_timeout = limit);
    for number in 0..2 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    wait_until("the slow worker's connection is closed", || victim.left() == victim.seen().len());
    let alone = Front::with(Policy::RoundRobin, &[&victim], |config| config.first_byte_timeout = limit);
    let reply = alone.chat("x");
    assert_eq!(reply.status, 504);
    assert!(reply.json()["error"]["message"].is_string());
    alone.assert_nothing_in_flight();
}

#[test]
fn what_waits_on_a_worker_that_is_gone_for_good_goes_elsewhere() {
    let (victim, other) = (FakeWorker::start(), FakeWorker::start());
    // Its engine has died: the socket stays open without a byte while nobody listens any more.
    victim.behave(|_, _| Then::Keep);
    let front = Front::start(&[&victim, &other]);
    let mut clients: Vec<_> = (0..2).map(|_| front.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(request("POST", "/v1/chat/completions", "", &chat(&number.to_string())));
    }
    wait_until("one request is stuck", || victim.seen().len() == 1);
    victim.stop_listening();
    for client in &mut clients {
        assert_eq!(client.reply().unwrap().status, 200);
    }
    front.assert_nothing_in_flight();
}

#[test]
fn other_client_errors_are_passed_on_after_one_attempt() {
    for status in ["400 Bad Request", "401 Unauthorized", "404 Not Found", "422 Unprocessable Entity"] {
        let (one, two) = (FakeWorker::start(), FakeWorker::start());
        let body = r#"{"error":{"message":"yours"},"odd":1.0}"#;
        for worker in [&one, &two] {
            worker.answer_with(answer(status, "application/json", body));
        }
        let front = Front::start(&[&one, &two]);
        for _ in 0..12 {
            let reply = front.chat("x");
            assert_eq!(reply.status.to_string(), status[..3]);
            assert_eq!(reply.text(), body);
        }
        assert_eq!(one.seen().len() + two.seen().len(), 12, "{status}");
        assert!(front.is_healthy(&one) && front.is_healthy(&two));
    }
}

#[test]
fn at_most_two_further_workers_are_asked_after_faults() {
    let workers: Vec<_> = (0..5).map(|_| FakeWorker::start()).collect();
    for worker in &workers {
        worker.answer_with(answer("500 Internal Server Error", "application/json", r#"{"mine":true}"#));
    }
    let front = Front::start(&workers.iter().collect::<Vec<_>>());
    let reply = front.chat("x");
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (500, r#"{"mine":true}"#),
        "the worker's own answer is passed on"
    );
    assert_eq!(workers.iter().map(|worker| worker.seen().len()).sum::<usize>(), 3);
    assert_eq!(front.metric("trunkline_retries_total{cause=\"error\"}"), 2.0);
    front.assert_nothing_in_flight();
}

#[test]
fn posts_that_may_change_something_are_sent_once() {
    let load = request("POST", "/v1/load_lora_adapter", "", b"{}");
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    for worker in [&one, &two] {
        worker.behave(|_, _| Then::Close);
    }
    let front = Front::start(&[&one, &two]);
    let reply = front.ask(&load);
    assert_eq!(reply.status, 502);
    assert!(reply.json()["error"]["message"].is_string());
    assert_eq!(one.seen().len() + two.seen().len(), 1, "no worker may get it again");
    for worker in [&one, &two] {
        worker.answer_with(answer("500 Internal Server Error", "text/plain", "no"));
    }
    assert_eq!(front.ask(&load).text(), "no");
    assert_eq!(one.seen().len() + two.seen().len(), 2);
    // Nobody can have acted on what could not even connect.
    one.kill();
    two.answer_with(ok("{}"));
    for _ in 0..4 {
        assert_eq!(front.ask(&load).status, 200);
    }
    front.assert_nothing_in_flight();
}

#[test]
fn an_answer_that_nobody_asked_for_is_a_fault() {
    survives("101", |_, peer| {
        peer.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n");
        peer.wait_for_leave()
    });
}

#[test]
fn safe_methods_are_tried_elsewhere() {
    let (victim, other) = (FakeWorker::start(), FakeWorker::start());
    victim.behave(|_, _| Then::Close);
    other.answer_with(ok(r#"{"version":"1"}"#));
    let front = Front::start(&[&victim, &other]);
    for _ in 0..4 {
        assert_eq!(front.ask(request("GET", "/version", "", b"")).text(), r#"{"version":"1"}"#);
    }
    assert!(!victim.seen().is_empty());
}

#[test]
fn all_busy_is_passed_on_and_says_when_to_return() {
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    one.answer_with(answer("503 Service Unavailable", "application/json", "{}"));
    two.answer_with(answer("503 Service Unavailable", "application/json", "{}"));
    let front = Front::with(Policy::RoundRobin, &[&one, &two], |config| config.max_queued = 0);
    let reply = front.chat("x");
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1".into())));
    assert_eq!((one.seen().len(), two.seen().len()), (1, 1));
    let given = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
    one.answer_with(given.into());
    two.answer_with(given.into());
    let reply = front.chat("y");
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("7".into())));
    assert!(front.is_healthy(&one) && front.is_healthy(&two), "busy is not broken");
    front.assert_nothing_in_flight();
}

#[test]
fn a_busy_worker_is_left_alone_for_a_moment_only() {
    let (busy, other) = (FakeWorker::start(), FakeWorker::start());
    busy.answer_with(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".into(),
    );
    let front = Front::start(&[&busy, &other]);
    let mut asked = 0;
    while busy.seen().is_empty() {
        front.chat(&asked.to_string());
        asked += 1;
    }
    for number in 0..3 {
        assert_eq!(front.chat(&format!("more {number}")).status, 200);
    }
    assert_eq!(busy.seen().len(), 1, "it is left alone after its refusal");
    busy.answer_with(ok("{}"));
    wait_until("it is asked again", || {
        front.chat("again");
        busy.seen().len() > 1
    });
}

#[test]
fn nobody_left_is_an_openai_shaped_503() {
    let front = Front::start(&[]);
    let reply = front.chat("x");
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1".into())));
    assert_eq!(reply.json()["error"]["code"], 503);
}

#[test]
fn a_connection_that_dies_on_reuse_is_no_fault() {
    let worker = FakeWorker::start();
    // Serves one request per connection, then drops the next unanswered, as a close that crosses it.
    worker.behave(|seen, peer| {
        if seen.before > 0 {
            return Then::Close;
        }
        peer.send(ok("{}"));
        Then::Keep
    });
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.threads = 1);
    for number in 0..6 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    assert!(front.metric("trunkline_retries_total{cause=\"stale\"}") >= 3.0);
    assert!(front.is_healthy(&worker));
    front.assert_nothing_in_flight();
}

#[test]
fn connections_that_the_worker_closed_while_idle_are_replaced() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(ok("{}"));
        Then::Close
    });
    let front = Front::start(&[&worker]);
    for number in 0..20 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    front.assert_nothing_in_flight();
}
