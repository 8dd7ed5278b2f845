//! Token ids as bytes: one table, looked up for every token that an engine stores.

use trunkline_core::events::Spelling;

/// The bytes of every token of a tokenizer.
///
/// Immutable; sharing it between threads is free. Memory: 16 bytes per id, and the bytes of tokens that are longer than 15.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    slots: Box<[Slot]>,
    /// Tokens that do not fit into their slots.
    long: Box<[u8]>,
}

/// A token of up to 15 bytes and their number; or where a longer one is, and a mark. All that most tokens cost is one cache line.
type Slot = [u8; 16];

/// Bytes of a token that is in its slot.
const SHORT: usize = 15;
/// In place of the length: the token is elsewhere, or there is none.
const LONG: u8 = 16;
const UNKNOWN: u8 = 17;
/// Longest token, and largest id: no tokenizer has more.
const MAX_LENGTH: usize = 1 << 24;

impl Vocabulary {
    /// A table of these tokens, in any order; of an id that comes twice the last one counts.
    ///
    /// `None` if a token has 16 MiB or more, or an id is above 16 M, which no tokenizer has.
    pub fn new<B: AsRef<[u8]>>(tokens: impl IntoIterator<Item = (u32, B)>) -> Option<Self> {
        let mut unknown: Slot = [0; 16];
        unknown[SHORT] = UNKNOWN;
        let (mut slots, mut long) = (Vec::new(), Vec::new());
        for (id, token) in tokens {
            let (id, token) = (id as usize, token.as_ref());
            if token.len() >= MAX_LENGTH || id >= MAX_LENGTH {
                return None;
            }
            if id >= slots.len() {
                slots.resize(id + 1, unknown);
            }
            let slot: &mut Slot = &mut slots[id];
            *slot = [0; 16];
            if token.len() <= SHORT {
                slot[..token.len()].copy_from_slice(token);
                slot[SHORT] = token.len() as u8;
            } else {
                slot[..8].copy_from_slice(&(long.len() as u64).to_le_bytes());
                slot[8..12].copy_from_slice(&(token.len() as u32).to_le_bytes());
                slot[SHORT] = LONG;
                long.extend_from_slice(token);
            }
        }
        Some(Self { slots: slots.into(), long: long.into() })
    }

    /// The bytes of a token; `None` for an id that the tokenizer does not have.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        let slot = self.slots.get(id as usize)?;
        match slot[SHORT] {
            LONG => self.long_token(slot),
            length => slot[..SHORT].get(..usize::from(length)),
        }
    }

    #[cold]
    fn long_token(&self, slot: &Slot) -> Option<&[u8]> {
        let start = u64::from_le_bytes(*slot.first_chunk()?) as usize;
        let length = u32::from_le_bytes(*slot[8..].first_chunk()?) as usize;
        self.long.get(start..start + length)
    }

    /// One more than the largest id.
    pub fn ids(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.long.len()
    }
}

impl Spelling for Vocabulary {
    /// Cost: one read and a copy of 16 bytes per token, no more than one allocation for tokens of usual lengths.
    fn spell(&self, tokens: &[u32], bytes: &mut Vec<u8>) -> bool {
        let start = bytes.len();
        // The slack is for what the last copies write too much.
        bytes.resize(start + tokens.len() * 8 + size_of::<Slot>(), 0);
        let mut end = start;
        for &id in tokens {
            let slot = self.slots.get(id as usize);
            let length = slot.map_or(UNKNOWN, |slot| slot[SHORT]);
            if let (Some(slot), Some(place)) = (slot, bytes.get_mut(end..end + size_of::<Slot>()))
                && length < LONG
            {
                // All of the slot: a copy of fixed length costs less than one of the right length.
                place.copy_from_slice(slot);
                end += usize::from(length);
                continue;
            }
            bytes.truncate(end);
            match self.token(id) {
                Some(token) => bytes.extend_from_slice(token),
                None => {
                    bytes.truncate(start);
                    return false;
                }
            }
            end = bytes.len();
            bytes.resize(end + tokens.len() * 8 + size_of::<Slot>(), 0);
        }
        bytes.truncate(end);
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
