//! What the hash of a block is trusted with: it spreads whatever prompts consist of, and no seed is a bad one.

use std::collections::HashMap;

use trunkline_core::BlockHasher;

/// splitmix64: the source of all test data here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.flatten().take(len).collect()
    }
}

const SEEDS: [u64; 5] = [0, 1, 7, u64::MAX, 0x0123_4567_89ab_cdef];

/// Blocks as prompts have them: 16 token ids of a skewed vocabulary, or 64 bytes of words.
fn real_looking(number: u64) -> [u8; 64] {
    let mut random = Random(number);
    let mut block = [0; 64];
    if number.is_multiple_of(2) {
        for token in block.chunks_exact_mut(4) {
            // Low ids are frequent in a vocabulary sorted by frequency.
            let id = (random.next() % 128_000) >> (random.next() % 12);
            token.copy_from_slice(&(id as u32).to_le_bytes());
        }
    } else {
        let text: Vec<u8> = std::iter::repeat_with(|| WORDS[random.next() as usize % WORDS.len()])
            .flat_map(|word| word.bytes().chain([b' ']))
            .take(64)
            .collect();
        block.copy_from_slice(&text);
    }
    block
}

const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "are", "as", "with", "they",
    "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "word", "but", "what", "some", "we",
    "answer",
];

/// Panics if two different blocks have one hash.
fn assert_no_collision(name: &str, seed: u64, blocks: impl Iterator<Item = [u8; 64]>) {
    let hasher = BlockHasher::new(seed);
    let mut hashed: Vec<(u64, [u8; 64])> = blocks.map(|block| (hasher.hash(&block), block)).collect();
    hashed.sort_unstable();
    for pair in hashed.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].1 == pair[1].1, "{name}, seed {seed}: {pair:?}");
    }
}

#[test]
fn a_million_real_looking_blocks_do_not_collide() {
    assert_no_collision("real-looking", 7, (0..1_000_000).map(real_looking));
}

#[test]
#[ignore = "10^7 blocks need 0.7 GB of memory and a minute without optimisation"]
fn ten_million_real_looking_blocks_do_not_collide() {
    assert_no_collision("real-looking", 7, (0..10_000_000).map(real_looking));
}

#[test]
fn structured_blocks_do_not_collide() {
    for seed in SEEDS {
        let mut blocks: Vec<[u8; 64]> = vec![[0; 64]];
        // Counters in each word and in each token, alone and repeated in all of them.
        for count in 1..3_000u64 {
            for word in 0..8 {
                let mut block = [0; 64];
                block[8 * word..][..8].copy_from_slice(&count.to_le_bytes());
                blocks.push(block);
                block[8 * word..][..8].copy_from_slice(&count.reverse_bits().to_le_bytes());
                blocks.push(block);
            }
            blocks.push(count.to_le_bytes().repeat(8).try_into().expect("64 bytes"));
        }
        // One and two bits on a plain ground.
        for ground in [0u8, 0xFF, b' '] {
            for (one, two) in (0..512usize).flat_map(|one| (one..512).step_by(7).map(move |two| (one, two))) {
                let mut block = [ground; 64];
                block[one / 8] ^= 1 << (one % 8);
                block[two / 8] ^= 1 << (two % 8);
                blocks.push(block);
            }
        }
        // The words of a few blocks in every order that swaps two of them.
        let mut random = Random(seed);
        for _ in 0..300 {
            let words: [[u8; 8]; 8] = std::array::from_fn(|_| (random.next() % 1000).to_le_bytes());
            for (a, b) in (0..8).flat_map(|a| (a..8).map(move |b| (a, b))) {
                let mut swapped = words;
                swapped.swap(a, b);
                blocks.push(swapped.concat().try_into().expect("64 bytes"));
            }
        }
        assert_no_collision("structured", seed, blocks.into_iter());
    }
}

/// Each bit of the input flips each bit of the hash half of the time.
#[test]
fn every_bit_flips_every_bit_half_of_the_time() {
    const SAMPLES: usize = 2048;
    // Of 512 * 64 fair coins thrown 2,048 times (standard deviation 0.011) none is 5.5 deviations off.
    const TOLERANCE: f64 = 0.061;
    for (seed, ground) in [(0, "random"), (7, "text"), (u64::MAX, "tokens")] {
        let hasher = BlockHasher::new(seed);
        let mut random = Random(seed ^ 99);
        let mut flips = vec![[0u32; 64]; 512];
        for sample in 0..SAMPLES as u64 {
            let mut block: [u8; 64] = match ground {
                "random" => random.bytes(64).try_into().expect("64 bytes"),
                "text" => real_looking(2 * sample + 1),
                _ => real_looking(2 * sample),
            };
            let hash = hasher.hash(&block);
            for (bit, flips) in flips.iter_mut().enumerate() {
                block[bit / 8] ^= 1 << (bit % 8);
                let changed = hash ^ hasher.hash(&block);
                block[bit / 8] ^= 1 << (bit % 8);
                for (at, count) in flips.iter_mut().enumerate() {
                    *count += (changed >> at & 1) as u32;
                }
            }
        }
        for (bit, flips) in flips.iter().enumerate() {
            for (at, &count) in flips.iter().enumerate() {
                let share = f64::from(count) / SAMPLES as f64;
                assert!(
                    (share - 0.5).abs() <= TOLERANCE,
                    "{ground}, seed {seed}: bit {bit} flips bit {at}: {share}"
                );
            }
        }
    }
}

/// What one part of a block changes, another part must not take back, least of all when both change alike.
#[test]
fn changes_of_two_lanes_do_not_cancel_each_other() {
    const LANE: usize = 16;
    for seed in SEEDS {
        let hasher = BlockHasher::new(seed);
        // Not the seed itself: the keys come from the same generator.
        let mut random = Random(seed ^ 99);
        for _ in 0..200 {
            let ground: [u8; 64] = random.bytes(64).try_into().expect("64 bytes");
            let mut seen = HashMap::from([(hasher.hash(&ground), ground)]);
            let change = (random.next() % 255 + 1) as u8;
            for (a, b) in (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b))) {
                for (at, other) in (0..LANE).flat_map(|at| (0..LANE).map(move |other| (at, other))) {
                    let mut block = ground;
                    block[a * LANE + at] ^= change;
                    block[b * LANE + other] ^= change;
                    let twin = seen.insert(hasher.hash(&block), block);
                    assert_eq!(twin, None, "seed {seed}: {block:?}");
                }
            }
        }
    }
}

/// Shares of `buckets` by some bits of the hash of structured blocks: the chi-square statistic, per degree of freedom.
fn unevenness(seed: u64, buckets: usize, bucket: impl Fn(u64) -> usize) -> f64 {
    const BLOCKS: usize = 200_000;
    let hasher = BlockHasher::new(seed);
    let mut counts = vec![0f64; buckets];
    for number in 0..BLOCKS as u64 {
        let mut block = [b' '; 64];
        block[56..].copy_from_slice(&number.to_le_bytes());
        counts[bucket(hasher.hash(&block))] += 1.0;
    }
    let mean = BLOCKS as f64 / buckets as f64;
    counts.iter().map(|count| (count - mean).powi(2) / mean).sum::<f64>() / (buckets - 1) as f64
}

#[test]
fn low_high_and_middle_bits_fill_tables_evenly() {
    for seed in SEEDS {
        for (name, shift) in [("low", 0), ("middle", 26), ("high", 52)] {
            let found = unevenness(seed, 4096, |hash| (hash >> shift) as usize & 4095);
            // 4,095 degrees of freedom: standard deviation 0.022.
            assert!((0.87..1.13).contains(&found), "{name} bits, seed {seed}: {found}");
        }
    }
}

#[test]
fn seeds_are_independent() {
    let (mut equal_bits, mut pairs) = (0u64, 0u64);
    for seed in 0..64u64 {
        let (one, two) = (BlockHasher::new(seed), BlockHasher::new(seed + 1));
        for number in 0..200 {
            let block = real_looking(number);
            equal_bits += u64::from((one.hash(&block) ^ two.hash(&block)).count_zeros());
            pairs += 1;
        }
    }
    let share = equal_bits as f64 / (64 * pairs) as f64;
    assert!((share - 0.5).abs() < 0.003, "{share}");
}

#[test]
fn length_is_part_of_the_content() {
    let hasher = BlockHasher::new(7);
    let mut hashes: Vec<u64> = (0..=1024).map(|len| hasher.hash(&vec![0; len])).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 1025);
}
