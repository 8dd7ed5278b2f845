//! Events of an engine that hands them out when asked: TensorRT-LLM's drain.
//!
//! There is no socket here: whoever has the HTTP client implements [`Drain`]. What was handed out is gone, so nothing can be
//! asked for again; when events were lost, or some were handed out before us, the view is partial until the engine begins anew.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval};
use trunkline_core::Millis;

use super::{Feed, Shared, Sink, link};
use crate::batch::Batch;
use crate::decode::trtllm;
use crate::sequencer::Health;
use crate::source::Source;

/// Asks an engine for the events since the last time.
pub trait Drain: Send + 'static {
    /// The body of the answer to `/kv_cache_events`. One reader for each engine: events are handed out once. May be dropped
    /// before it is done; the events of an answer on its way are lost then, which shows in the next one.
    fn drain(&mut self) -> impl Future<Output = Result<Bytes, Box<dyn Error + Send + Sync>>> + Send;
}

impl Feed {
    /// Follows an engine by asking it every `period`. `source` names worker and rank; its endpoints are not used.
    ///
    /// # Panics
    /// If `period` is 0, or outside of a Tokio runtime with time.
    #[must_use]
    pub fn poll(source: Source, drain: impl Drain, period: Duration, sink: Arc<dyn Sink>) -> Self {
        let (source, shared) = (Arc::new(source), Arc::new(Shared::default()));
        assert!(!period.is_zero(), "a period");
        let task = poll(source.clone(), shared.clone(), drain, period, sink);
        Self { source, shared, _task: link::own(task) }
    }
}

async fn poll(
    source: Arc<Source>,
    shared: Arc<Shared>,
    mut drain: impl Drain,
    period: Duration,
    sink: Arc<dyn Sink>,
) {
    let (mut decoder, mut batch) = (trtllm::Decoder::new(source.rank), Batch::new());
    let (begun, mut health, mut partial) = (Instant::now(), Health::Connecting, Some("late start"));
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    shared.tell(&source, &*sink, health);
    loop {
        ticks.tick().await;
        health = match drain.drain().await {
            Ok(json) => {
                let missed = decoder.decode(&json, &mut batch);
                let mut stats = shared.stats.lock();
                match missed {
                    Ok(missed) => {
                        stats.count(&batch);
                        stats.sequence.gaps += u64::from(missed > 0);
                        partial = match (missed, batch.clears()) {
                            (0, true) => None,
                            (0, false) => partial,
                            _ => Some("gap"),
                        };
                    }
                    Err(_) => {
                        stats.decode_errors += 1;
                        partial = Some("unreadable");
                    }
                }
                drop(stats);
                if batch.events().len() > 0 {
                    sink.apply(&source, &batch);
                }
                partial.map_or(Health::Live, |reason| Health::Partial { reason })
            }
            Err(_) => match health {
                Health::Connecting | Health::Lost { .. } => health,
                _ => {
                    shared.stats.lock().disconnects += 1;
                    Health::Lost { since: Millis(begun.elapsed().as_millis() as u64) }
                }
            },
        };
        shared.tell(&source, &*sink, health);
    }
}
