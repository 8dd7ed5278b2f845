//! A pull scanner for JSON of which a few values are wanted and the rest is skipped.
//!
//! It checks no more than it needs: what it cannot read is [`Malformed`], but much that a strict parser refuses
//! passes (a control character in a string, a bracket of the wrong kind in a skipped value, bytes that are no UTF-8).
//! That is on purpose: the worker judges the body, we only look for its prompt. Strings are searched with SIMD, which
//! makes this four to eight times as fast as a borrowing `serde_json` visitor on an 8 KB chat request. Skipping does
//! not recurse.

use memchr::memchr2;
use trunkline_text::escape::{copy_text, one_letter};

/// The bytes are not JSON as far as we read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// The bytes of a string.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// As they stand in the document (or static).
    Plain(&'a [u8]),
    /// Decoded, in an arena from `.0` to `.1`.
    Decoded(usize, usize),
}

impl<'a> Piece<'a> {
    /// The bytes, given the arena.
    pub(crate) fn bytes<'s>(&self, arena: &'s [u8]) -> &'s [u8]
    where
        'a: 's,
    {
        match *self {
            Self::Plain(bytes) => bytes,
            Self::Decoded(start, end) => &arena[start..end],
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        match *self {
            Self::Plain(bytes) => bytes.is_empty(),
            Self::Decoded(start, end) => start == end,
        }
    }
}

/// A position in a JSON document.
#[derive(Debug, Clone)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The first byte of the next token.
    pub(crate) fn peek(&mut self) -> Result<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(&byte) => return Ok(byte),
                None => return Err(Malformed),
            }
        }
    }

    fn expect(&mut self, wanted: u8) -> Result<()> {
        if self.peek()? != wanted {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Whether nothing follows.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.peek().is_err()
    }

    /// Reads an object; `field` gets each key and must read or skip the value.
    pub(crate) fn object(&mut self, mut field: impl FnMut(&mut Self, &[u8]) -> Result<()>) -> Result<()> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        let mut decoded = Vec::new();
        loop {
            let key = self.key(&mut decoded)?;
            self.expect(b':')?;
            field(self, key.unwrap_or(&decoded))?;
            if !self.has_next(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads an array; `item` must read or skip each value.
    pub(crate) fn array(&mut self, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            if !self.has_next(b']')? {
                return Ok(());
            }
        }
    }

    /// The first byte of the first item of the array that begins here (`]` if it is empty).
    pub(crate) fn first_item(&self) -> Result<u8> {
        let mut ahead = self.clone();
        ahead.expect(b'[')?;
        ahead.peek()
    }

    /// Reads an array; `item` gets the first value, the others are skipped.
    pub(crate) fn first_of_array(&mut self, item: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut item = Some(item);
        self.array(|scanner| match item.take() {
            Some(item) => item(scanner),
            None => scanner.skip().map(drop),
        })
    }

    /// Consumes a comma (`true`) or the end of the container.
    fn has_next(&mut self, end: u8) -> Result<bool> {
        let next = self.peek()?;
        self.at += 1;
        match next {
            b',' => Ok(true),
            _ if next == end => Ok(false),
            _ => Err(Malformed),
        }
    }

    /// A key as it stands, or `None` if it had to be decoded into `decoded`.
    fn key(&mut self, decoded: &mut Vec<u8>) -> Result<Option<&'a [u8]>> {
        decoded.clear();
        match self.string(decoded)? {
            Piece::Plain(key) => Ok(Some(key)),
            Piece::Decoded(..) => Ok(None),
        }
    }

    /// Reads a string. Where it needs decoding it is appended to `arena`, which gets room for the rest of the
    /// document: decoded text is never longer than its JSON, and room that is not written to costs nothing.
    pub(crate) fn string(&mut self, arena: &mut Vec<u8>) -> Result<Piece<'a>> {
        self.expect(b'"')?;
        let bytes = self.bytes;
        let rest = bytes.get(self.at..).ok_or(Malformed)?;
        let end = memchr2(b'"', b'\\', rest).ok_or(Malformed)?;
        if rest[end] == b'"' {
            self.at += end + 1;
            return Ok(Piece::Plain(&rest[..end]));
        }
        let start = arena.len();
        loop {
            let rest = &bytes[self.at..];
            let end = copy_text(rest, arena).ok_or(Malformed)?;
            self.at += end + 1;
            if rest[end] == b'"' {
                return Ok(Piece::Decoded(start, arena.len()));
            }
            self.escape(arena)?;
        }
    }

    /// Decodes what follows a backslash.
    fn escape(&mut self, arena: &mut Vec<u8>) -> Result<()> {
        let letter = *self.bytes.get(self.at).ok_or(Malformed)?;
        self.at += 1;
        if letter == b'u' {
            return self.unicode_escape(arena);
        }
        arena.push(one_letter(letter).ok_or(Malformed)?);
        Ok(())
    }

    /// Decodes what follows `\u`. A surrogate without its partner stands for no character.
    fn unicode_escape(&mut self, arena: &mut Vec<u8>) -> Result<()> {
        let mut code = u32::from(self.hex4()?);
        if (0xd800..0xdc00).contains(&code) {
            if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
                return Err(Malformed);
            }
            self.at += 2;
            let low = u32::from(self.hex4()?);
            if !(0xdc00..0xe000).contains(&low) {
                return Err(Malformed);
            }
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        let character = char::from_u32(code).ok_or(Malformed)?;
        arena.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn hex4(&mut self) -> Result<u16> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(Malformed)?;
        self.at += 4;
        digits.iter().try_fold(0, |value, &digit| {
            let digit = char::from(digit).to_digit(16).ok_or(Malformed)?;
            Ok(value << 4 | digit as u16)
        })
    }

    /// Reads a whole number of 32 bits; `None` for any other value, which is skipped.
    pub(crate) fn u32(&mut self) -> Result<Option<u32>> {
        if !self.peek()?.is_ascii_digit() {
            self.skip()?;
            return Ok(None);
        }
        let digits = self.skip()?;
        let number = digits.iter().try_fold(0u32, |number, &digit| {
            let digit = char::from(digit).to_digit(10)?;
            number.checked_mul(10)?.checked_add(digit)
        });
        Ok(number)
    }

    /// Skips a value; returns its bytes. Cost: one pass, no recursion.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8]> {
        let bytes = self.bytes;
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => self.skip_string()?,
            b'{' | b'[' => {
                let mut depth = 0usize;
                loop {
                    match bytes.get(self.at).ok_or(Malformed)? {
                        b'"' => {
                            self.skip_string()?;
                            continue;
                        }
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
            }
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                self.at += bytes[start..].iter().take_while(is_part).count();
            }
            _ => return Err(Malformed),
        }
        Ok(&bytes[start..self.at])
    }

    fn skip_string(&mut self) -> Result<()> {
        self.at += 1;
        loop {
            let rest = self.bytes.get(self.at..).ok_or(Malformed)?;
            let end = memchr2(b'"', b'\\', rest).ok_or(Malformed)?;
            if rest[end] == b'"' {
                self.at += end + 1;
                return Ok(());
            }
            // Whatever is escaped is no end.
            self.at += end + 2;
        }
    }
}
