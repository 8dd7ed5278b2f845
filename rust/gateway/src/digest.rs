//! Secrets are kept as their SHA-256 and compared in constant time.
//!
//! A plain hash is right for tokens that are random and long (ours have 256 bits): there is no dictionary to try, so a
//! slow, salted hash as for passwords would buy nothing and cost each request.

use std::fmt;

use subtle::ConstantTimeEq;

/// The SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Digest(..)")
    }
}

impl Digest {
    /// Hashes a secret. Cost: a fraction of a microsecond for a token.
    pub(crate) fn of(secret: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, secret);
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Whether it is `secret`'s. Takes the same time wherever the two differ.
    pub(crate) fn is_of(&self, secret: &[u8]) -> bool {
        self.equals(&Self::of(secret))
    }

    /// Whether two are equal. Takes the same time wherever they differ.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Part of it, to find it among many.
    pub(crate) fn start(&self) -> u64 {
        let (start, _) = self.0.split_first_chunk().expect("32 bytes have a start of 8");
        u64::from_le_bytes(*start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_sha256() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(Digest::from_hex(known).unwrap().is_of(b"abc"));
        assert!(!Digest::from_hex(known).unwrap().is_of(b"abd"));
        assert_eq!(Digest::from_hex(&known.to_uppercase()), Digest::from_hex(known));
        for odd in ["", "ba78", &known[1..], &known.replace('b', "g"), &"+1".repeat(32), &"\u{e4}".repeat(32)]
        {
            assert_eq!(Digest::from_hex(odd), None, "{odd}");
        }
        assert_eq!(format!("{:?}", Digest::of(b"abc")), "Digest(..)");
    }
}
