//! The prompts, made from a seed whenever one is wanted: nothing is kept, so a prompt is in cache when it was just made.
//!
//! Five classes of prompts, from 64 to 131,072 tokens, with a fifth of all blocks each. A class is made of groups: a shared
//! half and [`BRANCHES`] branches, each cached on one to three workers. One more prompt of each class is hot: on all workers.

/// Tokens of a prompt of each class.
pub const CLASSES: [usize; 5] = [64, 512, 4096, 32_768, 131_072];

/// Prompts that share their first half.
pub const BRANCHES: usize = 8;

/// Tokens of a block.
pub const BLOCK: usize = 16;

/// How much of a prompt is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cached {
    /// All of it, on the workers of its branch.
    Full,
    /// The half that its group shares.
    Half,
    /// None of it.
    Nothing,
}

/// A small generator of numbers; equal seeds give equal numbers. Source: splitmix64, Steele, Lea and Flood, 2014.
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.any()) * limit as u128) >> 64) as usize
    }

    /// Appends `count` token ids.
    pub fn tokens(&mut self, count: usize, into: &mut Vec<u32>) {
        into.extend((0..count).map(|_| self.any() as u32 & 0x1_ffff));
    }
}

/// What is cached where.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Workers of the fleet.
    pub workers: usize,
    blocks: usize,
    seed: u64,
}

impl Workload {
    /// About `blocks` distinct blocks on `workers` workers.
    #[must_use]
    pub fn new(blocks: usize, workers: usize, seed: u64) -> Self {
        Self { workers, blocks, seed }
    }

    /// Groups of a class.
    #[must_use]
    pub fn groups(&self, tokens: usize) -> usize {
        let per_group = tokens / BLOCK * (BRANCHES + 1) / 2;
        (self.blocks / CLASSES.len()).div_ceil(per_group)
    }

    /// Prompts of a class.
    #[must_use]
    pub fn prompts(&self, tokens: usize) -> usize {
        self.groups(tokens) * BRANCHES
    }

    /// Prompt `number` of a class, as far as it is cached; the rest of it is new, and another one for each `salt`.
    #[must_use]
    pub fn prompt(&self, tokens: usize, number: usize, cached: Cached, salt: u64) -> Vec<u32> {
        let half = tokens / 2;
        let mut prompt = Vec::with_capacity(tokens);
        if cached != Cached::Nothing {
            self.numbers(tokens, number / BRANCHES, 1).tokens(half, &mut prompt);
        }
        if cached == Cached::Full {
            self.numbers(tokens, number, 2).tokens(half, &mut prompt);
        }
        let new = tokens - prompt.len();
        self.numbers(tokens, number, salt.wrapping_add(1 << 32)).tokens(new, &mut prompt);
        prompt
    }

    /// The prompt of a class that all workers hold.
    #[must_use]
    pub fn hot(&self, tokens: usize) -> Vec<u32> {
        let mut prompt = Vec::with_capacity(tokens);
        self.numbers(tokens, 0, 3).tokens(tokens, &mut prompt);
        prompt
    }

    /// The one to three workers that hold prompt `number` of a class, ascending.
    #[must_use]
    pub fn holders(&self, tokens: usize, number: usize) -> Vec<usize> {
        let mut numbers = self.numbers(tokens, number, 4);
        let mut holders: Vec<usize> = (0..=numbers.below(3)).map(|_| numbers.below(self.workers)).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// Everything that is cached, in an order that mixes classes: the prompt (made by the second part) and its worker.
    pub fn stores(&self) -> impl Iterator<Item = (Vec<u32>, usize)> + '_ {
        let mut order: Vec<(usize, usize)> = CLASSES
            .iter()
            .flat_map(|&tokens| (0..self.prompts(tokens)).map(move |number| (tokens, number)))
            .collect();
        let mut numbers = Numbers::new(self.seed);
        for at in (1..order.len()).rev() {
            order.swap(at, numbers.below(at + 1));
        }
        let branches = order.into_iter().flat_map(|(tokens, number)| {
            let prompt = self.prompt(tokens, number, Cached::Full, 0);
            self.holders(tokens, number).into_iter().map(move |worker| (prompt.clone(), worker))
        });
        let hot = CLASSES
            .iter()
            .flat_map(move |&tokens| (0..self.workers).map(move |worker| (self.hot(tokens), worker)));
        hot.chain(branches)
    }

    fn numbers(&self, tokens: usize, number: usize, salt: u64) -> Numbers {
        let mut mixed = Numbers::new(self.seed ^ (tokens as u64) << 40 ^ number as u64);
        mixed.0 = mixed.any() ^ salt;
        mixed.0 = mixed.any();
        mixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_make_equal_prompts_and_halves_are_shared_within_a_group_only() {
        let (load, again) = (Workload::new(10_000, 8, 3), Workload::new(10_000, 8, 3));
        let whole = |number| load.prompt(512, number, Cached::Full, 0);
        assert_eq!(whole(5), again.prompt(512, 5, Cached::Full, 9));
        assert_eq!(whole(0)[..256], whole(7)[..256]);
        assert_ne!(whole(0)[256..], whole(7)[256..]);
        assert_ne!(whole(7)[..256], whole(8)[..256]);
        assert_eq!(load.prompt(512, 7, Cached::Half, 1)[..256], whole(7)[..256]);
        assert_ne!(load.prompt(512, 7, Cached::Half, 1)[256..], load.prompt(512, 7, Cached::Half, 2)[256..]);
        assert_ne!(load.prompt(512, 7, Cached::Nothing, 1)[..256], whole(7)[..256]);
    }

    #[test]
    fn what_is_stored_is_every_prompt_on_its_holders_and_hot_ones_everywhere() {
        let load = Workload::new(10_000, 8, 3);
        let mut stores = load.stores();
        let hot: Vec<_> = stores.by_ref().take(CLASSES.len() * 8).collect();
        assert!(hot.iter().all(|(prompt, _)| *prompt == load.hot(prompt.len())));
        let pairs: usize = CLASSES
            .iter()
            .map(|&tokens| {
                (0..load.prompts(tokens)).map(|number| load.holders(tokens, number).len()).sum::<usize>()
            })
            .sum();
        assert_eq!(stores.count(), pairs);
    }
}
