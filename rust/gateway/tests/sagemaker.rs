//! SageMaker's runtime on the wire: what reaches the worker, what comes back, who is asked.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::BTreeMap;

use support::{FakeWorker, Front, STREAM_HEAD, Then, answer, ok, request, wait_until};
use trunkline_core::Policy;
use trunkline_gateway::{EndpointConfig, GatewayConfig, VariantConfig, VariantWorker};

const INVOKE: &str = "/endpoints/llama/invocations";
const STREAM: &str = "/endpoints/llama/invocations-response-stream";

fn invoke(front: &Front, path: &str, headers: &str, body: &[u8]) -> support::Reply {
    front.ask(request("POST", path, headers, body))
}

/// The error's name, its status and its body.
fn error(reply: &support::Reply) -> (String, u16, serde_json::Value) {
    (reply.header("x-amzn-errortype").unwrap(), reply.status, reply.json())
}

/// Messages of an event stream: headers and payload. The unit tests of the framer check the CRCs.
fn messages(mut bytes: &[u8]) -> Vec<(BTreeMap<String, String>, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (message, rest) = bytes.split_at(number(0));
        let (mut headers, payload) = message[12..message.len() - 4].split_at(number(4));
        let mut named = BTreeMap::new();
        while !headers.is_empty() {
            let (name, value) = headers[1..].split_at(usize::from(headers[0]));
            let length = usize::from(u16::from_be_bytes([value[1], value[2]]));
            named.insert(text(name), text(&value[3..3 + length]));
            headers = &value[3 + length..];
        }
        all.push((named, text(payload)));
        bytes = rest;
    }
    all
}

fn variant(
    name: &str,
    weight: u32,
    policy: Policy,
    workers: &[(&FakeWorker, &str, Option<&str>)],
) -> VariantConfig {
    let place = |&(worker, instance, component): &(&FakeWorker, &str, Option<&str>)| VariantWorker {
        url: worker.url(),
        instance: Some(instance.to_owned()),
        component: component.map(str::to_owned),
    };
    VariantConfig { name: name.into(), weight, policy, workers: workers.iter().map(place).collect() }
}

fn endpoint(variants: Vec<VariantConfig>) -> impl FnOnce(&mut GatewayConfig) {
    |config| config.endpoints = vec![EndpointConfig { name: "llama".into(), variants }]
}

#[test]
fn without_endpoints_any_name_is_the_fleet() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let signed = "authorization: AWS4-HMAC-SHA256 x\r\nx-amz-date: now\r\nX-Amzn-SageMaker-Inference-Component: chat\r\n";
    let reply = invoke(&front, INVOKE, signed, br#"{"prompt":"hi"}"#);
    assert_eq!(
        (reply.status, reply.header("x-amzn-invoked-production-variant").as_deref()),
        (200, Some("AllTraffic"))
    );
    let seen = &worker.seen()[0];
    assert_eq!(seen.line(), "POST /invocations HTTP/1.1");
    let headers = seen.headers().join("\n");
    assert!(headers.contains("x-amzn-sagemaker-inference-component: chat"), "{headers}");
    assert!(!headers.contains("AWS4") && !headers.contains("x-amz-date"), "{headers}");
    let plain = invoke(&front, "/invocations", "", br#"{"prompt":"hi"}"#);
    assert_eq!(plain.header("x-amzn-invoked-production-variant"), None, "a container does not say so");
}

#[test]
fn headers_out_of_range_are_refused_in_the_words_of_the_path() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let long = format!("X-Amzn-SageMaker-Prefix-Aware-Id: {}\r\n", "x".repeat(65));
    for path in [INVOKE, STREAM] {
        let (name, status, body) = error(&invoke(&front, path, &long, b"{}"));
        assert_eq!((name.as_str(), status), ("ValidationError", 400));
        assert!(body["Message"].as_str().unwrap().contains("X-Amzn-SageMaker-Prefix-Aware-Id"), "{body}");
    }
    for path in ["/invocations", "/endpoints/llama/openai/v1/chat/completions"] {
        let reply = invoke(&front, path, &long, b"{}");
        assert_eq!(
            (reply.status, reply.json()["error"]["type"].as_str()),
            (400, Some("invalid_request_error"))
        );
        assert_eq!(reply.header("x-amzn-errortype"), None);
    }
    assert!(worker.seen().is_empty());
    assert_eq!(
        invoke(&front, "/v1/completions", &long, br#"{"prompt":"hi"}"#).status,
        200,
        "no path of SageMaker's"
    );
}

#[test]
fn bodies_over_the_limit_are_refused_in_the_words_of_the_path() {
    let front = Front::with(Policy::RoundRobin, &[], |config| config.max_body_bytes = 1 << 10);
    let body = vec![b'x'; 2 << 10];
    let (name, status, _) = error(&invoke(&front, INVOKE, "", &body));
    assert_eq!((name.as_str(), status), ("ValidationError", 400));
    assert_eq!(invoke(&front, "/invocations", "", &body).status, 413);
}

#[test]
fn a_full_copy_spills_to_its_own_instance_first() {
    let workers: Vec<FakeWorker> = (0..4).map(|_| FakeWorker::start()).collect();
    for worker in &workers {
        worker.behave(|_, peer| peer.wait_for_leave());
    }
    let instances = ["i-1", "i-1", "i-2", "i-2"];
    let policy = Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: Some(1) };
    let copies: Vec<_> =
        workers.iter().zip(instances).map(|(worker, instance)| (worker, instance, Some("chat"))).collect();
    let front = Front::with(Policy::KvAware, &[], endpoint(vec![variant("all", 1, policy, &copies)]));
    let mut order = Vec::new();
    let mut clients = Vec::new();
    while order.len() < 3 {
        let mut client = front.client();
        client.send(request(
            "POST",
            INVOKE,
            "X-Amzn-SageMaker-Inference-Component: chat\r\n",
            br#"{"prompt":"x"}"#,
        ));
        clients.push(client);
        wait_until("it arrived", || {
            workers.iter().map(|worker| worker.seen().len()).sum::<usize>() > order.len()
        });
        order = (0..workers.len())
            .filter(|&number| !workers[number].seen().is_empty())
            .map(|number| instances[number])
            .collect();
        match order.len() {
            2 => assert_eq!(order[0], order[1], "the second copy is beside the first one"),
            3 => assert!(order.contains(&"i-1") && order.contains(&"i-2"), "then another instance"),
            _ => {}
        }
    }
}

#[test]
fn a_workers_error_is_a_model_error() {
    let worker = FakeWorker::start();
    worker.answer_with(answer("400 Bad Request", "application/json", r#"{"error":"too long"}"#));
    let front = Front::start(&[&worker]);
    for path in [INVOKE, STREAM] {
        let reply = invoke(&front, path, "", br#"{"prompt":"hi"}"#);
        let (name, status, body) = error(&reply);
        assert_eq!((name.as_str(), status), ("ModelError", 424));
        assert_eq!(
            (&body["OriginalStatusCode"], &body["OriginalMessage"]),
            (&400.into(), &r#"{"error":"too long"}"#.into())
        );
        assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
        assert_eq!(reply.header("x-amzn-invoked-production-variant").as_deref(), Some("AllTraffic"));
    }
    assert_eq!(worker.seen()[1].before, 1, "the connection was given back");
    let plain = invoke(&front, "/invocations", "", br#"{"prompt":"hi"}"#);
    assert_eq!((plain.status, plain.text().as_str()), (400, r#"{"error":"too long"}"#));
    worker.answer_with(answer("400 Bad Request", "text/plain", &"x".repeat(100_000)));
    let body = error(&invoke(&front, INVOKE, "", br#"{"prompt":"hi"}"#)).2;
    assert_eq!(body["OriginalMessage"].as_str().unwrap().len(), 64 << 10, "the beginning of a long one");
    worker.answer_with(answer("503 Service Unavailable", "text/plain", "full"));
    let reply = invoke(&front, INVOKE, "", br#"{"prompt":"hi"}"#);
    assert_eq!((error(&reply).0.as_str(), reply.status), ("ServiceUnavailable", 503));
    assert!(reply.header("retry-after").is_some());
    worker.behave(|_, _| Then::Close);
    let (name, status, body) = error(&invoke(&front, INVOKE, "", br#"{"prompt":"hi"}"#));
    assert_eq!((name.as_str(), status, &body["OriginalStatusCode"]), ("ModelError", 424, &0.into()));
    front.assert_nothing_in_flight();
}

#[test]
fn workers_that_have_not_started_yet_are_not_ready() {
    let worker = FakeWorker::start();
    worker.page("/health", answer("503 Service Unavailable", "text/plain", ""));
    let front = Front::start(&[&worker]);
    wait_until("it is out of rotation", || !front.is_healthy(&worker));
    let (name, status, _) = error(&invoke(&front, INVOKE, "", b"{}"));
    assert_eq!((name.as_str(), status), ("ModelNotReadyException", 429));
    assert_eq!(front.chat("x").status, 503, "OpenAI has no such word");
    worker.page("/health", ok(""));
    wait_until("it is well", || front.is_healthy(&worker));
    worker.page("/health", answer("503 Service Unavailable", "text/plain", ""));
    wait_until("it is out again", || !front.is_healthy(&worker));
    let (name, status, _) = error(&invoke(&front, INVOKE, "", b"{}"));
    assert_eq!((name.as_str(), status), ("ServiceUnavailable", 503));
}

#[test]
fn a_stream_is_framed_piece_by_piece() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        peer.chunk("data: [DONE]\n\n");
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let accept =
        "accept: application/vnd.amazon.eventstream\r\nX-Amzn-SageMaker-Accept: text/event-stream\r\n";
    let reply = invoke(&front, STREAM, accept, br#"{"prompt":"hi","stream":true}"#);
    assert_eq!(reply.header("content-type").as_deref(), Some("application/vnd.amazon.eventstream"));
    assert_eq!(
        reply.header("x-amzn-sagemaker-content-type").as_deref(),
        Some("text/event-stream; charset=utf-8")
    );
    let messages = messages(&reply.body);
    assert!(messages.iter().all(|(headers, _)| headers[":event-type"] == "PayloadPart"));
    let payload: String = messages.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payload, "data: 1\n\ndata: [DONE]\n\n");
    assert!(worker.seen()[0].headers().contains(&"accept: text/event-stream".to_owned()));
    assert_eq!(worker.seen()[0].line(), "POST /invocations HTTP/1.1");
    invoke(&front, STREAM, "", b"{}");
    assert_eq!(worker.seen()[1].before, 1, "the connection is used again");
    front.assert_nothing_in_flight();
}

#[test]
fn an_answer_in_one_piece_is_framed_as_well() {
    let worker = FakeWorker::start();
    worker.answer_with(ok(r#"{"x":1}"#));
    let front = Front::start(&[&worker]);
    let reply = invoke(&front, STREAM, "", br#"{"prompt":"hi"}"#);
    assert_eq!(reply.header("content-length"), None);
    assert_eq!(
        messages(&reply.body).iter().map(|(_, payload)| payload.as_str()).collect::<String>(),
        r#"{"x":1}"#
    );
    worker.answer_with(ok(""));
    assert!(invoke(&front, STREAM, "", br#"{"prompt":"hi"}"#).body.is_empty());
}

#[test]
fn a_broken_stream_ends_with_an_exception() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        Then::Close
    });
    let front = Front::start(&[&worker]);
    let reply = invoke(&front, STREAM, "", br#"{"prompt":"hi","stream":true}"#);
    let messages = messages(&reply.body);
    let (last, parts) = messages.split_last().unwrap();
    assert_eq!(parts.iter().map(|(_, payload)| payload.as_str()).collect::<String>(), "data: 1\n\n");
    assert_eq!(
        (last.0[":message-type"].as_str(), last.0[":exception-type"].as_str()),
        ("exception", "ModelStreamError")
    );
    let payload: serde_json::Value = serde_json::from_str(&last.1).unwrap();
    assert_eq!(payload["ErrorCode"], "StreamBroken");
    assert!(reply.is_whole, "the exception is readable: the body ends in order");
    front.assert_nothing_in_flight();
}

#[test]
fn variants_and_components_keep_their_traffic() {
    let workers: Vec<FakeWorker> = (0..5).map(|_| FakeWorker::start()).collect();
    let [a, b, c, d, e] = &workers[..] else { unreachable!() };
    let policy = Policy::PrefixAware { prefix_length: 1024, concurrency_threshold: Some(10) };
    let components = [(c, "i-1", Some("chat")), (d, "i-2", Some("chat")), (e, "i-1", Some("code"))];
    let variants = |config: &mut GatewayConfig| {
        endpoint(vec![
            variant("blue", 1, Policy::Random, &[(a, "i-1", None)]),
            variant("green", 0, Policy::Random, &[(b, "i-1", None)]),
        ])(config);
        let parts = vec![variant("all", 1, policy, &components)];
        config.endpoints.push(EndpointConfig { name: "parts".into(), variants: parts });
    };
    // The others are named by the endpoints alone.
    let front = Front::with(Policy::KvAware, &[a], variants);
    let asked = |path: &str, headers: &str, body: &[u8]| {
        let reply = invoke(&front, path, headers, body);
        let name = reply.header("x-amzn-invoked-production-variant");
        (reply.status, name.unwrap_or_default(), reply.header("x-trunkline-worker").unwrap_or_default())
    };
    assert_eq!(asked(INVOKE, "", br#"{"prompt":"x"}"#), (200, "blue".into(), a.url()));
    let named = "X-Amzn-SageMaker-Target-Variant: green\r\n";
    assert_eq!(asked(INVOKE, named, br#"{"prompt":"x"}"#), (200, "green".into(), b.url()));
    let code = "X-Amzn-SageMaker-Inference-Component: code\r\n";
    assert_eq!(asked("/endpoints/parts/invocations", code, b"1,2,3"), (200, "all".into(), e.url()));
    let chat = "X-Amzn-SageMaker-Inference-Component: chat\r\n";
    let mut homes = std::collections::BTreeSet::new();
    for number in 0..16 {
        // No prompt is found in this body, so its first bytes are the prefix.
        let body = format!("csv,{}", number.to_string().repeat(100));
        let (_, _, first) = asked("/endpoints/parts/invocations", chat, body.as_bytes());
        let (_, _, again) = asked("/endpoints/parts/invocations", chat, body.as_bytes());
        assert_eq!(first, again, "a prefix keeps its copy");
        homes.insert(first);
    }
    assert_eq!(homes, [c.url(), d.url()].into());
    let openai = "/endpoints/parts/openai/v1/chat/completions";
    assert_eq!(
        asked(openai, code, br#"{"messages":[{"role":"user","content":"x"}]}"#),
        (200, "all".into(), e.url())
    );

    for (path, headers) in [
        ("/endpoints/nope/invocations", ""),
        (INVOKE, "X-Amzn-SageMaker-Target-Variant: red\r\n"),
        (INVOKE, "X-Amzn-SageMaker-Inference-Component: chat\r\n"),
        ("/endpoints/parts/invocations", ""),
    ] {
        let (name, status, _) = error(&invoke(&front, path, headers, b"{}"));
        assert_eq!((name.as_str(), status), ("ValidationError", 400), "{path} {headers}");
    }
    let reply = invoke(&front, "/endpoints/nope/openai/v1/chat/completions", "", b"{}");
    assert_eq!((reply.status, reply.header("x-amzn-errortype")), (404, None));

    d.kill();
    for number in 0..12 {
        let (status, _, worker) =
            asked("/endpoints/parts/invocations", chat, format!("more {number}").as_bytes());
        assert_eq!((status, worker), (200, c.url()), "what is left of the component serves it");
    }
    c.kill();
    let reply = invoke(&front, "/endpoints/parts/invocations", chat, b"x");
    assert!([424, 503].contains(&reply.status), "nobody else does: {}", reply.text());
    assert_eq!(e.seen().len(), 2);
}

#[test]
fn a_session_stays_with_the_worker_that_opened_it() {
    let workers: Vec<FakeWorker> = (0..4).map(|_| FakeWorker::start()).collect();
    for worker in &workers {
        worker.behave(|seen, peer| {
            let opens = seen.headers().iter().any(|line| line == "x-amzn-sagemaker-session-id: NEW_SESSION");
            let header = if opens {
                "x-amzn-sagemaker-new-session-id: s-1; Expires=2026-12-31T00:00:00Z\r\n"
            } else {
                ""
            };
            peer.send(format!("HTTP/1.1 200 OK\r\n{header}content-length: 2\r\n\r\n{{}}"));
            Then::Keep
        });
    }
    let front = Front::start(&workers.iter().collect::<Vec<_>>());
    let ask = |path: &str, id: &str| {
        let reply =
            invoke(&front, path, &format!("X-Amzn-SageMaker-Session-Id: {id}\r\n"), br#"{"prompt":"x"}"#);
        reply.header("x-trunkline-worker").unwrap()
    };
    let keeper = ask(INVOKE, "NEW_SESSION");
    for path in [INVOKE, "/invocations", INVOKE, INVOKE] {
        assert_eq!(ask(path, "s-1"), keeper);
    }
    let others: std::collections::BTreeSet<String> = (0..4).map(|_| ask(INVOKE, "unknown")).collect();
    assert_eq!(others.len(), 4, "an id that nobody opened means nothing");
}
