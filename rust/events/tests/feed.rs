//! A feed before publishers on loopback, whose sockets are another implementation's: what they hold is what the sink is told,
//! whatever is lost, doubled, swapped or restarted on the way.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use support::{Cache, batch_of, cleared, removed, stored};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use trunkline_events::{Batch, Decoder, Endpoint, Feed, Health, Sink, Source};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

const DEADLINE: Duration = Duration::from_secs(3);

/// The view of one worker, and what was said of it.
#[derive(Default)]
struct View {
    cache: Mutex<Cache>,
    resets: Mutex<Vec<&'static str>>,
    healths: Mutex<Vec<Health>>,
    slow: AtomicBool,
}

impl Sink for View {
    fn apply(&self, _: &Source, batch: &Batch) {
        if self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cache.lock().apply(batch);
    }

    fn reset(&self, _: &Source, reason: &'static str) {
        self.cache.lock().reset();
        self.resets.lock().push(reason);
    }

    fn health(&self, _: &Source, health: Health) {
        self.healths.lock().push(health);
    }
}

/// An engine that publishes, with its cache as a plain model holds it.
struct Engine {
    socket: PubSocket,
    replays: Option<(JoinHandle<()>, Arc<Notify>)>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    cache: Cache,
    topic: &'static str,
    number: u64,
}

impl Engine {
    /// `endpoint` may end in port 0. Returns the endpoints that were bound.
    async fn bind(endpoint: &str, replay: Option<&str>) -> (Self, Endpoint, Option<Endpoint>) {
        let mut socket = PubSocket::new();
        let bound = endpoint_of(&socket.bind(endpoint).await.unwrap());
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (mut replays, mut replay_bound) = (None, None);
        if let Some(replay) = replay {
            let mut router = RouterSocket::new();
            replay_bound = Some(endpoint_of(&router.bind(replay).await.unwrap()));
            replays = Some(answering(router, sent.clone()));
        }
        let engine = Self { socket, replays, sent, cache: Cache::default(), topic: "kv@w", number: 0 };
        (engine, bound, replay_bound)
    }

    /// What one step of the engine publishes.
    fn step(&mut self) -> (u64, Vec<u8>) {
        self.number += 1;
        let number = self.number;
        let mut events = vec![stored(&[number], number.checked_sub(3), &[number as u32], 1)];
        if number.is_multiple_of(3) {
            events.push(removed(&[number / 2]));
        }
        if number.is_multiple_of(97) {
            events.insert(0, cleared());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let payload = batch_of(now, events);
        let mut batch = Batch::new();
        Decoder::new().decode(&payload, &mut batch).unwrap();
        self.cache.apply(&batch);
        let mut sent = self.sent.lock();
        sent.push(payload.clone());
        (sent.len() as u64 - 1, payload)
    }

    async fn send(&mut self, (sequence, payload): (u64, Vec<u8>)) {
        let frames = [self.topic.as_bytes().to_vec(), sequence.to_be_bytes().to_vec(), payload];
        self.socket.send(message(frames)).await.unwrap();
    }

    async fn publish(&mut self) {
        let step = self.step();
        self.send(step).await;
    }

    /// Ends it, so that its ports can be bound again.
    async fn stop(self) {
        self.socket.close().await;
        if let Some((replays, stop)) = self.replays {
            stop.notify_one();
            replays.await.unwrap();
        }
    }
}

fn message(frames: impl IntoIterator<Item = Vec<u8>>) -> ZmqMessage {
    ZmqMessage::try_from(frames.into_iter().map(bytes::Bytes::from).collect::<Vec<_>>()).unwrap()
}

fn endpoint_of(bound: &zeromq::Endpoint) -> Endpoint {
    Endpoint::parse(&bound.to_string(), "127.0.0.1").unwrap()
}

fn answering(router: RouterSocket, sent: Arc<Mutex<Vec<Vec<u8>>>>) -> (JoinHandle<()>, Arc<Notify>) {
    let stop = Arc::new(Notify::new());
    (tokio::spawn(answer(router, sent, stop.clone())), stop)
}

async fn answer(mut router: RouterSocket, sent: Arc<Mutex<Vec<Vec<u8>>>>, stop: Arc<Notify>) {
    loop {
        let asked = tokio::select! {
            asked = router.recv() => asked,
            () = stop.notified() => break,
        };
        let Ok(asked) = asked else { continue };
        let asked = asked.into_vec();
        let [peer, empty, from] = &asked[..] else { continue };
        let from = u64::from_be_bytes(from[..].try_into().unwrap()) as usize;
        let messages: Vec<_> = sent.lock().iter().cloned().enumerate().skip(from).collect();
        for (sequence, payload) in messages {
            let frames =
                [peer.to_vec(), empty.to_vec(), b"kv@w".to_vec(), sequence.to_be_bytes().to_vec(), payload];
            _ = router.send(message(frames)).await;
        }
        let end = [peer.to_vec(), empty.to_vec(), vec![], vec![0xff; 8], vec![]];
        _ = router.send(message(end)).await;
    }
    router.close().await;
}

fn source(endpoint: Endpoint, replay: Option<Endpoint>) -> Source {
    Source { worker: "w".to_owned(), rank: None, endpoint, replay, topic: "kv@w".to_owned(), bind: false }
}

async fn until(what: &str, feed: &Feed, mut met: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !met() {
        assert!(Instant::now() < end, "{what}: {:?}, {:?}", feed.health(), feed.stats());
        sleep(Duration::from_millis(2)).await;
    }
}

/// A publisher drops what a slow subscriber leaves, and that the last message was dropped shows with the next one: so there is
/// one more each half a second.
async fn until_right(engine: &mut Engine, view: &View, feed: &Feed) {
    let end = Instant::now() + DEADLINE;
    let mut next = Instant::now() + DEADLINE / 6;
    while feed.health() != Health::Live || view.cache.lock().held() != engine.cache.held() {
        let now = Instant::now();
        assert!(now < end, "{} messages: {:?}, {:?}", engine.number, feed.health(), feed.stats());
        if now >= next {
            engine.publish().await;
            next = now + DEADLINE / 6;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// An engine that is followed, and has published one message.
async fn following() -> (Engine, Arc<View>, Feed) {
    let (mut engine, endpoint, replay) = Engine::bind("tcp://127.0.0.1:0", Some("tcp://127.0.0.1:0")).await;
    let view = Arc::new(View::default());
    let feed = Feed::start(source(endpoint, replay), view.clone());
    engine.publish().await;
    until_right(&mut engine, &view, &feed).await;
    (engine, view, feed)
}

/// Publishes until the feed gets one directly: a subscription takes a moment to arrive.
async fn until_subscribed(engine: &mut Engine, feed: &Feed) {
    let end = Instant::now() + DEADLINE;
    loop {
        let before = feed.stats().delay_s;
        engine.publish().await;
        sleep(Duration::from_millis(5)).await;
        if feed.stats().delay_s != before {
            return;
        }
        assert!(Instant::now() < end, "{:?}", feed.stats());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_order_arrive_in_order() {
    let (mut engine, endpoint, replay) = Engine::bind("tcp://127.0.0.1:0", Some("tcp://127.0.0.1:0")).await;
    for _ in 0..50 {
        engine.publish().await;
    }
    let view = Arc::new(View::default());
    let feed = Feed::start(source(endpoint, replay), view.clone());
    until_right(&mut engine, &view, &feed).await;
    until_subscribed(&mut engine, &feed).await;
    for _ in 0..500 {
        engine.publish().await;
    }
    until_right(&mut engine, &view, &feed).await;
    let stats = feed.stats();
    assert_eq!((stats.batches, stats.refused, stats.decode_errors), (engine.number, 0, 0));
    assert_eq!(stats.blocks_stored, engine.number);
    assert!(stats.max_delay_s < 3.0 && stats.max_delay_s > 0.0, "{stats:?}");
    assert!(view.resets.lock().is_empty());
    assert_eq!(view.healths.lock()[..2], [Health::Connecting, Health::Replaying]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_doubled_and_swapped_messages_do_no_harm() {
    let (mut engine, view, feed) = following().await;
    until_subscribed(&mut engine, &feed).await;
    for number in 0..1_000u64 {
        let step = engine.step();
        match number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57 {
            0..=6 => {} // 5 %
            7..=12 => {
                engine.send(step.clone()).await;
                engine.send(step).await;
            }
            13..=18 => {
                let next = engine.step();
                engine.send(next).await;
                engine.send(step).await;
            }
            _ => engine.send(step).await,
        }
    }
    engine.publish().await;
    until_right(&mut engine, &view, &feed).await;
    let counts = feed.stats().sequence;
    assert!(counts.gaps > 0 && counts.duplicates > 0 && counts.replays > 1, "{counts:?}");
    assert_eq!((counts.restarts, view.resets.lock().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_engine_begins_with_an_empty_cache() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("ipc://{}", directory.path().join(name).display());
    let (events, replays) = (path("events"), path("replays"));
    let (mut engine, endpoint, replay) = Engine::bind(&events, Some(&replays)).await;
    let view = Arc::new(View::default());
    let feed = Feed::start(source(endpoint, replay), view.clone());
    for _ in 0..20 {
        engine.publish().await;
    }
    until_right(&mut engine, &view, &feed).await;
    engine.stop().await;
    for path in [&events, &replays] {
        _ = std::fs::remove_file(Path::new(path.strip_prefix("ipc://").unwrap()));
    }
    until("lost", &feed, || matches!(feed.health(), Health::Lost { .. })).await;
    assert!(!view.cache.lock().held().is_empty(), "what it held is kept until more is known");
    let (mut engine, ..) = Engine::bind(&events, Some(&replays)).await;
    // More than the old one had sent, so that no number goes back.
    engine.number = 1_000;
    for _ in 0..30 {
        engine.publish().await;
    }
    until_right(&mut engine, &view, &feed).await;
    assert_eq!((&view.resets.lock()[..], feed.stats().sequence.restarts), (&["restart"][..], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_replay_socket_leaves_the_view_partial() {
    let (mut engine, endpoint, _) = Engine::bind("tcp://127.0.0.1:0", None).await;
    // Accepts and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let replay = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
    let view = Arc::new(View::default());
    for _ in 0..5 {
        engine.publish().await;
    }
    let feed = Feed::start(source(endpoint, Some(replay)), view.clone());
    until("partial", &feed, || feed.health() == Health::Partial { reason: "no replay" }).await;
    until_subscribed(&mut engine, &feed).await;
    assert!(view.cache.lock().held().len() < engine.cache.held().len());
    // A cleared cache makes all of it known.
    while engine.number % 97 != 96 {
        engine.publish().await;
    }
    engine.publish().await;
    until("known", &feed, || view.cache.lock().held() == engine.cache.held()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replay_socket_a_gap_is_honest() {
    let (mut engine, endpoint, _) = Engine::bind("tcp://127.0.0.1:0", None).await;
    let view = Arc::new(View::default());
    let feed = Feed::start(source(endpoint, None), view.clone());
    until_subscribed(&mut engine, &feed).await;
    _ = engine.step();
    engine.publish().await;
    until("partial", &feed, || matches!(feed.health(), Health::Partial { .. })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_connects_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let (mut socket, sent) = (PubSocket::new(), Arc::new(Mutex::new(Vec::new())));
    let mut router = RouterSocket::new();
    let replay = endpoint_of(&router.bind("tcp://127.0.0.1:0").await.unwrap());
    let replays = Some(answering(router, sent.clone()));
    let view = Arc::new(View::default());
    let source = Source { bind: true, ..source(Endpoint::Ipc(path.clone()), Some(replay)) };
    let feed = Feed::start(source, view.clone());
    assert_eq!(feed.health(), Health::Connecting);
    timeout(DEADLINE, socket.connect(&format!("ipc://{}", path.display()))).await.unwrap().unwrap();
    let mut engine = Engine { socket, replays, sent, cache: Cache::default(), topic: "kv@w", number: 0 };
    for _ in 0..20 {
        engine.publish().await;
    }
    until_subscribed(&mut engine, &feed).await;
    until_right(&mut engine, &view, &feed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_topics_and_garbage_are_left_out() {
    let (mut engine, view, feed) = following().await;
    until_subscribed(&mut engine, &feed).await;
    for topic in ["kv@other", "kv"] {
        engine
            .socket
            .send(message([topic.into(), 9u64.to_be_bytes().to_vec(), b"x".to_vec()]))
            .await
            .unwrap();
    }
    // A sequence of seven bytes, one frame too few, and the number of a replay's end.
    for wrong in [
        vec![b"kv@w".to_vec(), vec![0; 7], vec![]],
        vec![b"kv@w".to_vec()],
        vec![b"kv@w".to_vec(), vec![0xff; 8], vec![]],
    ] {
        engine.socket.send(message(wrong)).await.unwrap();
    }
    engine.publish().await;
    until_right(&mut engine, &view, &feed).await;
    until("counted", &feed, || feed.stats().garbage == 3).await;
    // A payload that is none: what it said is not known.
    engine.sent.lock().push(b"garbage".to_vec());
    let sequence = engine.sent.lock().len() as u64 - 1;
    engine.send((sequence, b"garbage".to_vec())).await;
    until("partial", &feed, || feed.health() == Health::Partial { reason: "unreadable" }).await;
    // Nothing but garbage costs the connection, which comes back.
    let connects = feed.stats().connects;
    for _ in 0..40 {
        engine.socket.send(message([b"kv@w".to_vec()])).await.unwrap();
    }
    until("again", &feed, || feed.stats().connects > connects).await;
}

/// Greets as a publisher does, then sends `bytes`, `times` times or until it is left.
async fn mad(listener: &TcpListener, bytes: &[u8], times: usize) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
    _ = stream.write_all(&[&greeting[..], ready].concat()).await;
    for _ in 0..times {
        if stream.write_all(bytes).await.is_err() {
            return;
        }
    }
    let mut heard = [0u8; 1024];
    while !matches!(stream.read(&mut heard).await, Ok(0) | Err(_)) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mad_publisher_harms_nobody_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
    let madness = tokio::spawn(async move {
        // A frame of a petabyte, frames without end, reserved flags, another protocol's words.
        let petabyte = [&[2][..], &(1u64 << 50).to_be_bytes()].concat();
        let endless = [1u8, 0].repeat(64);
        for bytes in
            [&petabyte[..], &endless, &[0xf0, 0], b"HTTP/1.1 400 Bad Request\r\n\r\n"].into_iter().cycle()
        {
            mad(&listener, bytes, 1).await;
        }
    });
    let (mut engine, view, feed) = following().await;
    let bad = Feed::start(source(endpoint, None), Arc::new(View::default()));
    until("ended", &bad, || bad.stats().disconnects >= 4).await;
    assert_eq!(bad.stats().batches, 0);
    engine.publish().await;
    until_right(&mut engine, &view, &feed).await;
    madness.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_throttled_and_the_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let endpoint = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
    let flooding = tokio::spawn(async move {
        // Topic, sequence 0 and an empty batch, a thousand times in one write.
        let message = [&b"\x01\x04kv@w\x01\x08"[..], &[0; 8], b"\x00\x03\x92\x01\x90"].concat();
        mad(&listener, &message.repeat(1_000), usize::MAX).await;
    });
    let view = Arc::new(View::default());
    let bad = Feed::start(source(endpoint, None), view.clone());
    let (mut engine, other, feed) = following().await;
    until_subscribed(&mut engine, &feed).await;
    until("throttled", &bad, || bad.stats().throttled > 2).await;
    for _ in 0..20 {
        engine.publish().await;
        until_right(&mut engine, &other, &feed).await;
    }
    assert!(bad.stats().sequence.duplicates > 4_000 && view.resets.lock().is_empty(), "{:?}", bad.stats());
    flooding.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_sink_ends_up_right() {
    let (mut engine, view, feed) = following().await;
    until_subscribed(&mut engine, &feed).await;
    view.slow.store(true, Ordering::Relaxed);
    for _ in 0..300 {
        engine.publish().await;
    }
    until_right(&mut engine, &view, &feed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_is_found_wrong_is_filled_again() {
    let (mut engine, view, feed) = following().await;
    view.cache.lock().reset();
    feed.resync();
    until_right(&mut engine, &view, &feed).await;
    assert_eq!(view.resets.lock()[..], ["replay"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_ends_when_it_is_dropped() {
    let (mut engine, view, feed) = following().await;
    let held = Arc::downgrade(&view);
    drop((view, feed));
    let end = Instant::now() + DEADLINE;
    while held.strong_count() > 0 {
        assert!(Instant::now() < end, "the task holds its sink");
        sleep(Duration::from_millis(2)).await;
    }
    engine.publish().await;
}
