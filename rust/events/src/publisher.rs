//! The engine's end of a feed, for workers that are simulated: a PUB socket, and a ROUTER that answers with what was published
//! before, as vLLM's publisher has them.
//!
//! Numbering and sending are two calls, so that a simulated worker can lose, double or swap its messages: one that was numbered
//! and not sent is a gap, which the replay fills.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::feed::{Owned, own};
use crate::zmtp::{Connection, Fault, Role};

/// Longest message of a peer: a subscription, or what is to be replayed.
const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Longest time that a peer has to greet.
const GREETING: Duration = Duration::from_secs(3);
/// Pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// Topics that one peer may ask for.
const MAX_TOPICS: usize = 16;
/// Number of the message that ends a replay.
const END: u64 = u64::MAX;

/// How a publisher publishes.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// First frame of each message; subscribers choose by its beginning. Default: empty.
    pub topic: String,
    /// Newest messages that a replay can give: 10,000, vLLM's default.
    pub buffer_steps: usize,
    /// Messages that may wait for a subscriber; it loses older ones: 8,192. Room for so many is taken at the start.
    pub hwm: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self { topic: String::new(), buffer_steps: 10_000, hwm: 8_192 }
    }
}

/// Publishes numbered messages. Dropped, it is gone at once, as the sockets of a killed process.
///
/// All methods may be called from any thread.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    _tasks: [Owned; 2],
}

#[derive(Debug)]
struct Shared {
    topic: Vec<u8>,
    buffer: Mutex<Buffer>,
    live: broadcast::Sender<(u64, Bytes)>,
    is_open: watch::Sender<bool>,
}

#[derive(Debug)]
struct Buffer {
    next: u64,
    kept: VecDeque<(u64, Bytes)>,
    limit: usize,
}

impl Publisher {
    /// Publishes to whoever connects to `live`, and answers with old messages on `replay`.
    ///
    /// # Errors
    /// The listeners cannot be used.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with I/O and time; if `hwm` is 0.
    pub fn start(live: TcpListener, replay: TcpListener, config: &PublisherConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            topic: config.topic.clone().into(),
            buffer: Mutex::new(Buffer { next: 0, kept: VecDeque::new(), limit: config.buffer_steps }),
            live: broadcast::Sender::new(config.hwm),
            is_open: watch::Sender::new(true),
        });
        let [live, replay] = [listener(live)?, listener(replay)?];
        let tasks = [
            own(accept(live, Arc::clone(&shared), Role::Publisher)),
            own(accept(replay, Arc::clone(&shared), Role::Router)),
        ];
        Ok(Self { shared, _tasks: tasks })
    }

    /// Gives the next message its number and keeps it for replays. It is not sent yet.
    #[must_use]
    pub fn number(&self, payload: Bytes) -> u64 {
        let mut buffer = self.shared.buffer.lock();
        let number = buffer.next;
        buffer.next += 1;
        buffer.kept.push_back((number, payload));
        if buffer.kept.len() > buffer.limit {
            buffer.kept.pop_front();
        }
        number
    }

    /// Messages that were numbered so far.
    #[must_use]
    pub fn numbered(&self) -> u64 {
        self.shared.buffer.lock().next
    }

    /// Sends a message to the subscribers that are connected. Cost: O(1); who is slow loses messages.
    pub fn send(&self, number: u64, payload: Bytes) {
        // An error means that nobody listens.
        _ = self.shared.live.send((number, payload));
    }

    /// Ends all connections and refuses new ones until it is opened again. Messages are still numbered and kept.
    pub fn set_open(&self, open: bool) {
        self.shared.is_open.send_replace(open);
    }
}

fn listener(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>, role: Role) {
    let mut peers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => _ = peers.spawn(serve(stream, Arc::clone(&shared), role)),
                Err(_) => sleep(ACCEPT_RETRY).await,
            },
            Some(_) = peers.join_next() => {}
        }
    }
}

/// Serves one peer until it leaves or the publisher closes. What a peer does wrong ends its connection, and nothing else.
async fn serve(stream: TcpStream, shared: Arc<Shared>, role: Role) {
    let mut is_open = shared.is_open.subscribe();
    let conversation = async {
        // From here on nothing is lost but for want of a subscription.
        let messages = shared.live.subscribe();
        let Ok(opened) = timeout(GREETING, Connection::open(stream, role, MAX_REQUEST_BYTES)).await else {
            return Ok(());
        };
        match role {
            Role::Publisher => shared.publish(opened?, messages).await,
            _ => {
                drop(messages);
                shared.replay(opened?).await
            }
        }
    };
    tokio::select! {
        _ = conversation => {}
        _ = is_open.wait_for(|open| !open) => {}
    }
}

impl Shared {
    async fn publish(
        &self,
        mut peer: Connection<TcpStream>,
        mut messages: broadcast::Receiver<(u64, Bytes)>,
    ) -> Result<(), Fault> {
        let mut topics: Vec<Vec<u8>> = Vec::new();
        loop {
            tokio::select! {
                // What a peer asked for before a message counts for it.
                biased;
                frames = peer.receive() => match frames?.first().and_then(|frame| frame.split_first()) {
                    Some((1, topic)) if topics.len() < MAX_TOPICS => topics.push(topic.to_vec()),
                    Some((0, topic)) => {
                        if let Some(at) = topics.iter().position(|other| other == topic) {
                            topics.swap_remove(at);
                        }
                    }
                    _ => {}
                },
                message = messages.recv() => match message {
                    Ok((number, payload)) => {
                        if topics.iter().any(|topic| self.topic.starts_with(topic)) {
                            peer.send(&[&self.topic, &number.to_be_bytes(), &payload]).await?;
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Ok(()),
                },
            }
        }
    }

    async fn replay(&self, mut peer: Connection<TcpStream>) -> Result<(), Fault> {
        loop {
            let frames = peer.receive().await?;
            let Some(start) = frames.last().and_then(|frame| frame.first_chunk()) else { continue };
            let start = u64::from_be_bytes(*start);
            let kept: Vec<(u64, Bytes)> = {
                let buffer = self.buffer.lock();
                buffer.kept.iter().filter(|(number, _)| *number >= start).cloned().collect()
            };
            for (number, payload) in kept {
                peer.send(&[b"", &self.topic, &number.to_be_bytes(), &payload]).await?;
            }
            peer.send(&[b"", b"", &END.to_be_bytes(), b""]).await?;
        }
    }
}
