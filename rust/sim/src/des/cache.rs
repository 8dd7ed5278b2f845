//! A tier of a worker's cache: segments in order of last use, those of running requests pinned.
//!
//! All is looked up by the segment's number in a table of pages, so nothing is hashed, and a fleet of a thousand workers does not
//! pay for every segment on each of them. What happens when a tier is full is the worker's business ([`super::worker`]).

/// No slot.
const NONE: u32 = u32::MAX;

/// Segments of a page: about those of a session, which have neighbouring numbers.
const PAGE: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Slot {
    segment: u32,
    blocks: u32,
    /// Running requests that hold it; while there are any, it is in no list.
    references: u32,
    older: u32,
    newer: u32,
}

/// Segments that are present.
#[derive(Debug)]
pub(crate) struct Tier {
    /// Slot and 1 by segment; 0 for a segment that is not here. A page that never had one is left out.
    places: Vec<Option<Box<[u32; PAGE]>>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    blocks: u64,
    pinned_blocks: u64,
}

impl Tier {
    /// An empty tier for segments numbered below `segments`.
    pub(crate) fn new(segments: u32) -> Self {
        Self {
            places: vec![None; (segments as usize).div_ceil(PAGE)],
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            blocks: 0,
            pinned_blocks: 0,
        }
    }

    /// Blocks of all that is present.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks of what running requests hold.
    pub(crate) fn pinned_blocks(&self) -> u64 {
        self.pinned_blocks
    }

    /// Blocks of what may be evicted.
    pub(crate) fn idle_blocks(&self) -> u64 {
        self.blocks - self.pinned_blocks
    }

    fn slot(&self, segment: u32) -> Option<usize> {
        let page = self.places[segment as usize / PAGE].as_ref()?;
        (page[segment as usize % PAGE] as usize).checked_sub(1)
    }

    fn set_place(&mut self, segment: u32, place: u32) {
        let page = self.places[segment as usize / PAGE].get_or_insert_with(|| Box::new([0; PAGE]));
        page[segment as usize % PAGE] = place;
    }

    pub(crate) fn contains(&self, segment: u32) -> bool {
        self.slot(segment).is_some()
    }

    /// Blocks of the segment if it is present and may be evicted, else 0.
    pub(crate) fn idle_blocks_of(&self, segment: u32) -> u32 {
        let idle = self.slot(segment).map(|slot| self.slots[slot]).filter(|slot| slot.references == 0);
        idle.map_or(0, |slot| slot.blocks)
    }

    /// Holds a segment for one more request. `false` if it is not present.
    pub(crate) fn pin(&mut self, segment: u32) -> bool {
        let Some(slot) = self.slot(segment) else { return false };
        if self.slots[slot].references == 0 {
            self.unlink(slot);
            self.pinned_blocks += u64::from(self.slots[slot].blocks);
        }
        self.slots[slot].references += 1;
        true
    }

    /// Adds a segment that is not present, held by one request.
    pub(crate) fn insert_pinned(&mut self, segment: u32, blocks: u32) {
        self.insert(segment, blocks, 1);
        self.pinned_blocks += u64::from(blocks);
    }

    /// Adds a segment that is not present, held by nobody, as the newest.
    pub(crate) fn insert_idle(&mut self, segment: u32, blocks: u32) {
        let slot = self.insert(segment, blocks, 0);
        self.link(slot);
    }

    fn insert(&mut self, segment: u32, blocks: u32, references: u32) -> usize {
        debug_assert!(!self.contains(segment), "a segment is here once");
        let new = Slot { segment, blocks, references, older: NONE, newer: NONE };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot as usize
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        self.set_place(segment, slot as u32 + 1);
        self.blocks += u64::from(blocks);
        slot
    }

    /// Ends one request's hold; what nobody holds any more is the newest of what may be evicted.
    pub(crate) fn unpin(&mut self, segment: u32) {
        let slot = self.slot(segment).expect("a pinned segment is present");
        let held = &mut self.slots[slot];
        held.references -= 1;
        if held.references == 0 {
            self.pinned_blocks -= u64::from(held.blocks);
            self.link(slot);
        }
    }

    /// Makes a segment that nobody holds the newest.
    pub(crate) fn touch(&mut self, segment: u32) {
        if let Some(slot) = self.slot(segment) {
            self.unlink(slot);
            self.link(slot);
        }
    }

    /// Drops the oldest segment that nobody holds.
    pub(crate) fn evict(&mut self) -> Option<(u32, u32)> {
        let slot = self.oldest;
        if slot == NONE {
            return None;
        }
        self.unlink(slot as usize);
        let Slot { segment, blocks, .. } = self.slots[slot as usize];
        self.set_place(segment, 0);
        self.blocks -= u64::from(blocks);
        self.free.push(slot);
        Some((segment, blocks))
    }

    /// Drops everything, held or not.
    pub(crate) fn clear(&mut self) {
        self.places.fill(None);
        self.slots.clear();
        self.free.clear();
        (self.oldest, self.newest, self.blocks, self.pinned_blocks) = (NONE, NONE, 0, 0);
    }

    fn link(&mut self, slot: usize) {
        let newest = self.newest;
        self.slots[slot].older = newest;
        self.slots[slot].newer = NONE;
        match newest {
            NONE => self.oldest = slot as u32,
            _ => self.slots[newest as usize].newer = slot as u32,
        }
        self.newest = slot as u32;
    }

    fn unlink(&mut self, slot: usize) {
        let Slot { older, newer, .. } = self.slots[slot];
        match older {
            NONE => self.oldest = newer,
            _ => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.slots[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A list and a map are the plain model.
        #[test]
        fn equals_a_list(steps in proptest::collection::vec((0u8..5, 0u32..12), 0..200)) {
            let mut tier = Tier::new(12);
            let (mut idle, mut held): (Vec<u32>, HashMap<u32, u32>) = (Vec::new(), HashMap::new());
            for (step, segment) in steps {
                let present = idle.contains(&segment) || held.contains_key(&segment);
                match step {
                    0 => {
                        prop_assert_eq!(tier.pin(segment), present);
                        if present {
                            idle.retain(|&other| other != segment);
                            *held.entry(segment).or_default() += 1;
                        }
                    }
                    1 if !present => { tier.insert_pinned(segment, segment + 1); held.insert(segment, 1); }
                    2 if !present => { tier.insert_idle(segment, segment + 1); idle.push(segment); }
                    3 => {
                        if let Some(references) = held.get_mut(&segment) {
                            tier.unpin(segment);
                            *references -= 1;
                            if *references == 0 { held.remove(&segment); idle.push(segment); }
                        } else if present {
                            tier.touch(segment);
                            idle.retain(|&other| other != segment);
                            idle.push(segment);
                        }
                    }
                    4 => {
                        let oldest = (!idle.is_empty()).then(|| idle.remove(0));
                        prop_assert_eq!(tier.evict(), oldest.map(|segment| (segment, segment + 1)));
                    }
                    _ => {}
                }
                let blocks = |segments: &mut dyn Iterator<Item = u32>| segments.map(|s| u64::from(s + 1)).sum::<u64>();
                prop_assert_eq!(tier.idle_blocks(), blocks(&mut idle.iter().copied()));
                prop_assert_eq!(tier.pinned_blocks(), blocks(&mut held.keys().copied()));
                for segment in 0..12 {
                    prop_assert_eq!(tier.contains(segment), idle.contains(&segment) || held.contains_key(&segment));
                }
            }
        }
    }
}
