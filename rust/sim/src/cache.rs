//! The prefix cache of a worker: fixed-size blocks of tokens, found by what precedes them, evicted when least recently
//! used.
//!
//! A block is named by the hash of all tokens up to its end ([`SequenceHash`]), so a prompt is a chain of names and a
//! hit is a run of leading names that are present. As in vLLM:
//!
//! - a sequence holds (*pins*) its blocks while it runs, and room for those that it has not computed yet;
//! - a block becomes visible to others when it is computed ([`BlockCache::commit`]);
//! - when a sequence ends, its blocks become evictable tail first, so a prefix always outlives what follows it;
//! - pinned blocks are never evicted.
//!
//! Not thread-safe; one owner drives it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names a block: the hash of every token from the start of the prompt to the block's end, seeded with what parts one
/// cache from another (model, salt).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SequenceHash(pub u64);

/// Names the full blocks of `tokens`; a last, partial block has no name.
///
/// `root` is the hash of what parts the cache. Cost: O(tokens).
///
/// # Panics
/// If `block_size` is 0.
#[must_use]
pub fn block_chain(root: u64, tokens: &[u32], block_size: u32) -> Vec<SequenceHash> {
    let mut parent = root;
    tokens
        .chunks_exact(block_size as usize)
        .map(|block| {
            parent = xxh3_64_with_seed(bytemuck::cast_slice(block), parent);
            SequenceHash(parent)
        })
        .collect()
}

/// What a running sequence holds in the cache: pinned leading blocks of its chain, and room for the rest.
///
/// Made by [`BlockCache::admit`], given back by [`BlockCache::release`].
#[derive(Debug)]
#[must_use = "blocks stay pinned until the lease is released"]
pub struct Lease {
    pinned_blocks: u32,
    reserved_blocks: u32,
    hit_blocks: u32,
}

impl Lease {
    /// Leading blocks that were present when the sequence was admitted.
    #[must_use]
    pub fn hit_blocks(&self) -> u32 {
        self.hit_blocks
    }
}

/// One block that is present.
#[derive(Debug)]
struct Block {
    /// Sequences that hold it.
    references: u32,
    /// Its place in the order of eviction while nobody does; 0 before the first time.
    idle_since: u64,
}

/// Blocks that are present, by name, within a capacity.
#[derive(Debug)]
pub struct BlockCache {
    capacity_blocks: u32,
    blocks: HashMap<SequenceHash, Block>,
    /// Blocks that nobody holds, next to be evicted first.
    idle: BTreeMap<u64, SequenceHash>,
    clock: u64,
    reserved_blocks: u32,
    evicted_blocks: u64,
    /// Blocks evicted since somebody asked; `None` if nobody will.
    evicted: Option<Vec<SequenceHash>>,
}

impl BlockCache {
    /// An empty cache of `capacity_blocks` blocks.
    #[must_use]
    pub fn new(capacity_blocks: u32) -> Self {
        Self {
            capacity_blocks,
            blocks: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            reserved_blocks: 0,
            evicted_blocks: 0,
            evicted: None,
        }
    }

    /// Makes it remember which blocks it evicts, for [`BlockCache::take_evicted`].
    pub fn remember_evicted(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// Blocks evicted since the last call, in order; none if it was not told to remember them.
    pub fn take_evicted(&mut self) -> Vec<SequenceHash> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Blocks that fit at once.
    #[must_use]
    pub fn capacity_blocks(&self) -> u32 {
        self.capacity_blocks
    }

    /// Blocks that running sequences hold or have reserved.
    #[must_use]
    pub fn used_blocks(&self) -> u32 {
        self.present_blocks() - self.idle_blocks() + self.reserved_blocks
    }

    /// Blocks that are present, held or not.
    #[must_use]
    pub fn present_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks evicted since the cache was made or [`BlockCache::reset_evicted`].
    #[must_use]
    pub fn evicted_blocks(&self) -> u64 {
        self.evicted_blocks
    }

    /// Leading blocks of `chain` that are present. Cost: O(result).
    #[must_use]
    pub fn matched_blocks(&self, chain: &[SequenceHash]) -> u32 {
        chain.iter().take_while(|hash| self.blocks.contains_key(hash)).count() as u32
    }

    /// Admits a sequence of `total_blocks` blocks in all: pins its hits, at most the first `max_hit_blocks` of `chain`,
    /// and reserves room for the rest, evicting what it must.
    ///
    /// `None` if blocks in use leave too little room; nothing has changed then. Cost: O(blocks log cached blocks).
    pub fn admit(&mut self, chain: &[SequenceHash], max_hit_blocks: u32, total_blocks: u32) -> Option<Lease> {
        let limit = chain.len().min(max_hit_blocks.min(total_blocks) as usize);
        let hit_blocks = self.matched_blocks(&chain[..limit]);
        let hits = &chain[..hit_blocks as usize];
        let idle_hits = hits.iter().filter(|hash| self.blocks[hash].references == 0).count() as u32;
        let reserved_blocks = total_blocks - hit_blocks;
        if self.used_blocks() + idle_hits + reserved_blocks > self.capacity_blocks {
            return None;
        }
        for &hash in hits {
            self.pin(hash);
        }
        self.reserved_blocks += reserved_blocks;
        while self.present_blocks() + self.reserved_blocks > self.capacity_blocks {
            self.evict_one();
        }
        Some(Lease { pinned_blocks: hit_blocks, reserved_blocks, hit_blocks })
    }

    /// Makes the first `blocks` blocks of `chain`, now computed, visible to others and pins them. Returns the positions of
    /// those that were not present before, as runs in ascending order.
    ///
    /// `chain` is the one that `lease` was admitted with. A block that somebody else has computed meanwhile is shared.
    /// Cost: O(new blocks log cached blocks).
    ///
    /// # Panics
    /// If `chain` has fewer blocks, or the lease reserved fewer.
    pub fn commit(&mut self, chain: &[SequenceHash], lease: &mut Lease, blocks: u32) -> Vec<Range<u32>> {
        let mut added: Vec<Range<u32>> = Vec::new();
        for &hash in chain.get(lease.pinned_blocks as usize..blocks as usize).unwrap_or_default() {
            lease.reserved_blocks =
                lease.reserved_blocks.checked_sub(1).expect("a computed block was reserved at admission");
            self.reserved_blocks -= 1;
            let at = lease.pinned_blocks;
            lease.pinned_blocks += 1;
            if self.pin(hash) {
                match added.last_mut() {
                    Some(run) if run.end == at => run.end += 1,
                    _ => added.push(at..at + 1),
                }
            }
        }
        assert!(lease.pinned_blocks >= blocks, "a computed block has a name");
        added
    }

    /// Ends a sequence: its committed blocks become evictable, its last block first, and its reserved room is free.
    /// Cost: O(blocks log cached blocks).
    #[expect(clippy::needless_pass_by_value, reason = "a lease ends here")]
    pub fn release(&mut self, chain: &[SequenceHash], lease: Lease) {
        self.reserved_blocks -= lease.reserved_blocks;
        for &hash in chain[..lease.pinned_blocks as usize].iter().rev() {
            let block = self.blocks.get_mut(&hash).expect("a pinned block is present");
            block.references -= 1;
            if block.references == 0 {
                self.clock += 1;
                block.idle_since = self.clock;
                self.idle.insert(self.clock, hash);
            }
        }
    }

    /// Drops every block that nobody holds; these count as evicted for [`BlockCache::take_evicted`] alone. True if none is
    /// left.
    pub fn clear(&mut self) -> bool {
        for (_, hash) in std::mem::take(&mut self.idle) {
            self.blocks.remove(&hash);
            self.evicted.as_mut().into_iter().for_each(|evicted| evicted.push(hash));
        }
        self.blocks.is_empty() && self.reserved_blocks == 0
    }

    /// Sets [`BlockCache::evicted_blocks`] to 0.
    pub fn reset_evicted(&mut self) {
        self.evicted_blocks = 0;
    }

    fn idle_blocks(&self) -> u32 {
        self.idle.len() as u32
    }

    /// Holds a block once more. True if it was not present.
    fn pin(&mut self, hash: SequenceHash) -> bool {
        let present = self.blocks.len();
        let block = self.blocks.entry(hash).or_insert(Block { references: 0, idle_since: 0 });
        if block.references == 0 {
            self.idle.remove(&block.idle_since);
        }
        block.references += 1;
        self.blocks.len() > present
    }

    fn evict_one(&mut self) {
        let (_, hash) = self.idle.pop_first().expect("room was checked before it was reserved");
        self.blocks.remove(&hash);
        self.evicted_blocks += 1;
        self.evicted.as_mut().into_iter().for_each(|evicted| evicted.push(hash));
    }
}
