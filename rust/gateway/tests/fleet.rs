//! The fleet and the gateway's own life: health, restarts, models, the admin API, drain.

mod support;

use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use support::{DEADLINE, FakeWorker, Front, STREAM_HEAD, Then, answer, chat, ok, request, wait_until};
use trunkline_core::{Policy, Router, RouterConfig, WorkerSpec};
use trunkline_gateway::{Error, Gateway, GatewayConfig, Listen};

#[test]
fn a_used_port_is_an_error() {
    let front = Front::start(&[]);
    let again = |config| Gateway::start(config, Arc::new(Router::new(RouterConfig::default()).unwrap()), &[]);
    let free = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let taken = front.gateway.listens_on().clone();
    let result =
        again(GatewayConfig { listen: taken.clone(), admin_listen: None, ..GatewayConfig::default() });
    assert!(matches!(result, Err(Error::Listen { ref address, .. }) if *address == taken), "{result:?}");
    let taken = front.gateway.admin_addr().unwrap();
    let result = again(GatewayConfig { listen: free, admin_listen: Some(taken), ..GatewayConfig::default() });
    assert!(
        matches!(result, Err(Error::Listen { ref address, .. }) if *address == Listen::Tcp(taken)),
        "{result:?}"
    );
}

#[test]
fn bad_settings_and_workers_stop_the_start() {
    let start = |config: GatewayConfig, workers: &[&str]| {
        let workers: Vec<String> = workers.iter().map(|url| (*url).to_owned()).collect();
        let free = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let config = GatewayConfig { listen: free, admin_listen: None, ..config };
        Gateway::start(config, Arc::new(Router::new(RouterConfig::default()).unwrap()), &workers)
    };
    let message = |result: Result<Gateway, Error>| result.unwrap_err().to_string();
    let text = message(start(GatewayConfig { threads: 1000, ..GatewayConfig::default() }, &[]));
    assert_eq!(text, "threads = 1000: allowed is 0 to 256");
    let text = message(start(GatewayConfig::default(), &["localhost:8000"]));
    assert!(text.contains("worker = localhost:8000") && text.contains("http://host"), "{text}");
    let text = message(start(GatewayConfig::default(), &["http://a:1", "http://a:1/"]));
    assert!(text.contains("already"), "{text}");
}

#[test]
fn requests_are_served_before_the_first_probe_has_ended() {
    let worker = FakeWorker::start();
    // Every probe hangs.
    for page in ["/health", "/v1/models", "/metrics"] {
        worker.page(page, Vec::new());
    }
    let front = Front::start(&[&worker]);
    assert_eq!(front.chat("x").status, 200);
    assert_eq!(front.ask(request("GET", "/health", "", b"")).status, 200);
}

#[test]
fn a_sick_worker_leaves_and_comes_back_and_a_hung_probe_delays_nobody() {
    let (hung, sick) = (FakeWorker::start(), FakeWorker::start());
    hung.page("/health", Vec::new());
    let front = Front::start(&[&hung, &sick]);
    sick.page("/health", answer("503 Service Unavailable", "text/plain", ""));
    wait_until("the sick worker leaves", || !front.is_healthy(&sick));
    assert_eq!(front.metric(&format!("trunkline_worker_up{{worker=\"{}\"}}", sick.url())), 0.0);
    for number in 0..4 {
        assert_eq!(front.chat(&number.to_string()).status, 200);
    }
    assert_eq!((hung.seen().len(), sick.seen().len()), (4, 0));
    sick.page("/health", ok(""));
    wait_until("the cured worker comes back", || front.is_healthy(&sick));
}

#[test]
fn a_worker_without_a_health_page_is_asked_for_its_models() {
    let worker = FakeWorker::start();
    worker.page("/health", answer("404 Not Found", "text/plain", ""));
    worker.models(&["m"]);
    let front = Front::start(&[&worker]);
    wait_until("its models are known", || {
        front.ask(request("GET", "/v1/models", "", b"")).text().contains("\"m\"")
    });
    assert!(front.is_healthy(&worker));
    worker.page("/v1/models", answer("500 Internal Server Error", "text/plain", ""));
    wait_until("it leaves", || !front.is_healthy(&worker));
}

#[test]
fn a_worker_that_restarts_starts_cold() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::KvAware, &[&worker], |_| {});
    front.chat(&"a shared prefix ".repeat(100));
    assert!(front.view(&worker).cached_blocks > 0);
    worker.kill();
    wait_until("it leaves", || !front.is_healthy(&worker));
    let again = FakeWorker::at(worker.address);
    wait_until("it comes back", || front.is_healthy(&again));
    assert_eq!(front.view(&again).cached_blocks, 0, "what it held is lost");
}

#[test]
fn capacity_comes_from_the_engines_metrics() {
    let worker = FakeWorker::start();
    worker.page(
        "/metrics",
        answer(
            "200 OK",
            "text/plain",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n",
        ),
    );
    let front = Front::start(&[&worker]);
    wait_until("its size is known", || front.view(&worker).capacity_tokens == Some(1600));
}

#[test]
fn model_lists_are_merged_and_decide_who_is_asked() {
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    one.models(&["base", "only-one"]);
    two.models(&["base", "only-two"]);
    let front = Front::start(&[&one, &two]);
    let list = || front.ask(request("GET", "/v1/models", "", b""));
    wait_until("both lists are known", || {
        let text = list().text();
        text.contains("only-one") && text.contains("only-two")
    });
    let document = list().json();
    let ids: Vec<&str> =
        document["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["base", "only-one", "only-two"]);
    assert_eq!(document["data"][0]["by"], one.address.port().to_string(), "the first worker's entry wins");
    let ask = |model: &str| {
        let body =
            serde_json::json!({"model": model, "messages": [{"role": "user", "content": "x"}]}).to_string();
        front.ask(request("POST", "/v1/chat/completions", "", body.as_bytes()))
    };
    for _ in 0..4 {
        assert_eq!(ask("only-two").header("x-trunkline-worker"), Some(two.url()));
    }
    let before = one.seen().len() + two.seen().len();
    let unknown = ask("nobody-knows");
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &"model_not_found".into()));
    assert_eq!(unknown.json()["error"]["param"], "model");
    let asked = r#"{"model":"nobody-knows","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(front.admin("POST", "/admin/explain", asked).status, 404);
    assert_eq!(one.seen().len() + two.seen().len(), before, "nobody is asked for what nobody serves");
}

#[test]
fn the_admin_api_changes_the_fleet() {
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    let front = Front::start(&[&one]);
    let added = front.admin("POST", "/admin/workers", &format!(r#"{{"url":"{}"}}"#, two.url()));
    assert_eq!((added.status, added.json()["url"].as_str()), (201, Some(two.url().as_str())));
    assert_eq!(front.admin("POST", &format!("/admin/workers?url={}", two.url()), "").status, 409);
    for (method, body, status) in [
        ("POST", "", 400),
        ("POST", r#"{"url":"nonsense"}"#, 400),
        ("DELETE", r#"{"url":"http://nobody:1"}"#, 404),
    ] {
        let reply = front.admin(method, "/admin/workers", body);
        assert_eq!(reply.status, status, "{method} {body}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    let list = front.admin("GET", "/admin/workers", "").json();
    let urls: Vec<&str> =
        list["workers"].as_array().unwrap().iter().map(|row| row["url"].as_str().unwrap()).collect();
    assert_eq!(urls, [one.url(), two.url()]);
    for number in 0..4 {
        front.chat(&number.to_string());
    }
    assert_eq!((one.seen().len(), two.seen().len()), (2, 2));

    let encoded = two.url().replace(':', "%3A").replace('/', "%2F");
    assert_eq!(front.admin("POST", &format!("/admin/workers/{encoded}/drain"), "").status, 200);
    assert!(front.view(&two).draining);
    for number in 0..3 {
        front.chat(&format!("more {number}"));
    }
    assert_eq!((one.seen().len(), two.seen().len()), (5, 2));
    assert_eq!(front.admin("POST", "/admin/workers/77/drain", "").status, 404);
    assert_eq!(front.admin("DELETE", &format!("/admin/workers?url={}", two.url()), "").status, 200);
    let id = front.view(&one).id.0;
    assert_eq!(front.admin("POST", &format!("/admin/workers/{id}/drain"), "").status, 200);
    assert_eq!(front.admin("GET", "/readyz", "").status, 503);
    assert_eq!(front.admin("GET", "/livez", "").status, 200);
    assert_eq!(front.chat("x").status, 503);
}

#[test]
fn the_admin_api_explains_and_shows_its_state() {
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    let front = Front::with(Policy::KvAware, &[&one, &two], |_| {});
    let body = String::from_utf8(chat(&"tell me a story ".repeat(60))).unwrap();
    let went = front
        .ask(request("POST", "/v1/chat/completions", "", body.as_bytes()))
        .header("x-trunkline-worker")
        .unwrap();
    let explained = front.admin("POST", "/admin/explain", &body).json();
    assert_eq!(explained["worker"], went);
    assert_eq!(explained["candidates"].as_array().unwrap().len(), 2);
    assert!(explained["candidates"][0]["matched_tokens"].as_u64().unwrap() > 100, "{explained}");
    let explained =
        front.admin("POST", "/admin/explain?path=/v1/completions", r#"{"prompt":[1,2,3]}"#).json();
    assert_eq!(explained["prompt_tokens"], 3);
    for odd in ["", "{", "{}"] {
        assert_eq!(front.admin("POST", "/admin/explain", odd).status, 400, "{odd}");
    }
    assert_eq!(front.router.stats().decisions.iter().sum::<u64>(), 1, "explaining books nothing");
    let state = front.admin("GET", "/admin/state", "").json();
    assert_eq!((state["policy"].as_str(), state["ready"].as_bool()), (Some("kv_aware"), Some(true)));
    assert_eq!(state["workers"].as_array().unwrap().len(), 2);
    assert!(state["router"]["index_blocks"].as_u64().unwrap() > 0);
    for (method, path, status) in
        [("GET", "/nope", 404), ("PUT", "/admin/workers", 405), ("POST", "/metrics", 405)]
    {
        let reply = front.admin(method, path, "");
        assert_eq!((reply.status, reply.json()["status"].as_u64()), (status, Some(status.into())));
        assert_eq!(reply.header("content-type").as_deref(), Some("application/problem+json"));
        let allowed = reply.json()["allowed"].to_string();
        assert!(allowed.contains("GET /metrics") && allowed.contains("DELETE /admin/workers"), "{allowed}");
    }
    let theirs = front.ask(request("GET", "/metrics", "", b""));
    assert!(theirs.header("x-trunkline-worker").is_some(), "ours are on the admin port");
}

#[test]
fn a_drained_gateway_finishes_what_runs() {
    let worker = FakeWorker::start();
    let (say, said) = mpsc::channel::<()>();
    let said = Mutex::new(said);
    worker.behave(move |_, peer| {
        peer.send(STREAM_HEAD);
        peer.chunk("data: 1\n\n");
        said.lock().unwrap().recv().unwrap();
        peer.chunk("data: [DONE]\n\n");
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let front = Front::start(&[&worker]);
    let mut idle = front.client();
    let mut client = front.client();
    client.send(request("POST", "/v1/chat/completions", "", &chat("x")));
    client.head().unwrap();
    client.read_until("data: 1\n\n");
    front.gateway.drain();
    assert!(
        TcpStream::connect(front.gateway.local_addr().unwrap()).is_err(),
        "the port is closed when drain returns"
    );
    assert_eq!(front.admin("GET", "/readyz", "").status, 503);
    assert!(idle.reply().is_none(), "an idle client is told to go");
    assert!(!front.gateway.wait_drained(Duration::from_millis(50)), "a stream is running");
    say.send(()).unwrap();
    client.read_until("data: [DONE]\n\n");
    assert_eq!(client.chunk(), Some(Vec::new()));
    assert!(front.gateway.wait_drained(DEADLINE));
    front.assert_nothing_in_flight();
    front.gateway.close();
}

#[test]
fn requests_that_are_still_on_their_way_do_not_hold_up_a_drain() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let half = request("POST", "/v1/chat/completions", "", &chat("x"));
    let (mut no_head, mut no_body, mut second) = (front.client(), front.client(), front.client());
    no_head.send(&half[..20]);
    no_body.send(&half[..half.len() - 3]);
    second.send(&half);
    assert_eq!(second.reply().unwrap().status, 200);
    second.send(&half[..20]);
    let mut late = front.client();
    let asks = request("POST", "/v1/chat/completions", "expect: 100-continue\r\n", &chat("x"));
    let head = asks.len() - chat("x").len();
    late.send(&asks[..head]);
    assert_eq!(late.head().unwrap().status, 100, "its head has arrived");
    front.gateway.drain();
    // What arrives within the grace is answered.
    late.send(&asks[head..]);
    assert_eq!(late.reply().unwrap().status, 200);
    let start = Instant::now();
    assert!(front.gateway.wait_drained(DEADLINE));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(no_body.reply().unwrap().status, 408, "its head came whole, so it is told");
    for mut client in [no_head, second] {
        assert!(client.reply().is_none());
    }
}

#[test]
fn closing_does_not_wait_for_who_waits_for_the_drain() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| peer.wait_for_leave());
    let front = Front::start(&[&worker]);
    let mut client = front.client();
    client.send(request("POST", "/v1/chat/completions", "", &chat("x")));
    wait_until("it runs", || worker.seen().len() == 1);
    front.gateway.drain();
    let start = Instant::now();
    let drained = thread::scope(|scope| {
        let waits = scope.spawn(|| front.gateway.wait_drained(Duration::from_secs(60)));
        front.gateway.close();
        waits.join().unwrap()
    });
    assert!(!drained && start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    front.gateway.close();
}

#[test]
fn a_shared_router_places_only_among_our_own_workers() {
    let (ours, theirs) = (FakeWorker::start(), FakeWorker::start());
    for policy in [Policy::RoundRobin, Policy::KvAware] {
        let front = Front::with(policy, &[&ours], |_| {});
        front.router.add_worker(WorkerSpec::new(theirs.url())).unwrap();
        for number in 0..6 {
            assert_eq!(front.chat(&number.to_string()).status, 200);
        }
        assert_eq!(front.ask(request("GET", "/version", "", b"")).status, 200);
        front.assert_nothing_in_flight();
    }
    assert!(theirs.seen().is_empty());
}

#[test]
fn closing_cuts_what_runs_and_frees_the_ports() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| peer.wait_for_leave());
    let front = Front::start(&[&worker]);
    let mut client = front.client();
    client.send(request("POST", "/v1/chat/completions", "", &chat("x")));
    wait_until("it runs", || worker.seen().len() == 1);
    let Front { gateway, router } = front;
    let (address, admin) = (gateway.listens_on().clone(), gateway.admin_addr());
    gateway.close();
    assert!(client.reply().is_none());
    assert_eq!(router.stats().in_flight, 0, "its booking was closed");
    wait_until("the worker sees it", || worker.left() == 1);
    let config = GatewayConfig { listen: address, admin_listen: admin, ..GatewayConfig::default() };
    Gateway::start(config, Arc::new(Router::new(RouterConfig::default()).unwrap()), &[]).unwrap().close();
}
