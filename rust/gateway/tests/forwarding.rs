//! What reaches the worker and what comes back: the same bytes, and nothing that belongs to one connection only.

mod support;

use support::{FakeWorker, Front, Then, answer, chat, ok, request};
use trunkline_core::Policy;

#[test]
fn bodies_arrive_byte_for_byte() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::KvAware, &[&worker], |_| {});
    let bodies: [&[u8]; 12] = [
        br#"{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":0.30000000000000004,"x":1.0,"y":1E-7}"#,
        br#"{"model":"m","messages":[{"role":"user","content":"x"}],"seed":18446744073709551615,"z":123456789012345678901234567890}"#,
        br#"{"user":"a","user":"b","messages":[{"role":"user","content":"x","content":"y"}],"stop":null}"#,
        b"{ \"z\" : 1 ,\r\n\t\"messages\":[ {\"content\":\"x\" , \"role\":\"user\"} ],\"a\":2}\n",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 \\ud83d\\ude00 \\/ \xf0\x9f\x98\x80\"}]}",
        br#"{"messages":[{"role":"user","content":"\ud800"}]}"#,
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
        br#"{"messages":7,"model":null}"#,
        b"hello",
        b"[1,2",
        b"",
        b"\0\x01\xff",
    ];
    for body in bodies {
        let reply = front.ask(request("POST", "/v1/chat/completions", "", body));
        assert_eq!(reply.status, 200, "it is not ours to refuse");
        assert_eq!(worker.seen().last().unwrap().body, body, "{}", String::from_utf8_lossy(body));
    }
    let large = vec![b'x'; 5 << 20];
    front.ask(request("POST", "/v1/chat/completions", "", &large));
    assert_eq!(worker.seen().last().unwrap().body, large);
    assert_eq!(worker.seen().len(), bodies.len() + 1);
}

#[test]
fn requests_keep_target_and_headers() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let sent = b"POST /v1/completions?a=%20b&c HTTP/1.1\r\nhost: client\r\nx-repeated: one\r\nx-latin: caf\xe9\r\nkeep-alive: 5\r\n\
        connection: keep-alive, x-secret\r\nx-secret: 1\r\nx-repeated: two\r\nte: trailers\r\nx-empty:\r\ncookie: a=b; c=d\r\n\
        authorization: Bearer sk\r\nupgrade: websocket\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"x\"}";
    let mut client = front.client();
    client.send(sent);
    let mut reply = client.reply().unwrap();
    while reply.status == 100 {
        reply = client.reply().unwrap();
    }
    assert_eq!(reply.status, 200);
    let seen = worker.seen().pop().unwrap();
    assert_eq!(seen.line(), "POST /v1/completions?a=%20b&c HTTP/1.1");
    assert_eq!(
        seen.headers(),
        [
            format!("host: {}", worker.address),
            "x-repeated: one".into(),
            "x-repeated: two".into(),
            "x-latin: caf\u{e9}".into(),
            "x-empty:".into(),
            "cookie: a=b; c=d".into(),
            "authorization: Bearer sk".into(),
            "content-length: 14".into(),
        ]
    );
}

#[test]
fn a_chunked_body_is_sent_on_with_its_length() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let reply = front.ask(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\n{\"mes\r\n9\r\nsages\":7}\r\n0\r\n\r\n",
    );
    assert_eq!(reply.status, 200);
    let seen = worker.seen().pop().unwrap();
    assert_eq!(seen.body, b"{\"messages\":7}");
    assert!(seen.headers().contains(&"content-length: 14".into()), "{:?}", seen.headers());
    assert!(!seen.headers().iter().any(|line| line.starts_with("transfer-encoding")));
}

#[test]
fn answers_keep_status_headers_and_body() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let body = "{ \"id\":\"x\",\"b\":1,\"a\":0.30000000000000004,\"c\":\"\\u00e9\\/\"}\n";
    let head = "HTTP/1.1 200 Fine Thanks\r\nx-custom: yes; a=\"b\"\r\nset-cookie: a=1; Path=/\r\nset-cookie: b=2\r\nx-latin: caf";
    let bytes = [
        head.as_bytes(),
        b"\xe9\r\nconnection: x-hop\r\nx-hop: 1\r\ncontent-length: ",
        body.len().to_string().as_bytes(),
        b"\r\n\r\n",
        body.as_bytes(),
    ]
    .concat();
    worker.answer_with(bytes);
    let reply = front.chat("x");
    assert_eq!(reply.text(), body);
    let lines: Vec<&str> = reply.head.lines().collect();
    assert_eq!(lines[0], "HTTP/1.1 200 Fine Thanks");
    for wanted in
        ["x-custom: yes; a=\"b\"", "set-cookie: a=1; Path=/", "set-cookie: b=2", "x-latin: caf\u{e9}"]
    {
        assert!(lines.contains(&wanted), "{wanted} not in {lines:?}");
    }
    assert!(!reply.head.contains("x-hop"), "{}", reply.head);
    worker.answer_with("HTTP/1.1 204 No Content\r\n\r\n".into());
    assert_eq!(front.chat("y").status, 204);
    worker.answer_with(answer("418 I'm a teapot", "text/plain", "short"));
    assert_eq!(front.chat("z").text(), "short");
}

#[test]
fn answers_say_who_and_why_unless_told_not_to() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::KvAware, &[&worker], |_| {});
    let text = "a prompt of some length ".repeat(50);
    front.chat(&text);
    let reply = front.chat(&text);
    assert_eq!(reply.header("x-trunkline-worker"), Some(worker.url()));
    let decision = reply.header("x-trunkline-decision").unwrap();
    let (reason, tokens) = decision.split_once(';').unwrap();
    let (matched, total) = tokens.split_once('/').unwrap();
    assert_eq!(reason, "only");
    assert!(matched.parse::<u32>().unwrap() > 200 && total.parse::<u32>().unwrap() > 300, "{decision}");
    let reply = front.ask(request("GET", "/version", "", b""));
    assert!(reply.header("x-trunkline-decision").unwrap().starts_with("no_prompt;"));

    let silent = Front::with(Policy::KvAware, &[&worker], |config| config.annotate = false);
    let reply = silent.chat("x");
    assert!(!reply.head.contains("x-trunkline"), "{}", reply.head);
}

#[test]
fn a_path_spelled_in_another_way_means_the_same_and_is_forwarded_as_it_came() {
    let worker = FakeWorker::start();
    worker.answer_with(ok("{}"));
    let front = Front::start(&[&worker]);
    for _ in 0..2 {
        let reply =
            front.ask(request("POST", "/v1/%63hat/completions", "", &chat(&"a long prompt ".repeat(20))));
        assert_eq!(reply.status, 200);
    }
    assert!(worker.seen().iter().all(|seen| seen.line() == "POST /v1/%63hat/completions HTTP/1.1"));
    let blocks = front.router.stats().index_blocks;
    assert!(blocks > 0, "its prompt was read");
}

#[test]
fn other_methods_and_paths_are_forwarded_and_counted() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let cases = [
        ("GET", "/version", b"".as_slice()),
        ("DELETE", "/v1/files/a", b""),
        ("PUT", "/odd/../path?x", b"body"),
        ("OPTIONS", "*", b""),
        ("POST", "/tokenize", br#"{"prompt":"x"}"#),
        ("BREW", "/pot", b""),
    ];
    for (method, target, body) in cases {
        assert_eq!(front.ask(request(method, target, "", body)).status, 200, "{method} {target}");
        let seen = worker.seen().pop().unwrap();
        assert_eq!((seen.line(), seen.body), (format!("{method} {target} HTTP/1.1"), body.to_vec()));
    }
    let count = |path: &str| {
        front.metric(&format!(
            "trunkline_requests_total{{worker=\"{}\",path=\"{path}\",code=\"200\"}}",
            worker.url()
        ))
    };
    assert_eq!((count("other"), count("tokenize")), (5.0, 1.0));
    worker.answer_with("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".into());
    let mut client = front.client();
    client.send("HEAD /x HTTP/1.1\r\nhost: c\r\n\r\n");
    assert_eq!(client.head().unwrap().header("content-length"), Some("5".into()));
    worker.answer_with(ok("{}"));
    client.send(request("GET", "/after", "", b""));
    assert_eq!(client.reply().unwrap().text(), "{}", "the connection goes on");
    assert_eq!(front.ask("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n").status, 405);
}

#[test]
fn endpoint_paths_of_sagemaker_reach_what_the_worker_serves() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    for (asked, wanted) in [
        ("/endpoints/llama/invocations?x=1", "/invocations?x=1"),
        ("/endpoints/llama/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/invocations", "/invocations"),
    ] {
        assert_eq!(front.ask(request("POST", asked, "", &chat("x"))).status, 200);
        assert_eq!(worker.seen().pop().unwrap().line(), format!("POST {wanted} HTTP/1.1"));
    }
}

#[test]
fn a_workers_prefix_stands_before_every_path() {
    let worker = FakeWorker::start();
    let front = Front::start(&[]);
    front.gateway.add_worker(&format!("{}/models/a/", worker.url())).unwrap();
    assert_eq!(front.chat("x").status, 200);
    assert_eq!(worker.seen().pop().unwrap().line(), "POST /models/a/v1/chat/completions HTTP/1.1");
}

#[test]
fn too_large_a_body_is_refused_before_it_is_read() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.max_body_bytes = 2000);
    let reply = front.ask("POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 2001\r\n\r\n");
    assert_eq!(reply.status, 413);
    assert_eq!(reply.json()["error"]["code"], 413);
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\ntransfer-encoding: chunked\r\n\r\n{}",
        chunk.repeat(3)
    );
    assert_eq!(front.ask(chunked).status, 413);
    assert_eq!(front.ask(request("POST", "/v1/chat/completions", "", &[b'x'; 2000])).status, 200);
    assert_eq!(worker.seen().len(), 1);
    assert_eq!(front.metric("trunkline_requests_total{worker=\"\",path=\"chat\",code=\"413\"}"), 2.0);
}

#[test]
fn a_refused_body_is_read_on_so_that_its_client_reads_the_refusal() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.max_body_bytes = 2000);
    let megabyte = vec![b'x'; 1 << 20];
    let declared = "POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 33554432\r\n\r\n";
    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\ntransfer-encoding: chunked\r\n\r\n";
    for (head, is_chunked) in [(declared, false), (chunked, true)] {
        let mut client = front.client();
        client.send(head);
        // More than all buffers on the way hold: a closed connection would fail here.
        for _ in 0..32 {
            if is_chunked {
                client.send([b"100000\r\n", megabyte.as_slice(), b"\r\n"].concat());
            } else {
                client.send(&megabyte);
            }
        }
        let reply = client.reply().unwrap();
        assert_eq!((reply.status, reply.is_whole), (413, true), "chunked: {is_chunked}");
    }
    let waits = "POST /v1/chat/completions HTTP/1.1\r\nhost: c\r\nexpect: 100-continue\r\ncontent-length: 33554432\r\n\r\n";
    assert_eq!(front.ask(waits).status, 413, "and who asks first is not told to send");
    assert!(worker.seen().is_empty());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let worker = FakeWorker::start();
    worker.behave(|seen, peer| {
        peer.send(ok(&String::from_utf8_lossy(&seen.body)));
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let mut client = front.client();
    client.send(
        [
            request("POST", "/v1/completions", "", b"{\"n\":1}"),
            request("POST", "/v1/completions", "", b"{\"n\":2}"),
        ]
        .concat(),
    );
    assert_eq!(client.reply().unwrap().text(), "{\"n\":1}");
    assert_eq!(client.reply().unwrap().text(), "{\"n\":2}");
}

#[test]
fn ambiguous_framing_ends_the_connection() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let hidden = "0\r\n\r\nPOST /v1/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 4\r\n\r\nevil";
    let mut client = front.client();
    client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: c\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{hidden}"));
    client.reply();
    assert!(client.reply().is_none(), "what follows is no request");
    assert!(worker.seen().iter().all(|seen| seen.body != b"evil"));
}
