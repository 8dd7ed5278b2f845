//! Text cut where its content says, so that equal text is cut alike wherever it stands.
//!
//! A boundary is where a rolling hash over the last 64 bytes has certain bits (the "gear" hash of FastCDC). What differs
//! before a piece of shared text moves no boundary in it but the first one or two.
//! Source: Xia et al., FastCDC, USENIX ATC 2016.

use xxhash_rust::xxh3::xxh3_64;

use crate::des::mix;

/// Shortest and longest chunk.
const MIN_BYTES: usize = 24;
const MAX_BYTES: usize = 256;
/// Bits that are 0 at a boundary: every 64 bytes on average.
const BOUNDARY: u64 = 0x3f << 58;

const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = mix(byte as u64 + 1);
        byte += 1;
    }
    table
};

/// A piece of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Of its content.
    pub(super) hash: u64,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Chunk {
    pub(super) fn bytes(&self) -> usize {
        self.end - self.start
    }
}

/// The chunks of a text, end to end. Cost: O(bytes).
pub(super) fn chunks(text: &[u8]) -> Vec<Chunk> {
    let (mut found, mut start, mut gear) = (Vec::new(), 0, 0u64);
    for (at, &byte) in text.iter().enumerate() {
        gear = (gear << 1).wrapping_add(GEAR[byte as usize]);
        let length = at + 1 - start;
        let is_boundary = length >= MIN_BYTES && (gear & BOUNDARY == 0 || length == MAX_BYTES);
        if is_boundary || at + 1 == text.len() {
            let hash = xxh3_64(&text[start..=at]);
            found.push(Chunk { hash, start, end: at + 1 });
            start = at + 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_text_is_cut_alike_behind_different_beginnings() {
        let shared: String = (0..400).map(|number| format!("word{} ", number * 7919 % 1000)).collect();
        let of = |start: &str| {
            let text = format!("{start}{shared}");
            let chunks = chunks(text.as_bytes());
            assert_eq!((chunks[0].start, chunks.last().unwrap().end), (0, text.len()));
            assert!(
                chunks.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].bytes() <= MAX_BYTES)
            );
            chunks
        };
        let (a, b) = (of("at 12:00 "), of("at 12:00:07 o'clock "));
        let common: usize =
            a.iter().filter(|chunk| b.iter().any(|other| other.hash == chunk.hash)).map(Chunk::bytes).sum();
        assert!(common + 3 * MAX_BYTES > shared.len(), "{common} of {}", shared.len());
    }
}
