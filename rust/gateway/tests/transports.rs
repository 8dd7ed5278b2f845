//! Unix sockets and IPv6 on both sides.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use support::{FakeWorker, Front, chat, request, wait_until};
use trunkline_core::Policy;
use trunkline_gateway::Listen;

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("trunkline-{}-{name}.sock", std::process::id()))
}

/// One request over a Unix socket, and the whole answer.
fn ask(path: &PathBuf, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_gateway_listens_on_a_unix_socket_and_is_a_worker_there() {
    let worker = FakeWorker::start();
    worker.models(&["m"]);
    let path = socket_path("inner");
    let inner =
        Front::with(Policy::RoundRobin, &[&worker], |config| config.listen = Listen::Unix(path.clone()));
    assert_eq!(
        (inner.gateway.local_addr(), inner.gateway.listens_on().to_string()),
        (None, format!("unix:{}", path.display()))
    );
    let bytes = request("POST", "/v1/chat/completions", "connection: close\r\n", &chat("x"));
    assert!(ask(&path, &bytes).starts_with("HTTP/1.1 200"));

    let outer = Front::start(&[]);
    let url = format!("unix:{}:/prefix/", path.display());
    outer.gateway.add_worker(&url).unwrap();
    assert!(outer.gateway.add_worker(&url.replace("unix:", "unix://")).is_err(), "it is the same worker");
    let reply = outer.chat("y");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-trunkline-worker").unwrap(), url.trim_end_matches('/'));
    // Probes of the outer gateway arrive there as well.
    let lines: Vec<_> = worker.seen().iter().map(|seen| seen.line()).collect();
    assert!(lines.contains(&"POST /prefix/v1/chat/completions HTTP/1.1".into()), "{lines:?}");
    wait_until("it is probed", || {
        worker.seen().iter().any(|seen| seen.line() == "GET /prefix/v1/models HTTP/1.1")
    });

    inner.gateway.drain();
    assert!(!path.exists(), "the socket is gone when drain returns");
    drop(inner);
    wait_until("it is out", || !outer.router.workers()[0].healthy);
}

#[test]
fn a_used_socket_is_an_error() {
    let path = socket_path("used");
    let front = Front::with(Policy::RoundRobin, &[], |config| config.listen = Listen::Unix(path.clone()));
    let again = trunkline_gateway::Gateway::start(
        trunkline_gateway::GatewayConfig {
            listen: Listen::Unix(path.clone()),
            admin_listen: None,
            ..Default::default()
        },
        std::sync::Arc::clone(&front.router),
        &[],
    );
    let text = again.unwrap_err().to_string();
    assert_eq!(text, format!("cannot listen on unix:{}", path.display()));
    assert!(path.exists());
}

#[test]
fn ipv6_in_front_and_behind() {
    let worker = FakeWorker::at("[::1]:0".parse().unwrap());
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| {
        config.listen = Listen::Tcp("[::1]:0".parse().unwrap());
        config.admin_listen = Some("[::1]:0".parse().unwrap());
    });
    let reply = front.chat("x");
    assert_eq!((reply.status, reply.header("x-trunkline-worker")), (200, Some(worker.url())));
    assert!(worker.seen()[0].headers().contains(&format!("host: {}", worker.address)));
    let long = worker.url().replace("[::1]", "[0:0:0:0:0:0:0:1]");
    assert!(front.gateway.add_worker(&long).is_err(), "another spelling of the same address");
    front.gateway.remove_worker(&long).unwrap();
}
