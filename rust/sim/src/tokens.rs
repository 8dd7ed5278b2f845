//! The stand-in for a tokenizer: one token per 4 bytes of text.
//!
//! Text is cut from its start into pieces of at most 4 bytes that end on UTF-8 boundaries, and the bytes of a piece
//! are its token id (little-endian). So equal text has equal tokens, a longer text keeps all but the last token of a
//! shorter one that it starts with, and ids turn back into text. A CJK character is a token of its own, as in most
//! vocabularies. Text has ids whose first byte is never `0xff`; those below mark the structure of a chat.
//!
//! Generated text is made of words whose tokens are whole pieces, so that an answer sent back in the next turn of a
//! conversation has the tokens that were generated.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::byte_tokens;

/// Longest piece of text that is one token, in bytes.
pub const PIECE_BYTES: usize = 4;

/// Starts a message; its role follows.
const MESSAGE: u32 = 0x0000_00ff;
/// Ends the role of a message; its content follows.
const CONTENT: u32 = 0x0000_01ff;
/// Ends a message.
const END: u32 = 0x0000_02ff;
/// Stands for a content part that is not text, whose hash follows.
const ITEM: u32 = 0x0000_03ff;

/// Appends the tokens of `text`. Cost: O(bytes).
pub fn push_text(tokens: &mut Vec<u32>, text: &str) {
    tokens.reserve(text.len() / PIECE_BYTES + 1);
    let mut start = 0;
    while start < text.len() {
        let mut end = text.len().min(start + PIECE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut id = [0; PIECE_BYTES];
        id[..end - start].copy_from_slice(&text.as_bytes()[start..end]);
        tokens.push(u32::from_le_bytes(id));
        start = end;
    }
}

/// The tokens of `text`.
#[must_use]
pub fn text_tokens(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    push_text(&mut tokens, text);
    tokens
}

/// The text of `token`, if it is a piece of text and not a marker or an arbitrary id.
#[must_use]
pub fn token_text(token: u32) -> Option<String> {
    let piece = token.to_le_bytes();
    let length = piece.iter().position(|&byte| byte == 0).unwrap_or(PIECE_BYTES);
    std::str::from_utf8(&piece[..length]).ok().map(str::to_owned)
}

/// Which stand-in a worker has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Tokenizer {
    /// One token per 4 bytes, about as many as real vocabularies need.
    #[default]
    Pieces,
    /// One token per byte, by a vocabulary that can be written down: see [`byte_tokens`].
    Bytes,
}

impl Tokenizer {
    /// Appends the tokens of `text`. Cost: O(bytes).
    pub fn push_text(self, tokens: &mut Vec<u32>, text: &str) {
        match self {
            Self::Pieces => push_text(tokens, text),
            Self::Bytes => tokens.extend(text.bytes().map(u32::from)),
        }
    }

    /// The tokens of `text`.
    #[must_use]
    pub fn text_tokens(self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        self.push_text(&mut tokens, text);
        tokens
    }

    /// The tokens of an answer of `length` tokens to `prompt`, see [`answer_tokens`].
    #[must_use]
    pub fn answer_tokens(self, prompt: &[u32], choice: u32, length: u32) -> Vec<u32> {
        match self {
            Self::Pieces => answer_tokens(prompt, choice, length),
            Self::Bytes => byte_tokens::answer_tokens(prompt, choice, length),
        }
    }

    /// Start of a message, of its content, its end, and the stand-in of an item.
    fn markers(self) -> [u32; 4] {
        match self {
            Self::Pieces => [MESSAGE, CONTENT, END, ITEM],
            Self::Bytes => [byte_tokens::MESSAGE, byte_tokens::CONTENT, byte_tokens::END, byte_tokens::ITEM],
        }
    }
}

/// Renders a chat message by message, so that equal leading messages are equal leading tokens.
#[derive(Debug, Default)]
pub struct ChatTokens {
    tokens: Vec<u32>,
    tokenizer: Tokenizer,
}

impl ChatTokens {
    /// An empty chat.
    #[must_use]
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self { tokens: Vec::new(), tokenizer }
    }

    /// Opens a message of `role`; its content is what is pushed until [`ChatTokens::end`].
    pub fn begin(&mut self, role: &str) {
        let [message, content, ..] = self.tokenizer.markers();
        self.tokens.push(message);
        self.tokenizer.push_text(&mut self.tokens, role);
        self.tokens.push(content);
    }

    /// Appends text to the open message. Text pushed in several calls is cut separately; join it first where it is
    /// one text to the user.
    pub fn text(&mut self, text: &str) {
        self.tokenizer.push_text(&mut self.tokens, text);
    }

    /// Appends a content part that is not text (an image, say) by the hash of its description.
    pub fn item(&mut self, description: &[u8]) {
        let hash = xxh3_64_with_seed(description, 0);
        let [.., item] = self.tokenizer.markers();
        self.tokens.push(item);
        match self.tokenizer {
            Tokenizer::Pieces => self.tokens.extend([hash as u32, (hash >> 32) as u32]),
            Tokenizer::Bytes => self.tokens.extend(hash.to_le_bytes().map(u32::from)),
        }
    }

    /// Appends a tool call by its function's name.
    pub fn call(&mut self, name: &str) {
        let [.., item] = self.tokenizer.markers();
        self.tokens.push(item);
        self.text(name);
    }

    /// Closes the open message.
    pub fn end(&mut self) {
        let [_, _, end, _] = self.tokenizer.markers();
        self.tokens.push(end);
    }

    /// The prompt: all messages, then the opening of the assistant's answer.
    #[must_use]
    pub fn into_prompt(mut self) -> Vec<u32> {
        self.begin("assistant");
        self.tokens
    }
}

/// Words of an answer. Three letters and a space (or the final full stop) are one piece.
const WORDS: [&str; 32] = [
    "ant", "ash", "bay", "bee", "cat", "cod", "cow", "dew", "elk", "elm", "fig", "fir", "fox", "gem", "hay",
    "hen", "ice", "ink", "ivy", "jay", "kit", "log", "map", "nut", "oak", "owl", "pea", "rye", "sea", "sky",
    "tea", "yew",
];

/// The tokens of an answer of `length` tokens to `prompt`: words with spaces between, a full stop at the end.
///
/// Deterministic in all arguments; `choice` tells several answers to one prompt apart.
#[must_use]
pub fn answer_tokens(prompt: &[u32], choice: u32, length: u32) -> Vec<u32> {
    let mut state = xxh3_64_with_seed(bytemuck::cast_slice(prompt), u64::from(choice));
    (1..=length)
        .map(|position| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let word = WORDS[(state >> 59) as usize].as_bytes();
            let separator = if position == length { b'.' } else { b' ' };
            u32::from_le_bytes([word[0], word[1], word[2], separator])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_four_bytes_and_end_on_characters() {
        let pieces: Vec<String> =
            text_tokens("abcdefg日本é").into_iter().map(|token| token_text(token).unwrap()).collect();
        assert_eq!(pieces, ["abcd", "efg", "日", "本", "é"]);
    }

    #[test]
    fn a_longer_text_keeps_all_but_the_last_token() {
        let long = text_tokens("The quick brown fox, 速い狐, jumps.");
        for end in [5, 9, 14, 20] {
            let short = text_tokens(&"The quick brown fox, 速い狐, jumps."[..end]);
            assert_eq!(short[..short.len() - 1], long[..short.len() - 1], "cut at byte {end}");
        }
    }

    #[test]
    fn an_answer_sent_back_has_the_tokens_that_were_generated() {
        let prompt = text_tokens("hello");
        let answer = answer_tokens(&prompt, 0, 33);
        let text: String = answer.iter().map(|&token| token_text(token).unwrap()).collect();
        assert_eq!(answer.len(), 33);
        assert!(text.ends_with('.') && !text.contains("  "));
        assert_eq!(text_tokens(&text), answer);
        assert_ne!(answer_tokens(&prompt, 1, 33), answer);
    }

    #[test]
    fn the_answer_and_the_next_message_extend_the_prompt() {
        let mut chat = ChatTokens::default();
        chat.begin("user");
        chat.text("hi");
        chat.end();
        let first = chat.into_prompt();
        let answer = answer_tokens(&first, 0, 5);

        let mut chat = ChatTokens::default();
        chat.begin("user");
        chat.text("hi");
        chat.end();
        chat.begin("assistant");
        chat.text(&answer.iter().map(|&token| token_text(token).unwrap()).collect::<String>());
        chat.end();
        chat.begin("user");
        chat.text("and then?");
        chat.end();
        let second = chat.into_prompt();

        assert_eq!(second[..first.len() + 5], [first, answer].concat());
    }

    #[test]
    fn markers_are_not_text() {
        for marker in [MESSAGE, CONTENT, END, ITEM] {
            assert_eq!(token_text(marker), None);
        }
    }
}
