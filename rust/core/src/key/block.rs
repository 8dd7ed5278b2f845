//! The hash of a block: keyed AES rounds, the same on every CPU.
//!
//! A block is cut in stripes of 64 bytes (the last one filled with zeros), a stripe in four lanes. Each lane goes through two
//! rounds of AES, whitened with a key of its own; the lanes are added up and go through two more. So every bit of a block
//! passes four rounds, and what cancels a change of one lane in another depends on keys that only the seed gives: two rounds
//! have at least five active S-boxes. One instruction is a round on x86-64 and two are on AArch64; elsewhere tables do the
//! same, about twenty times slower. `tests/hash_quality.rs` says what the hash must be good for.
//!
//! Measured against folded 64-bit multiplies and XXH3: half and a quarter of their time on blocks of 64 bytes.

use super::BlockHash;

/// Bytes of a stripe.
const STRIPE: usize = 64;
/// Bytes of a lane, and of a key.
const LANE: usize = 16;
const LANES: usize = STRIPE / LANE;

/// Hashes the content of blocks with one seed.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    seed: u64,
    keys: Keys,
    rounds: Rounds,
}

/// What a seed gives.
#[derive(Debug, Clone, Copy)]
struct Keys {
    /// Whitening of each lane.
    lanes: [[u8; LANE]; LANES],
    /// Round keys of the lanes.
    inner: [[u8; LANE]; 2],
    /// Round keys of their sum.
    outer: [[u8; LANE]; 2],
    /// Where the sum begins, the length apart.
    start: [u8; LANE],
}

/// Who computes the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounds {
    /// The CPU; made only by [`Rounds::best`], which has seen that it can.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Cpu,
    Tables,
}

impl Rounds {
    /// Those of this CPU; with `--cfg portable` those of a CPU that has no AES (`make test-portable`).
    fn best() -> Self {
        if cfg!(portable) {
            return Self::Tables;
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("sse2") {
            return Self::Cpu;
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("aes") {
            return Self::Cpu;
        }
        Self::Tables
    }
}

impl BlockHasher {
    /// The hasher of a seed: equal seeds give equal hashes, in every process, on every CPU, and in every version that keeps the
    /// golden vectors.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut word = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let mut key = || bytemuck::must_cast([word().to_le_bytes(), word().to_le_bytes()]);
        let keys = Keys {
            lanes: std::array::from_fn(|_| key()),
            inner: std::array::from_fn(|_| key()),
            outer: std::array::from_fn(|_| key()),
            start: key(),
        };
        Self { seed, keys, rounds: Rounds::best() }
    }

    /// The hasher of a seed that uses no instruction for AES: what CPUs without it compute. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn portable(seed: u64) -> Self {
        Self { rounds: Rounds::Tables, ..Self::new(seed) }
    }

    /// The seed.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Hash of one block of any length. Cost: about 2 ns per 64 bytes where the CPU knows AES.
    #[must_use]
    pub fn hash(&self, block: &[u8]) -> u64 {
        let mut hash = [BlockHash(0)];
        self.hash_each(block, block.len(), &mut hash);
        hash[0].0
    }

    /// Hashes of several blocks of any lengths, into the front of `hashes`. Cost: less than as many calls, as the CPU works on
    /// several blocks at a time.
    #[inline]
    pub(crate) fn hash_all(&self, blocks: &[&[u8]], hashes: &mut [u64]) {
        match self.rounds {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: `Rounds::Cpu` is only made where the CPU was seen to have the features that `cpu::hash_all` needs.
            #[allow(unsafe_code)]
            Rounds::Cpu => unsafe { cpu::hash_all(&self.keys, blocks, hashes) },
            Rounds::Tables => hash_all::<tables::Lane>(&self.keys, blocks, hashes),
        }
    }

    /// Hashes of the blocks of `block_bytes` each that `bytes` begins with, as many as `out` has room for.
    #[inline]
    pub(crate) fn hash_each(&self, bytes: &[u8], block_bytes: usize, out: &mut [BlockHash]) {
        match self.rounds {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: `Rounds::Cpu` is only made where the CPU was seen to have the features that `cpu::hash_each` needs.
            #[allow(unsafe_code)]
            Rounds::Cpu => unsafe { cpu::hash_each(&self.keys, bytes, block_bytes, out) },
            Rounds::Tables => hash_each::<tables::Lane>(&self.keys, bytes, block_bytes, out),
        }
    }
}

/// 16 bytes on which AES rounds work.
trait Lane: Copy {
    fn load(bytes: &[u8; LANE]) -> Self;
    fn xor(self, other: Self) -> Self;
    /// One round: SubBytes, ShiftRows, MixColumns, then the key is added.
    fn round(self, key: Self) -> Self;
    /// The first eight bytes, little-endian.
    fn low(self) -> u64;
}

/// The keys as whatever computes the rounds holds them.
struct Schedule<L> {
    lanes: [L; LANES],
    inner: [L; 2],
    outer: [L; 2],
}

/// The definition of the hash. All of it is inlined where the CPU's features are known.
impl<L: Lane> Schedule<L> {
    #[inline(always)]
    fn new(keys: &Keys) -> Self {
        let [a, b, c, d] = &keys.lanes;
        Self {
            lanes: [L::load(a), L::load(b), L::load(c), L::load(d)],
            inner: [L::load(&keys.inner[0]), L::load(&keys.inner[1])],
            outer: [L::load(&keys.outer[0]), L::load(&keys.outer[1])],
        }
    }

    #[inline(always)]
    fn lane(&self, at: usize, bytes: &[u8; LANE]) -> L {
        L::load(bytes).xor(self.lanes[at]).round(self.inner[0]).round(self.inner[1])
    }

    #[inline(always)]
    fn absorb(&self, state: L, stripe: &[u8; STRIPE]) -> L {
        let [a, b, c, d] = bytemuck::must_cast_ref::<_, [[u8; LANE]; LANES]>(stripe);
        let sum = self.lane(0, a).xor(self.lane(1, b)).xor(self.lane(2, c).xor(self.lane(3, d)));
        state.xor(sum).round(self.outer[0]).round(self.outer[1])
    }

    /// The state behind all of a block.
    #[inline(always)]
    fn hash(&self, start: L, block: &[u8]) -> L {
        let (whole, rest) = block.as_chunks();
        let mut state = start;
        for stripe in whole {
            state = self.absorb(state, stripe);
        }
        if rest.is_empty() { state } else { self.absorb(state, &filled(rest)) }
    }
}

/// The last stripe of a block, filled with zeros. Lengths are any: copying so few bytes costs more than to read them twice.
#[inline(always)]
fn filled(rest: &[u8]) -> [u8; STRIPE] {
    let mut stripe = [[0; LANE]; LANES];
    let (lanes, tail) = rest.as_chunks::<LANE>();
    for (into, lane) in stripe.iter_mut().zip(lanes) {
        *into = *lane;
    }
    if let Some(into) = stripe.get_mut(lanes.len()) {
        *into = filled_lane(tail).to_le_bytes();
    }
    bytemuck::must_cast(stripe)
}

/// Up to 15 bytes as a little-endian number.
#[inline(always)]
fn filled_lane(bytes: &[u8]) -> u128 {
    let len = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let last = u128::from(u64::from_le_bytes(*last));
        return u128::from(u64::from_le_bytes(*first)) | last << (8 * (len - 8));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let last = u128::from(u32::from_le_bytes(*last));
        return u128::from(u32::from_le_bytes(*first)) | last << (8 * (len - 4));
    }
    match *bytes {
        [] => 0,
        [first, ..] => {
            let byte = |at: usize| u128::from(bytes[at]) << (8 * at);
            u128::from(first) | byte(len / 2) | byte(len - 1)
        }
    }
}

#[inline(always)]
fn hash_all<L: Lane>(keys: &Keys, blocks: &[&[u8]], hashes: &mut [u64]) {
    let schedule = Schedule::<L>::new(keys);
    for (block, hash) in blocks.iter().zip(hashes) {
        *hash = schedule.hash(start::<L>(keys, block.len()), block).low();
    }
}

/// Where the state of a block of this length begins.
#[inline(always)]
fn start<L: Lane>(keys: &Keys, block_bytes: usize) -> L {
    let length = [(block_bytes as u64).to_le_bytes(), [0; 8]];
    L::load(&keys.start).xor(L::load(&bytemuck::must_cast(length)))
}

#[inline(always)]
fn hash_each<L: Lane>(keys: &Keys, bytes: &[u8], block_bytes: usize, out: &mut [BlockHash]) {
    let schedule = Schedule::<L>::new(keys);
    let start = start(keys, block_bytes);
    if block_bytes == STRIPE {
        for (stripe, hash) in bytes.as_chunks().0.iter().zip(out) {
            *hash = BlockHash(schedule.absorb(start, stripe).low());
        }
        return;
    }
    for (number, hash) in out.iter_mut().enumerate() {
        let block = &bytes[number * block_bytes..][..block_bytes];
        *hash = BlockHash(schedule.hash(start, block).low());
    }
}

#[cfg(target_arch = "x86_64")]
mod cpu {
    //! The rounds of x86-64: one instruction each.

    use std::arch::x86_64::{__m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_xor_si128};

    use super::{BlockHash, Keys, LANE};

    #[derive(Clone, Copy)]
    struct Lane(__m128i);

    #[allow(unsafe_code)]
    impl super::Lane for Lane {
        #[inline(always)]
        fn load(bytes: &[u8; LANE]) -> Self {
            // SAFETY: any 16 bytes are a vector.
            Self(unsafe { std::ptr::from_ref(bytes).cast::<__m128i>().read_unaligned() })
        }

        #[inline(always)]
        fn xor(self, other: Self) -> Self {
            // SAFETY: every x86-64 CPU has SSE2.
            Self(unsafe { _mm_xor_si128(self.0, other.0) })
        }

        #[inline(always)]
        fn round(self, key: Self) -> Self {
            // SAFETY: this type is used by `hash_each` below alone, whose caller has seen that the CPU has AES.
            Self(unsafe { _mm_aesenc_si128(self.0, key.0) })
        }

        #[inline(always)]
        fn low(self) -> u64 {
            // SAFETY: every x86-64 CPU has SSE2.
            unsafe { _mm_cvtsi128_si64(self.0) }.cast_unsigned()
        }
    }

    #[target_feature(enable = "aes,sse2")]
    pub(super) fn hash_all(keys: &Keys, blocks: &[&[u8]], hashes: &mut [u64]) {
        super::hash_all::<Lane>(keys, blocks, hashes);
    }

    #[target_feature(enable = "aes,sse2")]
    pub(super) fn hash_each(keys: &Keys, bytes: &[u8], block_bytes: usize, out: &mut [BlockHash]) {
        super::hash_each::<Lane>(keys, bytes, block_bytes, out);
    }
}

#[cfg(target_arch = "aarch64")]
mod cpu {
    //! The rounds of AArch64: one instruction for SubBytes and ShiftRows, one for MixColumns. The first one adds its key
    //! before the round, so it gets none.

    use std::arch::aarch64::{
        uint8x16_t, vaeseq_u8, vaesmcq_u8, vdupq_n_u8, veorq_u8, vgetq_lane_u64, vreinterpretq_u64_u8,
    };

    use super::{BlockHash, Keys, LANE};

    #[derive(Clone, Copy)]
    struct Lane(uint8x16_t);

    #[allow(unsafe_code)]
    impl super::Lane for Lane {
        #[inline(always)]
        fn load(bytes: &[u8; LANE]) -> Self {
            // SAFETY: any 16 bytes are a vector.
            Self(unsafe { std::ptr::from_ref(bytes).cast::<uint8x16_t>().read_unaligned() })
        }

        #[inline(always)]
        fn xor(self, other: Self) -> Self {
            // SAFETY: every AArch64 CPU that Rust's targets name has NEON.
            Self(unsafe { veorq_u8(self.0, other.0) })
        }

        #[inline(always)]
        #[expect(
            inline_always_mismatching_target_features,
            reason = "it is inlined where this is: into `hash_all` and `hash_each`, which have them"
        )]
        fn round(self, key: Self) -> Self {
            // SAFETY: this type is used by `hash_each` below alone, whose caller has seen that the CPU has AES.
            Self(unsafe { veorq_u8(vaesmcq_u8(vaeseq_u8(self.0, vdupq_n_u8(0))), key.0) })
        }

        #[inline(always)]
        fn low(self) -> u64 {
            // SAFETY: as for `xor`.
            unsafe { vgetq_lane_u64::<0>(vreinterpretq_u64_u8(self.0)) }
        }
    }

    #[target_feature(enable = "aes,neon")]
    pub(super) fn hash_all(keys: &Keys, blocks: &[&[u8]], hashes: &mut [u64]) {
        super::hash_all::<Lane>(keys, blocks, hashes);
    }

    #[target_feature(enable = "aes,neon")]
    pub(super) fn hash_each(keys: &Keys, bytes: &[u8], block_bytes: usize, out: &mut [BlockHash]) {
        super::hash_each::<Lane>(keys, bytes, block_bytes, out);
    }
}

mod tables {
    //! The rounds of any CPU, by one table of 256 words. Source: FIPS 197, and its S-box from the definition.

    use super::LANE;

    /// The four columns, little-endian.
    #[derive(Clone, Copy)]
    pub(super) struct Lane([u32; 4]);

    impl super::Lane for Lane {
        fn load(bytes: &[u8; LANE]) -> Self {
            let words = bytemuck::must_cast_ref::<_, [[u8; 4]; 4]>(bytes);
            Self(words.map(u32::from_le_bytes))
        }

        fn xor(self, other: Self) -> Self {
            Self(std::array::from_fn(|column| self.0[column] ^ other.0[column]))
        }

        fn round(self, key: Self) -> Self {
            // Row `row` of a column comes from the column `row` further on (ShiftRows).
            let byte = |column: usize, row: usize| (self.0[(column + row) % 4] >> (8 * row)) as usize & 0xFF;
            let mixed = |column| {
                (0..4).fold(0, |sum, row| sum ^ SUB_MIX[byte(column, row)].rotate_left(8 * row as u32))
            };
            Self(std::array::from_fn(mixed)).xor(key)
        }

        fn low(self) -> u64 {
            u64::from(self.0[0]) | u64::from(self.0[1]) << 32
        }
    }

    /// A byte of row 0 after SubBytes, times the first column of MixColumns: 2, 1, 1, 3.
    const SUB_MIX: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let sub = substitute(byte as u8);
            table[byte] = u32::from_le_bytes([double(sub), sub, sub, double(sub) ^ sub]);
            byte += 1;
        }
        table
    };

    const fn double(byte: u8) -> u8 {
        (byte << 1) ^ if byte & 0x80 != 0 { 0x1B } else { 0 }
    }

    const fn multiply(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        product
    }

    /// The S-box: the inverse in GF(2^8), which is the 254th power, and an affine map.
    const fn substitute(byte: u8) -> u8 {
        let (mut inverse, mut power, mut exponent) = (1, byte, 254);
        while exponent != 0 {
            if exponent & 1 != 0 {
                inverse = multiply(inverse, power);
            }
            power = multiply(power, power);
            exponent >>= 1;
        }
        inverse
            ^ inverse.rotate_left(1)
            ^ inverse.rotate_left(2)
            ^ inverse.rotate_left(3)
            ^ inverse.rotate_left(4)
            ^ 0x63
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_round_is_that_of_the_standard() {
        // FIPS 197, appendix B: the input of round 1, its round key, and the input of round 2.
        let bytes = |hex: u128| hex.to_be_bytes();
        let state: tables::Lane = Lane::load(&bytes(0x193d_e3be_a0f4_e22b_9ac6_8d2a_e9f8_4808));
        let key = Lane::load(&bytes(0xa0fa_fe17_8854_2cb1_23a3_3939_2a6c_7605));
        let next: tables::Lane = Lane::load(&bytes(0xa49c_7ff2_689f_352b_6b5b_ea43_026a_5049));
        let found = state.round(key);
        assert_eq!(found.low(), next.low());
        let swapped = |lane: tables::Lane| lane.xor(next).low();
        assert_eq!(swapped(found), 0);
    }

    #[test]
    fn several_blocks_are_hashed_as_one_by_one() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2000).collect();
        let blocks: Vec<&[u8]> = (0..200).map(|len| &bytes[len..2 * len]).collect();
        for hasher in [BlockHasher::new(3), BlockHasher::portable(3)] {
            let mut hashes = vec![0; blocks.len()];
            hasher.hash_all(&blocks, &mut hashes);
            assert!(blocks.iter().zip(hashes).all(|(block, hash)| hash == hasher.hash(block)));
        }
    }

    #[test]
    fn a_stripe_is_filled_with_zeros() {
        let bytes: Vec<u8> = (1..=64).collect();
        for len in 0..STRIPE {
            let mut expected = [0; STRIPE];
            expected[..len].copy_from_slice(&bytes[..len]);
            assert_eq!(filled(&bytes[..len]), expected, "{len}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_hashes_for_ever() {
        // Computed once by a second implementation of the definition, in Python.
        let counting: Vec<u8> = (0..=255).collect();
        for hasher in [BlockHasher::new(7), BlockHasher::portable(7)] {
            let golden = GOLDEN.map(|(len, _)| (len, hasher.hash(&counting[..len])));
            assert_eq!(golden, GOLDEN);
        }
    }

    const GOLDEN: [(usize, u64); 5] = [
        (0, 0xe12e_5d00_6cd3_d6af),
        (20, 0x5565_2a60_6777_85fe),
        (64, 0x448a_bbb6_563a_d50f),
        (100, 0xc463_d8f2_8a05_5dd3),
        (256, 0x9666_f21f_903e_6063),
    ];

    proptest! {
        #[test]
        fn every_cpu_computes_the_same(
            seed in any::<u64>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..1100),
            block_bytes in prop::sample::select(vec![1, 4, 63, 64, 65, 128, 256, 1024]),
        ) {
            let [fast, plain] = [BlockHasher::new(seed), BlockHasher::portable(seed)].map(|hasher| {
                let mut hashes = vec![BlockHash(0); bytes.len() / block_bytes];
                hasher.hash_each(&bytes, block_bytes, &mut hashes);
                let one = |block: &[u8]| BlockHash(hasher.hash(block));
                assert_eq!(hashes, bytes.chunks_exact(block_bytes).map(one).collect::<Vec<_>>());
                hashes
            });
            prop_assert_eq!(fast, plain);
        }
    }
}
