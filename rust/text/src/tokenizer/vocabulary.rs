//! Token ids as bytes: one table, looked up for every token that an engine stores.

use trunkline_core::events::Spelling;

/// The bytes of every token of a tokenizer.
///
/// Immutable; sharing it between threads is free. Memory: 8 bytes per id and the bytes themselves.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// Per id where its bytes begin and how many they are; `LENGTH_MASK` bytes stand for "no such token".
    spans: Box<[u64]>,
    bytes: Box<[u8]>,
}

const LENGTH_BITS: u32 = 24;
const UNKNOWN: u64 = (1 << LENGTH_BITS) - 1;

impl Vocabulary {
    /// A table of these tokens, in any order; of an id that comes twice the last one counts.
    ///
    /// `None` if a token has 16 MiB or more, or an id is above 16 M, which no tokenizer has.
    pub fn new<B: AsRef<[u8]>>(tokens: impl IntoIterator<Item = (u32, B)>) -> Option<Self> {
        let (mut spans, mut bytes) = (Vec::new(), Vec::new());
        for (id, token) in tokens {
            let (id, token) = (id as usize, token.as_ref());
            let length = token.len() as u64;
            if length >= UNKNOWN || id >= 1 << 24 {
                return None;
            }
            if id >= spans.len() {
                spans.resize(id + 1, UNKNOWN);
            }
            spans[id] = (bytes.len() as u64) << LENGTH_BITS | length;
            bytes.extend_from_slice(token);
        }
        Some(Self { spans: spans.into(), bytes: bytes.into() })
    }

    /// The bytes of a token; `None` for an id that the tokenizer does not have.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        let span = *self.spans.get(id as usize)?;
        let (start, length) = ((span >> LENGTH_BITS) as usize, (span & UNKNOWN) as usize);
        if length as u64 == UNKNOWN {
            return None;
        }
        self.bytes.get(start..start + length)
    }

    /// One more than the largest id.
    pub fn ids(&self) -> usize {
        self.spans.len()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.spans) + self.bytes.len()
    }
}

impl Spelling for Vocabulary {
    /// Cost: two reads and a short copy per token, no more than one allocation.
    fn spell(&self, tokens: &[u32], bytes: &mut Vec<u8>) -> bool {
        let start = bytes.len();
        bytes.reserve(tokens.len() * 8);
        for &id in tokens {
            match self.token(id) {
                Some(token) => bytes.extend_from_slice(token),
                None => {
                    bytes.truncate(start);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spells_all_tokens_or_none() {
        let vocabulary = Vocabulary::new([(2, &b"ab"[..]), (0, b""), (5, b"\xf0\x9f"), (2, b"xy")]).unwrap();
        let mut bytes = b"before ".to_vec();
        assert!(vocabulary.spell(&[2, 0, 5, 2], &mut bytes));
        assert_eq!(bytes, b"before xy\xf0\x9fxy");
        for unknown in [1, 3, 6, u32::MAX] {
            assert!(!vocabulary.spell(&[2, unknown], &mut bytes));
            assert_eq!(bytes, b"before xy\xf0\x9fxy");
        }
        assert_eq!(vocabulary.ids(), 6);
        assert!(Vocabulary::new([(1 << 24, b"")]).is_none());
    }
}
