//! Payloads that somebody else receives: of each worker a decoder, and the way into a router.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use trunkline_core::{Applied, Millis, Router, Spelling, WorkerId};

use crate::{Batch, Decoder, Fault};

/// Decodes the messages of one worker, in their order.
type Decoding = Arc<Mutex<(Decoder, Batch)>>;

/// The feeds of all workers of a router, for callers who receive the messages themselves.
///
/// May be used from any thread; payloads of one worker wait for each other.
#[derive(Default)]
pub struct Feeds(Mutex<HashMap<WorkerId, Decoding>>);

/// Why a payload was not applied.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is none of the formats.
    #[error(transparent)]
    Payload(#[from] Fault),
    /// The router knows no such worker, or has no view left.
    #[error(transparent)]
    Core(#[from] trunkline_core::Error),
}

impl Feeds {
    /// Decodes one payload and applies it. `spelling` is that of [`Router::apply_events`].
    ///
    /// What cannot be decoded of it counts as refused. Cost: about 0.3 us for each stored block.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn apply(
        &self,
        router: &Router,
        id: WorkerId,
        payload: &[u8],
        spelling: Option<&dyn Spelling>,
        now: Millis,
    ) -> Result<Applied, Refused> {
        let decoding = Arc::clone(self.0.lock().entry(id).or_default());
        let (decoder, batch) = &mut *decoding.lock();
        decoder.decode(payload, batch)?;
        let mut applied = router.apply_events(id, batch.events(), spelling, batch.age_ms(), now)?;
        applied.refused += u64::from(batch.refused);
        Ok(applied)
    }

    /// The worker left, or tells everything anew.
    pub fn forget(&self, id: WorkerId) {
        self.0.lock().remove(&id);
    }
}
