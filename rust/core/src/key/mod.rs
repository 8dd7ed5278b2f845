//! From a prompt to block hashes. The only place that hashes prompt content.
//!
//! A block is a fixed run of token ids ([`block_size`](crate::RouterConfig::block_size)) or of [`TEXT_BLOCK_BYTES`] bytes
//! of text; what is left at the end of a prompt is no block. A block's hash is a seeded hash of its *content* alone: where
//! it stands comes from the tree. Only the first block of a prompt also carries the [`Root`], so that equal text of two
//! models never shares a node. Hashes are made a few at a time while the tree is walked: a prompt that nobody knows costs one.
//!
//! Blocks are hashed by keyed AES rounds (`block`), everything else (roots, heads) by XXH3-64. Both spread prompts and protect
//! nothing: a forged collision sends a request to the wrong worker, no more, and needs the seed.

mod block;

pub use block::BlockHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Error;

/// Bytes of a block of text.
pub const TEXT_BLOCK_BYTES: usize = 64;

/// Largest number of tokens in a block.
pub const MAX_BLOCK_SIZE: u32 = 256;

/// Content hash of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

/// What makes equal prompts different cache entries: model, LoRA adapter, cache salt, tools, tenant.
///
/// Fields are named and their order does not matter. Two roots are equal when their fields are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Root(u64);

impl Root {
    /// This root with one more field. Cost: one hash of `value`.
    #[must_use]
    pub fn with(self, field: &str, value: &[u8]) -> Self {
        let seed = xxh3_64_with_seed(field.as_bytes(), 0);
        Self(self.0 ^ xxh3_64_with_seed(value, seed))
    }

    /// The root of prompts as events have them: of this LoRA adapter, with this cache salt. Cost: one hash of each.
    #[must_use]
    pub fn of_events(lora: Option<&[u8]>, cache_salt: Option<&[u8]>) -> Self {
        let fields = [("lora", lora), ("cache_salt", cache_salt)];
        fields.into_iter().fold(Self::default(), |root, (field, value)| match value {
            Some(value) => root.with(field, value),
            None => root,
        })
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// A prompt as the caller has it. Nothing is copied.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// Token ids.
    Tokens(&'a [u32]),
    /// Token ids in the width that numpy and torch prefer; each must be in `0..2^32`.
    WideTokens(&'a [i64]),
    /// UTF-8 text in pieces. Blocks run across the pieces as if they were joined.
    Text(&'a [&'a [u8]]),
}

impl<'a> Prompt<'a> {
    /// Refuses token ids outside `0..2^32`. Cost: one pass over wide token ids, nothing for the other kinds.
    ///
    /// # Errors
    /// [`Error::TokenId`] with the first such position.
    pub fn check(&self) -> Result<(), Error> {
        let Self::WideTokens(ids) = self else {
            return Ok(());
        };
        // Without branches, for the vector unit.
        if ids.iter().fold(0, |bits, &id| bits | id.cast_unsigned()) <= u64::from(u32::MAX) {
            return Ok(());
        }
        let position = ids.iter().position(|&id| u32::try_from(id).is_err()).expect("one has a high bit");
        Err(Error::TokenId { position, value: ids[position] })
    }

    /// Length in tokens or, for text, in bytes.
    #[must_use]
    pub fn units(&self) -> usize {
        match self {
            Self::Tokens(ids) => ids.len(),
            Self::WideTokens(ids) => ids.len(),
            Self::Text(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// Units (tokens, or bytes of text) in one block.
    #[must_use]
    pub fn units_per_block(&self, block_size: u32) -> usize {
        match self {
            Self::Tokens(_) | Self::WideTokens(_) => block_size as usize,
            Self::Text(_) => TEXT_BLOCK_BYTES,
        }
    }

    /// Whether this is text, whose length in tokens is an estimate.
    #[must_use]
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// The hashes of the whole blocks, made as they are asked for.
    #[must_use]
    pub fn blocks<'h>(&self, root: Root, hasher: &'h BlockHasher, block_size: u32) -> Blocks<'a, 'h> {
        let left = self.units() / self.units_per_block(block_size);
        let source = match *self {
            Self::Tokens(ids) => Source::Tokens { ids, block_size: block_size as usize },
            Self::WideTokens(ids) => Source::Wide { ids, block_size: block_size as usize },
            Self::Text(pieces) => Source::Text { pieces, offset: 0 },
        };
        // Text and tokens of equal bytes are different prompts.
        Blocks { source, left, hasher, first: Some(root.0 ^ u64::from(self.is_text())) }
    }

    /// Hash of block `block` and its position (of the last block, if the prompt has fewer), the same in every process that
    /// uses the same seed. A prompt without a whole block is hashed as it is. Cost: O(1), for text O(pieces).
    #[must_use]
    pub fn home_hash(&self, root: Root, hasher: &BlockHasher, block_size: u32, block: usize) -> u64 {
        let unit = self.units_per_block(block_size);
        let Some(last) = (self.units() / unit).checked_sub(1) else {
            return self.head_hash(root, hasher.seed(), usize::MAX);
        };
        let block = block.min(last);
        let content = match self {
            Self::Tokens(ids) => hasher.hash(bytemuck::cast_slice(&ids[block * unit..][..unit])),
            Self::WideTokens(ids) => {
                let mut hash = [BlockHash(0)];
                hash_wide(&ids[block * unit..][..unit], unit, hasher, &mut hash);
                hash[0].0
            }
            Self::Text(pieces) => {
                let mut pieces = *pieces;
                let mut offset = block * unit;
                while offset >= pieces[0].len() {
                    offset -= pieces[0].len();
                    pieces = &pieces[1..];
                }
                hash_joined(&mut pieces, &mut offset, hasher)
            }
        };
        combine(combine(content, root.0 ^ u64::from(self.is_text())), block as u64)
    }

    /// Hash of the first `length` characters of a text (bytes that are not UTF-8 count as one character each), or of the
    /// first `length / 4` token ids: the stateless key of the `prefix_aware` policy.
    #[must_use]
    pub fn head_hash(&self, root: Root, seed: u64, length: usize) -> u64 {
        let mut state = root.0;
        match self {
            Self::Tokens(ids) => {
                let ids = &ids[..ids.len().min(length / 4)];
                state = combine(state, xxh3_64_with_seed(bytemuck::cast_slice(ids), seed));
            }
            Self::WideTokens(ids) => {
                let narrow: Vec<u32> = ids[..ids.len().min(length / 4)].iter().map(|&id| id as u32).collect();
                state = combine(state, xxh3_64_with_seed(bytemuck::cast_slice(&narrow), seed));
            }
            Self::Text(pieces) => {
                let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(seed);
                let mut left = length;
                for piece in *pieces {
                    let end = char_end(piece, &mut left);
                    hasher.update(&piece[..end]);
                    if end < piece.len() {
                        break;
                    }
                }
                state = combine(state, hasher.digest());
            }
        }
        state
    }
}

/// Byte offset after at most `left` characters, the end of the piece if it has no more; takes its characters off `left`.
fn char_end(piece: &[u8], left: &mut usize) -> usize {
    if piece.len() <= *left {
        // Fewer bytes than characters wanted: all of it, whatever it holds.
        *left -= piece.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        return piece.len();
    }
    let mut characters = 0;
    for (at, byte) in piece.iter().enumerate() {
        if byte & 0xC0 != 0x80 {
            if characters == *left {
                return at;
            }
            characters += 1;
        }
    }
    *left -= characters;
    piece.len()
}

/// Block hashes in the order of their prompt.
pub trait BlockSource {
    /// Writes the next hashes to the front of `out`, as many as it has room for or there are. Returns how many.
    fn fill(&mut self, out: &mut [BlockHash]) -> usize;
}

/// Hashes that were made before.
impl BlockSource for &[BlockHash] {
    #[inline]
    fn fill(&mut self, out: &mut [BlockHash]) -> usize {
        let count = self.len().min(out.len());
        let (next, rest) = self.split_at(count);
        out[..count].copy_from_slice(next);
        *self = rest;
        count
    }
}

/// The block hashes of a prompt; see [`Prompt::blocks`].
#[derive(Debug, Clone)]
pub struct Blocks<'a, 'h> {
    source: Source<'a>,
    /// Blocks that are still to come.
    left: usize,
    hasher: &'h BlockHasher,
    /// Root and kind, to be mixed into the first block.
    first: Option<u64>,
}

#[derive(Debug, Clone)]
enum Source<'a> {
    Tokens { ids: &'a [u32], block_size: usize },
    Wide { ids: &'a [i64], block_size: usize },
    Text { pieces: &'a [&'a [u8]], offset: usize },
}

impl Blocks<'_, '_> {
    /// Hashes that are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// Writes all that are still to come to `hashes`, in place of what is there.
    pub fn collect_into(mut self, hashes: &mut Vec<BlockHash>) {
        hashes.resize(self.left, BlockHash(0));
        self.fill(hashes);
    }
}

impl BlockSource for Blocks<'_, '_> {
    #[inline]
    fn fill(&mut self, out: &mut [BlockHash]) -> usize {
        let count = self.left.min(out.len());
        self.left -= count;
        let out = &mut out[..count];
        let hasher = self.hasher;
        match &mut self.source {
            Source::Tokens { ids, block_size } => {
                let (next, rest) = ids.split_at(count * *block_size);
                hasher.hash_each(bytemuck::must_cast_slice(next), 4 * *block_size, out);
                *ids = rest;
            }
            Source::Wide { ids, block_size } => {
                let (next, rest) = ids.split_at(count * *block_size);
                hash_wide(next, *block_size, hasher, out);
                *ids = rest;
            }
            Source::Text { pieces, offset } => hash_text(pieces, offset, hasher, out),
        }
        if let (Some(root), [first, ..]) = (self.first, out) {
            *first = BlockHash(combine(first.0, root));
            self.first = None;
        }
        count
    }
}

/// Hashes blocks of token ids that are known to fit 32 bits.
fn hash_wide(ids: &[i64], block_size: usize, hasher: &BlockHasher, out: &mut [BlockHash]) {
    let mut narrow = [0u32; MAX_BLOCK_SIZE as usize];
    let blocks = narrow.len() / block_size;
    for (ids, out) in ids.chunks(blocks * block_size).zip(out.chunks_mut(blocks)) {
        narrow.iter_mut().zip(ids).for_each(|(narrow, &id)| *narrow = id as u32);
        hasher.hash_each(bytemuck::must_cast_slice(&narrow), 4 * block_size, out);
    }
}

/// Hashes the next blocks of a text that has as many; those inside one piece are hashed in place.
fn hash_text(pieces: &mut &[&[u8]], offset: &mut usize, hasher: &BlockHasher, mut out: &mut [BlockHash]) {
    while !out.is_empty() {
        let rest = &pieces[0][*offset..];
        let count = out.len().min(rest.len() / TEXT_BLOCK_BYTES);
        let (whole, behind) = out.split_at_mut(count);
        hasher.hash_each(rest, TEXT_BLOCK_BYTES, whole);
        *offset += count * TEXT_BLOCK_BYTES;
        out = behind;
        if let [next, ..] = out {
            *next = BlockHash(hash_joined(pieces, offset, hasher));
            out = &mut out[1..];
        }
    }
}

/// Hashes the next block of a text that has at least one left, wherever its pieces are.
fn hash_joined(pieces: &mut &[&[u8]], offset: &mut usize, hasher: &BlockHasher) -> u64 {
    let mut window = [0u8; TEXT_BLOCK_BYTES];
    let mut filled = 0;
    while filled < TEXT_BLOCK_BYTES {
        let rest = &pieces[0][*offset..];
        let take = rest.len().min(TEXT_BLOCK_BYTES - filled);
        window[filled..filled + take].copy_from_slice(&rest[..take]);
        filled += take;
        *offset += take;
        if *offset == pieces[0].len() && filled < TEXT_BLOCK_BYTES {
            *pieces = &pieces[1..];
            *offset = 0;
        }
    }
    hasher.hash(&window)
}

/// Mixes two hashes into one (folded 64 x 64 -> 128 bit multiply); not commutative.
#[inline]
pub(crate) fn combine(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    product as u64 ^ (product >> 64) as u64 ^ a.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hashes(prompt: Prompt<'_>, root: Root) -> Vec<u64> {
        hashes_of_size(prompt, root, 16)
    }

    fn hashes_of_size(prompt: Prompt<'_>, root: Root, block_size: u32) -> Vec<u64> {
        let hasher = BlockHasher::new(7);
        let mut blocks = prompt.blocks(root, &hasher, block_size);
        let mut hashes = vec![BlockHash(0); blocks.remaining()];
        assert_eq!((blocks.fill(&mut hashes), blocks.fill(&mut [BlockHash(0)])), (hashes.len(), 0));
        // By pieces of any size they are the same.
        let (mut blocks, mut by_three) = (prompt.blocks(root, &hasher, block_size), [BlockHash(0); 3]);
        for expected in hashes.chunks(3) {
            assert_eq!(blocks.fill(&mut by_three), expected.len());
            assert_eq!(by_three[..expected.len()], *expected);
        }
        hashes.into_iter().map(|hash| hash.0).collect()
    }

    #[test]
    fn a_seed_gives_the_same_hashes_for_ever() {
        // Computed once by a second implementation of the formulas, in Python.
        let tokens: Vec<u32> = (0..48).collect();
        let golden = [0xa481_ca9e_7c77_90c5, 0x80b7_e1c8_4ce1_9843, 0x6a0a_c745_d700_4fef];
        assert_eq!(hashes(Prompt::Tokens(&tokens), Root::default()), golden);
        assert_eq!(
            Prompt::Tokens(&tokens).home_hash(Root::default(), &BlockHasher::new(7), 16, 2),
            0x09e9_9aeb_6703_7ae8
        );
        assert_eq!(Root::default().with("model", b"llama").0, 0xde33_a985_85f1_5bc1);
    }

    #[test]
    fn text_and_tokens_of_equal_bytes_differ_in_their_first_block_only() {
        let tokens: Vec<u32> = (0..48).collect();
        let text: [&[u8]; 1] = [bytemuck::cast_slice(&tokens)];
        let (a, b) =
            (hashes(Prompt::Tokens(&tokens), Root::default()), hashes(Prompt::Text(&text), Root::default()));
        assert_ne!(a[0], b[0]);
        assert_eq!(a[1..], b[1..]);
    }

    #[test]
    fn roots_part_and_do_not_depend_on_order() {
        let a = Root::default().with("model", b"m").with("salt", b"s");
        assert_eq!(a, Root::default().with("salt", b"s").with("model", b"m"));
        assert_ne!(a, Root::default().with("model", b"s").with("salt", b"m"));
        assert_ne!(Root::default().with("model", b""), Root::default());
    }

    #[test]
    fn wide_tokens_out_of_range_are_named() {
        assert_eq!(Prompt::WideTokens(&[1, -1]).check(), Err(Error::TokenId { position: 1, value: -1 }));
        assert_eq!(
            Prompt::WideTokens(&[1 << 32]).check(),
            Err(Error::TokenId { position: 0, value: 1 << 32 })
        );
        assert_eq!(Prompt::WideTokens(&[0, (1 << 32) - 1]).check(), Ok(()));
    }

    #[test]
    fn head_hash_counts_characters_not_bytes() {
        let long = "日本語テキスト".repeat(40);
        let same = |a: &str, b: &str, n| {
            Prompt::Text(&[a.as_bytes()]).head_hash(Root::default(), 1, n)
                == Prompt::Text(&[b.as_bytes()]).head_hash(Root::default(), 1, n)
        };
        let other = format!("{}X", long.chars().take(100).collect::<String>());
        assert!(same(&long, &other, 100));
        assert!(!same(&long, &other, 101));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in proptest::collection::vec(any::<u8>(), 0..700), cuts in proptest::collection::vec(any::<usize>(), 0..8), length in 0usize..900) {
            let mut at: Vec<usize> = cuts.into_iter().map(|cut| cut % (text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let (whole, cut) = ([&text[..]], Prompt::Text(&pieces));
            let whole = Prompt::Text(&whole);
            prop_assert_eq!(hashes(cut, Root::default()), hashes(whole, Root::default()));
            prop_assert_eq!(hashes(whole, Root::default()).len(), text.len() / 64);
            prop_assert_eq!(cut.head_hash(Root::default(), 3, length), whole.head_hash(Root::default(), 3, length));
            let home = |prompt: Prompt<'_>| prompt.home_hash(Root::default(), &BlockHasher::new(3), 16, length / 64);
            prop_assert_eq!(home(cut), home(whole));
        }

        #[test]
        fn width_of_tokens_does_not_matter(tokens in proptest::collection::vec(any::<u32>(), 0..200), block_size in 1u32..=256) {
            let wide: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
            let of = |prompt| hashes_of_size(prompt, Root::default(), block_size);
            prop_assert_eq!(of(Prompt::Tokens(&tokens)), of(Prompt::WideTokens(&wide)));
        }
    }
}
