//! The tree: runs, the words of their hashes and holders, and the table that finds them.
//!
//! [`Tree`] is what readers and writers share; [`Space`] is what a writer must hold to change it.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::arena::{Arena, CLASSES, PAGE_WORDS, Pages, Words};
use super::prefetch::prefetch;
use super::run::{Holder, Run, RunId, Shape, words_of};
use super::table::{Place, Table};
use crate::error::Error;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Cache lines of one run's words that a batch asks for in advance; the CPU sees the stream then and goes on by itself.
const LINES_AHEAD: usize = 4;
const WORDS_PER_LINE: usize = 8;

/// Runs that are taken into use together.
const RUN_SHIFT: u32 = 8;
const CHUNK_BYTES: usize = (size_of::<Run>() + size_of::<AtomicU32>()) << RUN_SHIFT;
/// Views that an index can tell apart.
pub(super) const MAX_VIEWS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Tree {
    runs: Arena<Run>,
    /// Runs below each run; writers only.
    children: Arena<AtomicU32>,
    pub(super) words: Words,
    table: Table,
    /// One bit for each view that counts.
    live: Box<[AtomicU64; MAX_VIEWS / 64]>,
    /// Views that tell fresh uses from others, and the tick of each view's first fresh use, once there is such a view.
    fresh_views: AtomicU32,
    fresh_from: OnceLock<Box<[AtomicU32]>>,
}

/// The writers' side of a tree.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) pages: Pages,
    free: RunId,
    chunks: usize,
    pub(super) runs: usize,
    pub(super) blocks: usize,
}

impl Tree {
    /// An empty tree that can grow to about `budget` bytes.
    pub(super) fn new(budget: usize) -> Result<(Self, Space), Error> {
        let pages = budget / (PAGE_WORDS * size_of::<u64>()) + 1;
        let runs = (budget / CHUNK_BYTES + 1) << RUN_SHIFT;
        let tree = Self {
            runs: Arena::new(runs)?,
            children: Arena::new(runs)?,
            // A restored index may lay its slots out anew, with one more page that is not full for each class.
            words: Arena::new((pages + CLASSES.len()) * PAGE_WORDS)?,
            table: Table::new(budget)?,
            live: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
            fresh_views: AtomicU32::new(0),
            fresh_from: OnceLock::new(),
        };
        Ok((tree, Space { pages: Pages::default(), free: RunId::NONE, chunks: 0, runs: 0, blocks: 0 }))
    }

    #[inline]
    pub(super) fn run(&self, id: RunId) -> &Run {
        self.runs.get(id.0)
    }

    #[inline]
    pub(super) fn is_live(&self, view: u16) -> bool {
        self.live[usize::from(view) / 64].load(Ordering::Relaxed) >> (view % 64) & 1 == 1
    }

    /// Whether any view tells fresh uses from others.
    #[inline]
    pub(super) fn has_fresh(&self) -> bool {
        self.fresh_views.load(Ordering::Relaxed) > 0
    }

    /// Whether a use of this tick is fresh; means nothing for a view that does not tell.
    #[inline]
    pub(super) fn is_fresh(&self, view: u16, tick: u32) -> bool {
        let from = self.fresh_from.get().map_or(0, |from| from[usize::from(view)].load(Ordering::Relaxed));
        tick.wrapping_sub(from) as i32 >= 0
    }

    /// Sets from which tick on the view's uses are fresh; `was` tells whether it had one.
    pub(super) fn set_fresh_from(&self, view: u16, tick: Option<u32>, was: bool) {
        if let Some(tick) = tick {
            let all = self.fresh_from.get_or_init(|| (0..MAX_VIEWS).map(|_| AtomicU32::new(0)).collect());
            all[usize::from(view)].store(tick, Ordering::Relaxed);
        }
        match (was, tick.is_some()) {
            (false, true) => _ = self.fresh_views.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.fresh_views.fetch_sub(1, Ordering::Relaxed),
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn set_live(&self, view: u16, live: bool) {
        let word = &self.live[usize::from(view) / 64];
        let bit = 1 << (view % 64);
        if live {
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        };
    }

    /// What `accept` makes of the runs that may be the one at `place`, until it gives something.
    #[inline]
    pub(super) fn at<T>(&self, place: Place, accept: impl FnMut(RunId) -> Option<T>) -> Option<T> {
        self.table.get(place, accept)
    }

    /// Asks for the cache line of the table that `place` leads to.
    #[inline]
    pub(super) fn prefetch_entry(&self, place: Place) {
        self.table.prefetch(place);
    }

    /// A run that is likely the one at `place`; asks for its header.
    #[inline]
    pub(super) fn prefetch_run(&self, place: Place) -> Option<RunId> {
        let id = self.table.get(place, Some)?;
        prefetch(self.run(id));
        Some(id)
    }

    /// Asks for the first hashes of a run.
    #[inline]
    pub(super) fn prefetch_words(&self, shape: Shape) {
        if let Some(words) = self.hash_words(shape) {
            words.iter().step_by(WORDS_PER_LINE).take(LINES_AHEAD).for_each(prefetch);
        }
    }

    /// The words of a run's hashes. `None` if a reader raced.
    #[inline]
    pub(super) fn hash_words(&self, shape: Shape) -> Option<&[AtomicU64]> {
        self.words.slice(shape.slot, shape.len)
    }
}

/// For writers only: one at a time, whoever holds the space.
impl Tree {
    /// All bytes that the tree owns.
    pub(super) fn bytes(&self, space: &Space) -> usize {
        space.pages.bytes() + space.chunks * CHUNK_BYTES + self.table.bytes() + MAX_VIEWS / 8
    }

    /// The child of `parent` that begins with `first`.
    #[inline]
    pub(super) fn child(&self, parent: RunId, first: u64) -> Option<RunId> {
        self.at(Place::new(parent, first), |id| {
            let shape = self.run(id).shape();
            let begins =
                || self.hash_words(shape).is_some_and(|words| words[0].load(Ordering::Relaxed) == first);
            (shape.parent == parent && shape.len > 0 && begins()).then_some(id)
        })
    }

    /// Whether a view that counts holds any of a run. Cost: O(1) if one does, mostly.
    pub(super) fn is_held(&self, id: RunId) -> bool {
        let counts = |holder: Holder| holder.blocks > 0 && self.is_live(holder.view);
        self.run(id).shares(&self.words).any(counts)
    }

    /// How many of a run's leading hashes are those of `blocks`.
    pub(super) fn common(&self, id: RunId, blocks: &[u64]) -> usize {
        let have = self.hash_words(self.run(id).shape()).expect("no writer races another");
        have.iter().zip(blocks).take_while(|(have, want)| have.load(Ordering::Relaxed) == **want).count()
    }

    /// Bytes that one more run of `len` hashes would add, its entry in the table apart. `None` if there is no more room.
    fn growth(&self, space: &Space, lens: &[usize]) -> Option<usize> {
        let mut growth = 0;
        if space.free == RunId::NONE {
            if self.run_numbers(space) == self.runs.len() {
                return None;
            }
            growth += CHUNK_BYTES;
        }
        for &len in lens {
            growth += space.pages.growth(&self.words, len)?;
        }
        Some(growth)
    }

    /// Whether a run of these hashes fits below `parent`, the tree growing by at most `spare` bytes.
    pub(super) fn can_create(&self, space: &Space, parent: RunId, hashes: &[u64], spare: usize) -> bool {
        self.growth(space, &[hashes.len()]).is_some_and(|growth| {
            let place = Place::new(parent, hashes[0]);
            (growth == 0 || growth <= spare) && self.table.has_room(place, spare.saturating_sub(growth))
        })
    }

    /// Whether a run may be cut after `at` blocks, the tree growing by at most `spare` bytes.
    pub(super) fn can_split(&self, space: &Space, id: RunId, at: usize, spare: usize) -> bool {
        let Shape { len, holders, .. } = self.run(id).shape();
        // The upper part may need a slot for holders as well. Its number, and so the lower part's place, is not known yet.
        self.growth(space, &[at, len - at, words_of(holders).max(1)]).is_some_and(|growth| {
            (growth == 0 || growth <= spare) && self.table.has_room_anywhere(spare.saturating_sub(growth))
        })
    }

    pub(super) fn children(&self, id: RunId) -> u32 {
        self.children.get(id.0).load(Ordering::Relaxed)
    }

    /// One run more below this one, or one less.
    fn count_child(&self, id: RunId, by: i32) {
        self.children.get(id.0).store(self.children(id).wrapping_add_signed(by), Ordering::Relaxed);
    }

    fn take_run(&self, space: &mut Space) -> RunId {
        if space.free == RunId::NONE {
            let first = (space.chunks << RUN_SHIFT) as u32;
            let last = first + (1 << RUN_SHIFT) - 1;
            for id in first..=last {
                self.run(RunId(id)).clear(if id == last { RunId::NONE } else { RunId(id + 1) });
            }
            space.chunks += 1;
            space.free = RunId(first);
        }
        let id = space.free;
        space.free = self.run(id).next_free();
        id
    }

    fn store(&self, space: &mut Space, hashes: &[u64]) -> u32 {
        let slot = space.pages.alloc(&self.words, hashes.len());
        let target = self.words.slice(slot, hashes.len()).expect("just allocated");
        for (word, &hash) in target.iter().zip(hashes) {
            word.store(hash, Ordering::Relaxed);
        }
        slot
    }

    /// Adds a run of 1 to [`MAX_RUN`] blocks below `parent`, without holders or uses.
    pub(super) fn create(&self, space: &mut Space, parent: RunId, hashes: &[u64], spare: usize) -> RunId {
        let id = self.take_run(space);
        self.hang(space, id, parent, hashes, spare);
        id
    }

    /// Makes the free run `id` a run of these blocks below `parent`; there is room for it.
    fn hang(&self, space: &mut Space, id: RunId, parent: RunId, hashes: &[u64], spare: usize) {
        let slot = self.store(space, hashes);
        self.run(id).create(parent, slot, hashes);
        if parent != RunId::NONE {
            self.count_child(parent, 1);
        }
        self.table.insert(Place::new(parent, hashes[0]), id, spare);
        space.runs += 1;
        space.blocks += hashes.len();
    }

    /// Cuts a run after `at` blocks. The lower part keeps the number, its children and every booking that ends in it; the new
    /// upper part is returned. Both keep uses and holders, each its share of the blocks.
    pub(super) fn split(&self, space: &mut Space, id: RunId, at: usize, spare: usize) -> RunId {
        let run = self.run(id);
        let Shape { parent, slot, holders, .. } = run.shape();
        let whole: SmallVec<[u64; 128]> = self.hashes(id).collect();
        let (above, below) = whole.split_at(at);
        let (upper, upper_slot, lower_slot) =
            (self.take_run(space), self.store(space, above), self.store(space, below));
        let top = self.run(upper);
        top.create(parent, upper_slot, above);
        top.copy_uses(run);
        self.count_child(upper, 1);
        top.make_room(&self.words, &mut space.pages, holders);
        run.shares(&self.words).each(|share| {
            let holder = share.holder();
            let above = Holder { blocks: holder.blocks.min(at as u16), ..holder };
            top.add_share(&self.words, &mut space.pages, above, share.pins());
        });
        // For a moment both are found at the old place, and both are right there.
        self.table.insert(Place::new(parent, above[0]), upper, spare);
        self.table.remove(Place::new(parent, above[0]), id);
        run.become_lower(&self.words, upper, lower_slot, below);
        self.table.insert(Place::new(upper, below[0]), id, spare);
        space.pages.free(&self.words, slot);
        space.runs += 1;
        upper
    }

    /// Takes the view off a run; a run that nobody holds and nothing hangs from goes, and so do its ancestors.
    pub(super) fn release_share(&self, space: &mut Space, id: RunId, view: u16) {
        self.run(id).remove_share(&self.words, &mut space.pages, view);
        self.prune(space, id);
    }

    /// Removes a run that nobody holds and nothing hangs from, then its parent if that became so.
    fn prune(&self, space: &mut Space, mut id: RunId) {
        while id != RunId::NONE {
            let run = self.run(id);
            let Shape { parent, slot, len, holders, .. } = run.shape();
            if holders > 0 || self.children(id) > 0 {
                return;
            }
            let first = self.hashes(id).next().expect("a run has a block");
            self.table.remove(Place::new(parent, first), id);
            run.clear(space.free);
            space.free = id;
            space.pages.free(&self.words, slot);
            space.runs -= 1;
            space.blocks -= len;
            if parent != RunId::NONE {
                self.count_child(parent, -1);
            }
            id = parent;
        }
    }

    /// The block hashes of a run.
    pub(super) fn hashes(&self, id: RunId) -> impl Iterator<Item = u64> {
        let words = self.hash_words(self.run(id).shape()).expect("no writer races another");
        words.iter().map(|word| word.load(Ordering::Relaxed))
    }

    pub(super) fn all_runs(&self, space: &Space) -> impl Iterator<Item = RunId> {
        let ids = (0..self.run_numbers(space) as u32).map(RunId);
        ids.filter(|&id| self.run(id).shape().len > 0)
    }

    /// Numbers of runs that are open, taken or free.
    pub(super) fn run_numbers(&self, space: &Space) -> usize {
        space.chunks << RUN_SHIFT
    }

    /// Whether there is a run of this number.
    pub(super) fn is_run(&self, space: &Space, id: RunId) -> bool {
        (id.0 as usize) < self.run_numbers(space) && self.run(id).shape().len > 0
    }
}

/// To fill a new tree from a snapshot.
impl Tree {
    /// Opens the numbers up to this one. `false` if the tree has no such number.
    pub(super) fn open_number(&self, space: &mut Space, id: RunId) -> bool {
        if id.0 as usize >= self.runs.len() {
            return false;
        }
        space.chunks = space.chunks.max((id.0 as usize >> RUN_SHIFT) + 1);
        true
    }

    /// Makes the free run `id` a run below `parent`, without holders or uses. `false` if there are no pages for it.
    pub(super) fn load_run(
        &self,
        space: &mut Space,
        id: RunId,
        parent: RunId,
        hashes: &[u64],
        spare: usize,
    ) -> bool {
        if space.pages.growth(&self.words, hashes.len()).is_none() {
            return false;
        }
        self.hang(space, id, parent, hashes, spare);
        true
    }

    /// Lists the free runs, once all others are there. `false` if one of these has neither holders nor children.
    pub(super) fn finish_load(&self, space: &mut Space) -> bool {
        let mut sound = true;
        for id in (0..self.run_numbers(space) as u32).rev().map(RunId) {
            let run = self.run(id);
            let shape = run.shape();
            if shape.len == 0 {
                run.clear(space.free);
                space.free = id;
            } else {
                sound &= shape.holders > 0 || self.children(id) > 0;
            }
        }
        sound
    }
}
