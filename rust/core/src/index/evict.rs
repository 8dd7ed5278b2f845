//! Views, and what leaves them: each view forgets its least recently used tails, the index forgets the oldest of all.
//!
//! A view's queue holds its *uses*, oldest first: the deepest run of a prompt, and the tick at which it was stored. A share of
//! a run carries the tick of its last use, and every use marks a path from the root, so the runs that still carry a use's tick
//! are the lower end of its path. Eviction takes them from the deepest upwards, as the engines do; a use whose deepest run
//! carries another tick has nothing left and is *stale*. Splitting a run needs no change here: its lower part keeps the
//! number.

use super::oldest::Oldest;
use super::queue::Queue;
use super::radix::{MAX_VIEWS, Space, Tree};
use super::run::RunId;

/// Runs that one insertion takes off a removed view.
const SWEEP: usize = 64;
/// Queues shorter than this are not worth compacting.
const COMPACT_FROM: usize = 64;

/// What is left of a use: its deepest run that still carries its tick.
#[derive(Debug, Clone, Copy)]
struct Use {
    run: RunId,
    clock: u32,
}

impl Use {
    fn is_stale(self, tree: &Tree, view: u16) -> bool {
        tree.run(self.run).share(&tree.words, view).is_none_or(|share| share.holder().clock != self.clock)
    }

    /// Takes the view off the run; what is then left of the use.
    fn shorten(self, tree: &Tree, space: &mut Space, view: u16) -> Option<Self> {
        let parent = tree.run(self.run).shape().parent;
        tree.release_share(space, self.run, view);
        let rest = Self { run: parent, ..self };
        (parent != RunId::NONE && !rest.is_stale(tree, view)).then_some(rest)
    }
}

/// What one worker is believed to hold.
#[derive(Debug)]
pub(super) struct View {
    pub(super) generation: u32,
    pub(super) live: bool,
    /// Blocks held, each once.
    pub(super) blocks: u64,
    /// Size of the worker's cache.
    pub(super) capacity_blocks: u64,
    /// Whether it tells fresh uses from others.
    pub(super) tells_fresh: bool,
    queue: Queue<Use>,
    /// Length at which stale uses are dropped from the queue.
    compact_at: usize,
}

#[derive(Debug, Default)]
pub(super) struct Views {
    views: Vec<View>,
    /// Clock at the front of each view's queue.
    oldest: Oldest,
    unused: Vec<u16>,
    removed: Vec<u16>,
    queue_bytes: usize,
    pub(super) evicted_blocks: u64,
}

impl Views {
    pub(super) fn bytes(&self) -> usize {
        self.queue_bytes + self.views.capacity() * size_of::<View>() + self.oldest.bytes()
    }

    pub(super) fn get(&self, view: u16) -> &View {
        &self.views[usize::from(view)]
    }

    pub(super) fn get_mut(&mut self, view: u16) -> &mut View {
        &mut self.views[usize::from(view)]
    }

    pub(super) fn len(&self) -> usize {
        self.views.len()
    }

    /// A view that is empty, `None` when all 65,536 are in use.
    pub(super) fn add(&mut self, tree: &Tree, space: &mut Space, capacity_blocks: u64) -> Option<(u16, u32)> {
        // Views come and go also while nothing is inserted.
        while self.unused.is_empty() && self.views.len() == MAX_VIEWS && !self.removed.is_empty() {
            self.sweep(tree, space);
        }
        let view = match self.unused.pop() {
            Some(view) => view,
            None if self.views.len() < MAX_VIEWS => {
                self.views.push(View {
                    generation: 0,
                    live: false,
                    blocks: 0,
                    capacity_blocks: 0,
                    tells_fresh: false,
                    queue: Queue::default(),
                    compact_at: COMPACT_FROM,
                });
                self.oldest.push();
                self.views.len() as u16 - 1
            }
            None => return None,
        };
        tree.set_live(view, true);
        let slot = self.get_mut(view);
        (slot.live, slot.capacity_blocks) = (true, capacity_blocks);
        Some((view, slot.generation))
    }

    /// Masks a view at once. Its runs are let go a few at a time by [`sweep`](Self::sweep).
    pub(super) fn remove(&mut self, tree: &Tree, view: u16) {
        tree.set_live(view, false);
        let slot = self.get_mut(view);
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
        slot.blocks = 0;
        self.removed.push(view);
    }

    /// Whether nothing names a removed view any more.
    pub(super) fn is_swept(&self) -> bool {
        self.removed.is_empty()
    }

    /// The view's uses that have something left, in the order of the queue.
    pub(super) fn uses(&self, tree: &Tree, view: u16) -> Vec<(RunId, u32)> {
        let uses = self.get(view).queue.iter().filter(|used| !used.is_stale(tree, view));
        uses.map(|used| (used.run, used.clock)).collect()
    }

    /// Queues a use that a snapshot names. Returns the shares that carry its tick: 0 if it is stale.
    pub(super) fn load_use(&mut self, tree: &Tree, view: u16, run: RunId, clock: u32) -> usize {
        let mut carried = 0;
        let mut used = Use { run, clock };
        while used.run != RunId::NONE && !used.is_stale(tree, view) {
            carried += 1;
            used.run = tree.run(used.run).shape().parent;
        }
        self.push(tree, view, run, clock);
        carried
    }

    /// Takes a bounded number of runs off views that were removed; an emptied view may be used again.
    pub(super) fn sweep(&mut self, tree: &Tree, space: &mut Space) {
        let Some(&view) = self.removed.last() else { return };
        for _ in 0..SWEEP {
            let Some(used) = self.get(view).queue.front() else {
                self.removed.pop();
                self.unused.push(view);
                return;
            };
            let rest = if used.is_stale(tree, view) { None } else { used.shorten(tree, space, view) };
            self.replace_front(view, rest);
        }
    }

    /// Queues a use: the path down to `run`, which carries this clock.
    pub(super) fn push(&mut self, tree: &Tree, view: u16, run: RunId, clock: u32) {
        self.edit(view, |slot| {
            slot.queue.push_back(Use { run, clock });
            if slot.queue.len() > slot.compact_at {
                slot.queue.retain(|used| !used.is_stale(tree, view));
                slot.compact_at = COMPACT_FROM.max(2 * slot.queue.len());
            }
        });
    }

    fn replace_front(&mut self, view: u16, rest: Option<Use>) {
        self.edit(view, |slot| match rest {
            Some(rest) => slot.queue.set_front(rest),
            None => _ = slot.queue.pop_front(),
        });
    }

    /// Changes a queue and keeps the bytes and the fronts right.
    fn edit<T>(&mut self, view: u16, change: impl FnOnce(&mut View) -> T) -> T {
        let slot = &mut self.views[usize::from(view)];
        let before = slot.queue.bytes();
        let result = change(slot);
        self.queue_bytes = self.queue_bytes + slot.queue.bytes() - before;
        self.oldest.set(view, slot.queue.front().map(|used| used.clock));
        result
    }

    /// Brings a view back to its capacity.
    pub(super) fn fit(&mut self, tree: &Tree, space: &mut Space, view: u16) {
        while let over @ 1.. = self.get(view).blocks.saturating_sub(self.get(view).capacity_blocks) {
            if !self.evict(tree, space, view, over) {
                return;
            }
        }
    }

    /// Takes the run that was used longest ago off its view. `false` if all that is left is pinned.
    pub(super) fn evict_oldest(&mut self, tree: &Tree, space: &mut Space) -> bool {
        let Some(view) = self.oldest.first() else { return false };
        // A view that is pinned throughout is passed over: the others, oldest first.
        self.evict(tree, space, view, u64::MAX)
            || self.oldest.all().into_iter().any(|view| self.evict(tree, space, view, u64::MAX))
    }

    /// Takes up to `blocks` blocks off the end of the view's least recently used path. `false` if all of it is pinned.
    fn evict(&mut self, tree: &Tree, space: &mut Space, view: u16, blocks: u64) -> bool {
        for _ in 0..self.get(view).queue.len() {
            let Some(used) = self.get(view).queue.front() else { return false };
            let share = tree.run(used.run).share(&tree.words, view);
            let Some(share) = share.filter(|share| share.holder().clock == used.clock) else {
                self.replace_front(view, None);
                continue;
            };
            if share.pins() > 0 {
                self.edit(view, |slot| {
                    slot.queue.pop_front();
                    slot.queue.push_back(used);
                });
                continue;
            }
            let held = share.holder().blocks;
            let taken = blocks.min(u64::from(held));
            let rest = if u64::from(held) > taken {
                share.set(held - taken as u16, used.clock);
                Some(used)
            } else {
                used.shorten(tree, space, view)
            };
            self.replace_front(view, rest);
            let slot = self.get_mut(view);
            slot.blocks = slot.blocks.saturating_sub(taken);
            self.evicted_blocks += taken;
            return true;
        }
        false
    }
}
