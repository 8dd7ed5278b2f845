//! Engines: how each is recognised, and what follows from that. The workers speak as the engines do.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{FakeWorker, Front, Then, answer, ok, request, wait_until};
use trunkline_core::Policy;

fn engine(front: &Front, worker: &FakeWorker) -> String {
    let list = front.admin("GET", "/admin/workers", "").json();
    let row = list["workers"].as_array().unwrap().iter().find(|row| row["url"] == worker.url()).unwrap();
    row["engine"].as_str().unwrap().to_owned()
}

fn models(worker: &FakeWorker, owner: &str) {
    worker.page("/v1/models", ok(&json!({"data": [{"id": "m", "owned_by": owner}]}).to_string()));
}

fn metrics(worker: &FakeWorker, text: &str) {
    worker.page("/metrics", answer("200 OK", "text/plain", text));
}

#[test]
fn engines_are_found_by_probing_and_tell_the_size_of_their_cache() {
    let [vllm, sglang, trtllm, tgi, other] = std::array::from_fn(|_| FakeWorker::start());
    models(&vllm, "vllm");
    metrics(&vllm, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n");
    models(&sglang, "sglang");
    metrics(&sglang, "sglang:max_total_num_tokens{dp_rank=\"0\"} 2000.0\n");
    models(&trtllm, "tensorrt_llm");
    metrics(&trtllm, "[]");
    models(&tgi, "meta-llama/x");
    metrics(&tgi, "# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n");
    tgi.page("/info", ok(r#"{"model_id":"meta-llama/x","max_batch_total_tokens":3000}"#));
    let workers = [&vllm, &sglang, &trtllm, &tgi, &other];
    let front = Front::start(&workers);
    let wanted = ["vllm", "sglang", "trtllm", "tgi", "unknown"];
    wait_until("engines are known", || workers.map(|worker| engine(&front, worker)) == wanted);
    let capacity = || workers.map(|worker| front.view(worker).capacity_tokens);
    wait_until("sizes are known", || capacity() == [Some(1600), Some(2000), None, Some(3000), None]);
}

#[test]
fn the_engine_may_be_told() {
    let worker = FakeWorker::start();
    models(&worker, "somebody");
    let front = Front::start(&[]);
    let add = |option: &str| {
        let body = json!({"url": format!("{}#{option}", worker.url())}).to_string();
        front.admin("POST", "/admin/workers", &body)
    };
    assert_eq!(add("engine=best").status, 400);
    assert_eq!(add("engine=tgi").status, 201);
    assert_eq!(engine(&front, &worker), "tgi");
    assert_eq!(front.admin("DELETE", &format!("/admin/workers?url={}", worker.url()), "").status, 200);
}

#[test]
fn each_engines_failures_are_tried_elsewhere() {
    let (bad, good) = (FakeWorker::start(), FakeWorker::start());
    metrics(&bad, "tgi_queue_size 0\n");
    let front = Front::start(&[&bad, &good]);
    wait_until("the engine is known", || engine(&front, &bad) == "tgi");
    let generate = || front.ask(request("POST", "/generate", "", br#"{"inputs":"x"}"#));
    for bytes in [
        answer("424 Failed Dependency", "application/json", r#"{"error":"x","error_type":"generation"}"#),
        answer("429 Too Many Requests", "application/json", r#"{"error":"x","error_type":"overloaded"}"#),
        answer("200 OK", "text/event-stream", "data:{\"error\":\"x\",\"error_type\":\"overloaded\"}\n\n"),
    ] {
        bad.answer_with(bytes);
        assert!((0..4).all(|_| generate().header("x-trunkline-worker") == Some(good.url())));
    }
    bad.answer_with(answer("422 Unprocessable Entity", "application/json", "{}"));
    wait_until("its pause is over", || generate().status == 422);
}

#[test]
fn a_worker_that_says_it_shuts_down_gets_nothing_more_for_a_while() {
    let (leaving, staying) = (FakeWorker::start(), FakeWorker::start());
    for worker in [&leaving, &staying] {
        models(worker, "vllm");
    }
    let error = r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#;
    leaving.answer_with(answer("500 Internal Server Error", "application/json", error));
    let front = Front::start(&[&leaving, &staying]);
    wait_until("the engine is known", || engine(&front, &leaving) == "vllm");
    for number in 0..8 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    assert_eq!(leaving.seen().len(), 1, "one request found out");
    staying.answer_with(answer("500 Internal Server Error", "application/json", error));
    assert_eq!(front.chat("x").text(), error, "its words are passed on if nobody does better");
}

#[test]
fn one_served_model_is_enforced_where_the_engine_does_so_itself() {
    let worker = FakeWorker::start();
    models(&worker, "sglang");
    let front = Front::start(&[&worker]);
    wait_until("the engine is known", || engine(&front, &worker) == "sglang");
    let ask = |path: &str, model: &str| {
        let body = json!({"model": model, "prompt": "x"}).to_string();
        front.ask(request("POST", path, "", body.as_bytes()))
    };
    assert_eq!(ask("/v1/completions", "alias").status, 200);
    models(&worker, "vllm");
    worker.page("/health", answer("503 Service Unavailable", "text/plain", ""));
    wait_until("it leaves", || !front.is_healthy(&worker));
    worker.page("/health", ok(""));
    wait_until("another engine stands in its place", || engine(&front, &worker) == "vllm");
    wait_until("its list counts", || ask("/v1/completions", "alias").status == 404);
    assert_eq!(ask("/v1/completions", "m").status, 200);
    assert_eq!(ask("/v1/completions", "").status, 200, "no name is the default model");
    let reply = ask("/endpoints/e/invocations", "alias");
    assert_eq!((reply.status, reply.header("x-amzn-errortype").as_deref()), (400, Some("ValidationError")));
}

#[test]
fn an_adapter_that_was_just_loaded_is_found_when_somebody_asks_for_it() {
    let worker = FakeWorker::start();
    models(&worker, "vllm");
    // Lists are due every 10 s by themselves.
    let slow = |config: &mut trunkline_gateway::GatewayConfig| config.probe_interval = Duration::from_secs(2);
    let front = Front::with(Policy::KvAware, &[&worker], slow);
    wait_until("the engine is known", || engine(&front, &worker) == "vllm");
    let ask =
        || front.ask(request("POST", "/v1/completions", "", br#"{"model":"adapter","prompt":"x"}"#)).status;
    wait_until("the list is known", || ask() == 404);
    worker.page("/v1/models", ok(r#"{"data":[{"id":"m","owned_by":"vllm"},{"id":"adapter","parent":"m"}]}"#));
    let since = Instant::now();
    wait_until("the adapter is served", || ask() == 200);
    assert!(since.elapsed() < Duration::from_secs(4), "it took {:?}", since.elapsed());
}

/// Makes the body of a question about a prefix.
type Ask = fn(prefix: &str, question: &str) -> Value;

/// A way to ask: a path, and its body.
type Shape = (&'static str, Ask);

#[test]
fn every_surface_keeps_its_prefixes() {
    fn ids(prefix: &str, question: &str) -> Vec<u32> {
        prefix.chars().chain(question.chars()).map(u32::from).collect()
    }
    let shapes: [Shape; 13] = [
        ("/v1/completions", |prefix, question| json!({"prompt": prefix.to_owned() + question})),
        ("/v1/responses", |prefix, question| json!({"instructions": prefix, "input": question})),
        ("/v1/messages", |prefix, question| {
            let system = [json!({"type": "text", "text": prefix, "cache_control": {"type": "ephemeral"}})];
            json!({"system": system, "messages": [{"role": "user", "content": question}], "max_tokens": 1})
        }),
        ("/v1/embeddings", |prefix, question| json!({"input": prefix.to_owned() + question})),
        ("/v1/rerank", |prefix, question| json!({"query": prefix, "documents": [question]})),
        ("/v1/score", |prefix, question| json!({"text_1": prefix, "text_2": [question]})),
        (
            "/generate",
            |prefix, question| json!({"text": prefix.to_owned() + question, "sampling_params": {}}),
        ),
        ("/generate", |prefix, question| json!({"input_ids": ids(prefix, question)})),
        (
            "/generate_stream",
            |prefix, question| json!({"inputs": prefix.to_owned() + question, "parameters": {}}),
        ),
        (
            "/inference/v1/generate",
            |prefix, question| json!({"token_ids": ids(prefix, question), "sampling_params": {}}),
        ),
        ("/invocations", |prefix, question| json!({"inputs": prefix.to_owned() + question})),
        (
            "/v1/chat/completions/batch",
            |prefix, question| json!({"messages": [[{"role": "system", "content": prefix}], [{"role": "user", "content": question}]]}),
        ),
        (
            "/endpoints/e/openai/v1/completions",
            |prefix, question| json!({"prompt": prefix.to_owned() + question}),
        ),
    ];
    for (path, body) in shapes {
        let workers: Vec<FakeWorker> = (0..3).map(|_| FakeWorker::start()).collect();
        let front = Front::with(Policy::KvAware, &workers.iter().collect::<Vec<_>>(), |_| {});
        let mut homes: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for round in 0..3 {
            for group in 0..8 {
                let prefix = format!("{group} \u{65e5}\u{672c}\u{8a9e} ").repeat(100);
                let body = body(&prefix, &format!("question {round}")).to_string();
                let reply = front.ask(request("POST", path, "", body.as_bytes()));
                homes.entry(group).or_default().insert(reply.header("x-trunkline-worker").unwrap());
            }
        }
        assert!(homes.values().all(|home| home.len() == 1), "{path}: {homes:?}");
        assert!(homes.values().flatten().collect::<BTreeSet<_>>().len() >= 2, "{path}: {homes:?}");
    }
}

#[test]
fn tokenizing_fills_no_cache_and_goes_where_there_is_room() {
    let workers: Vec<FakeWorker> = (0..3).map(|_| FakeWorker::start()).collect();
    for worker in &workers {
        worker.behave(|_, peer| {
            peer.send(ok(r#"{"tokens":[1]}"#));
            Then::Keep
        });
    }
    let front = Front::with(Policy::KvAware, &workers.iter().collect::<Vec<_>>(), |_| {});
    for path in ["/tokenize", "/detokenize"] {
        let ask = || front.ask(request("POST", path, "", br#"{"prompt":"x","tokens":[1,2,3]}"#));
        let hosts: BTreeSet<_> = (0..3).map(|_| ask().header("x-trunkline-worker").unwrap()).collect();
        assert_eq!(hosts.len(), 3, "{path}");
    }
    assert_eq!(front.router.stats().index_blocks, 0);
}
