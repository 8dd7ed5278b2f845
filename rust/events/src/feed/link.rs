//! Connections to a publisher: made, made again, or waited for; and a replay, which has one of its own.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::source::Endpoint;
use crate::zmtp::{Connection, Fault, Role};

/// Longest message. A step of an engine that stores a million tokens takes less than half of it.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Longest time to connect and to greet.
const OPEN: Duration = Duration::from_secs(3);
/// Shortest and longest pause between attempts to connect.
const SHORT_MS: u64 = 50;
const LONG_MS: u64 = 1_600;
/// Publishers that may greet at once, where we listen.
const GREETING: usize = 8;
/// Messages of a replay that may wait for the feed.
const REPLAY_QUEUE: usize = 64;

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

pub(super) type Link = Connection<Box<dyn Socket>>;

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct Owned(JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a task that ends when what this returns is dropped.
pub(crate) fn own(task: impl Future<Output = ()> + Send + 'static) -> Owned {
    Owned(tokio::spawn(task))
}

/// A pause before attempt `failures + 1`: doubling to 1.6 s, and up to a quarter less, so that a fleet does not come back as one.
pub(super) fn pause(failures: u32) -> Duration {
    let full = (SHORT_MS << failures.min(10)).min(LONG_MS);
    let random = RandomState::new().hash_one(failures);
    Duration::from_millis(full - random % (full / 4 + 1))
}

/// A silent peer may be gone without a word (its machine lost power): the kernel asks it after 5 s, then every 2 s.
fn watch(stream: &TcpStream) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    #[cfg(not(windows))]
    let keepalive = keepalive.with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

async fn connect(endpoint: &Endpoint, role: Role) -> Result<Link, Fault> {
    let open = async {
        let socket: Box<dyn Socket> = match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                watch(&stream)?;
                Box::new(stream)
            }
            Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).await?),
        };
        Connection::open(socket, role, MAX_MESSAGE_BYTES).await
    };
    within(open).await
}

async fn within<T>(open: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(OPEN, open).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// A publisher's connection that has subscribed to `topic`.
pub(super) async fn subscribe(endpoint: &Endpoint, topic: &str) -> Result<Link, Fault> {
    let mut link = connect(endpoint, Role::Subscriber).await?;
    link.send(&[&subscription(topic)]).await?;
    Ok(link)
}

fn subscription(topic: &str) -> Vec<u8> {
    [&[1], topic.as_bytes()].concat()
}

/// Listens at `endpoint` for publishers that connect, for as long as what this returns lives.
pub(super) fn listen(endpoint: Endpoint, topic: String) -> (mpsc::Receiver<Link>, Owned) {
    let (links, receiver) = mpsc::channel(1);
    let task = own(async move {
        let mut failures = 0;
        while !links.is_closed() {
            _ = accept(&endpoint, &topic, &links).await;
            sleep(pause(failures)).await;
            failures += 1;
        }
    });
    (receiver, task)
}

enum Listener {
    Tcp(TcpListener),
    Ipc(UnixListener),
}

async fn accept(endpoint: &Endpoint, topic: &str, links: &mpsc::Sender<Link>) -> io::Result<()> {
    let listener = match endpoint {
        Endpoint::Tcp { host, port } => Listener::Tcp(TcpListener::bind((host.as_str(), *port)).await?),
        Endpoint::Ipc(path) => Listener::Ipc(UnixListener::bind(path)?),
    };
    let mut greeting = JoinSet::new();
    loop {
        let socket: Box<dyn Socket> = tokio::select! {
            accepted = async {
                Ok::<Box<dyn Socket>, io::Error>(match &listener {
                    Listener::Tcp(listener) => {
                        let (stream, _) = listener.accept().await?;
                        watch(&stream)?;
                        Box::new(stream)
                    }
                    Listener::Ipc(listener) => Box::new(listener.accept().await?.0),
                })
            }, if greeting.len() < GREETING => accepted?,
            Some(_) = greeting.join_next() => continue,
        };
        let (links, subscription) = (links.clone(), subscription(topic));
        greeting.spawn(async move {
            let greeted = within(async {
                let mut link = Connection::open(socket, Role::Subscriber, MAX_MESSAGE_BYTES).await?;
                link.send(&[&subscription]).await?;
                Ok(link)
            });
            if let Ok(link) = greeted.await {
                _ = links.send(link).await;
            }
        });
    }
}

/// What comes of a replay.
#[derive(Debug, PartialEq)]
pub(super) enum Replayed {
    Message(u64, Vec<u8>),
    /// That was all.
    End,
    /// The replay socket cannot be reached, or answers in another form.
    Failed,
}

/// A replay that is under way; dropped, it ends.
#[derive(Debug)]
pub(super) struct Replay {
    answers: mpsc::Receiver<Replayed>,
    _task: Owned,
}

impl Replay {
    /// Asks `endpoint` for everything from `from` on.
    pub(super) fn start(endpoint: Endpoint, from: u64) -> Self {
        let (sender, answers) = mpsc::channel(REPLAY_QUEUE);
        let task = own(async move {
            // If nobody listens any more, there is nothing left to do.
            if ask(&endpoint, from, &sender).await.is_err() {
                _ = sender.send(Replayed::Failed).await;
            }
        });
        Self { answers, _task: task }
    }

    /// An answer that is there already.
    pub(super) fn ready(&mut self) -> Option<Replayed> {
        self.answers.try_recv().ok()
    }

    /// The next answer. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Replayed {
        self.answers.recv().await.unwrap_or(Replayed::Failed)
    }
}

async fn ask(endpoint: &Endpoint, from: u64, answers: &mpsc::Sender<Replayed>) -> Result<(), Fault> {
    let mut link = connect(endpoint, Role::Dealer).await?;
    link.send(&[b"", &from.to_be_bytes()]).await?;
    loop {
        let mut frames = link.receive().await?;
        if frames.is_empty() {
            continue;
        }
        let (sequence, payload) = numbered(&mut frames).ok_or(Fault::Protocol)?;
        // Publishers number the end -1.
        let end = sequence == u64::MAX;
        let answer = if end { Replayed::End } else { Replayed::Message(sequence, payload) };
        if answers.send(answer).await.is_err() || end {
            return Ok(());
        }
    }
}

/// Sequence and payload are the last two frames: what stands before them differs between releases.
pub(super) fn numbered(frames: &mut Vec<Vec<u8>>) -> Option<(u64, Vec<u8>)> {
    let payload = frames.pop()?;
    let sequence = frames.pop()?.try_into().ok()?;
    Some((u64::from_be_bytes(sequence), payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_differ() {
        for failures in 0..40 {
            let full = (50u64 << failures.min(10)).min(1_600);
            let pause = pause(failures).as_millis() as u64;
            assert!(pause <= full && pause >= full - full / 4, "{pause} after {failures}");
        }
        let pauses: std::collections::HashSet<_> = (0..64).map(|_| pause(9)).collect();
        assert!(pauses.len() > 8);
    }
}
