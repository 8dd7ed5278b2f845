//! A source's messages, from its socket to a [`Sink`].
//!
//! Each source has a task of its own, so that one that is slow, mad or gone delays no other. Between sockets and sink stands a
//! [`Sequencer`]; the task carries out what it decides. Everything that waits is bounded: a message, the messages held during a
//! replay, the answers of a replay, and how much is taken from one publisher in a second. When the bound is met, its socket is
//! not read; then the publisher drops messages, which shows as a gap.

mod link;
mod poll;
mod stats;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use trunkline_core::Millis;

use self::link::{Link, Replay, Replayed};
pub(crate) use self::link::{Owned, own};
pub use self::poll::Drain;
use self::stats::Pace;
pub use self::stats::Stats;
use crate::batch::Batch;
use crate::decode::Decoder;
use crate::sequencer::{Action, Health, Message, Outcome, Sequencer};
use crate::source::Source;

/// Messages in a row that are none, after which the connection is closed.
const MAX_GARBAGE: u32 = 16;
/// A connection that lasted so long did not fail.
const LASTED: Duration = Duration::from_secs(1);

/// Where events go. Called from the source's task, one call at a time for each source; a call that takes long delays the
/// events of that source alone, as far as the runtime has other threads.
pub trait Sink: Send + Sync + 'static {
    /// These happened in the worker's cache, in this order, after everything before.
    fn apply(&self, source: &Source, batch: &Batch);

    /// Nothing is known of the worker's cache any more; what follows fills it anew. `reason` is one of few words, for metrics.
    fn reset(&self, source: &Source, reason: &'static str);

    /// What the view is worth from now on; called when it changes.
    fn health(&self, source: &Source, health: Health);
}

/// A source that is being followed. Dropped, it ends at once.
pub struct Feed {
    source: Arc<Source>,
    shared: Arc<Shared>,
    _task: Owned,
}

#[derive(Default)]
struct Shared {
    stats: Mutex<Stats>,
    health: Mutex<Option<Health>>,
    resync: Notify,
}

impl Shared {
    /// Tells the sink of a health that it does not know yet.
    fn tell(&self, source: &Source, sink: &dyn Sink, health: Health) {
        if self.health.lock().replace(health) != Some(health) {
            sink.health(source, health);
        }
    }
}

impl Feed {
    /// Follows `source`, and tells `sink` what happens there. Never fails: a source that cannot be reached is tried again, after
    /// 50 ms at first, then twice that and so on, up to 1.6 s.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with I/O and time.
    #[must_use]
    pub fn start(source: Source, sink: Arc<dyn Sink>) -> Self {
        let (source, shared) = (Arc::new(source), Arc::new(Shared::default()));
        let task = Task {
            sequencer: Sequencer::new(source.replay.is_some()),
            decoder: Decoder::new(),
            batch: Batch::new(),
            replay: None,
            pace: Pace::new(Instant::now()),
            garbage: 0,
            begun: Instant::now(),
            source: source.clone(),
            shared: shared.clone(),
            sink,
        };
        Self { source, shared, _task: link::own(task.run()) }
    }

    /// What is followed.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.shared.stats.lock()
    }

    /// What the view is worth.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health.lock().unwrap_or(Health::Connecting)
    }

    /// Asks for everything again, because the view was found to be wrong. The view stays as it is until the first answer. Does
    /// nothing without a replay socket, or while a replay runs.
    pub fn resync(&self) {
        self.shared.resync.notify_one();
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Feed").field("source", &self.source).finish_non_exhaustive()
    }
}

struct Task {
    source: Arc<Source>,
    shared: Arc<Shared>,
    sink: Arc<dyn Sink>,
    sequencer: Sequencer<Vec<u8>>,
    decoder: Decoder,
    batch: Batch,
    replay: Option<Replay>,
    pace: Pace,
    garbage: u32,
    begun: Instant,
}

/// Why a connection is not read any longer.
enum End {
    /// It is closed, or not worth keeping.
    Lost,
    /// The publisher made another one.
    Replaced(Link),
}

impl Task {
    async fn run(mut self) {
        self.tell_health();
        if self.source.bind {
            let (mut links, _listener) =
                link::listen(self.source.endpoint.clone(), self.source.topic.clone());
            let mut next = links.recv().await;
            while let Some(link) = next {
                next = match self.follow(link, Some(&mut links)).await {
                    End::Replaced(link) => Some(link),
                    End::Lost => links.recv().await,
                };
            }
            return;
        }
        let mut failures = 0;
        loop {
            let since = Instant::now();
            match link::subscribe(&self.source.endpoint, &self.source.topic).await {
                Ok(link) => _ = self.follow(link, None).await,
                Err(_) => self.shared.stats.lock().disconnects += 1,
            }
            failures = if since.elapsed() >= LASTED { 0 } else { failures + 1 };
            sleep(link::pause(failures)).await;
        }
    }

    /// Reads a connection to its end.
    async fn follow(&mut self, mut link: Link, mut others: Option<&mut mpsc::Receiver<Link>>) -> End {
        self.garbage = 0;
        self.shared.stats.lock().connects += 1;
        self.sequencer.connected(self.now());
        self.act(false);
        let end = loop {
            let due =
                self.sequencer.deadline().map(|deadline| self.begun + Duration::from_millis(deadline.0));
            tokio::select! {
                message = link.receive() => {
                    let Ok(frames) = message else { break End::Lost };
                    if !self.published(frames).await {
                        break End::Lost;
                    }
                }
                answer = next_answer(&mut self.replay) => self.replayed(answer).await,
                () = sleep_until(due.unwrap_or(self.begun)), if due.is_some() => {
                    // A sink that took long is not the replay's silence.
                    match self.replay.as_mut().and_then(Replay::ready) {
                        Some(answer) => self.replayed(answer).await,
                        None => {
                            self.sequencer.tick(self.now());
                            self.act(false);
                        }
                    }
                }
                other = next_link(&mut others) => break End::Replaced(other),
                () = self.shared.resync.notified() => {
                    self.sequencer.resync(self.now());
                    self.act(false);
                }
            }
        };
        self.shared.stats.lock().disconnects += 1;
        self.sequencer.disconnected(self.now());
        self.act(false);
        end
    }

    /// A message came. `false` if the connection is not worth keeping.
    async fn published(&mut self, mut frames: Vec<Vec<u8>>) -> bool {
        let bytes = frames.iter().map(Vec::len).sum();
        self.keep_pace(bytes).await;
        if frames.is_empty() {
            return true;
        }
        if frames.len() > 2 && !frames[frames.len() - 3].starts_with(self.source.topic.as_bytes()) {
            return true;
        }
        match link::numbered(&mut frames) {
            // Only replays know this number, for their end.
            Some((u64::MAX, _)) | None => {
                self.shared.stats.lock().garbage += 1;
                self.garbage += 1;
                self.garbage < MAX_GARBAGE
            }
            Some((sequence, payload)) => {
                self.garbage = 0;
                self.sequencer.message(Message::new(sequence, payload), self.now());
                self.act(true);
                true
            }
        }
    }

    async fn replayed(&mut self, answer: Replayed) {
        match answer {
            Replayed::Message(sequence, payload) => {
                self.keep_pace(payload.len()).await;
                self.sequencer.replayed(Message::new(sequence, payload), self.now());
            }
            Replayed::End => {
                self.replay = None;
                self.sequencer.replay_ended(self.now());
            }
            Replayed::Failed => {
                self.replay = None;
                self.sequencer.replay_failed(self.now());
            }
        }
        self.act(false);
    }

    async fn keep_pace(&mut self, bytes: usize) {
        if let Some(until) = self.pace.take(bytes, Instant::now()) {
            self.shared.stats.lock().throttled += 1;
            sleep_until(until).await;
        }
    }

    /// Does what the sequencer decided. `live`: because of a message that has just been published.
    fn act(&mut self, live: bool) {
        while let Some(action) = self.sequencer.next_action() {
            match action {
                Action::Apply(message) => {
                    let outcome = self.apply(&message, live);
                    self.sequencer.done(&message, outcome);
                }
                Action::Reset(reason) => {
                    self.decoder = Decoder::new();
                    self.sink.reset(&self.source, reason);
                }
                Action::Replay { from } => {
                    self.replay = self.source.replay.clone().map(|endpoint| Replay::start(endpoint, from));
                }
                Action::StopReplay => self.replay = None,
            }
        }
        self.shared.stats.lock().sequence = self.sequencer.counts();
        self.tell_health();
    }

    fn apply(&mut self, message: &Message<Vec<u8>>, live: bool) -> Outcome {
        if self.decoder.decode(&message.payload, &mut self.batch).is_err() {
            self.shared.stats.lock().decode_errors += 1;
            return Outcome::Unreadable;
        }
        self.sink.apply(&self.source, &self.batch);
        let mut stats = self.shared.stats.lock();
        stats.count(&self.batch);
        if live && self.batch.ts > 0.0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            stats.delayed(now.as_secs_f64() - self.batch.ts);
        }
        if self.batch.clears() { Outcome::Cleared } else { Outcome::Applied }
    }

    fn tell_health(&mut self) {
        self.shared.tell(&self.source, &*self.sink, self.sequencer.health());
    }

    fn now(&self) -> Millis {
        Millis(self.begun.elapsed().as_millis() as u64)
    }
}

async fn next_answer(replay: &mut Option<Replay>) -> Replayed {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}

async fn next_link(others: &mut Option<&mut mpsc::Receiver<Link>>) -> Link {
    if let Some(others) = others
        && let Some(link) = others.recv().await
    {
        return link;
    }
    std::future::pending().await
}
