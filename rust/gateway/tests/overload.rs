//! Fleets with more requests than places: caps, the queue, the retry budget, and clients that give up.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use support::{Client, FakeWorker, Front, STREAM_HEAD, Then, answer, chat, ok, request, wait_until};
use trunkline_core::Policy;
use trunkline_gateway::GatewayConfig;

fn front(workers: &[&FakeWorker], change: impl FnOnce(&mut GatewayConfig)) -> Front {
    Front::with(Policy::RoundRobin, workers, change)
}

fn send(front: &Front, text: &str) -> Client {
    let mut client = front.client();
    client.send(request("POST", "/v1/chat/completions", "", &chat(text)));
    client
}

/// A worker that answers a request when it is told to.
fn told() -> (FakeWorker, mpsc::Sender<()>) {
    let (say, said) = mpsc::channel();
    let said = Mutex::new(said);
    let worker = FakeWorker::start();
    worker.behave(move |_, peer| {
        // An error means that the test is over.
        if said.lock().expect("no test panics with this lock").recv().is_err() {
            return Then::Close;
        }
        peer.send(ok("{}"));
        Then::Keep
    });
    (worker, say)
}

fn queued(front: &Front, requests: usize) {
    wait_until("the queue's length", || front.metric("trunkline_queue_length") == requests as f64);
}

#[test]
fn a_cap_is_kept_and_who_waits_is_served_in_order() {
    let (worker, say) = told();
    let front = front(&[&worker], |config| {
        config.max_in_flight = Some(1);
        config.queue_timeout = Duration::from_secs(60);
    });
    let mut clients = vec![send(&front, "text 0")];
    wait_until("the first one runs", || worker.seen().len() == 1);
    for number in 1..5 {
        clients.push(send(&front, &format!("text {number}")));
        queued(&front, number);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(worker.seen().len(), number + 1, "the cap holds");
        say.send(()).unwrap();
        assert_eq!(client.reply().unwrap().status, 200);
        wait_until("the next one runs", || worker.seen().len() == (number + 2).min(5));
    }
    for (number, seen) in worker.seen().iter().enumerate() {
        assert_eq!(seen.body, chat(&format!("text {number}")), "first come, first served");
    }
    assert_eq!(front.metric("trunkline_queue_seconds_count"), 4.0);
    front.assert_nothing_in_flight();
}

#[test]
fn the_queue_is_bounded_in_requests_and_in_time() {
    let (worker, _say) = told();
    let front = front(&[&worker], |config| {
        config.max_in_flight = Some(1);
        config.max_queued = 1;
        config.queue_timeout = Duration::from_millis(300);
    });
    let _runs = send(&front, "a");
    wait_until("it runs", || worker.seen().len() == 1);
    let start = Instant::now();
    let mut waits = send(&front, "b");
    queued(&front, 1);
    let turned_away = front.chat("c");
    assert!(start.elapsed() < Duration::from_millis(300), "at once");
    let timed_out = waits.reply().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
    for reply in [turned_away, timed_out] {
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1".into())));
        assert_eq!(reply.json()["error"]["type"], "service_unavailable");
    }
    for reason in ["full", "timeout"] {
        assert_eq!(front.metric(&format!("trunkline_queue_refusals_total{{reason=\"{reason}\"}}")), 1.0);
    }
    assert_eq!(worker.seen().len(), 1);
}

#[test]
fn a_client_that_leaves_the_queue_is_forgotten_at_once() {
    let (worker, say) = told();
    let front = front(&[&worker], |config| {
        config.max_in_flight = Some(1);
        config.queue_timeout = Duration::from_secs(60);
    });
    let mut runs = send(&front, "a");
    wait_until("it runs", || worker.seen().len() == 1);
    let leaves = send(&front, "b");
    queued(&front, 1);
    let mut stays = send(&front, "c");
    queued(&front, 2);
    drop(leaves);
    queued(&front, 1);
    for client in [&mut runs, &mut stays] {
        say.send(()).unwrap();
        assert_eq!(client.reply().unwrap().status, 200);
    }
    assert_eq!(worker.seen().len(), 2, "nobody was asked for who had left");
    front.assert_nothing_in_flight();
}

#[test]
fn models_wait_in_lanes_of_their_own() {
    let ((one, say_one), (two, say_two)) = (told(), told());
    one.models(&["one"]);
    two.models(&["two"]);
    let front = front(&[&one, &two], |config| {
        config.max_in_flight = Some(1);
        config.queue_timeout = Duration::from_secs(60);
    });
    let send = |model: &str| {
        let body = serde_json::json!({"model": model, "messages": [{"role": "user", "content": "x"}]});
        let mut client = front.client();
        client.send(request("POST", "/v1/chat/completions", "", body.to_string().as_bytes()));
        client
    };
    wait_until("both lists are known", || {
        let list = front.ask(request("GET", "/v1/models", "", b"")).text();
        list.contains("one") && list.contains("two")
    });
    let mut ones = [send("one"), send("one")];
    queued(&front, 1);
    let mut free = send("two");
    say_two.send(()).unwrap();
    assert_eq!(free.reply().unwrap().status, 200, "a full worker of another model is no reason to wait");
    ones.iter().for_each(|_| say_one.send(()).unwrap());
    for client in &mut ones {
        assert_eq!(client.reply().unwrap().status, 200);
    }
    front.assert_nothing_in_flight();
}

#[test]
fn workers_that_say_busy_are_asked_again_when_they_have_room() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let running = Arc::new(AtomicUsize::new(0));
        let worker = FakeWorker::start();
        let counts = Arc::clone(&running);
        worker.behave(move |_, peer| {
            let reply = if counts.fetch_add(1, Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(40));
                ok("{}")
            } else {
                answer(status, "application/json", "{}")
            };
            counts.fetch_sub(1, Ordering::SeqCst);
            peer.send(reply);
            Then::Keep
        });
        let front = front(&[&worker], |config| config.queue_timeout = Duration::from_secs(60));
        let mut clients: Vec<_> = (0..6).map(|number| send(&front, &number.to_string())).collect();
        for client in &mut clients {
            assert_eq!(client.reply().unwrap().status, 200, "{status}");
        }
        front.assert_nothing_in_flight();
    }
}

#[test]
fn caps_of_single_workers_are_set_and_shown() {
    let ((one, _say_one), (two, _say_two), three) = (told(), told(), FakeWorker::start());
    let front = front(&[&one, &two], |config| {
        config.max_in_flight = Some(2);
        config.worker_caps = vec![(one.url(), 1)];
        config.max_queued = 0;
    });
    let _clients: Vec<_> = (0..3).map(|number| send(&front, &number.to_string())).collect();
    wait_until("three run", || one.seen().len() + two.seen().len() == 3);
    assert_eq!((one.seen().len(), two.seen().len()), (1, 2));
    assert_eq!(front.chat("one more").status, 503);
    let body = format!(r#"{{"url":"{}","max_in_flight":1000001}}"#, three.url());
    assert_eq!(front.admin("POST", "/admin/workers", &body).status, 400);
    let body = format!(r#"{{"url":"{}","max_in_flight":7}}"#, three.url());
    assert_eq!(front.admin("POST", "/admin/workers", &body).status, 201);
    assert_eq!(front.chat("one more").status, 200);
    let rows = front.admin("GET", "/admin/workers", "").json();
    let caps: Vec<_> = (0..3).map(|row| rows["workers"][row]["max_in_flight"].as_u64()).collect();
    assert_eq!(caps, [Some(1), Some(2), Some(7)]);
}

#[test]
fn retries_end_with_their_budget_but_not_those_that_cost_nothing() {
    let (one, two) = (FakeWorker::start(), FakeWorker::start());
    for worker in [&one, &two] {
        worker.answer_with(answer("500 Internal Server Error", "application/json", "{}"));
    }
    let front = front(&[&one, &two], |config| config.retry_budget = 0.0);
    for _ in 0..4 {
        assert_eq!(front.chat("x").status, 500);
    }
    assert_eq!(one.seen().len() + two.seen().len(), 4, "one attempt each");
    assert_eq!(front.metric("trunkline_retries_denied_total"), 4.0);
    two.answer_with(ok("{}"));
    one.kill();
    // Those that meet the closed port have reached no worker.
    for _ in 0..4 {
        assert_eq!(front.chat("x").status, 200);
    }
    front.assert_nothing_in_flight();
}

#[test]
fn requests_whose_worker_died_are_rescued_without_a_budget() {
    let (dying, other) = (FakeWorker::start(), FakeWorker::start());
    dying.behave(|_, _| Then::Close);
    other.answer_with(ok("{}"));
    let front = front(&[&dying, &other], |config| config.retry_budget = 0.0);
    for _ in 0..8 {
        assert_eq!(front.chat("x").status, 200);
    }
    assert!(!dying.seen().is_empty());
    assert_eq!(front.metric("trunkline_retries_denied_total"), 0.0);
    front.assert_nothing_in_flight();
}

#[test]
fn a_fleet_that_drowns_is_asked_little_more_than_once_per_request() {
    let workers: Vec<_> = (0..3).map(|_| FakeWorker::start()).collect();
    for worker in &workers {
        worker.answer_with(answer("500 Internal Server Error", "application/json", "{}"));
    }
    let front = front(&workers.iter().collect::<Vec<_>>(), |_| {});
    for _ in 0..200 {
        assert_eq!(front.chat("x").status, 500);
    }
    let asked: usize = workers.iter().map(|worker| worker.seen().len()).sum();
    assert!(asked <= 200 + 40 + 32 + 1, "{asked} attempts for 200 requests");
}

#[test]
fn a_client_that_leaves_reaches_the_worker_within_50_ms_and_frees_every_count() {
    let worker = FakeWorker::start();
    worker.behave(|seen, peer| {
        if seen.body.windows(9).any(|window| window == b"streaming") {
            peer.send(STREAM_HEAD);
            peer.chunk("data: {\"a\":1}\n\n");
        }
        peer.wait_for_leave()
    });
    let front = Front::start(&[&worker]);
    let mut fastest = [Duration::MAX; 2];
    for round in 0..5 {
        for (way, text) in ["in one piece", "streaming"].into_iter().enumerate() {
            let mut client = send(&front, &format!("{text} {round}"));
            if text == "streaming" {
                client.head().unwrap();
                client.read_until("data: {\"a\":1}\n\n");
            } else {
                wait_until("it runs", || worker.seen().len() == 2 * round + 1);
            }
            let left = worker.left();
            let start = Instant::now();
            drop(client);
            wait_until("the worker sees it", || worker.left() > left);
            fastest[way] = fastest[way].min(start.elapsed());
            front.assert_nothing_in_flight();
        }
    }
    // The machine may be busy in any one round, not in all of them.
    assert!(fastest.iter().all(|took| *took < Duration::from_millis(50)), "{fastest:?}");
}
