//! A run and its holders, as readers and writers share them: one cache line, all atomics.
//!
//! A run is a maximal piece of the tree without a branch: consecutive blocks that every prompt so far continued alike. Where
//! it hangs, where its hashes are and who holds it change under its version; uses, clocks and pins are single words that may
//! change at any time. A holder is two words: `view | blocks | clock` and `pins`. Two holders fit into the run itself, more
//! move to a slot of their own.

use super::arena::{PAGE_WORDS, Pages, Words, slot_words};
use super::seq::Seq;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Longest run, in blocks.
pub(super) const MAX_RUN: usize = PAGE_WORDS;
/// Most holders that a run lists; a worker beyond them is believed not to hold it.
pub(super) const MAX_HOLDERS: usize = PAGE_WORDS / HOLDER_WORDS;
const INLINE: usize = 2;
const HOLDER_WORDS: usize = 2;

/// Number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunId(pub(super) u32);

impl RunId {
    /// The parent of first runs, and "no run".
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A view's share of a run: its leading `blocks`. 0 blocks where the view's tail was evicted and the run was cut later, so
/// that the view's use still ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) view: u16,
    pub(super) blocks: u16,
    /// Tick of the last use.
    pub(super) clock: u32,
}

impl Holder {
    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        Self { view: (word >> 48) as u16, blocks: (word >> 32) as u16, clock: word as u32 }
    }

    fn pack(self) -> u64 {
        u64::from(self.view) << 48 | u64::from(self.blocks) << 32 | u64::from(self.clock)
    }
}

/// Where a run hangs and what it consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) parent: RunId,
    /// Slot of its hashes.
    pub(super) slot: u32,
    /// Blocks; 0 in a free run.
    pub(super) len: usize,
    pub(super) holders: usize,
}

/// The shared part of a run.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Run {
    pub(super) seq: Seq,
    parent: AtomicU32,
    slot: AtomicU32,
    /// Blocks, and number of holders in the upper half.
    len: AtomicU32,
    /// Slot of the holders if they are more than `INLINE`.
    spilled: AtomicU32,
    /// Runs below; writers only.
    children: AtomicU32,
    uses: AtomicU32,
    used_ms: AtomicU32,
    inline: [AtomicU64; INLINE * HOLDER_WORDS],
}

/// Time constant of the decay of uses. Source: policy study, section 2 (5 to 20 s alike).
const USES_DECAY_MS: f32 = 10_000.0;

impl Run {
    #[inline]
    pub(super) fn shape(&self) -> Shape {
        let len = self.len.load(Ordering::Acquire);
        Shape {
            parent: RunId(self.parent.load(Ordering::Relaxed)),
            slot: self.slot.load(Ordering::Relaxed),
            len: (len & 0xFFFF) as usize,
            holders: (len >> 16) as usize,
        }
    }

    /// The words of the holders. `None` if a reader raced.
    #[inline]
    fn holder_words<'a>(&'a self, words: &'a Words, holders: usize) -> Option<&'a [AtomicU64]> {
        if holders <= INLINE {
            return self.inline.get(..holders * HOLDER_WORDS);
        }
        words.slice(self.spilled.load(Ordering::Relaxed), holders * HOLDER_WORDS)
    }

    /// The words of the holders that are outside the run, if any are.
    #[inline]
    pub(super) fn spilled_holders<'a>(&self, words: &'a Words) -> Option<&'a [AtomicU64]> {
        let holders = self.shape().holders;
        (holders > INLINE)
            .then(|| words.slice(self.spilled.load(Ordering::Relaxed), holders * HOLDER_WORDS))?
    }

    /// Copies the words of the holders that a shape announces. `false` if a reader raced.
    #[inline]
    pub(super) fn copy_holders(&self, words: &Words, holders: usize, into: &mut Vec<u64>) -> bool {
        into.clear();
        let Some(source) = self.holder_words(words, holders) else { return false };
        into.extend(source.as_chunks::<HOLDER_WORDS>().0.iter().map(|pair| pair[0].load(Ordering::Relaxed)));
        true
    }

    /// Uses so far, each weighing `exp(-age / 10 s)`.
    #[inline]
    pub(super) fn uses_at(&self, now_ms: u32) -> f32 {
        let uses = f32::from_bits(self.uses.load(Ordering::Relaxed));
        let age = now_ms.wrapping_sub(self.used_ms.load(Ordering::Relaxed)) as i32;
        if age <= 0 { uses } else { uses * (-(age as f32) / USES_DECAY_MS).exp() }
    }
}

/// What writers do to a run; one at a time.
impl Run {
    pub(super) fn children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }

    pub(super) fn count_child(&self, by: i32) {
        let children = self.children();
        self.children.store(children.wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// Next run in the list of free ones.
    pub(super) fn next_free(&self) -> RunId {
        RunId(self.parent.load(Ordering::Relaxed))
    }

    /// Makes a free run: linked to the next free one, without blocks.
    pub(super) fn clear(&self, next_free: RunId) {
        self.seq.write(|| {
            self.parent.store(next_free.0, Ordering::Relaxed);
            self.len.store(0, Ordering::Release);
        });
    }

    /// Makes it a run without holders, children or uses.
    pub(super) fn create(&self, parent: RunId, slot: u32, len: usize) {
        self.seq.write(|| {
            self.parent.store(parent.0, Ordering::Relaxed);
            self.slot.store(slot, Ordering::Relaxed);
            self.len.store(len as u32, Ordering::Release);
        });
        self.children.store(0, Ordering::Relaxed);
        self.set_uses(0.0, 0);
    }

    /// Becomes the upper part of `whole`, with its uses; the holders follow.
    pub(super) fn copy_uses(&self, whole: &Self) {
        let (uses, used_ms) = whole.uses();
        self.set_uses(uses, used_ms);
    }

    /// Becomes its own lower part: hangs below `parent`, has `len` blocks in `slot`, and each holder `at` blocks less.
    pub(super) fn become_lower(&self, words: &Words, parent: RunId, slot: u32, len: usize, at: usize) {
        let holders = self.shape().holders;
        self.seq.write(|| {
            self.parent.store(parent.0, Ordering::Relaxed);
            self.slot.store(slot, Ordering::Relaxed);
            self.len.store((holders << 16 | len) as u32, Ordering::Release);
            self.for_each_holder(words, |holder, word, _| {
                let blocks = holder.blocks.saturating_sub(at as u16);
                word.store(Holder { blocks, ..holder }.pack(), Ordering::Relaxed);
            });
        });
    }

    /// Uses and the time up to which they are decayed.
    pub(super) fn uses(&self) -> (f32, u32) {
        (f32::from_bits(self.uses.load(Ordering::Relaxed)), self.used_ms.load(Ordering::Relaxed))
    }

    pub(super) fn set_uses(&self, uses: f32, used_ms: u32) {
        self.uses.store(uses.to_bits(), Ordering::Relaxed);
        self.used_ms.store(used_ms, Ordering::Relaxed);
    }

    pub(super) fn add_use(&self, now_ms: u32) {
        self.set_uses(self.uses_at(now_ms) + 1.0, now_ms);
    }

    /// Calls `visit` with each holder, its word and its pins.
    pub(super) fn for_each_holder(
        &self,
        words: &Words,
        mut visit: impl FnMut(Holder, &AtomicU64, &AtomicU64),
    ) {
        let own = self.holder_words(words, self.shape().holders).expect("no writer races another");
        for pair in own.chunks_exact(HOLDER_WORDS) {
            visit(Holder::unpack(pair[0].load(Ordering::Relaxed)), &pair[0], &pair[1]);
        }
    }

    /// The view's share, to look at and to change.
    pub(super) fn share<'a>(&'a self, words: &'a Words, view: u16) -> Option<Share<'a>> {
        let own = self.holder_words(words, self.shape().holders).expect("no writer races another");
        let at = own
            .iter()
            .step_by(HOLDER_WORDS)
            .position(|word| Holder::unpack(word.load(Ordering::Relaxed)).view == view)?;
        Some(Share { word: &own[HOLDER_WORDS * at], pins: &own[HOLDER_WORDS * at + 1] })
    }

    /// Bytes that a share of another view would add; `None` if the run lists no more.
    pub(super) fn share_growth(&self, words: &Words, pages: &Pages) -> Option<usize> {
        let Shape { holders, .. } = self.shape();
        if holders < Self::room(holders) {
            return Some(0);
        }
        if holders >= MAX_HOLDERS { None } else { pages.growth(words, HOLDER_WORDS * (holders + 1)) }
    }

    /// Holders that fit where they are now.
    fn room(holders: usize) -> usize {
        if holders <= INLINE { INLINE } else { slot_words(HOLDER_WORDS * holders) / HOLDER_WORDS }
    }

    /// Adds a share; `share_growth` said that there is room.
    pub(super) fn add_share(&self, words: &Words, pages: &mut Pages, holder: Holder, pins: u64) {
        let Shape { holders, len, .. } = self.shape();
        let announce = |holders: usize| self.len.store((holders << 16 | len) as u32, Ordering::Release);
        if holders < Self::room(holders) {
            let own = self.all_words(words, holders + 1);
            own[HOLDER_WORDS * holders].store(holder.pack(), Ordering::Relaxed);
            own[HOLDER_WORDS * holders + 1].store(pins, Ordering::Relaxed);
            // Readers see the new holder or do not: no version is needed.
            announce(holders + 1);
            return;
        }
        let slot = pages.alloc(words, HOLDER_WORDS * (holders + 1));
        let target = words.slice(slot, HOLDER_WORDS * (holders + 1)).expect("just allocated");
        let old = self.holder_words(words, holders).expect("no writer races another");
        for (to, from) in target.iter().zip(old) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        target[HOLDER_WORDS * holders].store(holder.pack(), Ordering::Relaxed);
        target[HOLDER_WORDS * holders + 1].store(pins, Ordering::Relaxed);
        let old_slot = self.spilled.load(Ordering::Relaxed);
        self.seq.write(|| {
            self.spilled.store(slot, Ordering::Relaxed);
            announce(holders + 1);
        });
        if holders > INLINE {
            pages.free(words, old_slot);
        }
    }

    /// Takes a view's share away, if it has one.
    pub(super) fn remove_share(&self, words: &Words, pages: &mut Pages, view: u16) {
        let Shape { holders, len, .. } = self.shape();
        let Some(share) = self.share(words, view) else { return };
        let own = self.all_words(words, holders);
        let (last, last_pins) = (&own[HOLDER_WORDS * (holders - 1)], &own[HOLDER_WORDS * (holders - 1) + 1]);
        let left = holders - 1;
        let old_slot = self.spilled.load(Ordering::Relaxed);
        let shrunk = if left <= INLINE { INLINE * HOLDER_WORDS } else { slot_words(HOLDER_WORDS * left) };
        // Few enough to move back, or into half the room: then they move.
        let target = if holders <= INLINE {
            None
        } else if left <= INLINE {
            Some((old_slot, &self.inline[..]))
        } else if 2 * shrunk <= slot_words(HOLDER_WORDS * holders)
            && pages.growth(words, HOLDER_WORDS * left) == Some(0)
        {
            let slot = pages.alloc(words, HOLDER_WORDS * left);
            Some((slot, words.slice(slot, HOLDER_WORDS * left).expect("just allocated")))
        } else {
            None
        };
        self.seq.write(|| {
            share.word.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            share.pins.store(last_pins.load(Ordering::Relaxed), Ordering::Relaxed);
            if let Some((slot, target)) = target {
                for (to, from) in target.iter().zip(&own[..HOLDER_WORDS * left]) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                self.spilled.store(slot, Ordering::Relaxed);
            }
            self.len.store((left << 16 | len) as u32, Ordering::Release);
        });
        if target.is_some() {
            pages.free(words, old_slot);
        }
    }

    /// The words of so many holders, some of which may not be announced yet.
    fn all_words<'a>(&'a self, words: &'a Words, holders: usize) -> &'a [AtomicU64] {
        self.holder_words(words, holders).expect("no writer races another")
    }
}

/// A view's share of a run, in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share<'a> {
    word: &'a AtomicU64,
    pins: &'a AtomicU64,
}

impl Share<'_> {
    pub(super) fn holder(self) -> Holder {
        Holder::unpack(self.word.load(Ordering::Relaxed))
    }

    pub(super) fn set(self, blocks: u16, clock: u32) {
        self.word.store(Holder { blocks, clock, ..self.holder() }.pack(), Ordering::Relaxed);
    }

    /// Bookings that pin it.
    pub(super) fn pins(self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    pub(super) fn set_pins(self, pins: u64) {
        self.pins.store(pins, Ordering::Relaxed);
    }
}
