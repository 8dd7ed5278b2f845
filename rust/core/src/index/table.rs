//! Finds a run from its parent and its first block hash: one cache line for most look-ups, no lock.
//!
//! Open addressing with linear probing over 8-byte entries: a 32-bit tag and the run's number. The tag alone says where an
//! entry belongs, so growth and removal touch no run. The table is cut in parts, each with its own version: a reader that
//! meets a removal or a growth reads that part again. A part grows in place, so the old and the new table are never held
//! together: line by line the parts take turns in one arena. Tags may collide; the caller compares the run itself.

use super::arena::Words;
use super::prefetch::prefetch;
use super::run::RunId;
use super::seq::Seq;
use crate::error::Error;
use crate::key::combine;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const PARTS: usize = 64;
const EMPTY: u64 = 0;
/// Entries in one cache line; a part has at least one.
const LINE: u32 = 8;

/// Where the run below `parent` that begins with `first` is to be found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    part: usize,
    tag: u32,
}

impl Place {
    #[inline]
    pub(super) fn new(parent: RunId, first: u64) -> Self {
        let hash = combine(first, u64::from(parent.0));
        Self { part: hash as usize % PARTS, tag: (hash >> 32) as u32 }
    }

    fn entry(self, run: RunId) -> u64 {
        u64::from(self.tag) << 32 | u64::from(run.0 + 1)
    }
}

#[derive(Debug, Default)]
struct Part {
    seq: Seq,
    /// Entries: 0 or a power of two from `LINE` on. At least one is always empty.
    len: AtomicU32,
    /// Entries in use; writers only.
    used: AtomicU32,
}

/// The table. `get` may be called by anybody at any time, everything else by one writer at a time.
#[derive(Debug)]
pub(super) struct Table {
    parts: [Part; PARTS],
    entries: Words,
    len: AtomicU64,
}

impl Table {
    /// A table that can grow to `budget` bytes, at least 64 KiB.
    pub(super) fn new(budget: usize) -> Result<Self, Error> {
        let longest = 1usize << (budget / size_of::<u64>() / PARTS).max(2 * LINE as usize).ilog2();
        Ok(Self {
            parts: std::array::from_fn(|_| Part::default()),
            entries: Words::new(PARTS * longest)?,
            len: AtomicU64::new(0),
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize * size_of::<u64>()
    }

    #[inline]
    fn entry(&self, part: usize, at: u32) -> &AtomicU64 {
        self.entries.get((at / LINE * PARTS as u32 + part as u32) * LINE + at % LINE)
    }

    /// What `accept` makes of the run at this place: it is asked about each that may be it until it gives something.
    #[inline]
    pub(super) fn get<T>(&self, place: Place, mut accept: impl FnMut(RunId) -> Option<T>) -> Option<T> {
        let part = &self.parts[place.part];
        loop {
            let version = part.seq.begin();
            let found = self.search(place, &mut accept);
            // A run that was found is the right one wherever its entry stands; only its absence must be sure.
            if found.is_some() || part.seq.holds(version) {
                return found;
            }
        }
    }

    /// Asks for the cache line at which a search for this place begins.
    #[inline]
    pub(super) fn prefetch(&self, place: Place) {
        if let Some(mask) = self.parts[place.part].len.load(Ordering::Acquire).checked_sub(1) {
            prefetch(self.entry(place.part, place.tag & mask));
        }
    }

    #[inline]
    fn search<T>(&self, place: Place, accept: &mut impl FnMut(RunId) -> Option<T>) -> Option<T> {
        let mask = self.parts[place.part].len.load(Ordering::Acquire).checked_sub(1)?;
        let mut at = place.tag & mask;
        for _ in 0..=mask {
            let entry = self.entry(place.part, at).load(Ordering::Acquire);
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == place.tag {
                let found = accept(RunId(entry as u32 - 1));
                if found.is_some() {
                    return found;
                }
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn put(&self, part: usize, entry: u64, len: u32) {
        let mut at = (entry >> 32) as u32 & (len - 1);
        while self.entry(part, at).load(Ordering::Relaxed) != EMPTY {
            at = (at + 1) & (len - 1);
        }
        // Readers that find the entry find the run that it names.
        self.entry(part, at).store(entry, Ordering::Release);
    }

    fn grow(&self, number: usize) -> u32 {
        let part = &self.parts[number];
        let old = part.len.load(Ordering::Relaxed);
        let len = (2 * old).max(LINE);
        let all: Vec<u64> = (0..old).map(|at| self.entry(number, at).load(Ordering::Relaxed)).collect();
        part.seq.write(|| {
            part.len.store(len, Ordering::Release);
            for at in 0..old {
                self.entry(number, at).store(EMPTY, Ordering::Relaxed);
            }
            for entry in all.into_iter().filter(|&entry| entry != EMPTY) {
                self.put(number, entry, len);
            }
        });
        self.len.fetch_add(u64::from(len - old), Ordering::Relaxed);
        len
    }

    /// Whether an entry fits here, the table growing by at most `spare` bytes.
    pub(super) fn has_room(&self, place: Place, spare: usize) -> bool {
        let part = &self.parts[place.part];
        let (len, used) = (part.len.load(Ordering::Relaxed), part.used.load(Ordering::Relaxed));
        (used + 1) * 16 <= len * 15 || self.growth(len) <= spare
    }

    /// Whether an entry fits at any place.
    pub(super) fn has_room_anywhere(&self, spare: usize) -> bool {
        (0..PARTS).all(|part| self.has_room(Place { part, tag: 0 }, spare))
    }

    /// Bytes that a part of `len` entries grows by; more than there can be if there is no more room.
    fn growth(&self, len: u32) -> usize {
        if len as usize * PARTS >= self.entries.len() {
            return usize::MAX;
        }
        len.max(LINE) as usize * size_of::<u64>()
    }

    /// Adds an entry for which there is room. Grows beyond three quarters full if that takes at most `spare` bytes.
    pub(super) fn insert(&self, place: Place, run: RunId, spare: usize) {
        let part = &self.parts[place.part];
        let (mut len, used) = (part.len.load(Ordering::Relaxed), part.used.load(Ordering::Relaxed));
        if len == 0 || ((used + 1) * 4 > len * 3 && self.growth(len) <= spare) || used + 1 == len {
            len = self.grow(place.part);
        }
        self.put(place.part, place.entry(run), len);
        part.used.store(used + 1, Ordering::Relaxed);
    }

    /// Removes the entry of this run, if it is here.
    pub(super) fn remove(&self, place: Place, run: RunId) {
        let part = &self.parts[place.part];
        let Some(mask) = part.len.load(Ordering::Relaxed).checked_sub(1) else { return };
        let load = |at: u32| self.entry(place.part, at).load(Ordering::Relaxed);
        let wanted = place.entry(run);
        let mut hole = place.tag & mask;
        while load(hole) != wanted {
            if load(hole) == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        part.seq.write(|| {
            // Close the gap: move back each following entry that may stand in the hole.
            let mut at = hole;
            loop {
                at = (at + 1) & mask;
                let entry = load(at);
                if entry == EMPTY {
                    break;
                }
                let home = (entry >> 32) as u32 & mask;
                if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                    self.entry(place.part, hole).store(entry, Ordering::Release);
                    hole = at;
                }
            }
            self.entry(place.part, hole).store(EMPTY, Ordering::Relaxed);
        });
        part.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_map(steps in proptest::collection::vec((0u32..400, any::<bool>(), any::<bool>()), 1..1500)) {
            let table = Table::new(1 << 20).expect("address space");
            let mut model: HashMap<u32, Place> = HashMap::new();
            // Few tags and one part, so that chains are long and wrap around.
            let place_of = |number: u32| Place { part: 3, tag: (number % 37).wrapping_mul(0x0100_0003) };
            for (number, remove, tight) in steps {
                let (run, place) = (RunId(number), place_of(number));
                if remove {
                    table.remove(place, run);
                    model.remove(&number);
                } else if let Entry::Vacant(vacant) = model.entry(number) {
                    let spare = if tight { 0 } else { usize::MAX };
                    if table.has_room(place, spare) {
                        let before = table.bytes();
                        table.insert(place, run, spare);
                        prop_assert!(!tight || table.bytes() == before);
                        vacant.insert(place);
                    }
                }
                prop_assert_eq!(table.get(place, |found| (found == run).then_some(())).is_some(), model.contains_key(&number));
            }
            for number in 0..400u32 {
                let found = table.get(place_of(number), |run| (run == RunId(number)).then_some(())).is_some();
                prop_assert_eq!(found, model.contains_key(&number));
            }
        }
    }
}
