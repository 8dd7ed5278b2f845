//! What an engine tells about its KV cache, as the router takes it.
//!
//! Engines name a block by a hash of their own ([`Handle`]), which is only a handle here: what a block *is* comes from its
//! tokens and from the block before it. [`Spelling`] turns tokens into the bytes that a prompt in text has at their place;
//! without one, tokens are matched with tokens.

use crate::key::Root;

/// An engine's name for a block: its hash, or 64 bits made from it. It means something on one worker only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// Where a block is kept. Reading it back from elsewhere than the accelerator's memory costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Medium {
    /// The accelerator's memory.
    #[default]
    Gpu,
    /// The host's memory.
    Cpu,
    /// Storage.
    Disk,
}

/// One event of a worker's feed, in its order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheEvent<'a> {
    /// The worker holds these blocks now.
    Stored(Stored<'a>),
    /// The worker lost these blocks from this medium; those behind them stay, but nothing reaches them.
    Removed {
        /// The blocks.
        handles: &'a [Handle],
        /// From where.
        medium: Medium,
    },
    /// The worker's cache is empty.
    Cleared,
}

/// A chain of blocks that a worker stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<'a> {
    /// The blocks, each the parent of the next one.
    pub handles: &'a [Handle],
    /// The block before the first one; `None` if that is the first of a prompt.
    pub parent: Option<Handle>,
    /// Token ids of all blocks, `block_size` for each.
    pub tokens: &'a [u32],
    /// Tokens in a block, at least 1.
    pub block_size: u32,
    /// What parts the cache of equal tokens: LoRA adapter and cache salt. Counts in the first block of a prompt.
    pub root: Root,
    /// For each block a hash of what else it depends on (images), 0 for nothing; empty if none depends on anything.
    pub extras: &'a [u64],
    /// Where they are kept.
    pub medium: Medium,
}

/// Bytes of tokens, as they stand in a prompt's text.
pub trait Spelling: Send + Sync {
    /// Appends the bytes of `tokens` to `bytes`. `false`, and nothing appended, if one of them is unknown.
    fn spell(&self, tokens: &[u32], bytes: &mut Vec<u8>) -> bool;
}
