//! The prefix index: which worker holds how much of which prompt.
//!
//! A path-compressed radix tree over block hashes. A *run* is a maximal piece without a branch; each run knows its
//! *holders*: which view holds how many of its leading blocks, and when it last used them. A *view* is what one worker is
//! believed to have in its cache. One descent tells the depth of every view.
//!
//! [`PrefixIndex::find`] takes no lock: readers see atomics under versions (`seq`), in memory that is never freed.
//! [`Writer`] is the right to change the index; there is one.
//!
//! Invariants, kept by the writer and checked by the tests:
//! - a prompt that was stored ends where a run ends, so uses and pins count whole runs;
//! - a run has a holder or a child, else it is gone;
//! - a view's depth counts from the first block: a view that lost a block has nothing below it;
//! - a removed view is invisible at once, and its number is used again only when no run names it;
//! - [`bytes`](Writer::bytes) does not exceed the budget after an insertion, whatever was inserted.

mod arena;
mod batch;
mod evict;
mod oldest;
mod prefetch;
mod queue;
mod radix;
mod run;
mod save;
mod seq;
mod table;

use std::sync::Arc;

pub use batch::BatchMatches;

use crate::error::Error;
use crate::key::{BlockHash, BlockSource};
use crate::sync::{AtomicU64, Ordering};
use evict::Views;
use prefetch::prefetch;
use radix::{MAX_VIEWS, Space, Tree};
pub(crate) use run::RunId;
use run::{DIGESTED, Holder, MAX_RUN, Run, Shape, digest};
use table::Place;

/// Smallest budget that an index accepts, in bytes.
pub const MIN_BUDGET: usize = 1 << 20;

/// Largest budget, in bytes: slots of words have 32-bit numbers.
pub const MAX_BUDGET: usize = 16 << 30;

/// Bytes that runs and tables leave to queues, so that their growth seldom costs a page.
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
    /// Views that an index can tell apart.
    pub const COUNT: usize = MAX_VIEWS;

    /// No view: the last generation of a number never begins.
    pub(crate) const NONE: Self = Self { index: 0, generation: u32::MAX };

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
    /// Whether any view tells fresh uses from others.
    has_fresh: bool,
    marks: Vec<Mark>,
    views: Vec<u16>,
    path: Vec<Step>,
    /// Words of the holders of the run that is looked at.
    holders: Vec<u64>,
    /// The parts of the walk, from the start of the prompt.
    pub segments: Vec<Segment>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    round: u32,
    depth: u32,
    /// Of these, leading blocks whose last use is fresh.
    fresh: u32,
}

/// A run on the way, as it was seen.
#[derive(Debug, Clone, Copy)]
struct Step {
    run: RunId,
    version: u32,
    holders: u32,
    /// Blocks of it that the prompt has.
    same: u32,
    whole: bool,
}

impl Matches {
    fn clear(&mut self) {
        self.views.clear();
        self.path.clear();
        self.segments.clear();
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

    /// Of these blocks, the leading ones that the view used since [`Writer::set_fresh_from`]. Cost: O(1).
    pub(crate) fn fresh(&self, view: ViewId) -> u32 {
        self.mark(view.index).map_or(0, |mark| mark.fresh)
    }

    fn depth_at(&self, index: u16) -> u32 {
        self.mark(index).map_or(0, |mark| mark.depth)
    }

    fn mark(&self, index: u16) -> Option<&Mark> {
        self.marks.get(usize::from(index)).filter(|mark| mark.round == self.round)
    }

    /// How many views hold at least the first block.
    #[must_use]
    pub fn holder_count(&self) -> usize {
        self.views.len()
    }

    /// The views that hold at least the first block, as their small numbers, each with its depth in blocks.
    pub fn holders(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.views.iter().map(|&view| (usize::from(view), self.depth_at(view)))
    }

    /// Notes the copied holders of the next part of the walk, `start` to `start + same`. Returns how many count.
    fn note(&mut self, tree: &Tree, start: u32, same: u32) -> u32 {
        let Self { round, has_fresh, marks, views, holders, .. } = self;
        let mut copies = 0;
        for holder in holders.iter().copied().map(Holder::unpack) {
            if holder.blocks == 0 || !tree.is_live(holder.view) {
                continue;
            }
            copies += 1;
            let at = usize::from(holder.view);
            if at >= marks.len() {
                marks.resize(at + 1, Mark::default());
            }
            let mark = &mut marks[at];
            let depth = start + same.min(u32::from(holder.blocks));
            if start == 0 {
                *mark = Mark { round: *round, depth, fresh: 0 };
                views.push(holder.view);
            } else if (mark.round, mark.depth) == (*round, start) {
                mark.depth = depth;
            } else {
                continue;
            }
            if *has_fresh && mark.fresh == start && tree.is_fresh(holder.view, holder.clock) {
                mark.fresh = depth;
            }
        }
        copies
    }
}

/// Hashes that a look-up makes together: while the run's header is on its way from memory, and in a loop without branches.
/// With as many a short run is known by its digest.
const AHEAD: usize = DIGESTED;

/// Where a look-up stands: below which run, at which block, and the next blocks.
struct Walk<S> {
    parent: RunId,
    start: usize,
    ahead: [BlockHash; AHEAD],
    at: usize,
    len: usize,
    source: S,
}

impl<S: BlockSource> Walk<S> {
    /// At the first block; no other is hashed yet.
    fn new(mut source: S) -> Self {
        let mut ahead = [BlockHash(0); AHEAD];
        let len = source.fill(&mut ahead[..1]);
        Self { parent: RunId::NONE, start: 0, ahead, at: 0, len, source }
    }

    /// The next block, if the prompt has one.
    #[inline]
    fn first(&mut self) -> Option<u64> {
        if self.at == self.len {
            self.refill();
        }
        self.ahead[..self.len].get(self.at).map(|block| block.0)
    }

    /// Hashes as many blocks as there is room for behind a first one that stands alone.
    #[inline]
    fn look_ahead(&mut self) {
        if self.len == 1 && self.at == 0 {
            self.len += self.source.fill(&mut self.ahead[1..]);
        }
    }

    #[inline]
    fn refill(&mut self) {
        (self.at, self.len) = (0, self.source.fill(&mut self.ahead));
    }

    /// The next `len` blocks and those after them, if all of the former are hashed already.
    #[inline]
    fn split_next(&self, len: usize) -> Option<(&[BlockHash], &[BlockHash])> {
        self.ahead[self.at..self.len].split_at_checked(len)
    }

    /// Goes past the next `len` blocks if they are hashed already and this is their digest.
    #[inline]
    fn pass(&mut self, len: usize, digest_of_run: u64) -> bool {
        let is_next = self
            .split_next(len)
            .is_some_and(|(next, _)| digest(bytemuck::must_cast_slice(next)) == digest_of_run);
        if is_next {
            self.at += len;
        }
        is_next
    }

    /// How many of a run's leading words are the next blocks; goes past these.
    #[inline]
    fn common(&mut self, words: &[AtomicU64]) -> usize {
        let mut same = 0;
        loop {
            let next = &self.ahead[self.at..self.len];
            let pairs = words[same..].iter().zip(next);
            let equal = pairs.take_while(|(word, block)| word.load(Ordering::Relaxed) == block.0).count();
            let all = equal == next.len();
            same += equal;
            self.at += equal;
            if !all || same == words.len() {
                return same;
            }
            self.refill();
            if self.len == 0 {
                return same;
            }
        }
    }
}

/// What became of a walk at one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// The run is held to its end, and the prompt goes on.
    Whole,
    /// The walk ends here.
    End,
    /// A writer came between.
    Raced,
}

/// What an insertion pinned; give it back to [`Writer::unpin`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    view: ViewId,
    deepest: RunId,
}

/// The index, as readers share it.
#[derive(Debug)]
pub struct PrefixIndex {
    tree: Tree,
}

/// The right to change an index. There is one for each index, so writers take turns by whatever lock holds it.
#[derive(Debug)]
pub struct Writer {
    index: Arc<PrefixIndex>,
    space: Space,
    views: Views,
    budget: usize,
    tick: u32,
}

impl PrefixIndex {
    /// An empty index that will not own more than `memory_budget` bytes (at least [`MIN_BUDGET`], at most
    /// [`MAX_BUDGET`]), and its writer. Reserves three times as much address space, of which it touches what it uses.
    ///
    /// # Errors
    /// [`Error::Config`] if the system does not let the process reserve it.
    pub fn new(memory_budget: usize) -> Result<(Arc<Self>, Writer), Error> {
        let budget = memory_budget.clamp(MIN_BUDGET, MAX_BUDGET);
        let (tree, space) = Tree::new(budget)?;
        let index = Arc::new(Self { tree });
        Ok((Arc::clone(&index), Writer { index, space, views: Views::default(), budget, tick: 0 }))
    }

    /// Walks the prompt and notes how deep each view holds it. Asks for the first block, and then for a few more at a time.
    ///
    /// Takes no lock; a writer that changes a run under way makes the walk begin anew. Cost: one hash per matched block, and
    /// up to 16 that do not match; two or three cache misses per run, O(holders) of the runs on the way.
    #[expect(clippy::needless_pass_by_value, reason = "it is a place in a prompt, and two words or six")]
    pub fn find(&self, blocks: impl BlockSource + Clone, now_ms: u32, matches: &mut Matches) {
        loop {
            matches.clear();
            matches.has_fresh = self.tree.has_fresh();
            let mut walk = Walk::new(blocks.clone());
            let raced = loop {
                match self.step(&mut walk, now_ms, matches) {
                    Passed::Whole => {}
                    Passed::End => break false,
                    Passed::Raced => break true,
                }
            };
            if !raced {
                return;
            }
        }
    }

    /// Takes the walk through one run.
    #[inline]
    fn step(&self, walk: &mut Walk<impl BlockSource>, now_ms: u32, matches: &mut Matches) -> Passed {
        let Some(first) = walk.first() else { return Passed::End };
        let place = Place::new(walk.parent, first);
        self.tree.at(place, |id| self.pass(id, walk, now_ms, matches)).unwrap_or(Passed::End)
    }

    /// Asks for what the walk will read at this run. Most short runs that are reached are passed whole, so where the walk goes
    /// on is asked for before that is sure.
    #[inline]
    fn ask(&self, id: RunId, run: &Run, shape: Shape, walk: &Walk<impl BlockSource>) {
        run.prefetch_holders(&self.tree.words, shape);
        match walk.split_next(shape.len) {
            Some((_, [next, ..])) => self.tree.prefetch_entry(Place::new(id, next.0)),
            Some((_, [])) => {}
            None => self.tree.prefetch_words(shape),
        }
    }

    /// Takes the walk through this run. `None` if it is not the one that the walk is looking for.
    #[inline]
    fn pass(
        &self,
        id: RunId,
        walk: &mut Walk<impl BlockSource>,
        now_ms: u32,
        matches: &mut Matches,
    ) -> Option<Passed> {
        let tree = &self.tree;
        let run = tree.run(id);
        prefetch(run);
        walk.look_ahead();
        let version = run.seq.begin();
        let shape = run.shape();
        self.ask(id, run, shape, walk);
        let same = if shape.parent != walk.parent {
            0
        } else if walk.pass(shape.len, run.digest()) {
            shape.len
        } else {
            let Some(words) = tree.hash_words(shape) else { return Some(Passed::Raced) };
            walk.common(words)
        };
        let copied = run.copy_holders(&tree.words, shape, &mut matches.holders);
        let uses = run.uses_at(now_ms);
        if !copied || !run.seq.holds(version) {
            return Some(Passed::Raced);
        }
        if same == 0 {
            return None;
        }
        let copies = matches.note(tree, walk.start as u32, same as u32);
        // What nobody holds any more is as good as gone, and so is all below it.
        let whole = copies > 0 && same == shape.len;
        let holders = shape.holders as u32;
        matches.path.push(Step { run: id, version, holders, same: same as u32, whole });
        walk.parent = id;
        walk.start += same;
        if copies > 0 {
            matches.segments.push(Segment { end_block: walk.start as u32, copies, uses });
        }
        Some(if whole { Passed::Whole } else { Passed::End })
    }
}

impl Writer {
    /// Bytes owned now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.index.tree.bytes(&self.space) + self.views.bytes()
    }

    /// Distinct blocks in the tree.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.space.blocks
    }

    /// Runs in the tree.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.space.runs
    }

    /// Blocks that views lost to their capacity or to the budget, each view's counted.
    #[must_use]
    pub fn evicted_blocks(&self) -> u64 {
        self.views.evicted_blocks
    }

    /// A new, empty view. `capacity_blocks` is the size of the worker's cache; `None` bounds it by the budget alone.
    /// Returns `None` when 65,536 views are in use.
    pub fn add_view(&mut self, capacity_blocks: Option<u64>) -> Option<ViewId> {
        let (index, generation) =
            self.views.add(&self.index.tree, &mut self.space, capacity_blocks.unwrap_or(u64::MAX))?;
        Some(ViewId { index, generation })
    }

    /// Forgets all that the view holds. Cost: O(1) now, a bounded share of each later insertion.
    pub fn remove_view(&mut self, view: ViewId) {
        self.set_fresh_from(view, None);
        if self.is_live(view) {
            self.views.remove(&self.index.tree, view.index);
        }
    }

    /// Changes the size of a view's cache; a smaller one evicts at once.
    pub fn set_capacity(&mut self, view: ViewId, capacity_blocks: Option<u64>) {
        if self.is_live(view) {
            self.views.get_mut(view.index).capacity_blocks = capacity_blocks.unwrap_or(u64::MAX);
            self.views.fit(&self.index.tree, &mut self.space, view.index);
        }
    }

    /// Number of the last insertion.
    pub(crate) fn tick(&self) -> u32 {
        self.tick
    }

    /// From now on the view's uses of this and later insertions are fresh; `None` for a view that need not tell them from
    /// others.
    pub(crate) fn set_fresh_from(&mut self, view: ViewId, tick: Option<u32>) {
        if self.is_live(view) {
            let slot = self.views.get_mut(view.index);
            let was = std::mem::replace(&mut slot.tells_fresh, tick.is_some());
            self.index.tree.set_fresh_from(view.index, tick, was);
        }
    }

    /// Blocks that the view holds.
    #[must_use]
    pub fn view_blocks(&self, view: ViewId) -> u64 {
        if self.is_live(view) { self.views.get(view.index).blocks } else { 0 }
    }

    fn is_live(&self, view: ViewId) -> bool {
        view.index() < self.views.len().min(MAX_VIEWS) && {
            let slot = self.views.get(view.index);
            slot.live && slot.generation == view.generation
        }
    }

    /// Whether a look-up of these blocks would still find what `matches` holds. Cost: O(runs on the way).
    pub(crate) fn is_current(&self, matches: &Matches, blocks: &[BlockHash]) -> bool {
        let tree = &self.index.tree;
        let seen = matches.path.iter().all(|step| {
            let run = tree.run(step.run);
            run.seq.current() == step.version && run.shape().holders == step.holders as usize
        });
        let (parent, whole) = matches.path.last().map_or((RunId::NONE, true), |step| (step.run, step.whole));
        let start: u32 = matches.path.iter().map(|step| step.same).sum();
        seen && (!whole || blocks.get(start as usize).is_none_or(|next| tree.child(parent, next.0).is_none()))
    }

    /// Notes that the view now holds this prompt, and counts one use of each of its blocks.
    ///
    /// Stores less than the whole prompt when the budget is too small for it, or when a run of it lists 768 holders already.
    /// Cost: O(runs) plus O(blocks) for what is new; may evict. Does nothing for a view that was removed.
    pub fn insert(&mut self, view: ViewId, blocks: &[BlockHash], now_ms: u32) {
        if let Some((pin, _)) = self.insert_pinned(view, blocks, &Matches::default(), now_ms) {
            self.unpin(pin);
        }
    }

    /// [`insert`](Self::insert), and pins what was stored until [`unpin`](Self::unpin). `matches` may hold the way down as a
    /// [current](Self::is_current) look-up of these blocks found it, or nothing. Also tells how many blocks were not pinned
    /// on this view before.
    pub(crate) fn insert_pinned(
        &mut self,
        view: ViewId,
        blocks: &[BlockHash],
        matches: &Matches,
        now_ms: u32,
    ) -> Option<(Pin, u64)> {
        if !self.is_live(view) {
            return None;
        }
        self.tick = self.tick.wrapping_add(1);
        let hashes: &[u64] = bytemuck::must_cast_slice(blocks);
        let mut known = matches.path.iter();
        let (mut parent, mut start, mut evictions, mut newly) = (RunId::NONE, 0, 0, 0);
        while start < hashes.len() {
            let rest = &hashes[start..];
            let found = match known.next() {
                Some(step) => Some((step.run, step.same as usize)),
                None => {
                    let child = self.index.tree.child(parent, rest[0]);
                    child.map(|run| (run, self.index.tree.common(run, rest)))
                }
            };
            match self.step(parent, rest, found, view.index, now_ms) {
                Outcome::Stored { run, len, newly: more } => {
                    (parent, start, newly) = (run, start + len, newly + more);
                }
                Outcome::Listed => break,
                Outcome::NoRoom => {
                    known = [].iter();
                    evictions += 1;
                    if evictions > MAX_EVICTIONS || !self.evict_oldest() {
                        break;
                    }
                }
            }
        }
        if parent != RunId::NONE {
            self.views.push(&self.index.tree, view.index, parent, self.tick);
        }
        self.views.sweep(&self.index.tree, &mut self.space);
        self.views.fit(&self.index.tree, &mut self.space, view.index);
        // Queues grew: make room for them.
        while self.bytes() > self.budget && self.evict_oldest() {}
        (parent != RunId::NONE).then_some((Pin { view, deepest: parent }, newly))
    }

    /// Bytes that runs and tables may still grow by.
    fn spare(&self) -> usize {
        self.budget.saturating_sub(self.bytes() + RESERVE)
    }

    fn evict_oldest(&mut self) -> bool {
        self.views.evict_oldest(&self.index.tree, &mut self.space)
    }

    /// Gives the view the next run of the prompt: `found` below `parent`, cut if the prompt has only part of it, or a new one.
    fn step(
        &mut self,
        parent: RunId,
        rest: &[u64],
        found: Option<(RunId, usize)>,
        view: u16,
        now_ms: u32,
    ) -> Outcome {
        let spare = self.spare();
        let (tree, space) = (&self.index.tree, &mut self.space);
        let (run, len) = match found {
            None => {
                let hashes = &rest[..rest.len().min(MAX_RUN)];
                if !tree.can_create(space, parent, hashes, spare) {
                    return Outcome::NoRoom;
                }
                (tree.create(space, parent, hashes, spare), hashes.len())
            }
            Some((run, same)) if same < tree.run(run).shape().len => {
                if !tree.can_split(space, run, same, spare) {
                    return Outcome::NoRoom;
                }
                (tree.split(space, run, same, spare), same)
            }
            Some(found) => found,
        };
        let (words, slot) = (&tree.words, self.views.get_mut(view));
        let newly;
        let is_new = !tree.is_held(run);
        if let Some(share) = tree.run(run).share(words, view) {
            slot.blocks += (len - usize::from(share.holder().blocks)) as u64;
            share.set(len as u16, self.tick);
            newly = if share.pin() { len as u64 } else { 0 };
        } else {
            match tree.run(run).share_growth(words, &space.pages) {
                None => return Outcome::Listed,
                Some(growth) if growth > spare => return Outcome::NoRoom,
                Some(_) => {}
            }
            let holder = Holder { view, blocks: len as u16, clock: self.tick };
            tree.run(run).add_share(words, &mut space.pages, holder, 1);
            slot.blocks += len as u64;
            newly = len as u64;
        }
        if is_new {
            tree.run(run).set_uses(0.0, now_ms);
        }
        tree.run(run).add_use(now_ms);
        Outcome::Stored { run, len, newly }
    }

    /// Lets go what [`insert_pinned`](Self::insert_pinned) pinned; tells how many blocks nothing pins any more. Cost: O(runs).
    /// Once per pin.
    pub(crate) fn unpin(&mut self, pin: Pin) -> u64 {
        if !self.is_live(pin.view) {
            return 0;
        }
        let tree = &self.index.tree;
        let (mut id, mut freed) = (pin.deepest, 0);
        while id != RunId::NONE {
            let run = tree.run(id);
            let shape = run.shape();
            if run.share(&tree.words, pin.view.index).is_some_and(|share| share.unpin()) {
                freed += shape.len as u64;
            }
            id = shape.parent;
        }
        self.views.fit(tree, &mut self.space, pin.view.index);
        freed
    }
}

/// What became of one step of an insertion.
enum Outcome {
    /// The view holds `len` blocks of this run now, `newly` of them pinned for the first time.
    Stored { run: RunId, len: usize, newly: u64 },
    /// The run lists no more holders.
    Listed,
    /// Something must be evicted first.
    NoRoom,
}

#[cfg(any(fuzzing, all(test, not(loom))))]
pub(crate) mod model;
#[cfg(all(test, not(loom)))]
mod tests;
