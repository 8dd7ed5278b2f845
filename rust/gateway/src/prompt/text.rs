//! Text of a conversation: messages, their content, the parts of a content.
//!
//! A message is laid out as role, unit separator, text, record separator, whatever the order of its keys. Parts of a
//! content are joined without a separator, so that a string and a list of one text part are the same prompt. A part
//! that is no text (an image, a sound) stands in the stream as a hash of its bytes: another image is another prompt
//! from there on.

use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use crate::json::{Malformed, Piece, Scanner};

/// Between a role and the text of its message.
pub(super) const UNIT_SEPARATOR: &[u8] = b"\x1f";
/// After each message.
pub(super) const RECORD_SEPARATOR: &[u8] = b"\x1e";
/// Before the hash that stands for a part that is no text.
const GROUP_SEPARATOR: u8 = 0x1d;
/// Contents within contents that are looked into (Anthropic's tool results have one).
const MAX_DEPTH: u32 = 8;

type Result<T> = std::result::Result<T, Malformed>;

/// Pieces of a text in order; a few do not allocate.
pub(super) type Pieces<'a> = SmallVec<[Piece<'a>; 8]>;

/// Where found text goes: pieces in order, and the arena for what had to be decoded.
pub(super) struct TextSink<'s, 'a> {
    pub(super) arena: &'s mut Vec<u8>,
    pub(super) pieces: &'s mut Pieces<'a>,
}

impl<'a> TextSink<'_, 'a> {
    fn push(&mut self, piece: Piece<'a>) {
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// One string; anything else is skipped.
    pub(super) fn text(&mut self, scanner: &mut Scanner<'a>) -> Result<()> {
        if scanner.peek()? == b'"' {
            let piece = scanner.string(self.arena)?;
            self.push(piece);
            return Ok(());
        }
        scanner.skip().map(drop)
    }

    /// The content of a message: a string, or a list of parts.
    pub(super) fn content(&mut self, scanner: &mut Scanner<'a>, depth: u32) -> Result<()> {
        if scanner.peek()? == b'[' && depth < MAX_DEPTH {
            return scanner.array(|scanner| self.part(scanner, depth));
        }
        self.text(scanner)
    }

    /// One part of a content: a string, `{"type": "text", "text": ...}`, a nested `content`, or something that is no
    /// text.
    fn part(&mut self, scanner: &mut Scanner<'a>, depth: u32) -> Result<()> {
        if scanner.peek()? != b'{' {
            return self.text(scanner);
        }
        let start = self.pieces.len();
        let mut has_text = false;
        let mut others: Option<Xxh3> = None;
        scanner.object(|scanner, key| {
            match key {
                b"text" | b"content" => {
                    self.pieces.truncate(start);
                    has_text = true;
                    self.content(scanner, depth + 1)?;
                }
                b"type" | b"cache_control" => {
                    scanner.skip()?;
                }
                _ => others.get_or_insert_default().update(scanner.skip()?),
            }
            Ok(())
        })?;
        if let (false, Some(others)) = (has_text, others) {
            let at = self.arena.len();
            self.arena.push(GROUP_SEPARATOR);
            self.arena.extend_from_slice(&others.digest().to_le_bytes());
            self.push(Piece::Decoded(at, self.arena.len()));
        }
        Ok(())
    }

    /// A list of messages, or the first of several conversations; anything else is skipped.
    pub(super) fn messages(&mut self, scanner: &mut Scanner<'a>) -> Result<()> {
        if scanner.peek()? != b'[' {
            return scanner.skip().map(drop);
        }
        if scanner.first_item()? == b'[' {
            return scanner.first_of_array(|scanner| scanner.array(|scanner| self.message(scanner)));
        }
        scanner.array(|scanner| self.message(scanner))
    }

    /// One message, or one item of a Responses conversation.
    pub(super) fn message(&mut self, scanner: &mut Scanner<'a>) -> Result<()> {
        if scanner.peek()? != b'{' {
            return self.text(scanner);
        }
        let (mut role, mut content, mut calls) = (None, Pieces::new(), None);
        // These two are of function items, which have no content.
        let (mut output, mut arguments) = (Pieces::new(), Pieces::new());
        scanner.object(|scanner, key| {
            let pieces = match key {
                b"role" => {
                    role = match scanner.peek()? {
                        b'"' => Some(scanner.string(self.arena)?),
                        _ => scanner.skip().map(|_| None)?,
                    };
                    return Ok(());
                }
                b"tool_calls" => {
                    calls = Some(scanner.skip()?);
                    return Ok(());
                }
                b"content" => &mut content,
                b"output" => &mut output,
                b"arguments" => &mut arguments,
                _ => return scanner.skip().map(drop),
            };
            pieces.clear();
            TextSink { arena: self.arena, pieces }.content(scanner, 0)
        })?;
        if let Some(role) = role {
            self.push(role);
        }
        self.push(Piece::Plain(UNIT_SEPARATOR));
        for mut pieces in [content, output, arguments] {
            self.pieces.append(&mut pieces);
        }
        if let Some(calls) = calls.filter(|calls| !matches!(*calls, b"null" | b"[]")) {
            self.push(Piece::Plain(calls));
        }
        self.push(Piece::Plain(RECORD_SEPARATOR));
        Ok(())
    }

    /// Text that an engine puts before a conversation, as the system's message.
    pub(super) fn lead(&mut self, scanner: &mut Scanner<'a>) -> Result<()> {
        self.push(Piece::Plain(b"system"));
        self.push(Piece::Plain(UNIT_SEPARATOR));
        let before = self.pieces.len();
        self.content(scanner, 0)?;
        if self.pieces.len() == before {
            self.pieces.clear();
        } else {
            self.push(Piece::Plain(RECORD_SEPARATOR));
        }
        Ok(())
    }
}
