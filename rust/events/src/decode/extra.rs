//! What else than its tokens a block depends on: adapter, salt, images.

use trunkline_core::Root;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Fault;
use super::reader::{Blob, Reader};
use crate::batch::Batch;

/// One thing that a block depends on besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra<'a> {
    /// A multimodal item that reaches into the block.
    Item {
        /// The engine's name for it (vLLM: the hash of its content).
        id: &'a [u8],
        /// Where it stands, as the engine counts.
        offset: i64,
    },
    /// Anything else, such as the digest of prompt embeddings.
    Other(&'a [u8]),
}

/// Hash of what a block depends on besides its tokens, in the engine's order; 0 for nothing, and only for nothing.
///
/// The same for events and for embedders who tell a prompt's blocks themselves. Cost: O(bytes).
pub fn extra_hash<'a>(extras: impl IntoIterator<Item = Extra<'a>>) -> u64 {
    extras.into_iter().fold(0, chained)
}

/// The hash of one thing more.
fn chained(state: u64, extra: Extra<'_>) -> u64 {
    let (kind, offset, bytes) = match extra {
        Extra::Item { id, offset } => (1u8, offset, id),
        Extra::Other(bytes) => (2, 0, bytes),
    };
    let mut head = [kind; 9];
    head[1..].copy_from_slice(&offset.to_le_bytes());
    xxh3_64_with_seed(bytes, xxh3_64_with_seed(&head, state)).max(1)
}

/// What parts the cache of a chain of blocks, as the event's fields say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parted<'a> {
    /// Name of the LoRA adapter.
    pub(super) lora: Option<&'a [u8]>,
    /// Number of the adapter, where an old engine gives no name. No request can be matched with it.
    pub(super) lora_id: Option<i128>,
    /// Cache salt.
    pub(super) salt: Option<&'a [u8]>,
}

impl Parted<'_> {
    pub(super) fn root(&self) -> Root {
        let root = Root::of_events(self.lora, self.salt);
        match (self.lora, self.lora_id) {
            (None, Some(id)) => root.with("lora_id", &id.to_le_bytes()),
            _ => root,
        }
    }
}

/// Reads vLLM's `extra_keys`, null or a list for each of `blocks` blocks: the adapter's name, then `[item, offset]` for each
/// multimodal item, then in the first block of a prompt (`starts`) the cache salt, then others. Puts the salt into `parted` and
/// a hash for each block into the batch, unless all are 0.
///
/// Nothing but its place tells a salt from other strings. Old engines name an item by a bare string; in a first block that
/// is taken for a salt, so such a block matches nothing instead of something wrong.
pub(super) fn keys<'a>(
    reader: &mut Reader<'a>,
    blocks: usize,
    starts: bool,
    parted: &mut Parted<'a>,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let start = batch.extras.len();
    for block in 0..blocks {
        let hash = if reader.nil() { 0 } else { of_block(reader, starts && block == 0, parted)? };
        if hash != 0 && batch.extras.len() == start {
            batch.extras.resize(start + block, 0);
        }
        if hash != 0 || batch.extras.len() > start {
            batch.extras.push(hash);
        }
    }
    Ok(())
}

fn of_block<'a>(reader: &mut Reader<'a>, first: bool, parted: &mut Parted<'a>) -> Result<u64, Fault> {
    let mut hash = 0;
    let mut add = |extra: Extra<'_>| hash = chained(hash, extra);
    for at in 0..reader.array()? {
        if let Ok(blob) = reader.blob() {
            match blob {
                Blob::Str(name) if at == 0 && parted.lora == Some(name) => {}
                Blob::Str(salt) if first && parted.salt.is_none() => parted.salt = Some(salt),
                other => add(Extra::Other(other.bytes())),
            }
            continue;
        }
        let whole = reader.skip()?;
        match item(whole) {
            Some((id, offset)) => add(Extra::Item { id, offset }),
            None => add(Extra::Other(whole)),
        }
    }
    Ok(hash)
}

/// `[item, offset]`.
fn item(value: &[u8]) -> Option<(&[u8], i64)> {
    let mut reader = Reader::new(value);
    if reader.array().ok()? != 2 {
        return None;
    }
    let id = reader.blob().ok()?.bytes();
    Some((id, i64::try_from(reader.integer().ok()?).ok()?))
}
