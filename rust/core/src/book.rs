//! Bookings: what a decision holds until `first_token` and `complete` give it back, each exactly once.

use std::num::NonZeroU64;

use crate::decision::DecisionId;
use crate::index::Pin;
use crate::key::combine;
use crate::router::Millis;
use crate::shared::TextLength;
use crate::worker::WorkerId;

/// What one decision booked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Booking {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: Option<NonZeroU64>,
    pub(crate) pin: Option<Pin>,
    /// Uncached prompt tokens on the worker's queue; `None` once the first token came.
    pub(crate) queued_tokens: Option<u64>,
    pub(crate) answer_tokens: u64,
    /// Tokens that were queued on the worker when this was sent, its own included.
    pub(crate) queue_at_start: u64,
    pub(crate) sent: Millis,
    /// The index's insertion of the prompt.
    pub(crate) tick: u32,
    /// Text only: its length, and whose bytes per token it teaches.
    pub(crate) text: Option<TextLength>,
}

/// All open bookings. An id is a slot and the slot's generation, so an id that was completed names nothing.
#[derive(Debug)]
pub(crate) struct Bookings {
    slots: Vec<(u32, Option<Booking>)>,
    free: Vec<u32>,
    /// Where generations begin, so that ids of another router seldom name anything here.
    first_generation: u32,
}

impl Bookings {
    /// No bookings; `seed` tells routers apart.
    pub(crate) fn new(seed: u64) -> Self {
        let first_generation = (combine(seed, 0) >> 33) as u32 | 1;
        Self { slots: Vec::new(), free: Vec::new(), first_generation }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn open(&mut self, booking: Booking) -> DecisionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((self.first_generation, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(booking);
        DecisionId(u64::from(*generation) << 32 | u64::from(slot))
    }

    pub(crate) fn get_mut(&mut self, id: DecisionId) -> Option<&mut Booking> {
        let (generation, booking) = self.slots.get_mut(id.0 as u32 as usize)?;
        if u64::from(*generation) == id.0 >> 32 { booking.as_mut() } else { None }
    }

    pub(crate) fn close(&mut self, id: DecisionId) -> Option<Booking> {
        self.get_mut(id)?;
        let slot = id.0 as u32;
        let (generation, booking) = &mut self.slots[slot as usize];
        // 0 is left out so that no id is 0.
        *generation = generation.checked_add(1).unwrap_or(1);
        self.free.push(slot);
        booking.take()
    }
}
