//! Answers on their way: streams, cuts, clients that leave, and the books that are kept meanwhile.

mod support;

use std::sync::{Arc, Mutex, mpsc};

use support::{FakeWorker, Front, STREAM_HEAD, Then, chat, ok, request, wait_until};

fn stream_request(text: &str) -> Vec<u8> {
    request("POST", "/v1/chat/completions", "", &chat(text))
}

/// A worker that streams what it is told, piece by piece.
fn told() -> (FakeWorker, mpsc::Sender<Option<&'static str>>) {
    let (say, said) = mpsc::channel::<Option<&'static str>>();
    let said = Mutex::new(said);
    let worker = FakeWorker::start();
    worker.behave(move |_, peer| {
        peer.send(STREAM_HEAD);
        let said = said.lock().expect("no test panics with this lock");
        while let Ok(Some(piece)) = said.recv() {
            peer.chunk(piece);
        }
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    (worker, say)
}

#[test]
fn events_pass_as_they_come_and_the_books_close_with_done() {
    let (worker, say) = told();
    let front = Front::start(&[&worker]);
    let mut client = front.client();
    client.send(stream_request(&"a prompt ".repeat(50)));
    say.send(Some(": keep-alive\n\n")).unwrap();
    assert_eq!(client.head().unwrap().status, 200);
    client.read_until(": keep-alive\n\n");
    let view = front.view(&worker);
    assert!(view.queued_tokens > 0, "a comment is no first token: {view:?}");
    say.send(Some("data: {\"choices\":[]}\n\n")).unwrap();
    client.read_until("data: {\"choices\":[]}\n\n");
    let view = front.view(&worker);
    assert_eq!((view.queued_tokens, view.in_flight), (0, 1), "{view:?}");
    let last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n";
    say.send(Some(last)).unwrap();
    say.send(Some("data: [DONE]\n\n")).unwrap();
    client.read_until("data: [DONE]\n\n");
    // Before the client has seen the end, so without a wait.
    assert_eq!(front.router.stats().in_flight, 0);
    let view = front.view(&worker);
    assert_eq!((view.reported_prompt_tokens, view.reported_cached_tokens), (90, 64));
    say.send(None).unwrap();
    assert_eq!(client.chunk(), Some(Vec::new()), "the stream ends as it should");
    assert_eq!(front.metric("trunkline_ttft_seconds_count"), 1.0);
    assert_eq!(front.metric("trunkline_client_disconnects_total"), 0.0);
    front.assert_nothing_in_flight();
}

#[test]
fn an_answer_in_one_piece_is_booked_before_its_last_byte() {
    let worker = FakeWorker::start();
    let body = r#"{"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}"#;
    worker.answer_with(ok(body));
    let front = Front::start(&[&worker]);
    for number in 1..=5 {
        assert_eq!(front.chat("x").text(), body);
        assert_eq!(front.router.stats().in_flight, 0);
        let view = front.view(&worker);
        assert_eq!((view.reported_prompt_tokens, view.reported_cached_tokens), (7 * number, 3 * number));
    }
}

#[test]
fn a_cut_stream_ends_with_an_error_event_and_without_done() {
    for (sent, wanted_before) in
        [("data: {\"a\":1}\n\n", "data: {\"a\":1}\n\ndata: "), ("data: {\"a\":", "data: {\"a\":\n\ndata: ")]
    {
        let worker = FakeWorker::start();
        worker.behave(move |_, peer| {
            peer.send(STREAM_HEAD);
            peer.chunk(sent);
            Then::Close
        });
        let front = Front::start(&[&worker]);
        let reply = front.ask(stream_request("x"));
        let text = reply.text();
        let error = text.strip_prefix(wanted_before).unwrap_or_else(|| panic!("{text:?}"));
        let error: serde_json::Value = serde_json::from_str(error.trim_end()).unwrap();
        assert!(error["error"]["message"].is_string());
        assert!(!text.contains("[DONE]"));
        assert!(!reply.is_whole, "the body must not end as if all were well");
        assert_eq!(front.metric("trunkline_cut_answers_total"), 1.0);
        assert_eq!(front.metric("trunkline_client_disconnects_total"), 0.0);
        front.assert_nothing_in_flight();
    }
}

#[test]
fn a_stream_of_a_promised_length_is_cut_without_words_of_ours() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: 1\n\n",
        );
        Then::Close
    });
    let front = Front::start(&[&worker]);
    let reply = front.ask(stream_request("x"));
    assert_eq!((reply.text().as_str(), reply.is_whole), ("data: 1\n\n", false));
    front.assert_nothing_in_flight();
}

#[test]
fn any_other_cut_answer_cuts_the_connection() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"half\":",
        );
        Then::Close
    });
    let front = Front::start(&[&worker]);
    let reply = front.chat("x");
    assert_eq!((reply.text().as_str(), reply.is_whole), ("{\"half\":", false));
    front.assert_nothing_in_flight();
}

#[test]
fn a_client_that_leaves_frees_its_worker() {
    let worker = FakeWorker::start();
    worker.behave(|seen, peer| {
        if seen.body.windows(9).any(|window| window == b"streaming") {
            peer.send(STREAM_HEAD);
            peer.chunk("data: {\"a\":1}\n\n");
        }
        peer.wait_for_leave()
    });
    let front = Front::start(&[&worker]);
    for (number, text) in ["waiting", "streaming"].into_iter().enumerate() {
        let mut client = front.client();
        client.send(stream_request(text));
        wait_until("the request arrives", || worker.seen().len() == number + 1);
        if text == "streaming" {
            client.head().unwrap();
            client.read_until("\n\n");
        }
        assert_eq!(front.router.stats().in_flight, 1);
        drop(client);
        wait_until("the worker sees that its client left", || worker.left() == number + 1);
        front.assert_nothing_in_flight();
        assert_eq!(front.metric("trunkline_client_disconnects_total"), (number + 1) as f64);
    }
    assert_eq!(front.metric("trunkline_requests_total{worker=\"\",path=\"chat\",code=\"499\"}"), 1.0);
}

#[test]
fn a_slow_reader_holds_its_worker_back() {
    let worker = FakeWorker::start();
    let sent = Arc::new(Mutex::new(0usize));
    let count = Arc::clone(&sent);
    worker.behave(move |_, peer| {
        peer.send(STREAM_HEAD);
        let piece = vec![b'x'; 16 << 10];
        // More than all buffers on the way may hold.
        for _ in 0..(64 << 20) / piece.len() {
            peer.chunk(&piece);
            *count.lock().unwrap() += piece.len();
        }
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let mut client = front.client();
    client.send(stream_request("x"));
    client.head().unwrap();
    // It stands still when the sockets' buffers are full, far from the end.
    let mut last = 0;
    wait_until("the worker is held back", || {
        let now = *sent.lock().unwrap();
        let stands = now > 0 && now == last;
        last = now;
        std::thread::sleep(std::time::Duration::from_millis(20));
        stands
    });
    assert!(last < 48 << 20, "{last} bytes were taken from the worker for a client that reads nothing");
    let mut read = 0;
    while let Some(chunk) = client.chunk() {
        if chunk.is_empty() {
            break;
        }
        read += chunk.len();
    }
    assert_eq!(read, 64 << 20, "and nothing is lost");
    front.assert_nothing_in_flight();
}
