//! Hit rates for all cache sizes in one pass: reuse distances of blocks under least-recently-used eviction.
//!
//! Mattson's stack algorithm: a block is a hit in every cache that is larger than the number of other blocks used since its last
//! use. A prompt's blocks are used from its last to its first one, as engines free them, so that prefixes outlive their tails and
//! a hit is always a leading part of a prompt. All blocks of a prompt are looked up before any of them counts as used.
//!
//! Beyond a fixed number of blocks only a sample is followed, which shrinks as the log grows: those whose hashes are below a
//! threshold that falls (SHARDS of fixed size). Counts and distances are scaled by the sampling rate at the time, and what the sample
//! has too few or too many accesses counts as hits at distance 0, which is where hot blocks are ("SHARDS-adj").
//! Sources: Mattson et al., IBM Systems Journal 1970; Waldspurger, Park, Garthwaite and Ahmad, FAST 2015.

use std::collections::BinaryHeap;
use std::ops::Range;

use super::ByName;
use crate::des::mix;

/// Distances below this are counted one by one; each doubling above it in as many parts as half of this.
const EXACT: u64 = 64;
const PARTS_BITS: u32 = 5;

/// Distances of one log. Memory: about 60 bytes for each of `limit` blocks.
#[derive(Debug)]
pub(super) struct ReuseDistances {
    limit: usize,
    /// Blocks with a smaller spread hash are followed.
    threshold: u64,
    /// When each followed block was last used.
    last_use: ByName<u32>,
    /// Followed blocks, largest spread hash first.
    largest: BinaryHeap<(u64, u64)>,
    in_order: InOrder,
    /// Hits by bucket of distance, scaled to all blocks.
    hits: Vec<f64>,
    first_uses: f64,
    accesses: u64,
    /// The distance that was measured last.
    latest: f64,
}

impl ReuseDistances {
    /// Follows at most `limit` blocks.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            threshold: u64::MAX,
            last_use: ByName::default(),
            largest: BinaryHeap::new(),
            in_order: InOrder::new(2 * limit.max(1) + 1),
            hits: Vec::new(),
            first_uses: 0.0,
            accesses: 0,
            latest: 0.0,
        }
    }

    /// The share of blocks that is followed now.
    pub(super) fn rate(&self) -> f64 {
        (self.threshold as f64 + 1.0) / (u64::MAX as f64 + 1.0)
    }

    /// A prompt, as the names of its blocks; `generated` ones were made by the engine right after those before them. Cost: O(log
    /// limit) for each block that is followed.
    pub(super) fn request(&mut self, blocks: &[u64], generated: Range<usize>) {
        self.accesses += blocks.len() as u64;
        let weight = 1.0 / self.rate();
        let is_followed = |block: u64| self.threshold == u64::MAX || mix(block) < self.threshold;
        let followed: Vec<(usize, u64)> =
            blocks.iter().copied().enumerate().filter(|&(_, block)| is_followed(block)).collect();
        for &(at, block) in &followed {
            match self.last_use.get(&block) {
                Some(&used) => {
                    self.latest = self.in_order.after(used) as f64 * weight;
                    self.hit(self.latest, weight);
                }
                // As old as what was used with it, of which the last one looked up is a sample.
                None if generated.contains(&at) => self.hit(self.latest, weight),
                None => self.first_uses += weight,
            }
        }
        for &(_, block) in followed.iter().rev() {
            self.touch(block);
        }
    }

    fn hit(&mut self, distance: f64, weight: f64) {
        let bucket = bucket_of(distance as u64);
        if self.hits.len() <= bucket {
            self.hits.resize(bucket + 1, 0.0);
        }
        self.hits[bucket] += weight;
    }

    fn touch(&mut self, block: u64) {
        if self.in_order.is_full() {
            let mut blocks: Vec<(u32, u64)> = self.last_use.iter().map(|(&block, &at)| (at, block)).collect();
            blocks.sort_unstable();
            self.in_order.restart(blocks.len());
            for (at, (_, block)) in blocks.into_iter().enumerate() {
                self.last_use.insert(block, at as u32);
            }
        }
        let now = self.in_order.push();
        match self.last_use.insert(block, now) {
            Some(before) => self.in_order.remove(before),
            None => self.largest.push((mix(block), block)),
        }
        while self.last_use.len() > self.limit {
            let (spread, block) = self.largest.pop().expect("every followed block is in it");
            self.threshold = spread;
            if let Some(at) = self.last_use.remove(&block) {
                self.in_order.remove(at);
            }
        }
    }

    /// Blocks of all prompts so far.
    pub(super) fn blocks(&self) -> u64 {
        self.accesses
    }

    /// Share of all blocks that an endless cache would have had.
    pub(super) fn endless(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { (1.0 - self.first_uses / self.accesses as f64).clamp(0.0, 1.0) }
    }

    /// Sizes of a cache in blocks, ascending, each with the share of all blocks that it would have had.
    pub(super) fn curve(&self) -> Vec<(u64, f64)> {
        let all = self.accesses.max(1) as f64;
        // What the sample lacks or has too much is taken to be hot.
        let mut sum = all - self.first_uses - self.hits.iter().sum::<f64>();
        (self.hits.iter().enumerate())
            .filter_map(|(bucket, &hits)| {
                sum += hits;
                (hits > 0.0).then(|| (start_of(bucket + 1), (sum / all).clamp(0.0, 1.0)))
            })
            .collect()
    }
}

/// The hit rate of a cache of `blocks` on a curve.
pub(super) fn hit_rate(curve: &[(u64, f64)], blocks: u64) -> f64 {
    let known = curve.partition_point(|&(size, _)| size <= blocks);
    let Some(&(size, rate)) = known.checked_sub(1).map(|at| &curve[at]) else { return 0.0 };
    match curve.get(known) {
        // Within a bucket distances are as good as even.
        Some(&(next, next_rate)) if next > size => {
            let bucket = start_of(bucket_of(next - 1));
            if blocks <= bucket {
                return rate;
            }
            rate + (next_rate - rate) * (blocks - bucket) as f64 / (next - bucket) as f64
        }
        _ => rate,
    }
}

fn bucket_of(distance: u64) -> usize {
    if distance < EXACT {
        return distance as usize;
    }
    let exponent = distance.ilog2();
    let part = (distance >> (exponent - PARTS_BITS)) & ((1 << PARTS_BITS) - 1);
    (EXACT + (u64::from(exponent - EXACT.ilog2()) << PARTS_BITS) + part) as usize
}

/// The smallest distance of a bucket.
fn start_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let (octave, part) = ((bucket - EXACT) >> PARTS_BITS, (bucket - EXACT) & ((1 << PARTS_BITS) - 1));
    let exponent = u64::from(EXACT.ilog2()) + octave;
    (1 << exponent) + (part << (exponent - u64::from(PARTS_BITS)))
}

/// Which moments are still somebody's last use: a Fenwick tree over time.
#[derive(Debug)]
struct InOrder {
    counts: Vec<u32>,
    now: usize,
    left: usize,
}

impl InOrder {
    fn new(moments: usize) -> Self {
        Self { counts: vec![0; moments + 1], now: 0, left: 0 }
    }

    fn is_full(&self) -> bool {
        self.now + 1 == self.counts.len()
    }

    /// Starts again with the first `count` moments taken.
    fn restart(&mut self, count: usize) {
        self.counts.fill(0);
        (self.now, self.left) = (0, 0);
        (0..count).for_each(|_| {
            self.push();
        });
    }

    fn push(&mut self) -> u32 {
        self.add(self.now, 1);
        self.now += 1;
        self.left += 1;
        self.now as u32 - 1
    }

    fn remove(&mut self, at: u32) {
        self.add(at as usize, u32::MAX);
        self.left -= 1;
    }

    /// Taken moments after this one.
    fn after(&self, at: u32) -> u64 {
        let (mut node, mut up_to) = (at as usize + 1, 0u32);
        while node > 0 {
            up_to = up_to.wrapping_add(self.counts[node]);
            node &= node - 1;
        }
        self.left as u64 - u64::from(up_to)
    }

    fn add(&mut self, at: usize, amount: u32) {
        let mut node = at + 1;
        while node < self.counts.len() {
            self.counts[node] = self.counts[node].wrapping_add(amount);
            node += node & node.wrapping_neg();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::des::Rng;

    /// The plain model: a list, newest first.
    #[derive(Default)]
    struct Lru {
        size: usize,
        blocks: Vec<u64>,
        hits: usize,
    }

    impl Lru {
        fn request(&mut self, prompt: &[u64]) {
            self.hits += prompt.iter().take_while(|block| self.blocks.contains(block)).count();
            for &block in prompt.iter().rev() {
                self.blocks.retain(|&other| other != block);
                self.blocks.insert(0, block);
            }
            self.blocks.truncate(self.size);
        }
    }

    /// A prompt of a tree: each block's name says which ones come before it.
    fn prompt(branches: &[u8]) -> Vec<u64> {
        let mut name = 1;
        branches
            .iter()
            .map(|&branch| {
                name = mix(name ^ (u64::from(branch) + 77));
                name
            })
            .collect()
    }

    proptest! {
        #[test]
        fn equals_a_list_for_every_size(
            prompts in proptest::collection::vec(proptest::collection::vec(0u8..3, 1..8), 1..60),
        ) {
            let prompts: Vec<Vec<u64>> = prompts.iter().map(|branches| prompt(branches)).collect();
            let mut distances = ReuseDistances::new(4096);
            prompts.iter().for_each(|prompt| distances.request(prompt, 0..0));
            let all: usize = prompts.iter().map(Vec::len).sum();
            let curve = distances.curve();
            for size in 1..64 {
                let mut lru = Lru { size, ..Lru::default() };
                prompts.iter().for_each(|prompt| lru.request(prompt));
                let expected = lru.hits as f64 / all as f64;
                prop_assert!((hit_rate(&curve, size as u64) - expected).abs() < 1e-9, "size {size}");
            }
        }

        #[test]
        fn buckets_cover_all_distances(distance in 0u64..1 << 40) {
            let bucket = bucket_of(distance);
            prop_assert!((start_of(bucket)..start_of(bucket + 1)).contains(&distance));
        }
    }

    #[test]
    fn an_answer_is_as_old_as_the_prompt_before_it() {
        let mut distances = ReuseDistances::new(100);
        distances.request(&[1, 2], 0..0);
        distances.request(&[11, 12, 13], 0..0);
        distances.request(&[1, 2, 3, 4], 2..3);
        let curve = distances.curve();
        // Three other blocks were used since; before 2 comes 1 as well.
        let hits = [3, 4, 5, 6].map(|size| (hit_rate(&curve, size) * 9.0).round());
        assert_eq!((hits, (distances.endless() * 9.0).round()), ([0.0, 1.0, 3.0, 3.0], 3.0));
    }

    /// Prompts of 30 shared blocks of one of 400 prefixes, a few much more popular, and 10 of their own.
    fn shared(count: usize) -> impl Iterator<Item = Vec<u64>> {
        let mut rng = Rng::new(5, 1);
        (0..count).map(move |number| {
            let group = (rng.unit().powi(3) * 400.0) as u64;
            let name = |space: u64, of: u64, at: u64| mix(mix(space ^ mix(of)) ^ at);
            (0..30).map(|at| name(1, group, at)).chain((0..10).map(|at| name(2, number as u64, at))).collect()
        })
    }

    #[test]
    fn a_sample_of_fixed_size_is_within_two_points_of_all() {
        let (mut all, mut some) = (ReuseDistances::new(1 << 20), ReuseDistances::new(2000));
        for prompt in shared(4000) {
            all.request(&prompt, 0..0);
            some.request(&prompt, 0..0);
        }
        assert!(some.last_use.len() <= 2000 && some.rate() < 0.05, "{}", some.rate());
        assert!((all.endless() - some.endless()).abs() < 0.02, "{} {}", all.endless(), some.endless());
        let (exact, sampled) = (all.curve(), some.curve());
        for blocks in [1000, 3000, 5000, 10_000, 20_000, 40_000] {
            let (exact, sampled) = (hit_rate(&exact, blocks), hit_rate(&sampled, blocks));
            assert!((exact - sampled).abs() < 0.02, "{blocks} blocks: {exact} {sampled}");
        }
    }
}
