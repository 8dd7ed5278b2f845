//! Jump consistent hash over stable slots: where a prompt is at home when nobody holds it.
//!
//! A slot belongs to one worker and never moves. A worker that leaves leaves a *hole*; a key that lands on a hole (or on a
//! worker that may not take the request) is hashed again with its attempt number. So removing any worker moves only that
//! worker's keys, a worker that returns gets exactly its keys back, and replicas with the same slots agree on every key.
//! Compacting the list instead would move half of the keys or more.

use std::collections::HashMap;

use crate::key::combine;
use crate::worker::WorkerId;

/// Attempts before a key takes the next usable slot in order: with half of the slots holes, 1 key in 2^32 gets there.
const ATTEMPTS: u64 = 32;

/// Picks a slot for `key` among `slots` with jump consistent hash.
///
/// Growing from `n` to `n + 1` slots moves about `1 / (n + 1)` of the keys, all of them to the new slot. Returns 0 when
/// `slots` is 0 or 1. Cost: O(ln slots), no allocation. Source: Lamping and Veach, 2014 (arXiv:1406.2294).
#[must_use]
pub fn jump_hash(key: u64, slots: u32) -> u32 {
    // All numbers here are whole and below 2^63, which CPUs convert to and from floating point in one instruction.
    let (mut key, mut slot, mut next) = (key, 0, 0);
    while next < i64::from(slots) {
        slot = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((slot + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) as i64 + 1) as f64)) as i64;
    }
    slot as u32
}

/// The slot table.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) owner: Vec<Option<WorkerId>>,
    /// Slots of workers that left, by name, as long as nobody took them.
    pub(crate) left: HashMap<String, Left>,
}

/// What a worker that left gets back.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) worker: WorkerId,
    pub(crate) slots: Vec<u32>,
}

impl Slots {
    /// The id that a worker of this name had, if its slots are still free.
    pub(crate) fn former(&self, name: &str) -> Option<WorkerId> {
        self.left.get(name).map(|left| left.worker)
    }

    /// Gives the worker `weight` slots: those it had, else holes, else new ones at the end.
    pub(crate) fn add(&mut self, name: &str, worker: WorkerId, weight: u32) {
        let mut wanted = weight as usize;
        if let Some(left) = self.left.remove(name) {
            for slot in left.slots.into_iter().take(wanted) {
                self.owner[slot as usize] = Some(worker);
                wanted -= 1;
            }
        }
        for slot in 0..self.owner.len() {
            if wanted == 0 {
                break;
            }
            if self.owner[slot].is_none() {
                self.left.retain(|_, left| !left.slots.contains(&(slot as u32)));
                self.owner[slot] = Some(worker);
                wanted -= 1;
            }
        }
        self.owner.extend(std::iter::repeat_n(Some(worker), wanted));
    }

    /// Turns the worker's slots into holes.
    pub(crate) fn remove(&mut self, name: &str, worker: WorkerId) {
        let mut slots = Vec::new();
        for (slot, owner) in self.owner.iter_mut().enumerate() {
            if *owner == Some(worker) {
                *owner = None;
                slots.push(slot as u32);
            }
        }
        self.left.insert(name.to_owned(), Left { worker, slots });
    }

    /// Lays the table anew: used while nothing was routed, so that the order of arrival leaves no trace.
    pub(crate) fn rebuild(&mut self, sorted: impl Iterator<Item = (WorkerId, u32)>) {
        self.owner.clear();
        self.left.clear();
        for (worker, weight) in sorted {
            self.owner.extend(std::iter::repeat_n(Some(worker), weight as usize));
        }
    }
}

/// The usable worker that `key` belongs to, among the owners of slots; `None` if no slot is usable.
///
/// `attempt` 0 is the home; 1, 2, ... are the places where it goes next.
pub(crate) fn pick(
    owners: &[Option<WorkerId>],
    key: u64,
    attempt: u64,
    usable: impl Fn(WorkerId) -> bool,
) -> Option<WorkerId> {
    let count = owners.len() as u32;
    let mut last = 0;
    for hole in 0..ATTEMPTS {
        let salt = attempt * ATTEMPTS + hole;
        last = jump_hash(if salt == 0 { key } else { combine(key, salt) }, count);
        match owners.get(last as usize) {
            Some(&Some(worker)) if usable(worker) => return Some(worker),
            _ => {}
        }
    }
    let (before, after) = owners.split_at(owners.len().min(last as usize));
    after.iter().chain(before).flatten().copied().find(|&worker| usable(worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u64 = 20_000;

    fn table(workers: u32) -> Slots {
        let mut slots = Slots::default();
        slots.rebuild((0..workers).map(|worker| (WorkerId(worker), 1)));
        slots
    }

    fn homes(slots: &Slots) -> Vec<u32> {
        (0..KEYS).map(|key| pick(&slots.owner, combine(key, 1), 0, |_| true).expect("not empty").0).collect()
    }

    fn moved(before: &[u32], after: &[u32]) -> f64 {
        before.iter().zip(after).filter(|(a, b)| a != b).count() as f64 / before.len() as f64
    }

    #[test]
    fn follows_the_published_vectors() {
        // Reference values of the published function, as other implementations test them.
        for (key, slots, slot) in
            [(1, 1, 0), (42, 57, 43), (0xDEAD_10CC, 1, 0), (0xDEAD_10CC, 666, 361), (256, 1024, 520)]
        {
            assert_eq!(jump_hash(key, slots), slot, "jump_hash({key}, {slots})");
        }
        assert_eq!(jump_hash(1, 0), 0);
    }

    #[test]
    fn removing_any_worker_moves_its_keys_and_no_others() {
        for gone in [0, 3, 7] {
            let mut slots = table(8);
            let before = homes(&slots);
            slots.remove("w", WorkerId(gone));
            let after = homes(&slots);
            for (a, b) in before.iter().zip(&after) {
                assert!(a == b || *a == gone);
                assert_ne!(*b, gone);
            }
            slots.add("w", WorkerId(gone), 1);
            assert_eq!(homes(&slots), before, "a worker that returns gets its keys back");
        }
    }

    #[test]
    fn a_new_worker_takes_its_share_and_moves_nothing_else() {
        let mut slots = table(7);
        let before = homes(&slots);
        slots.add("new", WorkerId(7), 1);
        let after = homes(&slots);
        assert!(before.iter().zip(&after).all(|(a, b)| a == b || *b == 7));
        assert!((moved(&before, &after) - 0.125).abs() < 0.01);
    }

    #[test]
    fn a_hole_that_was_taken_is_not_given_back() {
        let mut slots = table(4);
        slots.remove("old", WorkerId(2));
        slots.add("new", WorkerId(9), 1);
        assert_eq!(slots.former("old"), None);
        slots.add("old", WorkerId(10), 1);
        assert_eq!(slots.owner, [0, 1, 9, 3, 10].map(|worker| Some(WorkerId(worker))));
    }

    #[test]
    fn weights_are_shares() {
        let mut slots = Slots::default();
        slots.rebuild([(WorkerId(0), 1), (WorkerId(1), 3)].into_iter());
        let heavy = homes(&slots).iter().filter(|&&worker| worker == 1).count() as f64 / KEYS as f64;
        assert!((heavy - 0.75).abs() < 0.01, "{heavy}");
    }

    #[test]
    fn finds_the_last_usable_worker_and_says_when_there_is_none() {
        let slots = table(500);
        for key in 0..200 {
            assert_eq!(pick(&slots.owner, key, 0, |worker| worker.0 == 123), Some(WorkerId(123)));
        }
        assert_eq!(pick(&slots.owner, 1, 0, |_| false), None);
        assert_eq!(pick(&[], 1, 0, |_| true), None);
    }
}
