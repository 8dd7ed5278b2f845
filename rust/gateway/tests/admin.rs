//! The admin API's contract: its OpenAPI document names what is served, and what cannot be read is refused in one shape.

mod support;

use std::collections::BTreeSet;

use support::{FakeWorker, Front, chat};
use trunkline_core::Policy;

#[test]
fn the_document_names_every_method_and_so_do_problems() {
    let front = Front::start(&[]);
    let document = front.admin("GET", "/admin/openapi.json", "").json();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut operations = BTreeSet::from(["HEAD of every GET".to_owned()]);
    for (path, item) in document["paths"].as_object().unwrap() {
        let described: BTreeSet<String> =
            item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        let refused = front.admin("TRACE", &path.replace("{id}", "1"), "");
        assert_eq!(refused.status, 405, "{path}");
        let allowed = refused.header("allow").unwrap();
        let served: BTreeSet<String> =
            allowed.split(',').map(str::to_owned).filter(|method| method != "HEAD").collect();
        assert_eq!(described, served, "{path}");
        operations.extend(described.into_iter().map(|method| format!("{method} {path}")));
    }
    let problem = front.admin("GET", "/nope", "").json();
    let listed: BTreeSet<String> =
        problem["allowed"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, operations);
}

#[test]
fn what_cannot_be_read_is_refused_in_one_shape_and_changes_nothing() {
    let worker = FakeWorker::start();
    let front = Front::with(Policy::KvAware, &[&worker], |config| config.max_body_bytes = 1024);
    let chat = String::from_utf8(chat("hello")).unwrap();
    let large = format!(r#"{{"url":"http://{}:1"}}"#, "a".repeat(1024));
    let capped = format!("/admin/workers?url={}&max_in_flight=1", worker.url());
    let (chat, large, capped) = (chat.as_str(), large.as_str(), capped.as_str());
    for (method, target, body, status) in [
        ("POST", "/admin/workers?max_in_flight=many", r#"{"url":"http://127.0.0.1:1"}"#, 400),
        ("POST", "/admin/workers?url=http://127.0.0.1:1&url=http://127.0.0.1:2", "", 400),
        ("POST", "/admin/workers?url=http://127.0.0.1:1&cap=1", "", 400),
        ("POST", "/admin/workers?url=http://127.0.0.1:1", "{", 400),
        ("POST", "/admin/workers?url=http://127.0.0.1:1", r#"{"url":null}"#, 400),
        ("POST", "/admin/workers", r#"{"url":"http://127.0.0.1:1","cap":1}"#, 400),
        ("POST", "/admin/workers", r#"{"url":"http://127.0.0.1:1","max_in_flight":"1"}"#, 400),
        ("POST", "/admin/workers", r#"{"url":"http://127.0.0.1:1","max_in_flight":1000001}"#, 400),
        ("POST", "/admin/workers", large, 413),
        ("DELETE", "/admin/workers", large, 413),
        ("POST", "/admin/workers?url=http://127.0.0.1:1", r#"{"url":"http://127.0.0.1:1"}"#, 400),
        ("POST", "/admin/workers?max_in_flight=1", r#"{"url":"http://127.0.0.1:1","max_in_flight":2}"#, 400),
        ("DELETE", capped, "", 400),
        ("POST", "/admin/workers/%FF/drain", "", 400),
        ("POST", "/admin/explain?path=a&path=b", chat, 400),
        ("POST", "/admin/explain", large, 413),
    ] {
        let reply = front.admin(method, target, body);
        assert_eq!(reply.status, status, "{method} {target} {body}");
        let error = &reply.json()["error"];
        assert!(error["message"].is_string(), "{method} {target} {body}: {error}");
        assert_eq!(
            (error["type"].as_str(), error["code"].as_u64()),
            (Some("invalid_request_error"), Some(status.into()))
        );
    }
    let fleet: Vec<String> = front.router.workers().into_iter().map(|view| view.name).collect();
    assert_eq!(fleet, [worker.url()]);
    assert!(!front.view(&worker).draining);
    let added = front.admin("POST", "/admin/workers", r#"{"url":"http://127.0.0.1:1","max_in_flight":null}"#);
    assert_eq!(added.status, 201, "null is no cap of its own");
}
