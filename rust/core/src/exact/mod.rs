//! The exact view: what workers say they hold, block by block, matched against a prompt's text.
//!
//! Engines tell which tokens each block they store has; [`Spelling`] turns these into bytes, once per stored block. A prompt
//! is then looked up by its text: the tree knows how many bytes the next block has, and exactly those are hashed. No
//! request is tokenized. Without a spelling the bytes are the token ids themselves, and prompts of token ids match them.
//!
//! A view's depth is the deepest chain from a root of which it holds every block. Rules of the sets, as the engine's events
//! want them (source: the study of a real engine's recordings): a block stored twice is held once, a removed one is gone, what is
//! behind it stays and counts again when it is stored again. Different tokens that spell the same bytes are different
//! nodes: a chain follows tokens.
//!
//! Readers and the one that applies events share a lock; what is slow about an event (spelling, hashing) is done before it
//! is taken. Invariants: a node has a holder or a child; every handle of a live view names a node that the view holds, and
//! no other handle of it does.

mod handles;
mod holders;
mod nodes;
mod walk;

use std::collections::HashMap;

use hashbrown::hash_table::IntoIter;
use parking_lot::RwLock;

use self::handles::{Entry, Handles, MAX_NODES};
use self::holders::{MAX_VIEWS, Sets, Views};
use self::nodes::{Content, NODE_BYTES, NodeId, Nodes};
use crate::events::{CacheEvent, Handle, Medium, Spelling, Stored};
use crate::key::{BlockHasher, Root, combine};
use crate::sync::{AtomicU32, Ordering};

pub(crate) use self::walk::ExactMatches;

/// Nodes that one call takes off views that were removed.
const SWEEP: usize = 512;
/// Bytes of a handle with the usual share of its table that is empty.
const HANDLE_BYTES: usize = 20;
/// Equal blocks below one node that a view can hold under different handles. Engines have two at most.
const MAX_EQUAL: usize = 8;
/// Blocks without a known parent that a view keeps for later.
const MAX_ORPHANS: usize = 4096;

/// A prompt as the exact view sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExactPrompt<'a> {
    /// The text that the worker's tokenizer gets, or token ids as little-endian words if `is_tokens`.
    pub bytes: &'a [u8],
    /// LoRA adapter and cache salt, as the worker's events have them.
    pub root: Root,
    /// Whether `bytes` are token ids.
    pub is_tokens: bool,
    /// Token ids only: for each block what else it depends on, as in [`Stored::extras`]; 0 for nothing, and behind its end.
    pub extras: &'a [u64],
}

/// Names a view. One that was removed is known by its generation: its name stays harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExactView {
    pub(crate) index: u16,
    generation: u16,
}

/// What became of a worker's events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks that the worker was not known to hold.
    pub stored: u64,
    /// Blocks that it was known to hold and lost.
    pub removed: u64,
    /// Blocks stored under a parent that it is not known to hold: kept for a while.
    pub orphans: u64,
    /// Blocks that could not be stored: their tokens are unknown, their number is wrong, or the memory is used up.
    pub refused: u64,
    /// Whether its cache was cleared.
    pub cleared: bool,
}

impl std::ops::AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.orphans += other.orphans;
        self.refused += other.refused;
        self.cleared |= other.cleared;
    }
}

/// Blocks whose parent is not known yet.
#[derive(Debug)]
struct Orphans {
    medium: Medium,
    handles: Vec<Handle>,
    contents: Vec<Content>,
}

#[derive(Debug, Default)]
struct View {
    handles: Handles,
    orphans: HashMap<Handle, Orphans>,
    orphan_blocks: usize,
    /// Tokens of its blocks.
    block_size: u32,
}

/// The tree, and what each view calls its nodes.
#[derive(Debug, Default)]
struct Tree {
    nodes: Nodes,
    sets: Sets,
    roots: HashMap<u64, NodeId>,
    /// By number, each with its generation; `None` is not in use.
    views: Vec<(u16, Option<View>)>,
    live: Views,
    /// Views that were removed, and what they still hold.
    removed: Vec<(u16, IntoIter<Entry>)>,
    unused: Vec<u16>,
    handle_bytes: usize,
    /// Handles of all views.
    held: usize,
}

/// Blocks of events that were made ready without the lock; kept by the caller so that no event allocates.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    contents: Vec<Content>,
    bytes: Vec<u8>,
}

/// The exact views of all workers.
#[derive(Debug)]
pub(crate) struct ExactIndex {
    tree: RwLock<Tree>,
    hasher: BlockHasher,
    /// Bytes that it may own.
    budget: usize,
    views: AtomicU32,
}

/// Tokens and text of equal bytes are different prompts.
fn root_key(root: Root, is_tokens: bool) -> u64 {
    combine(root.bits(), u64::from(is_tokens))
}

impl ExactIndex {
    pub(crate) fn new(seed: u64, budget: usize) -> Self {
        let hasher = BlockHasher::new(seed);
        Self { tree: RwLock::default(), hasher, budget, views: AtomicU32::new(0) }
    }

    /// Whether any worker has a view here. Cost: O(1), no lock.
    pub(crate) fn is_used(&self) -> bool {
        self.views.load(Ordering::Relaxed) > 0
    }

    /// A new, empty view; `None` when 32,767 are in use.
    pub(crate) fn add_view(&self) -> Option<ExactView> {
        let mut tree = self.tree.write();
        while tree.unused.is_empty() && tree.views.len() == MAX_VIEWS && !tree.removed.is_empty() {
            tree.sweep();
        }
        let index = match tree.unused.pop() {
            Some(index) => index,
            None if tree.views.len() < MAX_VIEWS => {
                tree.views.push((0, None));
                tree.views.len() as u16 - 1
            }
            None => return None,
        };
        tree.live.insert(index);
        let (generation, view) = &mut tree.views[usize::from(index)];
        *view = Some(View::default());
        let generation = *generation;
        self.views.fetch_add(1, Ordering::Relaxed);
        Some(ExactView { index, generation })
    }

    /// Forgets all that the view holds. Cost: O(1) now, a bounded share of each later call.
    pub(crate) fn remove_view(&self, view: ExactView) {
        let mut tree = self.tree.write();
        if tree.view_mut(view).is_none() {
            return;
        }
        let (generation, gone) = &mut tree.views[usize::from(view.index)];
        *generation = generation.wrapping_add(1);
        let Some(gone) = gone.take() else { return };
        tree.live.remove(view.index);
        tree.handle_bytes -= gone.handles.bytes();
        tree.held -= gone.handles.len();
        tree.removed.push((view.index, gone.handles.into_nodes()));
        self.views.fetch_sub(1, Ordering::Relaxed);
    }

    /// Blocks that the view holds.
    pub(crate) fn view_blocks(&self, view: ExactView) -> u64 {
        self.tree.read().view(view).map_or(0, |view| view.handles.len() as u64)
    }

    /// Bytes owned, and distinct blocks.
    pub(crate) fn size(&self) -> (usize, usize) {
        let tree = self.tree.read();
        (tree.bytes(), tree.nodes.used() - tree.roots.len())
    }

    /// Applies one event. [`CacheEvent::Cleared`] is not for here: the view is removed and another one takes its place.
    ///
    /// Cost: spelling and hashing of what was stored without the lock; O(blocks) with it.
    pub(crate) fn apply(
        &self,
        view: ExactView,
        event: &CacheEvent<'_>,
        spelling: Option<&dyn Spelling>,
        prepared: &mut Prepared,
    ) -> Applied {
        match event {
            CacheEvent::Stored(stored) => {
                let is_whole = stored.block_size > 0
                    && stored.tokens.len() as u64
                        == stored.handles.len() as u64 * u64::from(stored.block_size);
                if !is_whole {
                    return Applied { refused: stored.handles.len() as u64, ..Applied::default() };
                }
                prepared.fill(&self.hasher, stored, spelling);
                let root = root_key(stored.root, spelling.is_none());
                let mut tree = self.tree.write();
                let mut applied = tree.store(view, stored, root, &prepared.contents, self.budget);
                applied.refused += (stored.handles.len() - prepared.contents.len()) as u64;
                applied
            }
            CacheEvent::Removed { handles, medium } => self.tree.write().remove(view, handles, *medium),
            CacheEvent::Cleared => Applied { cleared: true, ..Applied::default() },
        }
    }

    /// Gives a view all that another one holds.
    pub(crate) fn copy_view(&self, from: ExactView, to: ExactView) {
        self.tree.write().copy_view(from, to);
    }
}

impl Prepared {
    /// The contents of the blocks, up to the first one that cannot be spelled.
    fn fill(&mut self, hasher: &BlockHasher, stored: &Stored<'_>, spelling: Option<&dyn Spelling>) {
        self.contents.clear();
        for (at, tokens) in stored.tokens.chunks_exact(stored.block_size as usize).enumerate() {
            let extra = stored.extras.get(at).copied().unwrap_or(0);
            let ids = bytemuck::must_cast_slice(tokens);
            let content = match spelling {
                None => Content::new(hasher, ids, None, extra),
                Some(spelling) => {
                    self.bytes.clear();
                    let is_spelled = spelling.spell(tokens, &mut self.bytes);
                    is_spelled.then(|| Content::new(hasher, &self.bytes, Some(ids), extra)).flatten()
                }
            };
            match content {
                Some(content) => self.contents.push(content),
                None => return,
            }
        }
    }
}

impl Tree {
    fn view(&self, ExactView { index, generation }: ExactView) -> Option<&View> {
        let (current, view) = self.views.get(usize::from(index))?;
        view.as_ref().filter(|_| *current == generation)
    }

    fn view_mut(&mut self, ExactView { index, generation }: ExactView) -> Option<&mut View> {
        let (current, view) = self.views.get_mut(usize::from(index))?;
        view.as_mut().filter(|_| *current == generation)
    }

    /// Blocks that may be stored yet. Counted is what is in use: memory of what was removed serves what comes.
    fn room(&self, budget: usize) -> usize {
        let used = self.nodes.used() * NODE_BYTES + self.sets.used_bytes() + self.held * HANDLE_BYTES;
        (budget.saturating_sub(used) / (NODE_BYTES + HANDLE_BYTES)).min(MAX_NODES - self.nodes.used())
    }

    /// Bytes owned.
    fn bytes(&self) -> usize {
        self.nodes.bytes() + self.sets.bytes() + self.handle_bytes
    }

    fn store(
        &mut self,
        view: ExactView,
        stored: &Stored<'_>,
        root: u64,
        contents: &[Content],
        budget: usize,
    ) -> Applied {
        self.sweep();
        let mut applied = Applied::default();
        let number = view.index;
        let room = self.room(budget);
        let Some(view) = self.view_mut(view) else { return applied };
        // What a view holds is counted in blocks of one size.
        if view.handles.len() > 0 && view.block_size != stored.block_size {
            applied.refused = contents.len() as u64;
            return applied;
        }
        view.block_size = stored.block_size;
        let (contents, beyond) = contents.split_at(contents.len().min(room));
        applied.refused = beyond.len() as u64;
        if contents.is_empty() {
            return applied;
        }
        let Self { nodes, roots, views, .. } = self;
        let Some(view) = views[usize::from(number)].1.as_mut() else { return applied };
        let parent = match stored.parent {
            None => *roots.entry(root).or_insert_with(|| nodes.create_root(root)),
            Some(handle) => match view.handles.get(handle) {
                Some(node) => node,
                None => {
                    applied.orphans = contents.len() as u64;
                    view.keep(handle, stored, contents);
                    return applied;
                }
            },
        };
        self.attach(number, parent, stored, contents, &mut applied);
        applied
    }

    /// Gives the view a chain below a node, and whatever waited for a block of it.
    fn attach(
        &mut self,
        number: u16,
        parent: NodeId,
        stored: &Stored<'_>,
        contents: &[Content],
        applied: &mut Applied,
    ) {
        let Self { nodes, sets, views, handle_bytes, held, .. } = self;
        let Some(view) = views[usize::from(number)].1.as_mut() else { return };
        let (before, had) = (view.handles.bytes(), view.handles.len());
        let mut waiting: Vec<(NodeId, Orphans)> = Vec::new();
        let mut chain = Chain { nodes, sets, view, number };
        chain.add(parent, stored.medium, stored.handles, contents, &mut waiting, applied);
        while let Some((parent, Orphans { medium, handles, contents })) = waiting.pop() {
            chain.add(parent, medium, &handles, &contents, &mut waiting, applied);
        }
        *handle_bytes = *handle_bytes + view.handles.bytes() - before;
        *held = *held + view.handles.len() - had;
        // A root under which nothing was stored.
        self.prune(parent);
    }

    fn remove(&mut self, view: ExactView, handles: &[Handle], medium: Medium) -> Applied {
        self.sweep();
        let mut applied = Applied::default();
        for &handle in handles {
            let Some(holder) = self.view_mut(view) else { break };
            if let Some(node) = holder.handles.remove(handle, medium) {
                applied.removed += 1;
                self.held -= 1;
                self.let_go(view.index, node);
            }
        }
        applied
    }

    fn let_go(&mut self, number: u16, node: NodeId) {
        self.sets.remove(&mut self.nodes.get_mut(node).holders, number);
        self.prune(node);
    }

    fn prune(&mut self, node: NodeId) {
        if let Some(root) = self.nodes.prune(node) {
            self.roots.remove(&root);
        }
    }

    /// Takes a bounded number of nodes off views that were removed.
    fn sweep(&mut self) {
        for _ in 0..SWEEP {
            let Some((number, entries)) = self.removed.last_mut() else { return };
            let number = *number;
            match entries.next() {
                Some(entry) => self.let_go(number, entry.node()),
                None => {
                    self.removed.pop();
                    self.unused.push(number);
                }
            }
        }
    }

    fn copy_view(&mut self, from: ExactView, to: ExactView) {
        let Some(source) = self.view(from) else { return };
        let (entries, block_size): (Vec<_>, _) = (source.handles.iter().collect(), source.block_size);
        let Self { nodes, sets, views, handle_bytes, held, .. } = self;
        let Some(view) = views[usize::from(to.index)].1.as_mut() else { return };
        let (before, had) = (view.handles.bytes(), view.handles.len());
        view.block_size = block_size;
        for (handle, node) in entries {
            if view.handles.mark(handle, Medium::Gpu).is_none() {
                view.handles.add(handle, node, Medium::Gpu);
                sets.add(&mut nodes.get_mut(node).holders, to.index);
            }
        }
        *handle_bytes = *handle_bytes + view.handles.bytes() - before;
        *held = *held + view.handles.len() - had;
    }
}

impl View {
    /// Keeps blocks until their parent is known; the newest if there are too many.
    fn keep(&mut self, parent: Handle, stored: &Stored<'_>, contents: &[Content]) {
        if self.orphan_blocks + contents.len() > MAX_ORPHANS {
            self.orphans.clear();
            self.orphan_blocks = 0;
        }
        if contents.len() > MAX_ORPHANS {
            return;
        }
        let handles = stored.handles[..contents.len()].into();
        let orphans = Orphans { medium: stored.medium, handles, contents: contents.into() };
        self.orphan_blocks += contents.len();
        if let Some(old) = self.orphans.insert(parent, orphans) {
            self.orphan_blocks -= old.contents.len();
        }
    }

    fn adopt(&mut self, parent: Handle) -> Option<Orphans> {
        if self.orphans.is_empty() {
            return None;
        }
        let orphans = self.orphans.remove(&parent)?;
        self.orphan_blocks -= orphans.contents.len();
        Some(orphans)
    }
}

/// A view that is given blocks.
struct Chain<'a> {
    nodes: &'a mut Nodes,
    sets: &'a mut Sets,
    view: &'a mut View,
    number: u16,
}

impl Chain<'_> {
    fn add(
        &mut self,
        mut parent: NodeId,
        medium: Medium,
        handles: &[Handle],
        contents: &[Content],
        waiting: &mut Vec<(NodeId, Orphans)>,
        applied: &mut Applied,
    ) {
        for (at, (&handle, &content)) in handles.iter().zip(contents).enumerate() {
            let node = match self.view.handles.mark(handle, medium) {
                Some(node) => node,
                None => match self.hold(parent, medium, handle, content) {
                    Some(node) => {
                        applied.stored += 1;
                        node
                    }
                    None => {
                        applied.refused += (contents.len() - at) as u64;
                        return;
                    }
                },
            };
            if let Some(orphans) = self.view.adopt(handle) {
                waiting.push((node, orphans));
            }
            parent = node;
        }
    }

    /// The view holds one more block: a node of this content that it does not hold yet under another handle. `None` if it
    /// holds [`MAX_EQUAL`] of them.
    fn hold(&mut self, parent: NodeId, medium: Medium, handle: Handle, content: Content) -> Option<NodeId> {
        let mut equal = 0;
        let mut known = None;
        for id in self.nodes.same(parent, content).take(MAX_EQUAL) {
            equal += 1;
            if !self.sets.contains(self.nodes.get(id).holders, self.number) {
                known = Some(id);
                break;
            }
        }
        let node = match known {
            Some(id) => id,
            None if equal < MAX_EQUAL => self.nodes.create(parent, content),
            None => return None,
        };
        self.sets.add(&mut self.nodes.get_mut(node).holders, self.number);
        self.view.handles.add(handle, node, medium);
        Some(node)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
