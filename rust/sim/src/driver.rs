//! Runs an [`Engine`] on wall-clock time: steps last as long as the model says, times the scale, and tokens go to the
//! request that waits for them.
//!
//! Steps are chained from planned end to planned end, not from the moment the timer fired, so late timers on a busy
//! machine do not slow the modelled worker down.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::engine::{Change, Engine, SequenceId, SequenceSpec, Token};
use crate::events::{Events, Teller, Told};
use crate::histogram::Histogram;

/// A token on its way to the request that waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    /// Position of its sequence in [`Driver::submit`]'s list.
    pub(crate) sequence: usize,
    pub(crate) index: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) last: bool,
}

/// Who waits for the tokens of a sequence.
#[derive(Debug)]
struct Listener {
    sequence: usize,
    sender: UnboundedSender<Delivery>,
    submitted: Instant,
    /// What events say of its blocks, if the worker publishes any.
    told: Option<Told>,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    listeners: HashMap<SequenceId, Listener>,
    ttft: Histogram,
    /// What has changed in the cache and is not told yet.
    events: Events,
}

/// An engine and its clock, shared by the requests of one worker.
#[derive(Debug)]
pub(crate) struct Driver {
    state: Mutex<State>,
    /// Told when there is something to do.
    work: Notify,
    open_requests: AtomicUsize,
    time_scale: f64,
    teller: Option<Arc<Teller>>,
}

impl Driver {
    pub(crate) fn new(mut engine: Engine, time_scale: f64, teller: Option<Arc<Teller>>) -> Self {
        if teller.is_some() {
            engine.remember_changes();
        }
        let state = State {
            engine,
            listeners: HashMap::new(),
            ttft: Histogram::default(),
            events: Events::default(),
        };
        Self {
            state: Mutex::new(state),
            work: Notify::new(),
            open_requests: AtomicUsize::new(0),
            time_scale,
            teller,
        }
    }

    /// Who publishes the events, if anybody does.
    pub(crate) fn teller(&self) -> Option<&Arc<Teller>> {
        self.teller.as_ref()
    }

    /// Looks at the engine and at the times to first token between two of its events.
    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&Engine, &Histogram) -> T) -> T {
        let state = self.state.lock();
        look(&state.engine, &state.ttft)
    }

    /// Requests that have not been answered to their end.
    pub(crate) fn open_requests(&self) -> usize {
        self.open_requests.load(Ordering::Relaxed)
    }

    /// Empties the cache of what no running sequence holds; true if nothing is left. Events tell of it with the next step, or
    /// never if it is `silent`.
    pub(crate) fn clear_cache(&self, silent: bool) -> bool {
        let mut state = self.state.lock();
        state.note_changes();
        let is_empty = state.engine.clear_cache();
        if silent {
            drop(state.engine.take_changes());
        }
        is_empty
    }

    /// Sets all totals to 0.
    pub(crate) fn reset_counters(&self) {
        let mut state = self.state.lock();
        state.engine.reset_counters();
        state.ttft = Histogram::default();
    }

    /// Queues sequences; their tokens come through the result, which cancels them when it is dropped.
    pub(crate) fn submit(self: &Arc<Self>, specs: Vec<(SequenceSpec, Option<Told>)>) -> Generation {
        let (sender, tokens) = unbounded_channel();
        let submitted = Instant::now();
        self.open_requests.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let ids = specs.into_iter().enumerate().map(|(sequence, (spec, told))| {
            let id = state.engine.submit(spec);
            state.listeners.insert(id, Listener { sequence, sender: sender.clone(), submitted, told });
            id
        });
        let ids = ids.collect();
        drop(state);
        self.work.notify_one();
        Generation { driver: Arc::clone(self), ids, tokens }
    }

    /// Steps the engine for ever.
    pub(crate) async fn run(&self) {
        let mut now = Instant::now();
        let mut produced = Vec::new();
        loop {
            let step_s = self.state.lock().engine.start_step();
            let Some(step_s) = step_s else {
                self.work.notified().await;
                now = Instant::now();
                continue;
            };
            now += Duration::from_secs_f64(step_s * self.time_scale);
            sleep_until(now).await;
            let mut state = self.state.lock();
            state.engine.finish_step(&mut produced);
            state.note_changes();
            if let Some(teller) = &self.teller {
                // Before the tokens: who has an answer may count on its events being on their way.
                teller.tell(&mut state.events);
            }
            for token in produced.drain(..) {
                state.deliver(token);
            }
        }
    }

    fn close(&self, ids: &[SequenceId]) {
        self.open_requests.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.note_changes();
        for &id in ids {
            state.engine.cancel(id);
            state.listeners.remove(&id);
        }
    }
}

impl State {
    /// Puts what has changed in the cache into words, while those whose blocks it is about are known.
    fn note_changes(&mut self) {
        let block_size = self.engine.block_size();
        for change in self.engine.take_changes() {
            match change {
                Change::Stored { sequence, blocks } => {
                    let told = self.listeners.get(&sequence).and_then(|listener| listener.told.as_ref());
                    let told = told.expect("changes are noted before a sequence is forgotten");
                    self.events.stored(told, blocks.start as usize, blocks.end as usize, block_size);
                }
                Change::Removed(hashes) => self.events.removed(&hashes),
                Change::Cleared => self.events.cleared(),
            }
        }
    }

    fn deliver(&mut self, token: Token) {
        let listener = self.listeners.get(&token.sequence).expect("a sequence lives as long as its listener");
        if token.index == 0 {
            self.ttft.observe(listener.submitted.elapsed().as_secs_f64());
        }
        let Token { index, cached_tokens, last, .. } = token;
        // The receiver is gone only while its drop waits for our lock, to cancel the sequence.
        let _ = listener.sender.send(Delivery { sequence: listener.sequence, index, cached_tokens, last });
        if last {
            self.listeners.remove(&token.sequence);
        }
    }
}

/// Sequences of one request that run or wait. Dropping it, finished or not, frees what they hold.
pub(crate) struct Generation {
    driver: Arc<Driver>,
    ids: Vec<SequenceId>,
    tokens: UnboundedReceiver<Delivery>,
}

impl Generation {
    /// The next token of any of the sequences; `None` after the last one of all.
    pub(crate) async fn next(&mut self) -> Option<Delivery> {
        self.tokens.recv().await
    }

    /// [`Generation::next`] for use inside a poll function.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.tokens.poll_recv(context)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.driver.close(&self.ids);
    }
}
