//! Bytes of a connection that are not answered yet. Room grows with what came, never with what a length promises.

use std::io::{self, Read};

use crate::wire::Refused;

/// Least room for a read. Most connections ask little or nothing.
const ROOM: usize = 4 << 10;
/// Room that is given back once all is answered.
const LARGE: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// Whether a frame has begun.
    pub(crate) fn is_partial(&self) -> bool {
        self.start < self.end
    }

    /// Whether `frame` has something to say.
    pub(crate) fn has_frame(&self) -> bool {
        let rest = &self.bytes[self.start..self.end];
        rest.split_first_chunk::<4>().is_some_and(|(length, rest)| {
            let length = u32::from_le_bytes(*length) as usize;
            length == 0 || rest.len() >= length
        })
    }

    /// The next whole frame, without its length.
    pub(crate) fn frame(&mut self, max: usize) -> Result<Option<&[u8]>, Refused> {
        let rest = &self.bytes[self.start..self.end];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > max {
            return Err(Refused::malformed(&format!("a frame of {length} bytes: allowed are 1 to {max}")));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let from = self.start + 4;
        self.start = from + length;
        Ok(Some(&self.bytes[from..from + length]))
    }

    /// Reads once; returns how many bytes came, 0 at the end.
    pub(crate) fn fill(&mut self, mut source: impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == 0 && self.bytes.len() > LARGE {
            self.bytes = Vec::new();
        }
        if self.bytes.len() - self.end < ROOM {
            self.bytes.resize((2 * self.bytes.len()).max(2 * ROOM), 0);
        }
        let count = source.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `step` bytes at a time.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let frames: Vec<Vec<u8>> =
            [1, 5, 70_000, 2].iter().map(|&length| vec![length as u8; length]).collect();
        let mut wire = Vec::new();
        for frame in &frames {
            wire.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            wire.extend_from_slice(frame);
        }
        for step in [1, 3, 4, 5, 8, 9, 4096, 1 << 20] {
            let (mut source, mut buffer, mut seen) = (Drip(&wire, step), Buffer::default(), Vec::new());
            loop {
                while let Some(frame) = buffer.frame(1 << 20).expect("all are allowed") {
                    seen.push(frame.to_vec());
                }
                if buffer.fill(&mut source).expect("it does not fail") == 0 {
                    break;
                }
            }
            assert!(seen == frames, "in steps of {step}");
            assert!(!buffer.is_partial());
        }
    }

    #[test]
    fn a_promised_length_takes_no_memory() {
        let wire = (1u32 << 30).to_le_bytes();
        let mut buffer = Buffer::default();
        buffer.fill(&wire[..]).expect("it does not fail");
        assert!(buffer.frame(2 << 30).expect("allowed").is_none() && buffer.is_partial());
        assert!(buffer.bytes.capacity() <= 2 * ROOM);
        assert!(buffer.frame(1 << 20).is_err());
    }
}
