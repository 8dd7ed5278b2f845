//! The other stand-in for a tokenizer: one token per byte of text, for workers that tell of their caches.
//!
//! Events carry token ids, and who follows them needs a vocabulary that spells them. That of [`tokens`] would have
//! 2^32 entries; this one has 256 bytes, whose ids are their values, and [`MARKERS`]. `trunkline.testing.write_mock_tokenizer`
//! writes it as a tokenizer's directory, with the chat template of what [`Tokenizer`](crate::tokens::Tokenizer) does.

use crate::tokens;

/// Tokens that mark the structure of a chat, from id 256 on: the start of a message, of its content, its end, and what stands
/// for an item that is not text.
pub const MARKERS: [&str; 4] = ["<|message|>", "<|content|>", "<|end|>", "<|item|>"];

pub(crate) const MESSAGE: u32 = 256;
pub(crate) const CONTENT: u32 = 257;
pub(crate) const END: u32 = 258;
pub(crate) const ITEM: u32 = 259;

/// The tokens of an answer of `length` tokens to `prompt`: the words of [`tokens::answer_tokens`], byte by byte, cut where
/// `length` says, a full stop at the end.
#[must_use]
pub fn answer_tokens(prompt: &[u32], choice: u32, length: u32) -> Vec<u32> {
    let words = tokens::answer_tokens(prompt, choice, length.div_ceil(tokens::PIECE_BYTES as u32));
    let mut bytes: Vec<u32> = words.into_iter().flat_map(u32::to_le_bytes).map(u32::from).collect();
    bytes.truncate(length as usize);
    bytes.iter_mut().last().into_iter().for_each(|last| *last = u32::from(b'.'));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_ascii_and_ends_in_a_full_stop() {
        for length in 1..20 {
            let answer = answer_tokens(&[1, 2, 3], 0, length);
            assert_eq!(answer.len(), length as usize);
            assert!(answer.iter().all(|&token| token < 128));
            assert_eq!(answer.last(), Some(&u32::from(b'.')));
        }
        assert_ne!(answer_tokens(&[1], 0, 9), answer_tokens(&[1], 1, 9));
    }
}
