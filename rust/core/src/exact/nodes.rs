//! The tree of blocks: one node for each distinct block, children found by what their bytes begin with.
//!
//! Blocks have different lengths in bytes, so a prompt cannot tell where its next block ends. A node's first child is
//! linked from it: in a chain without branches the one length to try is known. All further children are filed in a table
//! under the first 2^k bytes of theirs, the largest power of two that fits (their *class*); a node knows which classes it
//! has, so a branch of any width costs one probe per class. Nodes of one chain lie side by side in groups of 64, so a walk
//! down a chain reads memory in order.

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::holders::Holders;
use crate::key::{BlockHasher, combine};

/// Longest block in bytes.
pub(super) const MAX_BLOCK_BYTES: usize = (1 << 15) - 1;

/// Nodes of a group, of which a chain takes what is free in order.
const GROUP: usize = 64;
/// Groups that are allocated together.
const GROUPS: usize = 64;
const CHUNK: usize = GROUP * GROUPS;
/// Free nodes from which a group takes new chains.
const SPARSE: u32 = 16;

/// Bytes of a node.
pub(super) const NODE_BYTES: usize = size_of::<Node>();

/// Blocks that are hashed together where only one way leads on.
const AHEAD: usize = 16;

/// Nodes of which each is the only child of the one before, with where each ends in a prompt.
pub(super) type Chain = SmallVec<[(NodeId, usize); AHEAD]>;

/// Number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(pub(super) u32);

impl NodeId {
    pub(super) const NONE: Self = Self(u32::MAX);
}

/// What a block is: its bytes as two hashes, their number, and the tokens that spell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    /// Hash of the bytes that its class covers.
    head: u32,
    /// Hash of all bytes, and of what else the block depends on.
    whole: u32,
    /// Hash of the token ids: other tokens may spell the same bytes, and are another block. 0 where bytes are token ids.
    ids: u32,
    pub(super) len: u16,
}

impl Content {
    /// `None` if the block is longer than [`MAX_BLOCK_BYTES`]. `ids` are the bytes of the token ids that `bytes` spell.
    pub(super) fn new(hasher: &BlockHasher, bytes: &[u8], ids: Option<&[u8]>, extra: u64) -> Option<Self> {
        let len = u16::try_from(bytes.len()).ok().filter(|&len| usize::from(len) <= MAX_BLOCK_BYTES)?;
        Some(Self {
            head: head(hasher, &bytes[..covered(class_of(len))]),
            whole: whole(hasher, bytes, extra),
            ids: ids.map_or(0, |ids| hasher.hash(ids) as u32),
            len,
        })
    }
}

/// Two halves of one hash: where head and whole are the same bytes, they still count as 64 bits.
fn head(hasher: &BlockHasher, bytes: &[u8]) -> u32 {
    (hasher.hash(bytes) >> 32) as u32
}

fn whole(hasher: &BlockHasher, bytes: &[u8], extra: u64) -> u32 {
    hasher.hash(bytes) as u32 ^ salted(extra)
}

fn salted(extra: u64) -> u32 {
    if extra == 0 { 0 } else { combine(extra, 1) as u32 }
}

/// 0 for no bytes, else 1 + the binary logarithm of the length.
fn class_of(len: u16) -> u32 {
    u16::BITS - len.leading_zeros()
}

/// Bytes under which a class is filed.
fn covered(class: u32) -> usize {
    1 << class >> 1
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    parent: NodeId,
    /// The child that is linked from here.
    child: NodeId,
    /// All children.
    children: u32,
    pub(super) holders: Holders,
    head: u32,
    whole: u32,
    ids: u32,
    len: u16,
    /// Classes of the children in the table; a bit may stay when the last of a class is gone.
    classes: u16,
}

impl Node {
    const FREE: Self = Self {
        parent: NodeId::NONE,
        child: NodeId::NONE,
        children: 0,
        holders: Holders::NONE,
        head: 0,
        whole: 0,
        ids: 0,
        len: 0,
        classes: 0,
    };

    fn is(&self, content: Content) -> bool {
        let Content { head, whole, ids, len } = content;
        (self.whole, self.head, self.ids, self.len) == (whole, head, ids, len)
    }
}

/// The nodes, and the table of all children but the first ones.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    chunks: Vec<Box<[Node]>>,
    /// Free nodes of each group, one bit each.
    free: Vec<u64>,
    /// The group that new nodes come from.
    open: usize,
    /// Groups that had [`SPARSE`] free nodes when they were noted.
    sparse: Vec<u32>,
    used: usize,
    table: HashTable<NodeId>,
}

impl Nodes {
    /// Nodes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Node>()
            + 8 * self.free.capacity()
            + 4 * self.sparse.capacity()
            + 5 * self.table.capacity()
    }

    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }

    /// A node that hangs nowhere: the root of prompts. It keeps its key in place of its content.
    pub(super) fn create_root(&mut self, key: u64) -> NodeId {
        let id = self.take();
        *self.get_mut(id) = Node { head: (key >> 32) as u32, whole: key as u32, ..Node::FREE };
        id
    }

    /// The children of `parent` with this content, in no order.
    pub(super) fn same(&self, parent: NodeId, content: Content) -> impl Iterator<Item = NodeId> {
        let node = self.get(parent);
        let linked = (node.child != NodeId::NONE).then_some(node.child);
        let class = class_of(content.len);
        let filed =
            (node.classes >> class & 1 == 1).then(|| self.table.iter_hash(key(parent, class, content.head)));
        let filed = filed.into_iter().flatten().copied().filter(move |&id| self.get(id).parent == parent);
        linked.into_iter().chain(filed).filter(move |&id| self.get(id).is(content))
    }

    /// Adds a child without holders.
    pub(super) fn create(&mut self, parent: NodeId, content: Content) -> NodeId {
        let id = self.take();
        let Content { head, whole, ids, len } = content;
        *self.get_mut(id) = Node { parent, head, whole, ids, len, ..Node::FREE };
        let above = self.get_mut(parent);
        above.children += 1;
        if above.child == NodeId::NONE {
            above.child = id;
        } else {
            let class = class_of(len);
            above.classes |= 1 << class;
            let Self { table, chunks, .. } = self;
            table.insert_unique(key(parent, class, head), id, |id| {
                let node = &chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK];
                key(node.parent, class_of(node.len), node.head)
            });
        }
        id
    }

    /// Removes a node that nobody holds and nothing hangs from, then its parent if that became so. Returns the key of the root
    /// that went as well, if it did.
    pub(super) fn prune(&mut self, mut id: NodeId) -> Option<u64> {
        loop {
            let Node { parent, children, holders, head, whole, len, .. } = *self.get(id);
            if children > 0 || !holders.is_empty() {
                return None;
            }
            self.give_back(id);
            if parent == NodeId::NONE {
                return Some(u64::from(head) << 32 | u64::from(whole));
            }
            let above = self.get_mut(parent);
            above.children -= 1;
            if above.child == id {
                above.child = NodeId::NONE;
            } else if let Ok(entry) =
                self.table.find_entry(key(parent, class_of(len), head), |&other| other == id)
            {
                entry.remove();
            }
            if self.get(parent).children == 0 {
                self.get_mut(parent).classes = 0;
            }
            id = parent;
        }
    }

    /// The way down from `parent` as long as each node has one child: these children, up to [`AHEAD`] of them, each with where it
    /// ends in a prompt that is at `at` now. Stops before one that would reach the prompt's end.
    #[inline]
    pub(super) fn chain(&self, mut parent: NodeId, mut at: usize, prompt_bytes: usize) -> Chain {
        let mut chain = Chain::new();
        while chain.len() < AHEAD {
            let node = self.get(parent);
            if node.child == NodeId::NONE || node.classes != 0 {
                break;
            }
            at += usize::from(self.get(node.child).len);
            if at >= prompt_bytes {
                break;
            }
            chain.push((node.child, at));
            parent = node.child;
        }
        chain
    }

    /// How many nodes of a chain the prompt goes on with from `at` on; `extra` tells what each depends on.
    #[inline]
    pub(super) fn common(
        &self,
        chain: &Chain,
        hasher: &BlockHasher,
        prompt: &[u8],
        at: usize,
        extra: impl Fn(usize) -> u64,
    ) -> usize {
        let mut start = at;
        let blocks: SmallVec<[&[u8]; AHEAD]> =
            chain.iter().map(|&(_, end)| &prompt[std::mem::replace(&mut start, end)..end]).collect();
        let mut hashes = [0; AHEAD];
        hasher.hash_all(&blocks, &mut hashes);
        let found = chain.iter().zip(hashes).enumerate();
        let same = found.take_while(|&(number, (&(id, _), hash))| {
            self.get(id).whole == hash as u32 ^ salted(extra(number))
        });
        same.count()
    }

    /// Calls `visit` with each child whose bytes `prompt` goes on with at `at`, and where it ends. A child that ends where the
    /// prompt ends is none: the engine computes a prompt's last token in any case.
    #[inline]
    pub(super) fn matching(
        &self,
        parent: NodeId,
        hasher: &BlockHasher,
        prompt: &[u8],
        at: usize,
        extra: u64,
        mut visit: impl FnMut(NodeId, usize),
    ) {
        let node = self.get(parent);
        let rest = &prompt[at..];
        let mut check = |id: NodeId, child: &Node| {
            let len = usize::from(child.len);
            if len < rest.len() && child.whole == whole(hasher, &rest[..len], extra) {
                visit(id, at + len);
            }
        };
        if node.child != NodeId::NONE {
            check(node.child, self.get(node.child));
        }
        let mut classes = node.classes;
        while classes != 0 {
            let class = classes.trailing_zeros();
            classes &= classes - 1;
            let covered = covered(class);
            if covered >= rest.len() {
                return;
            }
            let head = head(hasher, &rest[..covered]);
            for &id in self.table.iter_hash(key(parent, class, head)) {
                let child = self.get(id);
                if child.parent == parent && child.head == head && class_of(child.len) == class {
                    check(id, child);
                }
            }
        }
    }

    fn take(&mut self) -> NodeId {
        self.used += 1;
        loop {
            if let Some(free) = self.free.get_mut(self.open).filter(|free| **free != 0) {
                let at = free.trailing_zeros();
                *free &= *free - 1;
                return NodeId((self.open * GROUP) as u32 + at);
            }
            if let Some(group) = self.sparse.pop() {
                self.open = group as usize;
                continue;
            }
            self.open = self.free.len();
            self.chunks.push(vec![Node::FREE; CHUNK].into_boxed_slice());
            self.free.resize(self.free.len() + GROUPS, u64::MAX);
            let rest = self.open + 1..self.free.len();
            self.sparse.extend(rest.rev().map(|group| group as u32));
        }
    }

    fn give_back(&mut self, id: NodeId) {
        self.used -= 1;
        *self.get_mut(id) = Node::FREE;
        let group = id.0 as usize / GROUP;
        self.free[group] |= 1 << (id.0 as usize % GROUP);
        if self.free[group].count_ones() == SPARSE && group != self.open {
            self.sparse.push(group as u32);
        }
    }
}

fn key(parent: NodeId, class: u32, head: u32) -> u64 {
    combine(u64::from(parent.0) << 32 | u64::from(head), u64::from(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_the_largest_power_of_two() {
        let covers = |len: u16| covered(class_of(len));
        assert_eq!([0, 1, 2, 3, 4, 63, 64, 65, 32_767].map(covers), [0, 1, 2, 2, 4, 32, 64, 64, 16_384]);
    }

    #[test]
    fn a_chain_lies_in_order_and_is_used_again() {
        let hasher = BlockHasher::new(7);
        let mut nodes = Nodes::default();
        let chain = |nodes: &mut Nodes, root, name: u8| {
            let mut ids = vec![root];
            for block in 0..100u8 {
                let content = Content::new(&hasher, &[name, block], None, 0).unwrap();
                ids.push(nodes.create(*ids.last().unwrap(), content));
            }
            ids
        };
        let root = nodes.create_root(5);
        let first = chain(&mut nodes, root, 0);
        assert!(first.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
        let second = chain(&mut nodes, root, 1);
        assert_eq!(nodes.used(), 201);
        assert_eq!(nodes.prune(*first.last().unwrap()), None);
        assert_eq!(nodes.used(), 101);
        assert_eq!(nodes.prune(*second.last().unwrap()), Some(5));
        assert_eq!(nodes.used(), 0);
        let bytes = nodes.bytes();
        for name in 0..100 {
            let root = nodes.create_root(5);
            let ids = chain(&mut nodes, root, name);
            nodes.prune(*ids.last().unwrap());
        }
        assert_eq!((nodes.used(), nodes.bytes()), (0, bytes));
    }
}
