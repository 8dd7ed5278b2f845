//! A live mock worker over HTTP: shapes, cache accounting, timing by the model, clients that leave.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod client;

use std::time::{Duration, Instant};

use client::{get, post, send};
use serde_json::{Value, json};
use trunkline_sim::{Error, MockStats, MockWorker, MockWorkerConfig};

fn worker() -> MockWorker {
    MockWorker::start(MockWorkerConfig { time_scale: 0.01, ..MockWorkerConfig::default() }).unwrap()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn chat(system_bytes: usize, question: &str) -> Value {
    json!({
        "model": "mock",
        "messages": [
            {"role": "system", "content": "s".repeat(system_bytes)},
            {"role": "user", "content": question},
        ],
        "max_tokens": 5,
    })
}

fn cached_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_chat_is_answered_whole() {
    let worker = worker();
    let reply = post(worker.local_addr(), "/v1/chat/completions", &chat(400, "hello?"));
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let answer = reply.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "mock");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"].as_str().unwrap().len(),
        20,
        "five words with what separates them"
    );
    // 100 of the system prompt, 2 of the question, 2 roles (2 tokens and 1) and 3 marks each; the opening of the answer.
    let prompt_tokens = 100 + 2 + 2 + 1 + 6 + 5;
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": prompt_tokens, "completion_tokens": 5, "total_tokens": prompt_tokens + 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );
}

#[test]
fn a_shared_prefix_is_reported_as_cached() {
    let worker = worker();
    let ask =
        |question: &str| post(worker.local_addr(), "/v1/chat/completions", &chat(12_000, question)).json();
    assert_eq!(cached_tokens(&ask("one")), 0);
    // 3,000 of the system prompt, 8 of what marks its message and the opening of the next: 188 blocks.
    assert_eq!(cached_tokens(&ask("two")), 3_008);
    let stats = worker.stats();
    assert_eq!((stats.requests, stats.cached_tokens), (2, 3_008));
    assert!(stats.prompt_tokens > 6_000);

    worker.reset();
    assert_eq!(worker.stats(), MockStats::default());
    assert_eq!(cached_tokens(&ask("two")), 0);
}

#[test]
fn a_conversation_builds_on_its_own_answers() {
    let worker = worker();
    let mut body = chat(160, "first?");
    body["max_tokens"] = json!(64);
    let first = post(worker.local_addr(), "/v1/chat/completions", &body).json();
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "second?"}));
    let second = post(worker.local_addr(), "/v1/chat/completions", &body).json();
    assert_eq!(cached_tokens(&second), (prompt_tokens + 63) / 16 * 16);
}

#[test]
fn escaped_and_raw_characters_are_one_prompt() {
    let worker = worker();
    let ask = |content: &str| {
        let body =
            format!(r#"{{"messages": [{{"role": "user", "content": "{content}"}}], "max_tokens": 1}}"#);
        let path = "/v1/chat/completions";
        cached_tokens(
            &send(worker.local_addr(), "POST", path, Some("application/json"), body.as_bytes()).json(),
        )
    };
    assert_eq!(ask(&"\u{65e5}".repeat(64)), 0);
    assert_eq!(ask(&r"\u65e5".repeat(64)), 64);
}

#[test]
fn a_salt_parts_the_cache() {
    let worker = worker();
    let ask = |salt: Value| {
        let mut body = chat(640, "hi");
        body["cache_salt"] = salt;
        cached_tokens(&post(worker.local_addr(), "/v1/chat/completions", &body).json())
    };
    assert_eq!(ask(Value::Null), 0);
    assert_eq!(ask(json!("a")), 0);
    assert_eq!(ask(json!("b")), 0);
    assert!(ask(json!("a")) > 0 && ask(Value::Null) > 0);
}

#[test]
fn a_chat_stream_has_a_role_then_one_event_per_token_then_usage_and_done() {
    let worker = worker();
    let mut body = chat(400, "hello?");
    let whole = post(worker.local_addr(), "/v1/chat/completions", &body).json();
    worker.reset();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let reply = post(worker.local_addr(), "/v1/chat/completions", &body);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));

    let mut events = reply.events();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(chunks.len(), 1 + 5 + 1);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let reasons: Vec<_> =
        chunks[..6].iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, json!("length")]);
    let text: String =
        chunks[..6].iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    assert_eq!(chunks[6]["choices"], json!([]));
    assert_eq!(chunks[6]["usage"], whole["usage"]);
}

#[test]
fn every_event_of_a_stream_is_a_chunk_of_its_own() {
    let worker = worker();
    let body = json!({"prompt": "abc", "max_tokens": 4, "stream": true});
    let mut reply = post(worker.local_addr(), "/v1/completions", &body);
    for _ in 0..5 {
        let chunk = String::from_utf8(reply.chunk()).unwrap();
        assert!(
            chunk.starts_with("data: ") && chunk.ends_with("\n\n") && chunk.matches("data: ").count() == 1
        );
    }
    assert!(reply.chunk().is_empty());
}

#[test]
fn completions_take_texts_and_token_ids_and_several_choices() {
    let worker = worker();
    let ask = |body: Value| post(worker.local_addr(), "/v1/completions", &body).json();
    let tokens: Vec<u32> = (0..40).collect();
    let first = ask(json!({"prompt": tokens, "max_tokens": 2}));
    assert_eq!((&first["object"], &first["usage"]["prompt_tokens"]), (&json!("text_completion"), &json!(40)));
    assert_eq!(cached_tokens(&ask(json!({"prompt": [tokens, [1, 2]], "max_tokens": 2}))), 32);

    assert_eq!(
        cached_tokens(&ask(json!({"prompt": tokens, "n": 3, "max_tokens": 2}))),
        32,
        "one prompt counts once"
    );

    let several = ask(json!({"prompt": ["one", "two"], "n": 2, "max_tokens": 3}));
    let indexes: Vec<_> =
        several["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_ne!(several["choices"][0]["text"], several["choices"][1]["text"]);
    assert_eq!(
        (&several["usage"]["prompt_tokens"], &several["usage"]["completion_tokens"]),
        (&json!(2), &json!(12))
    );

    let unlimited = ask(json!({"prompt": "x"}));
    assert_eq!(unlimited["choices"][0]["finish_reason"], "stop");
    assert_eq!(unlimited["usage"]["completion_tokens"], 64);
}

#[test]
fn embeddings_are_stable_and_use_the_cache() {
    let worker = worker();
    let ask = || {
        post(worker.local_addr(), "/v1/embeddings", &json!({"input": ["x".repeat(100), "y".repeat(100)]}))
            .json()
    };
    let (first, second) = (ask(), ask());
    assert_eq!(first["object"], "list");
    assert_eq!(first["data"], second["data"]);
    assert_ne!(first["data"][0]["embedding"], first["data"][1]["embedding"]);
    assert_eq!((cached_tokens(&first), cached_tokens(&second)), (0, 32));
    assert_eq!(first["usage"]["total_tokens"], 50);
}

#[test]
fn routes_around_the_engine_answer_as_vllm_does() {
    let worker = worker();
    let address = worker.local_addr();
    for path in ["/health", "/ping"] {
        let reply = get(address, path);
        assert_eq!((reply.status, reply.text().as_str()), (200, ""));
    }
    assert_eq!(send(address, "POST", "/ping", None, b"").status, 200);
    assert!(get(address, "/version").json()["version"].is_string());
    assert_eq!(get(address, "/load").json(), json!({"server_load": 0}));
    let models = get(address, "/v1/models").json();
    assert_eq!(models["object"], "list");
    let model = &models["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["max_model_len"]),
        (&json!("mock"), &json!("model"), &json!(131_072))
    );

    let unknown = get(address, "/v1/nope");
    assert_eq!((unknown.status, unknown.json()), (404, json!({"detail": "Not Found"})));
    let wrong = get(address, "/v1/chat/completions");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    assert_eq!(wrong.json(), json!({"detail": "Method Not Allowed"}));
    assert_eq!(send(address, "POST", "/metrics", None, b"").status, 405);
}

#[test]
fn faults_of_a_request_have_vllms_shape() {
    let worker = worker();
    let address = worker.local_addr();
    let unknown = post(address, "/v1/chat/completions", &json!({"model": "nope", "messages": []}));
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.json(),
        json!({"error": {
            "message": "The model `nope` does not exist. Valid aliases: mock.",
            "type": "NotFoundError", "param": "model", "code": 404,
        }})
    );

    let long = "x".repeat(4 * 131_072);
    let (malformed, bad_value) = ("Bad Request", "BadRequestError");
    let faults = [
        ("/v1/chat/completions", json!({}), malformed, json!("body.messages")),
        ("/v1/chat/completions", json!({"messages": []}), bad_value, Value::Null),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": 5}]}),
            malformed,
            json!("body.messages.0.role"),
        ),
        ("/v1/chat/completions", json!({"model": 5}), malformed, json!("body.model")),
        ("/v1/chat/completions", json!([]), malformed, json!("body")),
        ("/v1/completions", json!({}), bad_value, json!("prompt")),
        ("/v1/completions", json!({"prompt": ""}), bad_value, json!("prompt")),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 0}), bad_value, json!("max_tokens")),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": "5"}), malformed, json!("body.max_tokens")),
        ("/v1/completions", json!({"prompt": "x", "n": 5_000}), bad_value, json!("n")),
        ("/v1/completions", json!({"prompt": "x", "cache_salt": ""}), bad_value, json!("cache_salt")),
        ("/v1/completions", json!({"prompt": "x", "stream_options": {}}), bad_value, json!("stream_options")),
        ("/v1/completions", json!({"prompt": long}), bad_value, json!("input_tokens")),
    ];
    for (path, body, kind, param) in faults {
        let reply = post(address, path, &body);
        assert_eq!(reply.status, 400);
        let error = reply.json()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"], &error["param"]),
            (&json!(400), &json!(kind), &param),
            "{error}"
        );
        assert!(error["message"].is_string());
    }

    let deep = "[".repeat(10_000);
    for body in ["{\"model\":", "", "{\"prompt\": \"\\ud800\"}", deep.as_str()] {
        let reply = send(address, "POST", "/v1/completions", Some("application/json"), body.as_bytes());
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!(400)));
    }
    assert_eq!(
        send(address, "POST", "/v1/completions", Some("text/plain"), b"{\"prompt\": \"x\"}").status,
        400
    );
    assert_eq!(worker.stats().requests, 0);
}

#[test]
fn an_answer_is_cut_at_the_context_of_the_model() {
    let config = MockWorkerConfig { kv_tokens: 1_024, time_scale: 0.001, ..MockWorkerConfig::default() };
    let worker = MockWorker::start(config).unwrap();
    let body = json!({"prompt": vec![1; 1_000], "max_tokens": 100});
    let answer = post(worker.local_addr(), "/v1/completions", &body).json();
    assert_eq!(answer["usage"]["completion_tokens"], 24);
}

#[test]
fn a_small_cache_evicts() {
    let config = MockWorkerConfig { kv_tokens: 1_024, time_scale: 0.001, ..MockWorkerConfig::default() };
    let worker = MockWorker::start(config).unwrap();
    for first in 0..4 {
        let prompt: Vec<u32> = (0..480).map(|token| first << 16 | token).collect();
        post(worker.local_addr(), "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).text();
    }
    assert!(worker.stats().evicted_blocks > 0);
}

#[test]
fn metrics_have_vllms_names_and_count_tokens() {
    let worker = worker();
    for question in ["one", "two"] {
        post(worker.local_addr(), "/v1/chat/completions", &chat(4_000, question)).text();
    }
    let stats = worker.stats();
    let text = get(worker.local_addr(), "/metrics").text();
    let value = |series: &str| -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(series))
            .unwrap_or_else(|| panic!("no {series} in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let labels = r#"{engine="0",model_name="mock"}"#;
    assert_eq!(value(&format!("vllm:num_requests_running{labels}")), 0.0);
    assert_eq!(value(&format!("vllm:num_requests_waiting{labels}")), 0.0);
    assert_eq!(value(&format!("vllm:kv_cache_usage_perc{labels}")), 0.0);
    assert_eq!(value(&format!("vllm:prefix_cache_queries_total{labels}")), stats.prompt_tokens as f64);
    assert_eq!(value(&format!("vllm:prefix_cache_hits_total{labels}")), 1_008.0);
    assert_eq!(value(&format!("vllm:prompt_tokens_total{labels}")), stats.prompt_tokens as f64);
    assert_eq!(value(&format!("vllm:generation_tokens_total{labels}")), 10.0);
    assert_eq!(value(&format!("vllm:time_to_first_token_seconds_count{labels}")), 2.0);
    assert_eq!(
        value(r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="mock",le="+Inf"}"#),
        2.0
    );
    let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
    assert!(info.contains(r#"block_size="16""#) && info.contains(r#"num_gpu_blocks="81250""#), "{info}");
}

#[test]
fn resetting_the_cache_is_refused_while_blocks_are_held() {
    let worker = MockWorker::start(MockWorkerConfig::default()).unwrap();
    let body = json!({"prompt": "x".repeat(400), "max_tokens": 10_000, "stream": true});
    let mut stream = post(worker.local_addr(), "/v1/completions", &body);
    stream.chunk();
    let reset = || send(worker.local_addr(), "POST", "/reset_prefix_cache", None, b"").json();
    assert_eq!(reset(), json!({"success": false}));
    drop(stream);
    wait_for("the request is cancelled", || worker.stats().running == 0);
    assert_eq!(reset(), json!({"success": true}));
}

#[test]
fn a_client_that_leaves_frees_what_it_held() {
    let config = MockWorkerConfig { max_sequences: 2, ..MockWorkerConfig::default() };
    let worker = MockWorker::start(config).unwrap();
    let address = worker.local_addr();
    let body = |stream: bool| json!({"prompt": "x", "max_tokens": 100_000, "stream": stream});

    // Two that run, one seen and one unseen, and one that waits. The unseen ones have no head to read yet.
    let mut seen = post(address, "/v1/completions", &body(true));
    seen.chunk();
    let unseen: Vec<_> = (0..2)
        .map(|_| {
            use std::io::Write;
            let mut connection = std::net::TcpStream::connect(address).unwrap();
            let body = body(false).to_string();
            let length = body.len();
            write!(
                connection,
                "POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            connection
        })
        .collect();
    wait_for("two run and one waits", || (worker.stats().running, worker.stats().waiting) == (2, 1));
    assert_eq!(get(address, "/load").json(), json!({"server_load": 3}));

    drop(seen);
    drop(unseen);
    wait_for("all are cancelled", || (worker.stats().running, worker.stats().waiting) == (0, 0));
    assert_eq!(worker.stats().cancelled, 3);
    wait_for("no request is open", || get(address, "/load").json() == json!({"server_load": 0}));
}

#[test]
fn time_passes_as_the_model_says_and_the_scale_multiplies_it() {
    // 22,000 tokens take a second of the modelled hardware; the budget makes it three steps.
    let timed = |time_scale: f64| {
        let config =
            MockWorkerConfig { time_scale, per_attention_pair_s: 0.0, ..MockWorkerConfig::default() };
        let worker = MockWorker::start(config).unwrap();
        let prompt: Vec<u32> = (0..22_000).collect();
        let ask = || {
            let started = Instant::now();
            post(worker.local_addr(), "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).text();
            started.elapsed().as_secs_f64()
        };
        (ask(), ask())
    };
    let (cold_s, warm_s) = timed(1.0);
    assert!(cold_s >= 1.0 + 3.0 * 0.006, "a cold prompt took {cold_s} s");
    assert!((0.014..cold_s / 2.0).contains(&warm_s), "cold {cold_s} s, warm {warm_s} s");
    let (scaled_s, _) = timed(0.01);
    assert!(
        (0.01..cold_s / 2.0).contains(&scaled_s),
        "at full length {cold_s} s, at a hundredth {scaled_s} s"
    );
}

#[test]
fn a_used_port_is_refused_by_address() {
    let worker = worker();
    let listen = worker.local_addr();
    match MockWorker::start(MockWorkerConfig { listen, ..MockWorkerConfig::default() }) {
        Err(Error::Listen { address, .. }) => assert_eq!(address, listen),
        other => panic!("{other:?}"),
    }
}

#[test]
fn closing_cuts_connections_and_frees_the_port() {
    let worker = MockWorker::start(MockWorkerConfig::default()).unwrap();
    let listen = worker.local_addr();
    let mut stream =
        post(listen, "/v1/completions", &json!({"prompt": "x", "max_tokens": 10_000, "stream": true}));
    stream.chunk();
    worker.close();
    wait_for("the port can be used again", || {
        MockWorker::start(MockWorkerConfig { listen, ..MockWorkerConfig::default() }).is_ok()
    });
}
