//! Numbers and texts of a snapshot: little-endian, read with a check of every length.

use super::SnapshotFault;
use crate::error::Error;

/// Appends to a snapshot.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);

    fn put_f32(&mut self, value: f32) {
        self.put_u32(value.to_bits());
    }

    fn put_f64(&mut self, value: f64) {
        self.put_u64(value.to_bits());
    }

    /// A number of items, each of at least one byte.
    fn put_count(&mut self, count: usize) {
        self.put_u32(u32::try_from(count).expect("fewer than 2^32 of anything"));
    }

    fn put_option(&mut self, value: Option<u64>) {
        self.put_u8(u8::from(value.is_some()));
        self.put_u64(value.unwrap_or(0));
    }

    fn put_text(&mut self, text: &str) {
        self.put_count(text.len());
        text.bytes().for_each(|byte| self.put_u8(byte));
    }
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

/// Reads a snapshot from its start.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The error that what was just read cannot be.
    pub(crate) fn refuse(&self, what: &'static str) -> Error {
        Error::Snapshot { fault: SnapshotFault::Content { offset: self.at, what } }
    }

    /// Refuses what was just read unless it is `sound`.
    pub(crate) fn require(&self, sound: bool, what: &'static str) -> Result<(), Error> {
        if sound { Ok(()) } else { Err(self.refuse(what)) }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let taken = self.bytes[self.at..].get(..len).ok_or_else(|| self.refuse("ends too early"))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.try_into().expect("as long as asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number that may be counted up for ever.
    pub(crate) fn counter(&mut self) -> Result<u64, Error> {
        let value = self.u64()?;
        self.require(value < 1 << 63, "a counter is out of range")?;
        Ok(value)
    }

    /// A number that is not negative and not infinite.
    pub(crate) fn f32(&mut self) -> Result<f32, Error> {
        let value = f32::from_bits(self.u32()?);
        self.require(value.is_finite() && value >= 0.0, "a number is out of range")?;
        Ok(value)
    }

    /// A number that is not infinite.
    pub(crate) fn f64(&mut self) -> Result<f64, Error> {
        let value = f64::from_bits(self.u64()?);
        self.require(value.is_finite(), "a number is out of range")?;
        Ok(value)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        let value = self.u8()?;
        self.require(value <= 1, "a flag is neither 0 nor 1")?;
        Ok(value == 1)
    }

    pub(crate) fn option(&mut self) -> Result<Option<u64>, Error> {
        let (some, value) = (self.flag()?, self.u64()?);
        Ok(some.then_some(value))
    }

    /// A number of items of at least `item_bytes` each: never more than what is left can hold, so that it may be allocated.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize, Error> {
        let count = self.u32()? as usize;
        self.require(count <= (self.bytes.len() - self.at) / item_bytes, "a count exceeds what follows")?;
        Ok(count)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Error> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.refuse("a name is not UTF-8"))
    }

    /// Refuses bytes that are left over.
    pub(crate) fn end(&self) -> Result<(), Error> {
        self.require(self.at == self.bytes.len(), "something follows the end")
    }
}
