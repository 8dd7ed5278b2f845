//! What a trial counts of the odd ends that requests come to. `tests/integration/test_trials.py` has the rest.

mod support;

use support::*;
use trunkline_core::Policy;
use trunkline_gateway::{
    EndpointConfig, Files, GatewayConfig, TrialBy, TrialConfig, Tried, VariantConfig, VariantWorker,
};

/// Everything is in arm B, whose pool is the worker `b`.
fn front(a: &FakeWorker, b: &FakeWorker, change: impl FnOnce(&mut GatewayConfig)) -> Front {
    let front = Front::with(Policy::RoundRobin, &[a], |config| {
        config.tried.trial =
            Some(TrialConfig { policy: None, pool: Some("new".into()), share: 1.0, by: TrialBy::Request });
        change(config);
    });
    front.gateway.add_worker(&format!("{}#pool=new", b.url())).expect("a worker of the pool");
    front
}

/// A count of arm B.
fn of_b(front: &Front, count: &str) -> u64 {
    front.admin("GET", "/admin/trial", "").json()["trial"]["arms"]["b"][count].as_u64().expect("a count")
}

#[test]
fn an_answer_that_breaks_is_an_error_of_its_arm() {
    let (a, b) = (FakeWorker::start(), FakeWorker::start());
    let front = front(&a, &b, |_| {});
    b.behave(|_, peer| {
        peer.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        peer.send(b"9\r\ndata: x\n\n\r\n");
        Then::Close
    });
    assert_eq!(front.chat("hello").status, 200);
    wait_until("the request is counted", || of_b(&front, "requests") == 1);
    assert_eq!((of_b(&front, "errors"), of_b(&front, "crossed")), (1, 0));
}

#[test]
fn a_failure_that_another_worker_mends_is_one_all_the_same() {
    let (a, b) = (FakeWorker::start(), FakeWorker::start());
    let front = front(&a, &b, |_| {});
    b.answer_with(answer("500 Internal Server Error", "text/plain", "no"));
    assert_eq!(front.chat("hello").status, 200);
    assert_eq!((a.seen().len(), b.seen().len()), (1, 1));
    wait_until("the request is counted", || of_b(&front, "requests") == 1);
    assert_eq!((of_b(&front, "errors"), of_b(&front, "crossed")), (1, 1));
    front.assert_nothing_in_flight();
}

#[test]
fn a_bad_request_is_its_clients_fault() {
    let (a, b) = (FakeWorker::start(), FakeWorker::start());
    let front = front(&a, &b, |_| {});
    b.answer_with(answer("400 Bad Request", "application/json", "{}"));
    assert_eq!(front.chat("hello").status, 400);
    wait_until("the request is counted", || of_b(&front, "requests") == 1);
    assert_eq!(of_b(&front, "errors"), 0);
}

#[test]
fn what_generates_nothing_goes_by_its_arm_and_is_not_counted() {
    let (a, b) = (FakeWorker::start(), FakeWorker::start());
    let front = front(&a, &b, |_| {});
    for _ in 0..4 {
        assert_eq!(front.ask(request("GET", "/version", "", b"")).status, 200);
    }
    assert_eq!((a.seen().len(), b.seen().len()), (0, 4));
    assert_eq!(front.chat("hello").status, 200);
    wait_until("the request is counted", || of_b(&front, "requests") == 1);
}

#[test]
fn endpoints_of_sagemaker_take_no_part() {
    let (a, b) = (FakeWorker::start(), FakeWorker::start());
    let url = a.url();
    let front = front(&a, &b, |config| {
        let worker = VariantWorker { url, instance: None, component: None };
        let variant =
            VariantConfig { name: "all".into(), weight: 1, policy: Policy::Random, workers: vec![worker] };
        config.endpoints = vec![EndpointConfig { name: "own".into(), variants: vec![variant] }];
    });
    let reply = front.ask(request("POST", "/endpoints/own/openai/v1/chat/completions", "", &chat("hello")));
    assert_eq!((reply.status, a.seen().len(), b.seen().len()), (200, 1, 0));
    assert!(!reply.header("x-trunkline-decision").unwrap().contains("arm"));
    assert_eq!(front.chat("hello").header("x-trunkline-decision").unwrap().rsplit(';').next(), Some("arm=b"));
    wait_until("the other one is counted", || of_b(&front, "requests") == 1);
}

#[test]
fn a_trial_that_cannot_be_stops_the_start_and_changes_nothing_later() {
    let worker = FakeWorker::start();
    let front = Front::start(&[&worker]);
    let odd = TrialConfig { policy: None, pool: None, share: 0.5, by: TrialBy::Tenant };
    let odd = Tried { trial: Some(odd), shadow: Some(Policy::Random) };
    let refused = front.gateway.set_trial(odd.clone()).unwrap_err();
    assert!(refused.to_string().contains("trial_share"), "{refused}");
    assert!(front.admin("GET", "/admin/trial", "").json()["shadow"].is_null());
    front.gateway.set_trial(Tried { trial: None, shadow: Some(Policy::Random) }).unwrap();
    let shadow = || front.admin("GET", "/admin/trial", "").json()["shadow"]["shadow"]["policy"].to_string();
    assert_eq!(shadow(), r#""random""#);

    let workers = || front.admin("GET", "/admin/workers", "").json()["workers"].as_array().map(Vec::len);
    let urls = [worker.url(), "http://127.0.0.1:9".into()];
    let refused = front.gateway.reload(&Files::default(), &urls, Some(odd)).unwrap_err();
    assert!(refused.to_string().contains("trial_share"), "{refused}");
    assert_eq!((shadow().as_str(), workers()), (r#""random""#, Some(1)));
    let other = Tried { trial: None, shadow: Some(Policy::RoundRobin) };
    front.gateway.reload(&Files::default(), &urls, Some(other)).unwrap();
    front.gateway.reload(&Files::default(), &urls, None).unwrap();
    assert_eq!((shadow().as_str(), workers()), (r#""round_robin""#, Some(2)));
    front.gateway.set_trial(Tried::default()).unwrap();
    assert!(front.admin("GET", "/admin/trial", "").json()["shadow"].is_null());
}
