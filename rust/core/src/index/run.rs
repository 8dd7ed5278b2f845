//! A run and its holders, as readers and writers share them: one cache line, all atomics.
//!
//! A run is a maximal piece of the tree without a branch: consecutive blocks that every prompt so far continued alike. Where
//! it hangs, where its hashes are and who holds it change under its version; uses, clocks and pins are single words that may
//! change at any time. A short run has a digest of its hashes: a walk that has them all need not fetch the words. A holder is
//! a word, `view | blocks | clock`, and a third of a word behind all of these: its pins, which only writers look at. Three
//! holders fit into the run itself, more move to a slot of their own.

use super::arena::{Atomics, CLASSES, PAGE_WORDS, Pages, Words, class_of};
use super::prefetch::prefetch;
use super::seq::Seq;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Longest run, in blocks.
pub(super) const MAX_RUN: usize = PAGE_WORDS;
/// Most holders that a run lists; a worker beyond them is believed not to hold it.
pub(super) const MAX_HOLDERS: usize = holders_in(PAGE_WORDS);
/// Holders inside a run.
const INLINE: usize = 3;
const INLINE_WORDS: usize = words_of(INLINE);
/// Pins in one word, and their bits. 2 million bookings of one view at once are counted as they are, more never end.
const PINS_PER_WORD: usize = 3;
const PIN_BITS: usize = 21;
const MAX_PINS: u64 = (1 << PIN_BITS) - 1;

/// Words of so many holders with their pins.
pub(super) const fn words_of(holders: usize) -> usize {
    holders + holders.div_ceil(PINS_PER_WORD)
}

/// Holders that so many words have room for.
const fn holders_in(words: usize) -> usize {
    words * PINS_PER_WORD / (PINS_PER_WORD + 1)
}

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
    room: Room,
}

/// Where a run's holders are: in itself, or in a slot of this size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room(u32);

impl Room {
    const INLINE: Self = Self(CLASSES.len() as u32);

    /// Room for so many holders.
    fn of(holders: usize) -> Self {
        if holders <= INLINE { Self::INLINE } else { Self(class_of(words_of(holders)) as u32) }
    }

    fn words(self) -> usize {
        CLASSES.get(self.0 as usize).map_or(INLINE_WORDS, |&words| words as usize)
    }

    fn holders(self) -> usize {
        holders_in(self.words())
    }
}

impl Shape {
    /// Blocks, holders and room as one word.
    fn pack(len: usize, holders: usize, room: Room) -> u32 {
        (len | holders << 11 | (room.0 as usize) << 22) as u32
    }
}

/// The shared part of a run.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Run {
    pub(super) seq: Seq,
    parent: AtomicU32,
    slot: AtomicU32,
    /// Blocks, number of holders, and their room.
    len: AtomicU32,
    digest: AtomicU64,
    uses: AtomicU32,
    used_ms: AtomicU32,
    /// The holders, or in the first word the slot where they are.
    inline: [AtomicU64; INLINE_WORDS],
}

const _: () = assert!(size_of::<Run>() == 64);

/// Longest run that has a digest.
pub(super) const DIGESTED: usize = 16;

/// Digest of the hashes of a run, in order: their polynomial modulo 2^64; 0 for a run that is too long for one.
///
/// The hashes are random to whoever does not know the seed, so that two lists of them meet as seldom as two hashes do. Lists
/// that differ in one place never do.
#[inline]
pub(super) fn digest(hashes: &[u64]) -> u64 {
    if hashes.len() > DIGESTED {
        return 0;
    }
    hashes.iter().fold(0, |sum: u64, hash| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(*hash))
}

// SAFETY: its fields are atomics, and a version that is one.
#[allow(unsafe_code)]
unsafe impl Atomics for Run {}

/// Time constant of the decay of uses. Source: policy study, section 2 (5 to 20 s alike).
const USES_DECAY_MS: f32 = 10_000.0;

impl Run {
    #[inline]
    pub(super) fn shape(&self) -> Shape {
        let len = self.len.load(Ordering::Acquire);
        Shape {
            parent: RunId(self.parent.load(Ordering::Relaxed)),
            slot: self.slot.load(Ordering::Relaxed),
            len: (len & 0x7FF) as usize,
            holders: (len >> 11 & 0x7FF) as usize,
            room: Room(len >> 22),
        }
    }

    /// [`digest`] of its hashes.
    #[inline]
    pub(super) fn digest(&self) -> u64 {
        self.digest.load(Ordering::Relaxed)
    }

    /// Whether its holders have a slot.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_spilled(&self) -> bool {
        self.shape().room != Room::INLINE
    }

    /// Slot of the holders of a run that has them elsewhere.
    #[inline]
    fn spilled(&self) -> u32 {
        self.inline[0].load(Ordering::Relaxed) as u32
    }

    /// The words of the holders. `None` if a reader raced.
    #[inline]
    fn holder_words<'a>(&'a self, words: &'a Words, shape: Shape) -> Option<&'a [AtomicU64]> {
        if shape.room == Room::INLINE {
            return self.inline.get(..shape.holders);
        }
        words.slice(self.spilled(), shape.holders)
    }

    /// Asks for the cache lines of the holders that are outside the run, if any are; the CPU sees a stream after a few.
    #[inline]
    pub(super) fn prefetch_holders(&self, words: &Words, shape: Shape) {
        if shape.room != Room::INLINE
            && let Some(holders) = self.holder_words(words, shape)
        {
            holders.iter().step_by(8).take(4).for_each(prefetch);
        }
    }

    /// Copies the words of the holders that a shape announces. `false` if a reader raced.
    #[inline]
    pub(super) fn copy_holders(&self, words: &Words, shape: Shape, into: &mut Vec<u64>) -> bool {
        into.clear();
        let Some(source) = self.holder_words(words, shape) else { return false };
        into.extend(source.iter().map(|word| word.load(Ordering::Relaxed)));
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

    /// Makes it a run of these hashes, which are in `slot`, without holders or uses.
    pub(super) fn create(&self, parent: RunId, slot: u32, hashes: &[u64]) {
        self.seq.write(|| {
            self.parent.store(parent.0, Ordering::Relaxed);
            self.slot.store(slot, Ordering::Relaxed);
            self.digest.store(digest(hashes), Ordering::Relaxed);
            self.len.store(Shape::pack(hashes.len(), 0, Room::INLINE), Ordering::Release);
        });
        self.set_uses(0.0, 0);
    }

    /// Becomes the upper part of `whole`, with its uses; the holders follow.
    pub(super) fn copy_uses(&self, whole: &Self) {
        let (uses, used_ms) = whole.uses();
        self.set_uses(uses, used_ms);
    }

    /// Becomes its own lower part: hangs below `parent`, has these hashes, which are in `slot`, and each holder less blocks.
    pub(super) fn become_lower(&self, words: &Words, parent: RunId, slot: u32, hashes: &[u64]) {
        let Shape { len, holders, room, .. } = self.shape();
        let at = len - hashes.len();
        self.seq.write(|| {
            self.parent.store(parent.0, Ordering::Relaxed);
            self.slot.store(slot, Ordering::Relaxed);
            self.digest.store(digest(hashes), Ordering::Relaxed);
            self.len.store(Shape::pack(hashes.len(), holders, room), Ordering::Release);
            self.shares(words).each(|share| {
                let holder = share.holder();
                share.set(holder.blocks.saturating_sub(at as u16), holder.clock);
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

    /// The shares of its holders.
    pub(super) fn shares<'a>(&'a self, words: &'a Words) -> Shares<'a> {
        let Shape { holders, room, .. } = self.shape();
        let words = match room {
            Room::INLINE => &self.inline,
            room => words.slice(self.spilled(), room.words()).expect("no writer races another"),
        };
        let (list, pins) = words.split_at(room.holders());
        Shares { list, pins, holders }
    }

    /// The view's share, to look at and to change.
    #[inline]
    pub(super) fn share<'a>(&'a self, words: &'a Words, view: u16) -> Option<Share<'a>> {
        self.shares(words).of(view)
    }

    /// Bytes that a share of another view would add; `None` if the run lists no more.
    pub(super) fn share_growth(&self, words: &Words, pages: &Pages) -> Option<usize> {
        let Shape { holders, room, .. } = self.shape();
        if holders < room.holders() {
            return Some(0);
        }
        if holders >= MAX_HOLDERS { None } else { pages.growth(words, words_of(holders + 1)) }
    }

    /// Adds a share; `share_growth` said that there is room.
    pub(super) fn add_share(&self, words: &Words, pages: &mut Pages, holder: Holder, pins: u64) {
        let Shape { holders, len, room, .. } = self.shape();
        let mut shares = self.shares(words);
        if holders < room.holders() {
            shares.holders += 1;
            shares.at(holders).put(holder, pins);
            // Readers see the new holder or do not: no version is needed.
            self.len.store(Shape::pack(len, holders + 1, room), Ordering::Release);
            return;
        }
        self.move_holders(words, pages, Room::of(holders + 1), Some((holder, pins)));
    }

    /// Makes room for so many holders at once in a run that has none.
    pub(super) fn make_room(&self, words: &Words, pages: &mut Pages, holders: usize) {
        if holders > INLINE {
            self.move_holders(words, pages, Room::of(holders), None);
        }
    }

    /// Takes a view's share away, if it has one.
    pub(super) fn remove_share(&self, words: &Words, pages: &mut Pages, view: u16) {
        let Shape { holders, len, room, .. } = self.shape();
        let shares = self.shares(words);
        let Some(share) = shares.of(view) else { return };
        let last = shares.at(holders - 1);
        self.seq.write(|| {
            share.put(last.holder(), last.pins());
            self.len.store(Shape::pack(len, holders - 1, room), Ordering::Release);
        });
        // Few enough to move back, or into half the room: then they move. A run that is about to go has no slot, therefore.
        let tight = Room::of(holders - 1);
        let halves = || 2 * tight.words() <= room.words() && pages.growth(words, tight.words()) == Some(0);
        if room != Room::INLINE && (tight == Room::INLINE || halves()) {
            self.move_holders(words, pages, tight, None);
        }
    }

    /// Gives the holders, and perhaps one more, another room.
    fn move_holders(&self, words: &Words, pages: &mut Pages, room: Room, more: Option<(Holder, u64)>) {
        let Shape { len, holders, room: old_room, .. } = self.shape();
        let old_slot = self.spilled();
        let slot = (room != Room::INLINE).then(|| pages.alloc(words, room.words()));
        let target = match slot {
            None => &self.inline[..],
            Some(slot) => words.slice(slot, room.words()).expect("just allocated"),
        };
        let (list, pins) = target.split_at(room.holders());
        let new = Shares { list, pins, holders: holders + usize::from(more.is_some()) };
        let old = self.shares(words);
        let copy = || {
            (0..holders).for_each(|at| new.at(at).put(old.at(at).holder(), old.at(at).pins()));
            if let Some((holder, pins)) = more {
                new.at(holders).put(holder, pins);
            }
        };
        self.seq.write(|| {
            copy();
            if let Some(slot) = slot {
                self.inline[0].store(u64::from(slot), Ordering::Relaxed);
            }
            self.len.store(Shape::pack(len, new.holders, room), Ordering::Release);
        });
        if old_room != Room::INLINE {
            pages.free(words, old_slot);
        }
    }
}

/// The shares of a run's holders, for writers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares<'a> {
    list: &'a [AtomicU64],
    pins: &'a [AtomicU64],
    holders: usize,
}

impl<'a> Shares<'a> {
    fn at(self, at: usize) -> Share<'a> {
        Share {
            word: &self.list[at],
            pins: &self.pins[at / PINS_PER_WORD],
            shift: (at % PINS_PER_WORD * PIN_BITS) as u32,
        }
    }

    #[inline]
    fn of(self, view: u16) -> Option<Share<'a>> {
        let list = &self.list[..self.holders];
        let at = list.iter().position(|word| Holder::unpack(word.load(Ordering::Relaxed)).view == view)?;
        Some(self.at(at))
    }

    /// Whether any holder is one.
    pub(super) fn any(self, is_one: impl Fn(Holder) -> bool) -> bool {
        let list = &self.list[..self.holders];
        list.iter().any(|word| is_one(Holder::unpack(word.load(Ordering::Relaxed))))
    }

    /// Calls `visit` with each of them.
    pub(super) fn each(self, visit: impl FnMut(Share<'a>)) {
        (0..self.holders).map(|at| self.at(at)).for_each(visit);
    }
}

/// A view's share of a run, in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share<'a> {
    word: &'a AtomicU64,
    pins: &'a AtomicU64,
    shift: u32,
}

impl Share<'_> {
    pub(super) fn holder(self) -> Holder {
        Holder::unpack(self.word.load(Ordering::Relaxed))
    }

    pub(super) fn set(self, blocks: u16, clock: u32) {
        self.word.store(Holder { blocks, clock, ..self.holder() }.pack(), Ordering::Relaxed);
    }

    fn put(self, holder: Holder, pins: u64) {
        self.word.store(holder.pack(), Ordering::Relaxed);
        self.set_pins(pins);
    }

    /// Bookings that pin it.
    pub(super) fn pins(self) -> u64 {
        self.pins.load(Ordering::Relaxed) >> self.shift & MAX_PINS
    }

    /// One pin more. `true` if it is the first.
    pub(super) fn pin(self) -> bool {
        let pins = self.pins();
        self.set_pins(pins + 1);
        pins == 0
    }

    /// One pin less. `true` if it was the last.
    pub(super) fn unpin(self) -> bool {
        match self.pins() {
            0 | MAX_PINS => false,
            pins => {
                self.set_pins(pins - 1);
                pins == 1
            }
        }
    }

    fn set_pins(self, pins: u64) {
        let others = self.pins.load(Ordering::Relaxed) & !(MAX_PINS << self.shift);
        self.pins.store(others | pins.min(MAX_PINS) << self.shift, Ordering::Relaxed);
    }
}
