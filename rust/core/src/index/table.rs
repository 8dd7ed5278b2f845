//! Finds a run from its parent and its first block hash: one cache line for most look-ups.
//!
//! Open addressing with linear probing over 8-byte entries: a 32-bit tag and the run's number. The tag alone says where an
//! entry belongs, so growth and removal touch no run. The table is cut in parts that grow alone, so that growing never
//! holds the old and the new table in full. Tags may collide; the caller compares the run itself.

use super::radix::RunId;
use crate::key::combine;

const PARTS: usize = 64;
const EMPTY: u64 = 0;
const MIN_LEN: usize = 8;

/// Where the run below `parent` that begins with `first` is to be found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    part: usize,
    tag: u32,
}

impl Place {
    #[inline]
    pub(super) fn new(parent: RunId, first: u64) -> Self {
        let hash = combine(first, u64::from(parent.number()));
        Self { part: hash as usize % PARTS, tag: (hash >> 32) as u32 }
    }

    fn entry(self, run: RunId) -> u64 {
        u64::from(self.tag) << 32 | u64::from(run.number() + 1)
    }
}

#[derive(Debug, Default, Clone)]
struct Part {
    /// Entries, a power of two of them or none. At least one is always empty.
    entries: Box<[u64]>,
    used: usize,
}

#[derive(Debug)]
pub(super) struct Table {
    parts: Vec<Part>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { parts: vec![Part::default(); PARTS], len: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.len * size_of::<u64>() + PARTS * size_of::<Part>()
    }

    /// The run at this place that `is_it` accepts.
    #[inline]
    pub(super) fn get(&self, place: Place, is_it: impl Fn(RunId) -> bool) -> Option<RunId> {
        let entries = &self.parts[place.part].entries;
        let mask = entries.len().checked_sub(1)?;
        let mut at = place.tag as usize & mask;
        loop {
            let entry = entries[at];
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == place.tag {
                let run = RunId::from_number(entry as u32 - 1);
                if is_it(run) {
                    return Some(run);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Whether an entry fits here, the table growing by at most `spare` bytes.
    pub(super) fn has_room(&self, place: Place, spare: usize) -> bool {
        let Part { entries, used } = &self.parts[place.part];
        (used + 1) * 16 <= entries.len() * 15 || self.grown_by(place) <= spare
    }

    /// Whether an entry fits at any place.
    pub(super) fn has_room_anywhere(&self, spare: usize) -> bool {
        (0..PARTS).all(|part| self.has_room(Place { part, tag: 0 }, spare))
    }

    fn grown_by(&self, place: Place) -> usize {
        self.parts[place.part].entries.len().max(MIN_LEN) * size_of::<u64>()
    }

    /// Adds an entry for which there is room. Grows beyond three quarters full if that takes at most `spare` bytes.
    pub(super) fn insert(&mut self, place: Place, run: RunId, spare: usize) {
        let may_grow = self.grown_by(place) <= spare;
        let part = &mut self.parts[place.part];
        let len = part.entries.len();
        if len == 0 || ((part.used + 1) * 4 > len * 3 && may_grow) || part.used + 1 == len {
            let old =
                std::mem::replace(&mut part.entries, vec![EMPTY; (2 * len).max(MIN_LEN)].into_boxed_slice());
            for entry in old.into_iter().filter(|&entry| entry != EMPTY) {
                part.put(entry);
            }
            self.len += part.entries.len() - len;
        }
        part.put(place.entry(run));
        part.used += 1;
    }

    /// Removes the entry of this run, if it is here.
    pub(super) fn remove(&mut self, place: Place, run: RunId) {
        let part = &mut self.parts[place.part];
        let Some(mask) = part.entries.len().checked_sub(1) else {
            return;
        };
        let wanted = place.entry(run);
        let mut hole = place.tag as usize & mask;
        while part.entries[hole] != wanted {
            if part.entries[hole] == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        // Close the gap: move back each following entry that may stand in the hole.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = part.entries[at];
            if entry == EMPTY {
                break;
            }
            let home = (entry >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                part.entries[hole] = entry;
                hole = at;
            }
        }
        part.entries[hole] = EMPTY;
        part.used -= 1;
    }
}

impl Part {
    fn put(&mut self, entry: u64) {
        let mask = self.entries.len() - 1;
        let mut at = (entry >> 32) as usize & mask;
        while self.entries[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_map(steps in proptest::collection::vec((0u32..400, any::<bool>(), any::<bool>()), 1..1500)) {
            let mut table = Table::new();
            let mut model: HashMap<u32, Place> = HashMap::new();
            for (number, remove, tight) in steps {
                let run = RunId::from_number(number);
                // Few tags and one part, so that chains are long and wrap around.
                let place = Place { part: 3, tag: (number % 37).wrapping_mul(0x0100_0003) };
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
                prop_assert_eq!(table.get(place, |found| found == run).is_some(), model.contains_key(&number));
            }
            for number in 0..400u32 {
                let place = Place { part: 3, tag: (number % 37).wrapping_mul(0x0100_0003) };
                let found = table.get(place, |run| run.number() == number).is_some();
                prop_assert_eq!(found, model.contains_key(&number));
            }
        }
    }
}
