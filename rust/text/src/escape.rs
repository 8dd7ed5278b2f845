//! Copies the text of JSON strings and decodes its one-letter escapes on the way. A prompt has one (a line's end, a quote) every
//! few dozen bytes, where a search and a copy per run cost more for their calls than for their bytes; on x86-64 one
//! loop does it all.

use memchr::memchr2;

/// What a letter after a backslash stands for; 0 where it stands for nothing or needs more letters.
const ONE_LETTER: [u8; 256] = {
    let mut table = [0; 256];
    let (letters, meanings) = (b"\"\\/nrtbf", b"\"\\/\n\r\t\x08\x0c");
    let mut at = 0;
    while at < letters.len() {
        table[letters[at] as usize] = meanings[at];
        at += 1;
    }
    table
};

/// The byte that a one-letter escape stands for.
pub fn one_letter(letter: u8) -> Option<u8> {
    Some(ONE_LETTER[usize::from(letter)]).filter(|&byte| byte != 0)
}

/// Appends the text at the start of `from` to `out`, up to a quote or a backslash. Returns how much of `from` that
/// took; `None` if there is neither, with `out` in any state. One-letter escapes may be decoded on the way. Makes
/// room for all of `from`, which is a comparison when there is.
pub fn copy_text(from: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    out.reserve(from.len());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64, and there is room for all of `from`.
    let done = unsafe { copy_blocks(from, out) };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    let rest = &from[done..];
    let end = memchr2(b'"', b'\\', rest)?;
    out.extend_from_slice(&rest[..end]);
    Some(done + end)
}

/// Copies and decodes while there are whole blocks and nothing but text and one-letter escapes. Returns how much of
/// `from` that took.
///
/// # Safety
/// `out` must have room for all of `from`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
unsafe fn copy_blocks(from: &[u8], out: &mut Vec<u8>) -> usize {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
        _mm_storeu_si128,
    };
    const HALF: usize = size_of::<__m128i>();
    let (quote, backslash) = (_mm_set1_epi8(b'"' as i8), _mm_set1_epi8(b'\\' as i8));
    let marks = |bytes| {
        let is_mark = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        _mm_movemask_epi8(is_mark) as u32
    };
    let room: *mut u8 = out.spare_capacity_mut().as_mut_ptr().cast();
    // Never more is written than was read, so that there is room for a block as long as there is one to read.
    let (mut read, mut written) = (0, 0);
    while read + 2 * HALF <= from.len() {
        // SAFETY: both halves end within `from`, and `room` has as much behind `written`.
        let (low, high) = unsafe {
            let low = _mm_loadu_si128(from.as_ptr().add(read).cast());
            let high = _mm_loadu_si128(from.as_ptr().add(read + HALF).cast());
            _mm_storeu_si128(room.add(written).cast(), low);
            _mm_storeu_si128(room.add(written + HALF).cast(), high);
            (low, high)
        };
        let marks = marks(low) | marks(high) << HALF;
        if marks == 0 {
            read += 2 * HALF;
            written += 2 * HALF;
            continue;
        }
        let plain = marks.trailing_zeros() as usize;
        read += plain;
        written += plain;
        let decoded = match from[read..] {
            [b'\\', letter, ..] => ONE_LETTER[usize::from(letter)],
            _ => 0,
        };
        if decoded == 0 {
            break;
        }
        // SAFETY: two bytes were read for this one.
        unsafe { room.add(written).write(decoded) };
        read += 2;
        written += 1;
    }
    // SAFETY: so many bytes behind the old length were written.
    unsafe { out.set_len(out.len() + written) };
    read
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `copy_text` must do, whatever of the escapes it decodes: `None`, or the decoded text before the place it
    /// stopped at.
    fn check(from: &[u8]) -> Result<(), TestCaseError> {
        let mut out = b"before".to_vec();
        let Some(end) = copy_text(from, &mut out) else {
            prop_assert!(!from.contains(&b'"') || from.contains(&b'\\'));
            return Ok(());
        };
        prop_assert!(matches!(from[end], b'"' | b'\\'));
        let (mut wanted, mut bytes) = (b"before".to_vec(), from[..end].iter());
        while let Some(&byte) = bytes.next() {
            prop_assert_ne!(byte, b'"');
            wanted.push(if byte == b'\\' { one_letter(*bytes.next().unwrap()).unwrap() } else { byte });
        }
        prop_assert_eq!(out, wanted);
        Ok(())
    }

    proptest! {
        #[test]
        fn copies_and_decodes_what_a_plain_loop_does(
            from in proptest::collection::vec(
                prop_oneof![30 => any::<u8>(), 1 => Just(b'"'), 2 => Just(b'\\'), 2 => Just(b'n'), 1 => Just(b'u')],
                0..200,
            ),
        ) {
            check(&from)?;
        }

        #[test]
        fn finds_its_end_behind_escapes(runs in proptest::collection::vec(0usize..70, 0..8), tail in 0usize..70) {
            let mut from = Vec::new();
            for run in runs {
                from.extend(std::iter::repeat_n(b'x', run));
                from.extend(b"\\n\\\"");
            }
            from.push(b'"');
            from.extend(std::iter::repeat_n(b'y', tail));
            check(&from)?;
        }
    }
}
