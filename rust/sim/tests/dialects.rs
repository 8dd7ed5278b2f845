//! The dialects: what each engine's routes answer, and what tells them apart.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod client;

use client::{get, post};
use serde_json::{Value, json};
use trunkline_sim::{Dialect, MockWorker, MockWorkerConfig};

fn worker(dialect: Dialect) -> MockWorker {
    let config =
        MockWorkerConfig { dialect, time_scale: 0.01, kv_tokens: 3200, ..MockWorkerConfig::default() };
    MockWorker::start(config).unwrap()
}

fn chat() -> Value {
    json!({"model": "other", "messages": [{"role": "user", "content": "x".repeat(400)}], "max_tokens": 3})
}

#[test]
fn names_round_trip() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::named(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::named("llama.cpp"), None);
}

#[test]
fn each_says_who_it_is_and_how_large_its_cache_is() {
    for (dialect, owner, page, sign) in [
        (Dialect::Vllm, "vllm", "/metrics", "kv_cache_size_tokens=\"3200\""),
        (
            Dialect::Sglang,
            "sglang",
            "/metrics",
            "sglang:max_total_num_tokens{engine=\"0\",model_name=\"mock\"} 3200.0",
        ),
        (Dialect::TrtLlm, "tensorrt_llm", "/prometheus/metrics", "trtllm_num_requests_running"),
        (Dialect::Tgi, "mock", "/info", "\"max_batch_total_tokens\":3200"),
    ] {
        let worker = worker(dialect);
        let address = worker.local_addr();
        assert_eq!(get(address, "/v1/models").json()["data"][0]["owned_by"], owner);
        let text = get(address, page).text();
        assert!(text.contains(sign), "{dialect}: {text}");
        assert_eq!(get(address, "/health").status, 200);
    }
}

#[test]
fn only_vllm_refuses_a_model_that_it_does_not_list_and_only_tgi_hides_cached_tokens() {
    for dialect in Dialect::ALL {
        let worker = worker(dialect);
        let reply = post(worker.local_addr(), "/v1/chat/completions", &chat());
        assert_eq!(reply.status, if dialect == Dialect::Vllm { 404 } else { 200 }, "{dialect}");
        if dialect != Dialect::Vllm {
            let tells = !reply.json()["usage"]["prompt_tokens_details"].is_null();
            assert_eq!(tells, dialect != Dialect::Tgi, "{dialect}");
        }
        for (path, of) in [
            ("/generate", [Dialect::Sglang, Dialect::Tgi]),
            ("/invocations", [Dialect::Vllm, Dialect::Sglang]),
        ] {
            let status =
                post(worker.local_addr(), path, &json!({"text": "x", "inputs": "x", "prompt": "x"})).status;
            assert_eq!(status, if of.contains(&dialect) { 200 } else { 404 }, "{dialect} {path}");
        }
    }
}

#[test]
fn sglang_generates_from_text_and_token_ids_and_streams_the_text_so_far() {
    let worker = worker(Dialect::Sglang);
    let ask = |body: Value| post(worker.local_addr(), "/generate", &body);
    let params = json!({"max_new_tokens": 3});
    let answer = ask(json!({"text": "x".repeat(400), "sampling_params": params})).json();
    let meta = |cached| json!({"prompt_tokens": 100, "completion_tokens": 3, "cached_tokens": cached});
    let told = |answer: &Value| {
        let meta = &answer["meta_info"];
        json!({
            "prompt_tokens": meta["prompt_tokens"], "completion_tokens": meta["completion_tokens"],
            "cached_tokens": meta["cached_tokens"],
        })
    };
    assert_eq!(told(&answer), meta(0));
    assert_eq!(answer["meta_info"]["finish_reason"], json!({"type": "length", "length": 3}));
    let reply = ask(json!({"text": "x".repeat(400), "sampling_params": params, "stream": true}));
    let mut events = reply.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(chunks.len(), 3);
    assert_eq!(chunks[2]["text"], answer["text"], "the last event has the whole text");
    assert_eq!(told(&chunks[2]), meta(96));
    let ids: Vec<u32> = (0..50).collect();
    assert_eq!(ask(json!({"input_ids": ids})).json()["meta_info"]["prompt_tokens"], 50);
    assert_eq!(ask(json!({"sampling_params": params})).status, 400);
    assert_eq!(ask(json!({"text": "x", "sampling_params": {"max_new_tokens": 0}})).status, 400);
}

#[test]
fn tgi_generates_whole_and_by_token() {
    let worker = worker(Dialect::Tgi);
    let body = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3}});
    let whole = post(worker.local_addr(), "/generate", &body).json();
    let reply = post(worker.local_addr(), "/generate_stream", &body);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = reply.text();
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data:").filter(|data| data.starts_with('{')).unwrap())
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let tokens: String = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(whole["generated_text"], tokens);
    assert_eq!((events.len(), &events[2]["generated_text"]), (3, &whole["generated_text"]));
    assert_eq!(events[2]["details"]["generated_tokens"], 3);
}
