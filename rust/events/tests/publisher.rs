//! The publisher before sockets that are another implementation's, and before our own feed.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use support::{Cache, batch_of, stored};
use tokio::time::{Instant, sleep, timeout};
use trunkline_events::{Batch, Endpoint, Feed, Health, Publisher, PublisherConfig, Sink, Source};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const DEADLINE: Duration = Duration::from_secs(3);

/// A publisher of the topic `kv@w` that keeps three messages, and its ports.
fn started() -> (Publisher, [u16; 2]) {
    let [live, replay] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&live, &replay].map(|listener| listener.local_addr().unwrap().port());
    let config = PublisherConfig { topic: "kv@w".to_owned(), buffer_steps: 3, ..PublisherConfig::default() };
    (Publisher::start(live, replay, &config).unwrap(), ports)
}

fn publish(publisher: &Publisher, payload: &'static str) {
    let number = publisher.number(payload.into());
    publisher.send(number, payload.into());
}

fn frames(message: ZmqMessage) -> Vec<Vec<u8>> {
    message.into_vec().into_iter().map(|frame| frame.to_vec()).collect()
}

fn address(port: u16) -> String {
    format!("tcp://127.0.0.1:{port}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_get_what_their_topic_begins() {
    let (publisher, [port, _]) = started();
    let mut wanted = SubSocket::new();
    wanted.connect(&address(port)).await.unwrap();
    wanted.subscribe("kv@").await.unwrap();
    let mut other = SubSocket::new();
    other.connect(&address(port)).await.unwrap();
    other.subscribe("kv@x").await.unwrap();
    // A subscription takes a moment to arrive: what was published before is lost.
    let end = Instant::now() + DEADLINE;
    let first = loop {
        publish(&publisher, "a");
        if let Ok(message) = timeout(Duration::from_millis(20), wanted.recv()).await {
            break frames(message.unwrap());
        }
        assert!(Instant::now() < end, "nothing came");
    };
    assert_eq!((&first[0][..], first[1].len(), &first[2][..]), (&b"kv@w"[..], 8, &b"a"[..]));
    assert!(timeout(Duration::from_millis(50), other.recv()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_gives_what_is_kept_and_its_end() {
    let (publisher, [_, port]) = started();
    for payload in ["a", "b", "c", "d", "e"] {
        // Numbered is enough: a message that was not sent is in the replay.
        assert!(publisher.number(payload.into()) < 5);
    }
    assert_eq!(publisher.numbered(), 5);
    let mut dealer = DealerSocket::new();
    dealer.connect(&address(port)).await.unwrap();
    for (from, expected) in [(0u64, vec![2, 3, 4]), (3, vec![3, 4]), (9, vec![])] {
        let ask = vec![Bytes::new(), Bytes::copy_from_slice(&from.to_be_bytes())];
        dealer.send(ZmqMessage::try_from(ask).unwrap()).await.unwrap();
        let mut numbers = Vec::new();
        loop {
            let answer = frames(timeout(DEADLINE, dealer.recv()).await.unwrap().unwrap());
            let number = u64::from_be_bytes(answer[2][..].try_into().unwrap());
            assert_eq!((answer.len(), &answer[0][..]), (4, &b""[..]));
            if number == u64::MAX {
                assert!(answer[1].is_empty() && answer[3].is_empty());
                break;
            }
            assert_eq!((&answer[1][..], answer[3].len()), (&b"kv@w"[..], 1));
            numbers.push(number);
        }
        assert_eq!(numbers, expected, "from {from}");
    }
}

#[derive(Default)]
struct View(Mutex<Cache>);

impl Sink for View {
    fn apply(&self, _: &Source, batch: &Batch) {
        self.0.lock().apply(batch);
    }

    fn reset(&self, _: &Source, _: &'static str) {
        self.0.lock().reset();
    }

    fn health(&self, _: &Source, _: Health) {}
}

async fn until(feed: &Feed, met: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !met() {
        assert!(Instant::now() < end, "{:?}, {:?}", feed.health(), feed.stats());
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_follows_it_through_gaps_and_while_it_is_closed() {
    let (publisher, ports) = started();
    let [endpoint, replay] = ports.map(|port| Endpoint::parse(&address(port), "").unwrap());
    let source = Source {
        worker: "w".to_owned(),
        rank: None,
        endpoint,
        replay: Some(replay),
        topic: "kv@w".to_owned(),
        bind: false,
    };
    let view = Arc::new(View::default());
    let feed = Feed::start(source, view.clone());
    let held = |blocks: usize| view.0.lock().held().len() == blocks && feed.health() == Health::Live;
    let block = |number: u32| Bytes::from(batch_of(1.0, vec![stored(&[number.into()], None, &[number], 1)]));
    let publish = |number: u32| publisher.send(publisher.number(block(number)), block(number));
    until(&feed, || held(0)).await;
    publish(0);
    until(&feed, || held(1)).await;
    _ = publisher.number(block(1));
    publish(2);
    until(&feed, || held(3)).await;
    assert_eq!(feed.stats().sequence.gaps, 1);
    publisher.set_open(false);
    until(&feed, || matches!(feed.health(), Health::Lost { .. })).await;
    publish(3);
    publish(4);
    publisher.set_open(true);
    until(&feed, || held(5)).await;
    assert_eq!(feed.stats().sequence.restarts, 0);
}
