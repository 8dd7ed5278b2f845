//! From a prompt to block hashes. The only place that hashes prompt content.
//!
//! A block is a fixed run of token ids ([`block_size`](crate::RouterConfig::block_size)) or of [`TEXT_BLOCK_BYTES`] bytes
//! of text; what is left at the end of a prompt is no block. A block's hash is a seeded hash of its *content* alone: where
//! it stands comes from the tree. Only the first block of a prompt also carries the [`Root`], so that equal text of two
//! models never shares a node. Hashes are made one by one while the tree is walked: a prompt that nobody knows costs one.
//!
//! Blocks are hashed by folded 64 x 64 -> 128 bit multiplies with secrets made from a seed, the same on every CPU: half the
//! time of XXH3 on 64 bytes, because the length is known. `tests/hash_quality.rs` says what that must be good for. Everything else (roots, heads) is XXH3-64. Both spread prompts
//! and protect nothing: a forged collision sends a request to the wrong worker, no more, and needs the seed.

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

/// Hashes the content of blocks with one seed.
#[derive(Debug, Clone)]
pub struct BlockHasher([u64; 8]);

impl BlockHasher {
    /// The hasher of a seed: equal seeds give equal hashes, in every process and every version that keeps the golden vectors.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// Hash of a block of any length. Cost: 5 multiplies for each 64 bytes.
    #[inline]
    #[must_use]
    pub fn hash(&self, block: &[u8]) -> u64 {
        match block.try_into() {
            Ok(chunk) => self.stripe(self.0[0] ^ 64, chunk),
            Err(_) => self.hash_any(block),
        }
    }

    fn hash_any(&self, block: &[u8]) -> u64 {
        let (whole, rest) = block.as_chunks::<64>();
        let mut state = self.0[0] ^ block.len() as u64;
        for chunk in whole {
            state = self.stripe(state, chunk);
        }
        if !rest.is_empty() {
            let mut window = [0; 64];
            window[..rest.len()].copy_from_slice(rest);
            state = self.stripe(state, &window);
        }
        state
    }

    /// Four independent products, folded with what came before.
    #[inline(always)]
    fn stripe(&self, state: u64, chunk: &[u8; 64]) -> u64 {
        let word = |at: usize| {
            let bytes = chunk[8 * at..8 * at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) ^ self.0[at]
        };
        let products =
            mix(word(0), word(1)) ^ mix(word(2), word(3)) ^ mix(word(4), word(5)) ^ mix(word(6), word(7));
        fold(products ^ state, self.0[7] | 1)
    }
}

/// The folded product and its factors: where one is zero, the other counts all the same.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    fold(a, b) ^ a ^ b
}

/// Both halves of the 128-bit product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

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
        match ids.iter().position(|&id| u32::try_from(id).is_err()) {
            Some(position) => Err(Error::TokenId { position, value: ids[position] }),
            None => Ok(()),
        }
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
        let source = match *self {
            Self::Tokens(ids) => Source::Tokens(ids.chunks_exact(block_size as usize)),
            Self::WideTokens(ids) => Source::Wide(ids.chunks_exact(block_size as usize)),
            Self::Text(pieces) => Source::Text { pieces, offset: 0, left: self.units() },
        };
        // Text and tokens of equal bytes are different prompts.
        Blocks { source, hasher, first: Some(root.0 ^ u64::from(self.is_text())) }
    }

    /// Hash of block `block` and its position (of the last block, if the prompt has fewer), the same in every process that
    /// uses the same seed. A prompt without a whole block is hashed as it is. Cost: O(1), for text O(pieces).
    #[must_use]
    pub fn home_hash(&self, root: Root, hasher: &BlockHasher, block_size: u32, block: usize) -> u64 {
        let unit = self.units_per_block(block_size);
        let Some(last) = (self.units() / unit).checked_sub(1) else {
            return self.head_hash(root, hasher.0[0], usize::MAX);
        };
        let block = block.min(last);
        let content = match self {
            Self::Tokens(ids) => hasher.hash(bytemuck::cast_slice(&ids[block * unit..][..unit])),
            Self::WideTokens(ids) => hash_wide(&ids[block * unit..][..unit], hasher),
            Self::Text(pieces) => {
                let mut pieces = *pieces;
                let mut offset = block * unit;
                while offset >= pieces[0].len() {
                    offset -= pieces[0].len();
                    pieces = &pieces[1..];
                }
                hash_text(&mut pieces, &mut offset, hasher)
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

/// Iterator over block hashes; see [`Prompt::blocks`].
#[derive(Debug, Clone)]
pub struct Blocks<'a, 'h> {
    source: Source<'a>,
    hasher: &'h BlockHasher,
    /// Root and kind, to be mixed into the first block.
    first: Option<u64>,
}

#[derive(Debug, Clone)]
enum Source<'a> {
    Tokens(std::slice::ChunksExact<'a, u32>),
    Wide(std::slice::ChunksExact<'a, i64>),
    Text { pieces: &'a [&'a [u8]], offset: usize, left: usize },
}

impl Iterator for Blocks<'_, '_> {
    type Item = BlockHash;

    // Where a walk compares block after block, the state must stay in registers.
    #[inline(always)]
    fn next(&mut self) -> Option<BlockHash> {
        let content = match &mut self.source {
            Source::Tokens(chunks) => self.hasher.hash(bytemuck::cast_slice(chunks.next()?)),
            Source::Wide(chunks) => hash_wide(chunks.next()?, self.hasher),
            Source::Text { pieces, offset, left } => {
                if *left < TEXT_BLOCK_BYTES {
                    return None;
                }
                *left -= TEXT_BLOCK_BYTES;
                hash_text(pieces, offset, self.hasher)
            }
        };
        match self.first.take() {
            None => Some(BlockHash(content)),
            Some(root) => Some(BlockHash(combine(content, root))),
        }
    }
}

fn hash_wide(ids: &[i64], hasher: &BlockHasher) -> u64 {
    let mut window = [0u32; MAX_BLOCK_SIZE as usize];
    for (narrow, &id) in window.iter_mut().zip(ids) {
        *narrow = id as u32;
    }
    hasher.hash(bytemuck::cast_slice(&window[..ids.len()]))
}

/// Hashes the next block of a text that has at least one left; a block inside one piece is hashed in place.
#[inline]
fn hash_text(pieces: &mut &[&[u8]], offset: &mut usize, hasher: &BlockHasher) -> u64 {
    if let Some(block) = pieces[0].get(*offset..*offset + TEXT_BLOCK_BYTES) {
        *offset += TEXT_BLOCK_BYTES;
        return hasher.hash(block);
    }
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
    fold(a ^ 0xa076_1d64_78bd_642f, b ^ 0xe703_7ed1_a0b4_28db) ^ a.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hashes(prompt: Prompt<'_>, root: Root) -> Vec<u64> {
        prompt.blocks(root, &BlockHasher::new(7), 16).map(|block| block.0).collect()
    }

    #[test]
    fn a_seed_gives_the_same_hashes_for_ever() {
        // Computed once by a second implementation of the formulas, in Python.
        let tokens: Vec<u32> = (0..48).collect();
        let golden = [0xa984_9d8c_4ac0_7fa2, 0xf5b4_aa2a_41aa_bec4, 0x0f01_8871_38ae_5de1];
        assert_eq!(hashes(Prompt::Tokens(&tokens), Root::default()), golden);
        assert_eq!(
            Prompt::Tokens(&tokens).home_hash(Root::default(), &BlockHasher::new(7), 16, 2),
            0xa106_8c39_ced0_8d4d
        );
        let counting: Vec<u8> = (0..100).collect();
        assert_eq!(BlockHasher::new(7).hash(&counting[..20]), 0x718d_c65c_7990_cce4);
        assert_eq!(BlockHasher::new(7).hash(&counting), 0x11da_f087_ebe8_4429);
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
            let of = |prompt: Prompt<'_>| prompt.blocks(Root::default(), &BlockHasher::new(9), block_size).collect::<Vec<_>>();
            prop_assert_eq!(of(Prompt::Tokens(&tokens)), of(Prompt::WideTokens(&wide)));
        }
    }
}
