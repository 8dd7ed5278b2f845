//! The prefix index: which worker holds how much of which prompt.
//!
//! A path-compressed radix tree over block hashes. A *run* is a maximal piece without a branch; each run knows its
//! *holders*: which view holds how many of its leading blocks, and when it last used them. A *view* is what one worker is
//! believed to have in its cache. One descent tells the depth of every view.
//!
//! Invariants, kept by [`PrefixIndex`] and checked by its tests:
//! - a prompt that was stored ends where a run ends, so uses and pins count whole runs;
//! - a run has a holder or a child, else it is gone;
//! - a view's depth counts from the first block: a view that lost a block has nothing below it;
//! - a removed view is invisible at once, and its number is used again only when no run names it;
//! - [`bytes`](PrefixIndex::bytes) never exceeds the budget after an insertion, whatever was inserted.

mod arena;
mod evict;
mod radix;
mod table;

use crate::key::BlockHash;
use evict::Views;
pub(crate) use radix::RunId;
use radix::{MAX_RUN, Tree};

/// Smallest budget that an index accepts, in bytes.
pub const MIN_BUDGET: usize = 1 << 20;

/// Bytes that runs and tables leave to holders and queues, so that their growth seldom costs a page.
const RESERVE: usize = 32 << 10;

/// Evictions that one insertion may need before it gives up and stores what it has.
const MAX_EVICTIONS: usize = 4096;

/// Names a view of one index. A view that was removed is known by its generation: its id stays harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ViewId {
    index: u16,
    generation: u32,
}

impl ViewId {
    /// A small number, dense over the views in use: for tables beside the index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// A part of the matched prompt with one set of holders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Blocks of the prompt up to its end.
    pub end_block: u32,
    /// Live views that hold some of it.
    pub copies: u32,
    /// Uses, decayed over 10 s.
    pub uses: f32,
}

/// What [`PrefixIndex::find`] found; kept and filled again by the caller, so that a look-up does not allocate.
#[derive(Debug, Default)]
pub struct Matches {
    round: u32,
    marks: Vec<Mark>,
    views: Vec<u16>,
    /// The parts of the walk, from the start of the prompt.
    pub segments: Vec<Segment>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    round: u32,
    depth: u32,
}

impl Matches {
    fn clear(&mut self, views: usize) {
        self.views.clear();
        self.segments.clear();
        self.marks.resize(views.max(self.marks.len()), Mark::default());
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.marks.fill(Mark::default());
            self.round = 1;
        }
    }

    /// Leading blocks of the prompt that the view holds. Cost: O(1).
    #[must_use]
    pub fn depth(&self, view: ViewId) -> u32 {
        self.depth_at(view.index)
    }

    fn depth_at(&self, index: u16) -> u32 {
        match self.marks.get(usize::from(index)) {
            Some(mark) if mark.round == self.round => mark.depth,
            _ => 0,
        }
    }

    /// The views that hold at least the first block, as their small numbers, each with its depth in blocks.
    pub fn holders(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.views.iter().map(|&view| (usize::from(view), self.depth_at(view)))
    }
}

/// What an insertion pinned; give it back to [`PrefixIndex::unpin`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    view: ViewId,
    deepest: RunId,
}

/// The index. Not synchronised: share it behind a lock. Nothing here allocates on look-up.
#[derive(Debug)]
pub struct PrefixIndex {
    tree: Tree,
    views: Views,
    budget: usize,
    tick: u32,
}

impl PrefixIndex {
    /// An empty index that will never own more than `memory_budget` bytes (at least [`MIN_BUDGET`]).
    #[must_use]
    pub fn new(memory_budget: usize) -> Self {
        Self { tree: Tree::new(), views: Views::default(), budget: memory_budget.max(MIN_BUDGET), tick: 0 }
    }

    /// Bytes owned now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tree.bytes() + self.views.bytes()
    }

    /// Distinct blocks in the tree.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.tree.blocks
    }

    /// Runs in the tree.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.tree.runs
    }

    /// Blocks that views lost to their capacity or to the budget, each view's counted.
    #[must_use]
    pub fn evicted_blocks(&self) -> u64 {
        self.views.evicted_blocks
    }

    /// A new, empty view. `capacity_blocks` is the size of the worker's cache; `None` bounds it by the budget alone.
    /// Returns `None` when 65,536 views are in use.
    pub fn add_view(&mut self, capacity_blocks: Option<u64>) -> Option<ViewId> {
        let (index, generation) = self.views.add(capacity_blocks.unwrap_or(u64::MAX))?;
        Some(ViewId { index, generation })
    }

    /// Forgets all that the view holds. Cost: O(1) now, a bounded share of each later insertion.
    pub fn remove_view(&mut self, view: ViewId) {
        if self.is_live(view) {
            self.views.remove(view.index);
        }
    }

    /// Changes the size of a view's cache; a smaller one evicts at once.
    pub fn set_capacity(&mut self, view: ViewId, capacity_blocks: Option<u64>) {
        if self.is_live(view) {
            self.views.get_mut(view.index).capacity_blocks = capacity_blocks.unwrap_or(u64::MAX);
            self.views.fit(&mut self.tree, view.index);
        }
    }

    /// Blocks that the view holds.
    #[must_use]
    pub fn view_blocks(&self, view: ViewId) -> u64 {
        if self.is_live(view) { self.views.get(view.index).blocks } else { 0 }
    }

    /// Blocks of the view that bookings pin, a block that several of them share counted once.
    pub(crate) fn active_blocks(&self, view: ViewId) -> u64 {
        if self.is_live(view) { self.views.get(view.index).active_blocks } else { 0 }
    }

    fn is_live(&self, view: ViewId) -> bool {
        view.index() < self.views.len() && {
            let slot = self.views.get(view.index);
            slot.live && slot.generation == view.generation
        }
    }

    /// Walks the prompt and notes how deep each view holds it. Asks for as many blocks as it needs and no more.
    ///
    /// Cost: one hash per matched block, two to three cache misses per run, O(holders) of the runs on the way.
    pub fn find(&self, mut blocks: impl Iterator<Item = BlockHash>, now_ms: u32, matches: &mut Matches) {
        matches.clear(self.views.len());
        let (mut parent, mut start) = (RunId::NONE, 0u32);
        while let Some(id) = blocks.next().and_then(|block| self.tree.child(parent, block.0)) {
            let hashes = self.tree.hashes(id);
            let rest = &hashes[1..];
            let same =
                1 + rest.iter().zip(&mut blocks).take_while(|(have, block)| **have == block.0).count() as u32;
            let run = self.tree.run(id);
            let mut copies = 0;
            for holder in &run.holders {
                if holder.blocks == 0 || !self.views.get(holder.view).live {
                    continue;
                }
                copies += 1;
                let depth = start + same.min(u32::from(holder.blocks));
                let mark = &mut matches.marks[usize::from(holder.view)];
                if start == 0 {
                    *mark = Mark { round: matches.round, depth };
                    matches.views.push(holder.view);
                } else if mark.round == matches.round && mark.depth == start {
                    mark.depth = depth;
                }
            }
            start += same;
            matches.segments.push(Segment { end_block: start, copies, uses: run.uses_at(now_ms) });
            if (same as usize) < hashes.len() {
                return;
            }
            parent = id;
        }
    }

    /// Notes that the view now holds this prompt, and counts one use of each of its blocks.
    ///
    /// Stores less than the whole prompt when the budget is too small for it. Cost: O(runs) plus O(blocks) for what is
    /// new; may evict. Does nothing for a view that was removed.
    pub fn insert(&mut self, view: ViewId, blocks: &[BlockHash], now_ms: u32) {
        if let Some(pin) = self.insert_pinned(view, blocks, now_ms) {
            self.unpin(pin);
        }
    }

    /// [`insert`](Self::insert), and pins what was stored until [`unpin`](Self::unpin).
    pub(crate) fn insert_pinned(&mut self, view: ViewId, blocks: &[BlockHash], now_ms: u32) -> Option<Pin> {
        if !self.is_live(view) {
            return None;
        }
        self.views.sweep(&mut self.tree);
        self.tick = self.tick.wrapping_add(1);
        let hashes: &[u64] = bytemuck::must_cast_slice(blocks);
        let (mut parent, mut start, mut evictions) = (RunId::NONE, 0, 0);
        while start < hashes.len() {
            let rest = &hashes[start..];
            let Some((run, len)) = self.step(parent, rest) else {
                evictions += 1;
                if evictions > MAX_EVICTIONS || !self.views.evict_oldest(&mut self.tree, self.tick) {
                    break;
                }
                continue;
            };
            self.use_run(run, view.index, now_ms);
            (parent, start) = (run, start + len);
        }
        if parent != RunId::NONE {
            self.views.push(&self.tree, view.index, parent, self.tick);
        }
        self.views.fit(&mut self.tree, view.index);
        // Holders and queues grew: make room for them.
        while self.bytes() > self.budget
            && (self.tree.trim() || self.views.evict_oldest(&mut self.tree, self.tick))
        {}
        (parent != RunId::NONE).then_some(Pin { view, deepest: parent })
    }

    /// The run below `parent` that holds exactly the next blocks of `rest`, found, cut or made, and its length. `None` if
    /// that would exceed the budget.
    fn step(&mut self, parent: RunId, rest: &[u64]) -> Option<(RunId, usize)> {
        let spare = self.budget.saturating_sub(self.bytes() + RESERVE);
        let Some(run) = self.tree.child(parent, rest[0]) else {
            let len = rest.len().min(MAX_RUN);
            let hashes = &rest[..len];
            return self
                .tree
                .can_create(parent, hashes, spare)
                .then(|| (self.tree.create(parent, hashes, spare), len));
        };
        let hashes = self.tree.hashes(run);
        let same = hashes.iter().zip(rest).take_while(|(have, want)| have == want).count();
        if same == hashes.len() {
            return Some((run, same));
        }
        self.tree.can_split(run, same, spare).then(|| (self.tree.split(run, same, spare), same))
    }

    /// Gives the view the whole run, pins it and counts the use.
    fn use_run(&mut self, run: RunId, view: u16, now_ms: u32) {
        let len = self.tree.run(run).len;
        let tick = self.tick;
        let holder = self.tree.hold(run, view);
        let (had, pinned) = (holder.blocks, holder.active > 0);
        (holder.blocks, holder.clock, holder.active) = (len, tick, holder.active.saturating_add(1));
        let slot = self.views.get_mut(view);
        slot.blocks += u64::from(len - had);
        if !pinned {
            slot.active_blocks += u64::from(len);
        }
        self.tree.run_mut(run).add_use(now_ms);
    }

    /// Lets go what [`insert_pinned`](Self::insert_pinned) pinned. Cost: O(runs). Once per pin.
    pub(crate) fn unpin(&mut self, pin: Pin) {
        if !self.is_live(pin.view) {
            return;
        }
        let (mut run, mut freed) = (pin.deepest, 0);
        while run != RunId::NONE {
            let len = self.tree.run(run).len;
            if let Some(holder) = self.tree.run_mut(run).holder_mut(pin.view.index) {
                holder.active = holder.active.saturating_sub(1);
                if holder.active == 0 {
                    freed += u64::from(len);
                }
            }
            run = self.tree.run(run).parent;
        }
        let slot = self.views.get_mut(pin.view.index);
        slot.active_blocks = slot.active_blocks.saturating_sub(freed);
        self.views.fit(&mut self.tree, pin.view.index);
    }
}

#[cfg(test)]
mod tests;
