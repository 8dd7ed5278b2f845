//! Workers that say nothing: hangs before the first byte, and pauses after it.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use support::{Client, FakeWorker, Front, STREAM_HEAD, Then, chat, ok, request, wait_until};
use trunkline_core::Policy;

/// A worker that answers at once until it is told to hang, and then one request each time it is told.
fn hangs() -> (FakeWorker, Arc<AtomicBool>, mpsc::Sender<()>) {
    let (say, said) = mpsc::channel();
    let (said, is_hung) = (Mutex::new(said), Arc::new(AtomicBool::new(false)));
    let worker = FakeWorker::start();
    let hung = Arc::clone(&is_hung);
    worker.behave(move |_, peer| {
        if hung.load(Ordering::SeqCst) && said.lock().expect("no test panics with this lock").recv().is_err()
        {
            return Then::Close;
        }
        peer.send(ok("{}"));
        Then::Keep
    });
    (worker, is_hung, say)
}

fn send(front: &Front, text: &str) -> Client {
    let mut client = front.client();
    client.send(request("POST", "/v1/chat/completions", "", &chat(text)));
    client
}

fn is_suspect(front: &Front, worker: &FakeWorker) -> bool {
    let rows = front.admin("GET", "/admin/workers", "").json();
    let row = rows["workers"].as_array().into_iter().flatten().find(|row| row["url"] == worker.url());
    row.expect("the worker is listed")["suspect"] == true
}

#[test]
fn a_worker_that_hangs_gets_nothing_new_until_it_shows_a_byte() {
    let (victim, is_hung, say) = hangs();
    let other = FakeWorker::start();
    let front = Front::start(&[&victim, &other]);
    for number in 0..40 {
        assert_eq!(front.chat(&format!("before {number}")).status, 200);
    }
    is_hung.store(true, Ordering::SeqCst);
    let before = victim.seen().len();
    let mut stuck = Vec::new();
    while victim.seen().len() == before {
        let mut client = send(&front, "is it stuck?");
        wait_until("somebody has it", || {
            victim.seen().len() > before || other.seen().len() + before > 40 + stuck.len()
        });
        if victim.seen().len() > before {
            stuck.push(client);
        } else {
            assert_eq!(client.reply().unwrap().status, 200);
        }
    }
    wait_until("it is suspect", || is_suspect(&front, &victim));
    let series = format!("trunkline_worker_suspect{{worker=\"{}\"}}", victim.url());
    assert_eq!(front.metric(&series), 1.0);
    for number in 0..20 {
        assert_eq!(front.chat(&format!("meanwhile {number}")).status, 200);
    }
    assert_eq!(victim.seen().len(), before + stuck.len(), "it gets nothing new");
    is_hung.store(false, Ordering::SeqCst);
    say.send(()).unwrap();
    for client in &mut stuck {
        assert_eq!(client.reply().unwrap().status, 200);
    }
    assert!(!is_suspect(&front, &victim));
    let before = victim.seen().len();
    for number in 0..4 {
        assert_eq!(front.chat(&format!("after {number}")).status, 200);
    }
    assert!(victim.seen().len() > before, "it is back");
    front.assert_nothing_in_flight();
}

#[test]
fn when_all_hang_they_are_still_asked() {
    let (worker, is_hung, say) = hangs();
    let front = Front::start(&[&worker]);
    for number in 0..20 {
        front.chat(&number.to_string());
    }
    is_hung.store(true, Ordering::SeqCst);
    let mut stuck = vec![send(&front, "a")];
    wait_until("it is suspect", || is_suspect(&front, &worker));
    stuck.push(send(&front, "b"));
    wait_until("it is asked all the same", || worker.seen().len() == 22);
    for client in &mut stuck {
        say.send(()).unwrap();
        assert_eq!(client.reply().unwrap().status, 200);
    }
}

#[test]
fn hang_detection_can_be_off() {
    let (worker, is_hung, _say) = hangs();
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.hang_detection = false);
    for number in 0..20 {
        front.chat(&number.to_string());
    }
    is_hung.store(true, Ordering::SeqCst);
    let _stuck = send(&front, "a");
    wait_until("it runs", || worker.seen().len() == 21);
    std::thread::sleep(Duration::from_millis(400));
    assert!(!is_suspect(&front, &worker));
}

#[test]
fn an_answer_that_stops_half_way_ends_as_a_cut_one_does() {
    for is_stream in [true, false] {
        let worker = FakeWorker::start();
        worker.behave(move |_, peer| {
            if is_stream {
                peer.send(STREAM_HEAD);
                peer.chunk("data: {\"a\":1}\n\n");
            } else {
                peer.send(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"a\":",
                );
            }
            peer.wait_for_leave()
        });
        let limit = Some(Duration::from_millis(100));
        let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.idle_timeout = limit);
        let reply = front.chat("x");
        assert!(!reply.is_whole && !reply.text().contains("[DONE]"));
        assert_eq!(reply.text().contains("\"error\""), is_stream, "{}", reply.text());
        wait_until("the worker is told", || worker.left() == 1);
        assert_eq!(front.metric("trunkline_cut_answers_total"), 1.0);
        front.assert_nothing_in_flight();
    }
}

#[test]
fn a_slow_but_steady_stream_is_not_idle() {
    let worker = FakeWorker::start();
    worker.behave(|_, peer| {
        peer.send(STREAM_HEAD);
        for _ in 0..8 {
            peer.chunk("data: {\"a\":1}\n\n");
            std::thread::sleep(Duration::from_millis(60));
        }
        peer.chunk("data: [DONE]\n\n");
        peer.send("0\r\n\r\n");
        Then::Keep
    });
    let limit = Some(Duration::from_millis(200));
    let front = Front::with(Policy::RoundRobin, &[&worker], |config| config.idle_timeout = limit);
    let reply = front.chat("x");
    assert!(reply.is_whole && reply.text().ends_with("data: [DONE]\n\n"), "{}", reply.text());
}
