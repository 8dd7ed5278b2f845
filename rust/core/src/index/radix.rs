//! The tree itself: runs of block hashes, their holders, and the table that finds a run from its parent and first hash.

use smallvec::SmallVec;

use super::arena::{Arena, PAGE_HASHES, Slot};
use super::table::{Place, Table};

/// Longest run, in blocks.
pub(super) const MAX_RUN: usize = PAGE_HASHES;
/// Runs in one chunk of the slab; chunks never move.
const CHUNK: usize = 256;
const CHUNK_BYTES: usize = CHUNK * size_of::<Run>();

/// Index of a run in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunId(u32);

impl RunId {
    /// The parent of first runs, and "no run".
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    #[inline]
    pub(super) fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// A worker's share of a run: the leading `blocks` of it; 0 where its tail was evicted and the run was cut later, so that
/// the view's use still ends here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    /// Tick of the last use; the one entry of the view's queue with this tick is the valid one.
    pub(super) clock: u32,
    /// Bookings that pin it.
    pub(super) active: u32,
    pub(super) view: u16,
    pub(super) blocks: u16,
}

/// A maximal piece of the tree without a branch: consecutive blocks that every prompt so far continued alike. One cache
/// line with up to two holders.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Run {
    /// The run above; in a free run, the next free one.
    pub(super) parent: RunId,
    slot: Slot,
    /// Blocks; 0 in a free run.
    pub(super) len: u16,
    pub(super) children: u32,
    /// Uses, decayed; see [`Run::uses_at`].
    uses: f32,
    used_ms: u32,
    pub(super) holders: SmallVec<[Holder; 2]>,
}

/// Time constant of the decay of uses. Source: policy study, section 2 (5 to 20 s alike).
const USES_DECAY_MS: f32 = 10_000.0;

impl Run {
    /// Uses so far, each weighing `exp(-age / 10 s)`.
    pub(super) fn uses_at(&self, now_ms: u32) -> f32 {
        self.uses * (-(now_ms.wrapping_sub(self.used_ms) as i32).max(0) as f32 / USES_DECAY_MS).exp()
    }

    pub(super) fn add_use(&mut self, now_ms: u32) {
        (self.uses, self.used_ms) = (self.uses_at(now_ms) + 1.0, now_ms);
    }

    pub(super) fn holder(&self, view: u16) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.view == view)
    }

    pub(super) fn holder_mut(&mut self, view: u16) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.view == view)
    }

    fn holder_bytes(&self) -> usize {
        if self.holders.spilled() { self.holders.capacity() * size_of::<Holder>() + 16 } else { 0 }
    }
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) arena: Arena,
    chunks: Vec<Box<[Run]>>,
    free: RunId,
    table: Table,
    pub(super) runs: usize,
    pub(super) blocks: usize,
    holder_bytes: usize,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            arena: Arena::default(),
            chunks: Vec::new(),
            free: RunId::NONE,
            table: Table::new(),
            runs: 0,
            blocks: 0,
            holder_bytes: 0,
        }
    }

    /// All bytes that the tree owns.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes() + self.chunks.len() * CHUNK_BYTES + self.table.bytes() + self.holder_bytes
    }

    /// Whether a run of these hashes fits below `parent`, the tree growing by at most `spare` bytes.
    pub(super) fn can_create(&self, parent: RunId, hashes: &[u64], spare: usize) -> bool {
        let growth = self.arena.growth(hashes.len()) + self.chunk_growth();
        (growth == 0 || growth <= spare)
            && self.table.has_room(Place::new(parent, hashes[0]), spare.saturating_sub(growth))
    }

    /// Whether a run may be cut after `at` blocks, the tree growing by at most `spare` bytes.
    pub(super) fn can_split(&self, id: RunId, at: usize, spare: usize) -> bool {
        let hashes = self.hashes(id);
        let growth = self.arena.growth(at) + self.arena.growth(hashes.len() - at) + self.chunk_growth();
        // The lower part's place depends on the upper part's number, so ask for room to grow wherever that is.
        (growth == 0 || growth <= spare) && self.table.has_room_anywhere(spare.saturating_sub(growth))
    }

    fn chunk_growth(&self) -> usize {
        if self.free == RunId::NONE { CHUNK_BYTES } else { 0 }
    }

    /// Gives an empty page of hashes back. `false` if there is none.
    pub(super) fn trim(&mut self) -> bool {
        self.arena.trim()
    }

    #[inline]
    pub(super) fn run(&self, id: RunId) -> &Run {
        &self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }

    #[inline]
    pub(super) fn run_mut(&mut self, id: RunId) -> &mut Run {
        &mut self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }

    /// The block hashes of a run.
    #[inline]
    pub(super) fn hashes(&self, id: RunId) -> &[u64] {
        let run = self.run(id);
        self.arena.get(run.slot, usize::from(run.len))
    }

    #[cfg(test)]
    pub(super) fn all_runs(&self) -> impl Iterator<Item = RunId> {
        let ids = (0..(self.chunks.len() * CHUNK) as u32).map(RunId);
        ids.filter(|&id| self.run(id).len > 0)
    }

    /// The child of `parent` that begins with `first`.
    #[inline]
    pub(super) fn child(&self, parent: RunId, first: u64) -> Option<RunId> {
        self.table
            .get(Place::new(parent, first), |id| self.run(id).parent == parent && self.hashes(id)[0] == first)
    }

    fn take_slot(&mut self) -> RunId {
        if self.free == RunId::NONE {
            let first = (self.chunks.len() * CHUNK) as u32;
            let chunk = (first..first + CHUNK as u32)
                .map(|id| Run {
                    parent: if (id as usize + 1).is_multiple_of(CHUNK) { RunId::NONE } else { RunId(id + 1) },
                    slot: Slot::default(),
                    len: 0,
                    children: 0,
                    uses: 0.0,
                    used_ms: 0,
                    holders: SmallVec::new(),
                })
                .collect();
            self.chunks.push(chunk);
            self.free = RunId(first);
        }
        let id = self.free;
        self.free = self.run(id).parent;
        id
    }

    /// Adds a run of 1 to [`MAX_RUN`] blocks below `parent`, without holders or uses.
    pub(super) fn create(&mut self, parent: RunId, hashes: &[u64], spare: usize) -> RunId {
        let (id, slot) = (self.take_slot(), self.arena.alloc(hashes));
        let run = self.run_mut(id);
        (run.parent, run.slot, run.len, run.children) = (parent, slot, hashes.len() as u16, 0);
        (run.uses, run.used_ms) = (0.0, 0);
        if parent != RunId::NONE {
            self.run_mut(parent).children += 1;
        }
        self.table.insert(Place::new(parent, hashes[0]), id, spare);
        self.runs += 1;
        self.blocks += hashes.len();
        id
    }

    /// Cuts a run after `at` blocks. The lower part keeps the id, its children and every booking that ends in it; the new
    /// upper part is returned. Both keep uses and holders, each its share of the blocks.
    pub(super) fn split(&mut self, id: RunId, at: usize, spare: usize) -> RunId {
        let whole: SmallVec<[u64; 64]> = self.hashes(id).into();
        let (upper_hashes, lower_hashes) = whole.split_at(at);
        let parent = self.run(id).parent;
        self.table.remove(Place::new(parent, upper_hashes[0]), id);
        let upper = self.take_slot();
        let (upper_slot, lower_slot) = {
            self.arena.free(self.run(id).slot);
            (self.arena.alloc(upper_hashes), self.arena.alloc(lower_hashes))
        };
        let run = self.run_mut(id);
        let (uses, used_ms, mut above) = (run.uses, run.used_ms, run.holders.clone());
        (run.parent, run.slot, run.len) = (upper, lower_slot, lower_hashes.len() as u16);
        for holder in &mut run.holders {
            holder.blocks = holder.blocks.saturating_sub(at as u16);
        }
        for holder in &mut above {
            holder.blocks = holder.blocks.min(at as u16);
        }
        let run = self.run_mut(upper);
        (run.parent, run.slot, run.len, run.children) = (parent, upper_slot, at as u16, 1);
        (run.uses, run.used_ms, run.holders) = (uses, used_ms, above);
        self.holder_bytes += self.run(upper).holder_bytes();
        self.table.insert(Place::new(parent, upper_hashes[0]), upper, spare);
        self.table.insert(Place::new(upper, lower_hashes[0]), id, spare);
        self.runs += 1;
        upper
    }

    /// The view's share of the run, added with no blocks if there was none.
    pub(super) fn hold(&mut self, id: RunId, view: u16) -> &mut Holder {
        let run = self.run_mut(id);
        if run.holder(view).is_none() {
            let before = run.holder_bytes();
            run.holders.push(Holder { clock: 0, active: 0, view, blocks: 0 });
            let after = run.holder_bytes();
            self.holder_bytes += after - before;
        }
        self.run_mut(id).holder_mut(view).expect("just added")
    }

    /// Takes the view off a run; a run that nobody holds and nothing hangs from goes, and so do its ancestors.
    pub(super) fn release_holder(&mut self, id: RunId, view: u16) {
        let run = self.run_mut(id);
        let before = run.holder_bytes();
        run.holders.retain(|holder| holder.view != view);
        if run.holders.spilled() && run.holders.len() * 4 <= run.holders.capacity() {
            run.holders.shrink_to_fit();
        }
        let after = run.holder_bytes();
        self.holder_bytes -= before - after;
        self.prune(id);
    }

    /// Removes a run that nobody holds and nothing hangs from, then its parent if that became so.
    pub(super) fn prune(&mut self, mut id: RunId) {
        while id != RunId::NONE && self.run(id).holders.is_empty() && self.run(id).children == 0 {
            let (parent, first) = (self.run(id).parent, self.hashes(id)[0]);
            self.table.remove(Place::new(parent, first), id);
            self.arena.free(self.run(id).slot);
            self.runs -= 1;
            self.blocks -= usize::from(self.run(id).len);
            let (spilled, free) = (self.run(id).holder_bytes(), self.free);
            self.holder_bytes -= spilled;
            let run = self.run_mut(id);
            (run.parent, run.len, run.holders) = (free, 0, SmallVec::new());
            self.free = id;
            if parent != RunId::NONE {
                self.run_mut(parent).children -= 1;
            }
            id = parent;
        }
    }
}
