//! Who may take requests and how they are chosen, as a decision reads it without a lock.
//!
//! A [`Fleet`] is never changed: whoever adds, removes, drains or marks a worker, or sets another policy, makes a new one. Cost of that: O(workers).

use crate::index::ViewId;
use crate::jump::{self, Slots};
use crate::policy::Policy;
use crate::view::Known;
use crate::worker::{Standing, Worker, WorkerId};

/// The live workers and the slots, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) policy: Policy,
    /// Workers, live or not.
    pub(crate) known: usize,
    /// Healthy workers that do not drain, ascending.
    pub(crate) live: Vec<WorkerId>,
    /// One bit for each id, set for these workers.
    bits: Vec<u64>,
    /// Owner of each slot.
    owners: Vec<Option<WorkerId>>,
    /// Own view of each id, and what is known of its cache; empty if that is the own view for all.
    caches: Vec<(ViewId, Known)>,
}

impl Fleet {
    pub(crate) fn new(
        policy: Policy,
        workers: &[Option<Box<Worker>>],
        standings: &[Standing],
        slots: &Slots,
    ) -> Self {
        let mut bits = vec![0; workers.len().div_ceil(64)];
        let mut live = Vec::new();
        for (id, worker) in workers.iter().enumerate() {
            if worker.as_ref().is_some_and(|worker| worker.is_live()) {
                live.push(WorkerId(id as u32));
                bits[id / 64] |= 1 << (id % 64);
            }
        }
        let known = workers.iter().flatten().count();
        let all_own = standings.iter().all(|standing| standing.known == Known::Own);
        let caches = standings.iter().map(|standing| (standing.view, standing.known));
        let caches = if all_own { Vec::new() } else { caches.collect() };
        Self { policy, known, live, bits, owners: slots.owner.clone(), caches }
    }

    /// Whether the worker is live.
    #[inline]
    pub(crate) fn contains(&self, id: WorkerId) -> bool {
        self.bits.get(id.0 as usize / 64).is_some_and(|bits| bits >> (id.0 % 64) & 1 == 1)
    }

    /// Whether the own views count for all workers.
    #[inline]
    pub(crate) fn all_own(&self) -> bool {
        self.caches.is_empty()
    }

    /// A worker's own view, and what is known of its cache, unless the own views count for all.
    #[inline]
    pub(crate) fn known(&self, id: WorkerId) -> (ViewId, Known) {
        self.caches.get(id.0 as usize).copied().unwrap_or((ViewId::NONE, Known::Own))
    }

    /// [`jump::pick`] among its slots.
    pub(crate) fn pick(&self, key: u64, attempt: u64, usable: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        jump::pick(&self.owners, key, attempt, usable)
    }
}
