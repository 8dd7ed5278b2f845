//! A cursor over MessagePack that copies nothing and trusts no length.
//!
//! `rmp` names the markers; the bytes are read here, in place, because its readers take one value at a time from a stream.
//! No declared length reserves memory, and skipping a value takes no stack, however deep it is nested.

use rmp::Marker;

use super::Fault;

/// Bytes, and how far they were read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A string or a binary value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blob<'a> {
    Str(&'a [u8]),
    Bin(&'a [u8]),
}

impl<'a> Blob<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Str(bytes) | Self::Bin(bytes) => bytes,
        }
    }
}

/// An array or a map, with its number of values or of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Array(u32),
    Map(u32),
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    fn marker(&mut self) -> Result<Marker, Fault> {
        let [byte] = self.bytes()?;
        Ok(Marker::from_u8(byte))
    }

    /// A length of one, two or four bytes.
    fn length(&mut self, width: u8) -> Result<u32, Fault> {
        Ok(match width {
            1 => u32::from(self.bytes::<1>()?[0]),
            2 => u32::from(u16::from_be_bytes(self.bytes()?)),
            _ => u32::from_be_bytes(self.bytes()?),
        })
    }

    /// Whether the next value is nil, which is then read.
    pub(super) fn nil(&mut self) -> bool {
        match self.rest {
            [0xc0, rest @ ..] => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Whether the next `count` values are nil, which are then read.
    pub(super) fn nils(&mut self, count: u32) -> bool {
        match self.rest.split_at_checked(count as usize) {
            Some((nils, rest)) if nils.iter().all(|&byte| byte == 0xc0) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// An unsigned integer of eight bytes, which most hashes are; nothing is read if the next value is none.
    #[inline]
    pub(super) fn wide(&mut self) -> Option<u64> {
        let (&[0xcf, value @ ..], rest) = self.rest.split_first_chunk::<9>()? else { return None };
        self.rest = rest;
        Some(u64::from_be_bytes(value))
    }

    /// An integer of any width and sign.
    #[inline]
    pub(super) fn integer(&mut self) -> Result<i128, Fault> {
        let before = *self;
        Ok(match self.marker()? {
            Marker::FixPos(value) => value.into(),
            Marker::FixNeg(value) => value.into(),
            Marker::U8 => self.bytes::<1>()?[0].into(),
            Marker::U16 => u16::from_be_bytes(self.bytes()?).into(),
            Marker::U32 => u32::from_be_bytes(self.bytes()?).into(),
            Marker::U64 => u64::from_be_bytes(self.bytes()?).into(),
            Marker::I8 => i8::from_be_bytes(self.bytes()?).into(),
            Marker::I16 => i16::from_be_bytes(self.bytes()?).into(),
            Marker::I32 => i32::from_be_bytes(self.bytes()?).into(),
            Marker::I64 => i64::from_be_bytes(self.bytes()?).into(),
            _ => {
                *self = before;
                return Err(Fault::Type);
            }
        })
    }

    /// A number as a float.
    pub(super) fn float(&mut self) -> Result<f64, Fault> {
        let before = *self;
        match self.marker()? {
            Marker::F64 => Ok(f64::from_be_bytes(self.bytes()?)),
            Marker::F32 => Ok(f32::from_be_bytes(self.bytes()?).into()),
            _ => {
                *self = before;
                self.integer().map(|value| value as f64)
            }
        }
    }

    /// A string or binary value; nothing is read if the next value is neither.
    pub(super) fn blob(&mut self) -> Result<Blob<'a>, Fault> {
        let before = *self;
        let (text, length) = match self.marker()? {
            Marker::FixStr(length) => (true, length.into()),
            Marker::Str8 => (true, self.length(1)?),
            Marker::Str16 => (true, self.length(2)?),
            Marker::Str32 => (true, self.length(4)?),
            Marker::Bin8 => (false, self.length(1)?),
            Marker::Bin16 => (false, self.length(2)?),
            Marker::Bin32 => (false, self.length(4)?),
            _ => {
                *self = before;
                return Err(Fault::Type);
            }
        };
        let bytes = self.take(length as usize)?;
        Ok(if text { Blob::Str(bytes) } else { Blob::Bin(bytes) })
    }

    /// A string, not checked to be UTF-8.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Fault> {
        let before = *self;
        match self.blob()? {
            Blob::Str(bytes) => Ok(bytes),
            Blob::Bin(_) => {
                *self = before;
                Err(Fault::Type)
            }
        }
    }

    /// The head of an array or map; nothing is read if the next value is neither.
    pub(super) fn group(&mut self) -> Result<Group, Fault> {
        let before = *self;
        Ok(match self.marker()? {
            Marker::FixArray(length) => Group::Array(length.into()),
            Marker::Array16 => Group::Array(self.length(2)?),
            Marker::Array32 => Group::Array(self.length(4)?),
            Marker::FixMap(length) => Group::Map(length.into()),
            Marker::Map16 => Group::Map(self.length(2)?),
            Marker::Map32 => Group::Map(self.length(4)?),
            _ => {
                *self = before;
                return Err(Fault::Type);
            }
        })
    }

    /// The head of an array.
    pub(super) fn array(&mut self) -> Result<u32, Fault> {
        let before = *self;
        match self.group()? {
            Group::Array(length) => Ok(length),
            Group::Map(_) => {
                *self = before;
                Err(Fault::Type)
            }
        }
    }

    /// Reads over one value of any kind and returns its bytes.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], Fault> {
        let start = self.rest;
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            let over = match self.marker()? {
                Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => 0,
                Marker::U8 | Marker::I8 => 1,
                Marker::U16 | Marker::I16 => 2,
                Marker::U32 | Marker::I32 | Marker::F32 => 4,
                Marker::U64 | Marker::I64 | Marker::F64 => 8,
                Marker::FixStr(length) => length.into(),
                Marker::Str8 | Marker::Bin8 => self.length(1)?,
                Marker::Str16 | Marker::Bin16 => self.length(2)?,
                Marker::Str32 | Marker::Bin32 => self.length(4)?,
                Marker::FixExt1 => 2,
                Marker::FixExt2 => 3,
                Marker::FixExt4 => 5,
                Marker::FixExt8 => 9,
                Marker::FixExt16 => 17,
                Marker::Ext8 => self.length(1)? + 1,
                Marker::Ext16 => self.length(2)? + 1,
                Marker::Ext32 => self.length(4)?.checked_add(1).ok_or(Fault::Truncated)?,
                Marker::FixArray(length) => {
                    left += u64::from(length);
                    0
                }
                Marker::Array16 => {
                    left += u64::from(self.length(2)?);
                    0
                }
                Marker::Array32 => {
                    left += u64::from(self.length(4)?);
                    0
                }
                Marker::FixMap(length) => {
                    left += 2 * u64::from(length);
                    0
                }
                Marker::Map16 => {
                    left += 2 * u64::from(self.length(2)?);
                    0
                }
                Marker::Map32 => {
                    left += 2 * u64::from(self.length(4)?);
                    0
                }
                Marker::Reserved => return Err(Fault::Type),
            };
            // A value takes a byte at least: what cannot follow ends the loop here and not after 2^32 rounds.
            if left > self.rest.len() as u64 {
                return Err(Fault::Truncated);
            }
            self.take(over as usize)?;
        }
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Appends an array of token ids to `tokens`.
    pub(super) fn tokens(&mut self, tokens: &mut Vec<u32>) -> Result<(), Fault> {
        let count = self.array()? as usize;
        if count > self.rest.len() {
            return Err(Fault::Truncated);
        }
        let start = tokens.len();
        tokens.resize(start + count, 0);
        let out = &mut tokens[start..];
        let mut rest = self.rest;
        let mut at = 0;
        while at < count {
            // Two at a time from one word: what each costs is the wait for where it ends.
            if let Some(&word) = rest.first_chunk::<8>()
                && let word = u64::from_be_bytes(word)
                && let Some((value, mut length)) = short(word)
            {
                out[at] = value;
                at += 1;
                if at < count
                    && let Some((value, more)) = short(word << (8 * length))
                    && length + more <= 8
                {
                    out[at] = value;
                    at += 1;
                    length += more;
                }
                rest = &rest[length as usize..];
                continue;
            }
            let mut slow = Self { rest };
            out[at] = u32::try_from(slow.integer()?).map_err(|_| Fault::Token)?;
            at += 1;
            rest = slow.rest;
        }
        self.rest = rest;
        Ok(())
    }
}

/// The token id at the head of a word and its length in bytes, if it is unsigned and of 0, 1, 2 or 4 bytes behind its marker, as
/// nearly all are. Which of them it is cannot be predicted, so nothing branches on it.
#[inline]
fn short(word: u64) -> Option<(u32, u32)> {
    let marker = (word >> 56) as u32;
    if !matches!(marker, 0..=0x7f | 0xcc..=0xce) {
        return None;
    }
    let long = marker >> 7;
    let width = long << (marker & 3);
    // Without the marker, if there is a value behind it; then as many bytes as that has.
    let value = word << (8 * long) >> (56 + 8 * long - 8 * width);
    Some((value as u32, 1 + width))
}
