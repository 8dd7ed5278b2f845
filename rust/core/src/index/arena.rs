//! Memory that readers may look at any time: reservations that never move and are never freed, made of atomics.
//!
//! An [`Arena`] is address space for all that it may ever hold. The system gives a page when it is first touched, a large one
//! where it can, and so the items cost what is used of them, no list of pieces must be read to find one, and few of the
//! walk's cache misses miss the page table as well. [`Pages`] cuts an arena of 64-bit words in pages and these in slots of one
//! size class each; a page that becomes empty may be cut anew for another class. Only writers allocate and free; they keep
//! what they must know of the pages beside the words.

use std::marker::PhantomData;

use memmap2::{MmapMut, MmapOptions};

use crate::error::Error;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Types of which all bytes may be shared and zero bytes are a value.
///
/// # Safety
/// The type consists of atomic integers alone.
#[allow(unsafe_code)]
pub(super) unsafe trait Atomics: Sync {}

// SAFETY: it is one.
#[allow(unsafe_code)]
unsafe impl Atomics for AtomicU64 {}

// SAFETY: it is one.
#[allow(unsafe_code)]
unsafe impl Atomics for AtomicU32 {}

/// Room for a number of items, all zero at first.
#[derive(Debug)]
pub(super) struct Arena<T> {
    map: MmapMut,
    len: usize,
    items: PhantomData<T>,
}

impl<T: Atomics> Arena<T> {
    /// Reservations from this size on ask for large pages; below, their rounding would show.
    const HUGE_FROM: usize = 32 << 20;

    /// Reserves room for `len` items, at least one. Touches none of it.
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        let bytes = len * size_of::<T>();
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(|_| Error::Config {
            key: "memory_budget",
            value: format!("an index that may need {} MiB of address space", bytes >> 20),
            allowed: "what the system lets a process reserve: set less, or raise ulimit -v".into(),
        })?;
        #[cfg(target_os = "linux")]
        if bytes >= Self::HUGE_FROM {
            // A system without large pages has small ones.
            _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map, len, items: PhantomData })
    }

    #[inline]
    #[allow(unsafe_code)]
    fn items(&self) -> &[T] {
        // SAFETY: the map has `len` items, begins at a page, and stays where it is as long as `self`. Its bytes were zero,
        // which is a value of atomics as all others are, and nobody has them by another name.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }

    /// An item.
    #[inline]
    pub(super) fn get(&self, at: u32) -> &T {
        &self.items()[at as usize]
    }

    /// The items from `at` on. `None` if there are not as many: a reader raced, and `at` and `len` do not belong together.
    #[inline]
    pub(super) fn slice(&self, at: u32, len: usize) -> Option<&[T]> {
        self.items().get(at as usize..)?.get(..len)
    }

    /// Items that there is room for.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Words of block hashes and holders.
pub(super) type Words = Arena<AtomicU64>;

/// Shares of a page, in 1/1024 of it: the size classes.
pub(super) const CLASSES: [u32; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 85, 128, 170, 204, 256, 341, 512, 1024];
/// Words of a page, and so of the longest slot.
pub(super) const PAGE_SHIFT: u32 = 10;
pub(super) const PAGE_WORDS: usize = 1 << PAGE_SHIFT;
const PAGE_BYTES: usize = PAGE_WORDS * size_of::<u64>();
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Page {
    class: u8,
    live: u16,
    /// First free slot, `NONE` if there is none; a free slot holds the next one.
    free: u32,
    /// Offset of the first slot that was never used.
    fresh: u32,
    /// Position in `partial` of its class, `NONE` if full.
    listed: u32,
}

/// The writers' side of [`Words`]: which slots are taken.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<Page>,
    empty: Vec<u32>,
    /// Pages with a free slot, by class.
    partial: [Vec<u32>; CLASSES.len()],
}

/// The size class of slots for so many words.
pub(super) fn class_of(len: usize) -> usize {
    CLASSES.partition_point(|&size| (size as usize) < len)
}

impl Pages {
    /// Bytes that `alloc` of this length would add; `None` if all pages are open and taken.
    pub(super) fn growth(&self, words: &Words, len: usize) -> Option<usize> {
        if !self.partial[class_of(len)].is_empty() || !self.empty.is_empty() {
            return Some(0);
        }
        (self.pages.len() < words.len() / PAGE_WORDS).then_some(PAGE_BYTES)
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES + self.pages.capacity() * size_of::<Page>()
    }

    /// Slots that are taken.
    #[cfg(any(test, fuzzing))]
    pub(super) fn live(&self) -> usize {
        self.pages.iter().map(|page| usize::from(page.live)).sum()
    }

    /// Takes a slot for 1 to [`PAGE_WORDS`] words; `growth` said that there is room.
    pub(super) fn alloc(&mut self, words: &Words, len: usize) -> u32 {
        let class = class_of(len);
        let number = match self.partial[class].last() {
            Some(&number) => number,
            None => self.open(class),
        };
        let page = &mut self.pages[number as usize];
        let size = CLASSES[class];
        let slot = if page.free == NONE {
            page.fresh += size;
            (number << PAGE_SHIFT) + page.fresh - size
        } else {
            let slot = page.free;
            page.free = words.get(slot).load(Ordering::Relaxed) as u32;
            slot
        };
        page.live += 1;
        if page.free == NONE && page.fresh + size > PAGE_WORDS as u32 {
            page.listed = NONE;
            self.partial[class].pop();
        }
        slot
    }

    fn open(&mut self, class: usize) -> u32 {
        let number = self.empty.pop().unwrap_or_else(|| {
            self.pages.push(Page { class: 0, live: 0, free: NONE, fresh: 0, listed: NONE });
            self.pages.len() as u32 - 1
        });
        let page = &mut self.pages[number as usize];
        (page.class, page.free, page.fresh) = (class as u8, NONE, 0);
        page.listed = self.partial[class].len() as u32;
        self.partial[class].push(number);
        number
    }

    pub(super) fn free(&mut self, words: &Words, slot: u32) {
        let number = slot >> PAGE_SHIFT;
        let page = &mut self.pages[number as usize];
        let list = &mut self.partial[usize::from(page.class)];
        words.get(slot).store(u64::from(page.free), Ordering::Relaxed);
        page.free = slot;
        page.live -= 1;
        if page.listed == NONE {
            page.listed = list.len() as u32;
            list.push(number);
        }
        if page.live == 0 {
            let at = page.listed as usize;
            page.listed = NONE;
            list.swap_remove(at);
            if let Some(&other) = list.get(at) {
                self.pages[other as usize].listed = at as u32;
            }
            self.empty.push(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_keep_their_words_and_pages_are_used_again(
            steps in proptest::collection::vec((1usize..=PAGE_WORDS, any::<prop::sample::Index>(), any::<bool>()), 1..300),
        ) {
            let (words, mut pages) = (Words::new(60 * PAGE_WORDS).expect("address space"), Pages::default());
            let mut kept: Vec<(u32, Vec<u64>)> = Vec::new();
            let mut next = 0u64;
            for (len, which, free) in steps {
                if free && !kept.is_empty() {
                    let (slot, _) = kept.swap_remove(which.index(kept.len()));
                    pages.free(&words, slot);
                } else if let Some(growth) = pages.growth(&words, len) {
                    let before = pages.pages.len();
                    let (slot, values) = (pages.alloc(&words, len), (next..next + len as u64).collect::<Vec<_>>());
                    prop_assert_eq!(pages.pages.len() > before, growth > 0);
                    for (word, &value) in words.slice(slot, len).expect("in the arena").iter().zip(&values) {
                        word.store(value, Ordering::Relaxed);
                    }
                    next += len as u64;
                    kept.push((slot, values));
                }
                for (slot, values) in &kept {
                    let have = words.slice(*slot, values.len()).expect("in the arena").iter();
                    prop_assert!(have.zip(values).all(|(have, want)| have.load(Ordering::Relaxed) == *want));
                }
            }
            for (slot, _) in kept.drain(..) {
                pages.free(&words, slot);
            }
            prop_assert_eq!(pages.empty.len(), pages.pages.len());
            prop_assert!(pages.partial.iter().all(Vec::is_empty));
        }
    }
}
