//! Where runs keep their hashes: pages of fixed size that never move, cut into slots of one size class each.
//!
//! A page that becomes empty may be cut anew for another class, or given back when something else needs its bytes.

/// Hashes in a page (8 KiB), and so the longest run.
pub(super) const PAGE_HASHES: usize = 1024;
const PAGE_BYTES: usize = PAGE_HASHES * size_of::<u64>();
const CLASSES: [u16; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 85, 128, 170, 204, 256, 341, 512, PAGE_HASHES as u16];
const NONE: u16 = u16::MAX;
const UNLISTED: u32 = u32::MAX;

/// A slot of the arena, in hashes from the start of the first page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot(u32);

#[derive(Debug)]
struct Page {
    /// `PAGE_HASHES` of them, none in a page that was given back.
    hashes: Box<[u64]>,
    class: u8,
    live: u16,
    /// First free slot (offset in the page); a free slot holds the offset of the next one.
    free: u16,
    /// Offset of the first slot that was never used.
    fresh: u16,
    /// Position in `partial` of its class, `UNLISTED` if full.
    listed: u32,
}

#[derive(Debug, Default)]
pub(super) struct Arena {
    pages: Vec<Page>,
    empty: Vec<u32>,
    given_back: Vec<u32>,
    /// Pages with a free slot, by class.
    partial: [Vec<u32>; CLASSES.len()],
}

fn class_of(len: usize) -> usize {
    CLASSES.partition_point(|&size| usize::from(size) < len)
}

impl Arena {
    /// Bytes that `alloc` of this length would add.
    pub(super) fn growth(&self, len: usize) -> usize {
        let fits = !self.partial[class_of(len)].is_empty() || !self.empty.is_empty();
        if fits { 0 } else { PAGE_BYTES }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.pages.len() - self.given_back.len()) * PAGE_BYTES + self.pages.capacity() * size_of::<Page>()
    }

    /// Stores 1 to `PAGE_HASHES` hashes.
    pub(super) fn alloc(&mut self, hashes: &[u64]) -> Slot {
        let class = class_of(hashes.len());
        let number = match self.partial[class].last() {
            Some(&number) => number,
            None => self.open_page(class),
        };
        let page = &mut self.pages[number as usize];
        let size = CLASSES[class];
        let offset = if page.free == NONE {
            page.fresh += size;
            page.fresh - size
        } else {
            let offset = page.free;
            page.free = page.hashes[usize::from(offset)] as u16;
            offset
        };
        page.live += 1;
        page.hashes[usize::from(offset)..][..hashes.len()].copy_from_slice(hashes);
        if page.free == NONE && usize::from(page.fresh) + usize::from(size) > PAGE_HASHES {
            page.listed = UNLISTED;
            self.partial[class].pop();
        }
        Slot(number * PAGE_HASHES as u32 + u32::from(offset))
    }

    fn open_page(&mut self, class: usize) -> u32 {
        let number = self.empty.pop().or_else(|| self.given_back.pop()).unwrap_or_else(|| {
            self.pages.push(Page {
                hashes: Box::default(),
                class: 0,
                live: 0,
                free: NONE,
                fresh: 0,
                listed: UNLISTED,
            });
            self.pages.len() as u32 - 1
        });
        let page = &mut self.pages[number as usize];
        if page.hashes.is_empty() {
            page.hashes = vec![0; PAGE_HASHES].into_boxed_slice();
        }
        (page.class, page.free, page.fresh) = (class as u8, NONE, 0);
        page.listed = self.partial[class].len() as u32;
        self.partial[class].push(number);
        number
    }

    pub(super) fn free(&mut self, slot: Slot) {
        let (number, offset) = (slot.0 / PAGE_HASHES as u32, (slot.0 % PAGE_HASHES as u32) as u16);
        let page = &mut self.pages[number as usize];
        let list = &mut self.partial[usize::from(page.class)];
        page.hashes[usize::from(offset)] = u64::from(page.free);
        page.free = offset;
        page.live -= 1;
        if page.listed == UNLISTED {
            page.listed = list.len() as u32;
            list.push(number);
        }
        if page.live == 0 {
            let at = page.listed as usize;
            page.listed = UNLISTED;
            list.swap_remove(at);
            if let Some(&other) = list.get(at) {
                self.pages[other as usize].listed = at as u32;
            }
            self.empty.push(number);
        }
    }

    /// Gives the bytes of an empty page back. `false` if there is none.
    pub(super) fn trim(&mut self) -> bool {
        let Some(number) = self.empty.pop() else {
            return false;
        };
        self.pages[number as usize].hashes = Box::default();
        self.given_back.push(number);
        true
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot, len: usize) -> &[u64] {
        let at = slot.0 as usize;
        &self.pages[at / PAGE_HASHES].hashes[at % PAGE_HASHES..][..len]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_keep_their_hashes_and_pages_are_used_again(steps in proptest::collection::vec((1usize..=PAGE_HASHES, any::<prop::sample::Index>(), any::<bool>()), 1..300)) {
            let mut arena = Arena::default();
            let mut kept: Vec<(Slot, Vec<u64>)> = Vec::new();
            let mut next = 0u64;
            for (len, which, free) in steps {
                if len % 50 == 0 {
                    arena.trim();
                }
                if free && !kept.is_empty() {
                    let (slot, _) = kept.swap_remove(which.index(kept.len()));
                    arena.free(slot);
                } else {
                    let hashes: Vec<u64> = (next..next + len as u64).collect();
                    next += len as u64;
                    let pages = |arena: &Arena| arena.pages.len() - arena.given_back.len();
                    let (growth, before) = (arena.growth(len), pages(&arena));
                    kept.push((arena.alloc(&hashes), hashes));
                    prop_assert_eq!(pages(&arena) > before, growth > 0);
                }
                for (slot, hashes) in &kept {
                    prop_assert_eq!(arena.get(*slot, hashes.len()), &hashes[..]);
                }
            }
            for (slot, _) in kept.drain(..) {
                arena.free(slot);
            }
            prop_assert_eq!(arena.empty.len() + arena.given_back.len(), arena.pages.len());
            while arena.trim() {}
            prop_assert_eq!(arena.bytes(), arena.pages.capacity() * size_of::<Page>());
            prop_assert!(arena.partial.iter().all(Vec::is_empty));
        }
    }
}
