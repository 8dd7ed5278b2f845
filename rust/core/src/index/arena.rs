//! Memory that readers may look at any time: chunks that never move and are never freed, made of atomics.
//!
//! [`Chunks`] is a list of equal chunks, opened as they are needed. [`Words`] cuts chunks of 64-bit words, called pages, into
//! slots of one size class each; a page that becomes empty may be cut anew for another class. Only writers allocate and free;
//! they keep what they must know of the pages in [`Pages`], beside the words.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// Equal chunks of `T`, opened one after another.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
    shift: u32,
}

impl<T: Default> Chunks<T> {
    /// Room for `count` chunks of `1 << shift` items, none of them open.
    pub(super) fn new(count: usize, shift: u32) -> Self {
        Self { chunks: (0..count).map(|_| OnceLock::new()).collect(), shift }
    }

    /// An item that was made known to the caller (a writer, or a reader that acquired its number).
    #[inline]
    pub(super) fn get(&self, at: u32) -> &T {
        let chunk = self.chunks[(at >> self.shift) as usize].get().expect("only open chunks are named");
        &chunk[at as usize & ((1 << self.shift) - 1)]
    }

    /// The items from `at` on. `None` if they are not in one open chunk: a reader raced, and `at` and `len` do not belong
    /// together.
    #[inline]
    pub(super) fn slice(&self, at: u32, len: usize) -> Option<&[T]> {
        let chunk = self.chunks.get((at >> self.shift) as usize)?.get()?;
        chunk.get(at as usize & ((1 << self.shift) - 1)..)?.get(..len)
    }

    /// Opens a chunk, the `number`th.
    pub(super) fn open(&self, number: usize) {
        self.chunks[number].get_or_init(|| (0..1usize << self.shift).map(|_| T::default()).collect());
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        size_of::<T>() << self.shift
    }

    /// Bytes of the list of chunks itself.
    pub(super) fn directory_bytes(&self) -> usize {
        size_of_val(&*self.chunks)
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }
}

/// Words of block hashes and holders.
pub(super) type Words = Chunks<AtomicU64>;

/// Shares of a page, in 1/1024 of it: the size classes.
pub(super) const CLASSES: [u32; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 85, 128, 170, 204, 256, 341, 512, 1024];
/// Words of a page, and so of the longest slot.
pub(super) const PAGE_SHIFT: u32 = 10;
pub(super) const PAGE_WORDS: usize = 1 << PAGE_SHIFT;
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

fn class_of(len: usize) -> usize {
    CLASSES.partition_point(|&size| (size as usize) < len)
}

/// Words that a slot for `len` words really has.
pub(super) fn slot_words(len: usize) -> usize {
    CLASSES[class_of(len)] as usize
}

impl Pages {
    /// Bytes that `alloc` of this length would add; `None` if all pages are open and taken.
    pub(super) fn growth(&self, words: &Words, len: usize) -> Option<usize> {
        if !self.partial[class_of(len)].is_empty() || !self.empty.is_empty() {
            return Some(0);
        }
        (self.pages.len() < words.len()).then_some(words.chunk_bytes())
    }

    pub(super) fn bytes(&self, words: &Words) -> usize {
        self.pages.len() * words.chunk_bytes() + self.pages.capacity() * size_of::<Page>()
    }

    /// Takes a slot for 1 to [`PAGE_WORDS`] words; `growth` said that there is room.
    pub(super) fn alloc(&mut self, words: &Words, len: usize) -> u32 {
        let class = class_of(len);
        let number = match self.partial[class].last() {
            Some(&number) => number,
            None => self.open(words, class),
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

    fn open(&mut self, words: &Words, class: usize) -> u32 {
        let number = self.empty.pop().unwrap_or_else(|| {
            words.open(self.pages.len());
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
            let (words, mut pages) = (Words::new(60, PAGE_SHIFT), Pages::default());
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
                    for (word, &value) in words.slice(slot, len).expect("in one page").iter().zip(&values) {
                        word.store(value, Ordering::Relaxed);
                    }
                    next += len as u64;
                    kept.push((slot, values));
                }
                for (slot, values) in &kept {
                    let have = words.slice(*slot, values.len()).expect("in one page").iter();
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
