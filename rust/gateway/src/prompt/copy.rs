//! Copies string text up to what needs a closer look. Prompts have an escape (a line's end, a quote) every few dozen bytes,
//! where a search followed by a copy costs more for its two calls than for its bytes; on x86-64 one loop does both.

use memchr::memchr2;

/// Appends to `out` what stands in `from` before the next quote or backslash. Returns how much that is; `None` if there is
/// neither, with `out` in any state.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_plain(from: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    copy_found(from, out)
}

/// Appends to `out` what stands in `from` before the next quote or backslash. Returns how much that is; `None` if there is
/// neither, with `out` in any state.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_plain(from: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    const BLOCK: usize = 32;
    let mut done = 0;
    while let Some(block) = from[done..].first_chunk::<BLOCK>() {
        out.extend_from_slice(block);
        // SAFETY: SSE2 is part of x86-64.
        let marks = unsafe { marks(block) };
        if marks != 0 {
            let plain = marks.trailing_zeros() as usize;
            out.truncate(out.len() - (BLOCK - plain));
            return Some(done + plain);
        }
        done += BLOCK;
    }
    Some(done + copy_found(&from[done..], out)?)
}

/// One bit for each byte that is a quote or a backslash.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn marks(block: &[u8; 32]) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8};
    let (quote, backslash) = (_mm_set1_epi8(b'"' as i8), _mm_set1_epi8(b'\\' as i8));
    let half = |at: usize| {
        let word = |at: usize| i64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
        let bytes = _mm_set_epi64x(word(at + 8), word(at));
        _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash))) as u32
    };
    half(0) | half(16) << 16
}

fn copy_found(from: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let end = memchr2(b'"', b'\\', from)?;
    out.extend_from_slice(&from[..end]);
    Some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn copies_what_a_plain_search_finds(from in proptest::collection::vec(prop_oneof![20 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\')], 0..200)) {
            let mut out = b"before".to_vec();
            let found = copy_plain(&from, &mut out);
            let wanted = from.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            prop_assert_eq!(found, wanted);
            if let Some(end) = wanted {
                prop_assert_eq!(&out, &[b"before", &from[..end]].concat());
            }
        }
    }
}
