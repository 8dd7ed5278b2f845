//! Who may call: API keys and their limits, the admin token, workers' own token; and that no secret gets out.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{FakeWorker, Front, Reply, chat, ok, request, wait_until};
use trunkline_core::Policy;
use trunkline_gateway::{Error, Files, Reloaded};

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("trunkline-access-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::SeqCst));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Their hashes, as `sha256sum` has them.
const ALICE: (&str, &str) =
    ("tk-alice-0123456789", "ab9f75accf4c600c63ab589cf6fd7c26b54366bfe3b52c7de525fa52039a0025");
const BOB: (&str, &str) =
    ("tk-bob-0123456789", "4be8917f3375b5031b9ab1373c9a9ec9023ca63b09a102ed9ff73101717b90b1");

fn line(name: &str, (_, hash): (&str, &str), rest: &str) -> String {
    format!("name={name} sha256={hash} {rest}\n")
}

fn ask(front: &Front, header: &str, text: &str) -> Reply {
    front.ask(request("POST", "/v1/chat/completions", header, &chat(text)))
}

fn bearer((token, _): (&str, &str)) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[test]
fn without_a_key_nothing_but_health_is_answered() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let keys = directory.file("keys", &line("alice", ALICE, ""));
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.files.api_keys = keys);
    for header in ["", "authorization: Bearer wrong\r\n", "x-api-key: wrong\r\n", &bearer(BOB)] {
        let reply = ask(&front, header, "x");
        assert_eq!(reply.status, 401, "{header}");
        assert_eq!(reply.header("www-authenticate").unwrap(), "Bearer");
        assert_eq!(reply.json()["error"]["type"], "authentication_error");
        assert!(!reply.text().contains("wrong"));
    }
    assert_eq!(front.ask(request("GET", "/v1/models", "", b"")).status, 401);
    assert_eq!(front.ask(request("GET", "/health", "", b"")).status, 200);
    assert!(worker.seen().is_empty());
    assert_eq!(ask(&front, &bearer(ALICE), "x").status, 200);
    assert_eq!(ask(&front, &format!("x-api-key: {}\r\n", ALICE.0), "x").status, 200);
    assert_eq!(front.metric("trunkline_key_requests_total{key=\"alice\"}"), 2.0);
    assert_eq!(front.metric("trunkline_requests_total{worker=\"\",path=\"chat\",code=\"401\"}"), 4.0);
}

#[test]
fn our_key_stops_here_and_any_other_header_passes() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let keys = directory.file("keys", &line("alice", ALICE, ""));
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.files.api_keys = keys);
    let both = format!("x-first: 1\r\n{}x-api-key: theirs\r\nx-last: 2\r\n", bearer(ALICE));
    assert_eq!(ask(&front, &both, "x").status, 200);
    let lines = worker.seen().pop().unwrap().headers();
    assert_eq!(lines[1..4], ["x-first: 1", "x-api-key: theirs", "x-last: 2"], "{lines:?}");
    let both = format!("authorization: Bearer theirs\r\nx-api-key: {}\r\n", ALICE.0);
    assert_eq!(ask(&front, &both, "x").status, 200);
    let lines = worker.seen().pop().unwrap().headers();
    assert_eq!(lines[1], "authorization: Bearer theirs", "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains(ALICE.0)), "{lines:?}");
    let twice = format!("{}x-api-key: {}\r\n", bearer(ALICE), ALICE.0);
    assert_eq!(ask(&front, &twice, "x").status, 200);
    let lines = worker.seen().pop().unwrap().headers();
    assert!(!lines.iter().any(|line| line.contains(ALICE.0)), "{lines:?}");
}

#[test]
fn a_refusal_can_be_read_although_the_body_still_comes() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let keys = directory.file("keys", &line("alice", ALICE, ""));
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.files.api_keys = keys);
    let large = vec![b'x'; 12 << 20];
    for _ in 0..3 {
        // Sends all of it before it reads.
        let reply = front.ask(request("POST", "/v1/chat/completions", "", &large));
        assert_eq!((reply.status, reply.is_whole), (401, true));
    }
    assert!(worker.seen().is_empty());
}

#[test]
fn workers_get_a_token_of_their_own() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let token = directory.file("token", "worker-token-0123456789\n");
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.files.worker_token = token);
    assert_eq!(ask(&front, "authorization: Bearer clients-own\r\n", "x").status, 200);
    let lines = worker.seen().pop().unwrap().headers();
    let credentials: Vec<_> = lines.iter().filter(|line| line.starts_with("authorization")).collect();
    assert_eq!(credentials, ["authorization: Bearer worker-token-0123456789"]);
}

#[test]
fn limits_answer_429_and_say_when_to_return() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let text = line("alice", ALICE, "requests_per_minute=2") + &line("bob", BOB, "tokens_per_minute=100");
    let keys = directory.file("keys", &text);
    let front = Front::with(Policy::KvAware, &[&worker], |config| config.files.api_keys = keys);
    for _ in 0..2 {
        assert_eq!(ask(&front, &bearer(ALICE), "x").status, 200);
    }
    let reply = ask(&front, &bearer(ALICE), "x");
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str().unwrap()), (429, "rate_limit_error"));
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");

    worker.answer_with(ok(r#"{"usage":{"prompt_tokens":140,"completion_tokens":10}}"#));
    assert_eq!(ask(&front, &bearer(BOB), "x").status, 200, "what it will cost is not known before");
    let reply = ask(&front, &bearer(BOB), "x");
    assert_eq!(reply.status, 429);
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((20..=31).contains(&wait), "50 tokens of debt at 100 per minute, {wait} s");
    assert_eq!(front.metric("trunkline_key_tokens_total{key=\"bob\"}"), 150.0);
    assert_eq!(worker.seen().len(), 3);
}

#[test]
fn a_tenant_learns_nothing_of_anothers_prefixes() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let text = line("alice", ALICE, "") + &line("bob", BOB, "");
    let keys = directory.file("keys", &text);
    let front = Front::with(Policy::KvAware, &[&worker], |config| config.files.api_keys = keys);
    let prompt = "a prompt of some length ".repeat(50);
    let matched = |key| {
        let decision = ask(&front, &bearer(key), &prompt).header("x-trunkline-decision").unwrap();
        let (_, tokens) = decision.split_once(';').unwrap();
        tokens.split_once('/').unwrap().0.parse::<u32>().unwrap()
    };
    assert_eq!(matched(ALICE), 0);
    assert!(matched(ALICE) > 200);
    assert_eq!(matched(BOB), 0, "bob cannot see that alice asked this");

    let shared = line("alice", ALICE, "tenant=t") + &line("bob", BOB, "tenant=t");
    let files = Files { api_keys: directory.file("shared", &shared), ..Files::default() };
    front.gateway.reload(&files, &[worker.url()], None).unwrap();
    assert_eq!(matched(ALICE), 0);
    assert!(matched(BOB) > 200, "keys of one tenant share");
}

#[test]
fn the_admin_token_guards_all_but_liveness() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let token = directory.file("token", "admin-token-0123456789\n");
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.files.admin_token = token);
    wait_until("it is ready", || front.admin("GET", "/readyz", "").status == 200);
    assert_eq!(front.admin("GET", "/livez", "").status, 200);
    let ask = |method: &str, path: &str, header: &str| {
        let mut client = support::Client::connect(front.gateway.admin_addr().unwrap());
        client.send(request(method, path, header, b"{}"));
        client.reply().unwrap()
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/admin/workers"),
        ("POST", "/admin/workers"),
        ("DELETE", "/admin/workers"),
        ("GET", "/admin/state"),
        ("POST", "/admin/explain"),
        ("GET", "/nothing"),
    ] {
        for header in ["", "authorization: Bearer admin-token-0123456780\r\n", "authorization: Bearer \r\n"] {
            let reply = ask(method, path, header);
            assert_eq!((reply.status, reply.header("www-authenticate").as_deref()), (401, Some("Bearer")));
            assert!(reply.json()["error"]["message"].is_string());
        }
        let reply = ask(method, path, "authorization: Bearer admin-token-0123456789\r\n");
        assert_ne!(reply.status, 401, "{method} {path}");
    }
}

#[test]
fn no_secret_is_in_metrics_state_or_answers() {
    let (worker, directory) = (FakeWorker::start(), Directory::new());
    let secrets = [ALICE.0, ALICE.1, "worker-token-0123456789", "clients-own-secret"];
    let keys = directory.file("keys", &line("alice", ALICE, ""));
    let token = directory.file("token", secrets[2]);
    let front = Front::with(Policy::KvAware, &[&worker], |config| {
        config.files.api_keys = keys;
        config.files.worker_token = token;
    });
    let header = format!("{}x-api-key: {}\r\n", bearer(ALICE), secrets[3]);
    let mut shown = vec![
        ask(&front, &header, "x"),
        ask(&front, "authorization: Bearer clients-own-secret\r\n", "x"),
        ask(&front, "x-api-key: clients-own-secret\r\n", "x"),
    ];
    assert_eq!(shown.iter().map(|reply| reply.status).collect::<Vec<_>>(), [200, 401, 401]);
    for path in ["/metrics", "/admin/state", "/admin/workers"] {
        shown.push(front.admin("GET", path, ""));
    }
    let debug = format!("{:?}", front.gateway);
    for secret in secrets {
        assert!(!debug.contains(secret), "{secret} in {debug}");
        for reply in &shown {
            assert!(
                !reply.head.contains(secret) && !reply.text().contains(secret),
                "{secret} in {}",
                reply.head
            );
        }
    }
}

#[test]
fn a_reload_is_whole_or_not_at_all() {
    let (first, second, directory) = (FakeWorker::start(), FakeWorker::start(), Directory::new());
    let keys = directory.file("keys", &line("alice", ALICE, ""));
    let good = Files { api_keys: keys, ..Files::default() };
    let front = Front::with(Policy::RoundRobin, &[&first], |config| config.files = good.clone());
    front.gateway.add_worker(&second.url()).unwrap();
    assert_eq!(ask(&front, &bearer(ALICE), "x").status, 200);

    let third = FakeWorker::start();
    let bad = Files { admin_token: directory.file("short", "short"), ..Files::default() };
    let refused = front.gateway.reload(&bad, &[third.url()], None);
    assert!(matches!(refused, Err(Error::File { key: "admin_token_file", .. })), "{refused:?}");
    let refused = front.gateway.reload(&Files::default(), &[third.url(), format!("{}/", third.url())], None);
    assert!(matches!(refused, Err(Error::Router(_))), "{refused:?}");
    let refused = front.gateway.reload(&Files::default(), &[third.url(), "nonsense".into()], None);
    assert!(matches!(refused, Err(Error::Config { key: "worker", .. })), "{refused:?}");
    assert_eq!(front.router.workers().len(), 2, "nothing has changed");
    assert_eq!(ask(&front, "", "x").status, 401);
    assert_eq!(front.metric("trunkline_config_reloads_total{result=\"refused\"}"), 3.0);

    let bobs = Files { api_keys: directory.file("keys", &line("bob", BOB, "")), ..Files::default() };
    let done = front.gateway.reload(&bobs, &[third.url()], None).unwrap();
    assert_eq!((done.added, done.removed), (vec![third.url()], vec![first.url()]));
    assert_eq!(ask(&front, &bearer(ALICE), "x").status, 401);
    for _ in 0..4 {
        assert_eq!(ask(&front, &bearer(BOB), "x").status, 200);
    }
    let (old, added) = (first.seen().len(), second.seen().len());
    assert!(old <= 1 && added >= 1 && !third.seen().is_empty(), "what the admin API added stays");
    assert_eq!(front.metric("trunkline_config_reloads_total{result=\"ok\"}"), 1.0);
}

#[test]
fn a_reload_knows_ranks_and_refuses_other_options_for_a_worker_that_is_there() {
    let (first, second) = (FakeWorker::start(), FakeWorker::start());
    let rank = |rank: u32| format!("{}#engine=vllm&rank={rank}", first.url());
    let front = Front::start(&[&second]);
    let reload = |workers: &[String]| front.gateway.reload(&Files::default(), workers, None);
    let [zero, one] = [0, 1].map(|rank| format!("{}#rank={rank}", first.url()));
    assert_eq!(reload(&[second.url(), rank(0), rank(1)]).unwrap().added, [zero.clone(), one]);
    assert_eq!(
        reload(&[second.url(), rank(1)]).unwrap(),
        Reloaded { removed: vec![zero], ..Reloaded::default() }
    );

    let third = FakeWorker::start();
    for other in [format!("{}#rank=1", first.url()), format!("{}#pool=new", second.url())] {
        let refused = reload(&[third.url(), other.clone()]);
        assert!(
            matches!(&refused, Err(Error::Config { key: "worker", value, .. }) if *value == other),
            "{refused:?}"
        );
    }
    assert_eq!(front.router.workers().len(), 2, "nothing has changed");
    assert_eq!(
        reload(&[second.url(), format!("{}#rank=1&engine=vllm", first.url())]).unwrap(),
        Reloaded::default()
    );
}
