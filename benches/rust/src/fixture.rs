//! An index and a router that are filled with a [`Workload`], checked before anybody times them.

use std::sync::Arc;

use trunkline_core::index::{BatchMatches, Matches, ViewId};
use trunkline_core::key::Blocks;
use trunkline_core::{
    BlockHash, BlockHasher, BlockSource, Millis, PrefixIndex, Prompt, Root, RouteRequest, Router,
    RouterConfig, WorkerId, WorkerSpec, Writer,
};

use crate::workload::{CLASSES, Cached, Workload};

/// The default budget, which a million blocks do not fill.
pub const AMPLE: usize = 256 << 20;

/// An index and the view of each worker.
#[derive(Debug)]
pub struct Index {
    /// Looks up.
    pub reader: Reader,
    /// Changes.
    pub writer: Writer,
    views: Vec<ViewId>,
}

/// Looks prompts up in an index.
#[derive(Debug)]
pub struct Reader {
    index: Arc<PrefixIndex>,
    hasher: BlockHasher,
    block_size: usize,
}

impl Index {
    /// An empty index for blocks of `block_size` tokens with a view for each worker.
    ///
    /// # Panics
    /// If the system does not let the process reserve the budget.
    #[must_use]
    pub fn empty(workers: usize, memory_budget: usize, block_size: usize) -> Self {
        let (index, mut writer) = PrefixIndex::new(memory_budget).expect("address space");
        let views = (0..workers).map(|_| writer.add_view(None).expect("fewer workers than views")).collect();
        Self { reader: Reader { index, hasher: BlockHasher::new(1), block_size }, writer, views }
    }

    /// An index that holds all that `load` stores.
    #[must_use]
    pub fn filled(load: &Workload, block_size: usize) -> Self {
        let mut filled = Self::empty(load.workers, AMPLE, block_size);
        for (prompt, worker) in load.stores() {
            let blocks = filled.reader.hashes(&prompt);
            filled.insert(worker, &blocks);
        }
        filled.check(load);
        filled
    }

    /// Stores a prompt on a worker.
    pub fn insert(&mut self, worker: usize, blocks: &[BlockHash]) {
        self.writer.insert(self.views[worker], blocks, 0);
    }

    /// Compares a sample of all look-ups with what was stored.
    fn check(&self, load: &Workload) {
        let mut matches = Matches::default();
        for tokens in CLASSES {
            let (whole, half) =
                ((tokens / self.reader.block_size) as u32, (tokens / 2 / self.reader.block_size) as u32);
            let prompts = load.prompts(tokens);
            for number in (0..prompts).step_by(prompts.div_ceil(50)) {
                let found = self.reader.find(&load.prompt(tokens, number, Cached::Full, 0), &mut matches);
                assert_eq!(found, whole, "prompt {number} of {tokens} tokens");
                let holds = |&worker: &usize| matches.depth(self.views[worker]) == whole;
                let holders: Vec<usize> = (0..load.workers).filter(holds).collect();
                assert_eq!(
                    holders,
                    load.holders(tokens, number),
                    "holders of prompt {number} of {tokens} tokens"
                );
                let mut depth =
                    |cached| self.reader.find(&load.prompt(tokens, number, cached, 1), &mut matches);
                assert_eq!((depth(Cached::Half), depth(Cached::Nothing)), (half, 0));
            }
        }
    }
}

impl Reader {
    /// Block hashes of a prompt.
    #[must_use]
    pub fn hashes(&self, prompt: &[u32]) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        self.blocks(prompt).collect_into(&mut hashes);
        hashes
    }

    /// Sum of the block hashes: hashing alone, the floor of a look-up.
    #[must_use]
    pub fn hash_alone(&self, prompt: &[u32]) -> u64 {
        let (mut blocks, mut some, mut sum) = (self.blocks(prompt), [BlockHash(0); 16], 0);
        while let count @ 1.. = blocks.fill(&mut some) {
            sum = some[..count].iter().fold(sum, |sum, block| sum ^ block.0);
        }
        sum
    }

    /// Looks a prompt up, hashing included. Returns the deepest match in blocks.
    pub fn find(&self, prompt: &[u32], matches: &mut Matches) -> u32 {
        self.index.find(self.blocks(prompt), 0, matches);
        matches.holders().map(|(_, depth)| depth).max().unwrap_or(0)
    }

    fn blocks<'a>(&'a self, prompt: &'a [u32]) -> Blocks<'a, 'a> {
        Prompt::Tokens(prompt).blocks(Root::default(), &self.hasher, self.block_size as u32)
    }

    /// Looks prompts up together. Returns the sum of their deepest matches in blocks.
    pub fn find_batch(&self, prompts: &[Vec<u32>], matches: &mut BatchMatches) -> u32 {
        let mut sum = 0;
        let prompts = prompts.iter().map(|prompt| self.blocks(prompt));
        self.index.find_batch(prompts, 0, matches, |_, matches| {
            sum += matches.holders().map(|(_, depth)| depth).max().unwrap_or(0);
        });
        sum
    }
}

/// A router with `load.workers` workers that hold what `load` stores.
///
/// # Panics
/// If the router does not find what it was given.
#[must_use]
pub fn router(load: &Workload, memory_budget: usize) -> Router {
    let config = RouterConfig { memory_budget, index_seed: 1, ..RouterConfig::default() };
    let router = Router::new(config).expect("a valid configuration");
    let add = |worker| router.add_worker(WorkerSpec::new(format!("w{worker}"))).expect("a new name");
    let workers: Vec<WorkerId> = (0..load.workers).map(add).collect();
    for (prompt, worker) in load.stores() {
        let request = RouteRequest {
            eligible: Some(&workers[worker..=worker]),
            ..RouteRequest::new(Prompt::Tokens(&prompt))
        };
        let decision = router.route(&request, Millis(0)).expect("the worker lives");
        router.complete(decision.id, None, Millis(0));
    }
    for tokens in CLASSES {
        let prompt = load.prompt(tokens, 0, Cached::Full, 0);
        let found = router.peek(&RouteRequest::new(Prompt::Tokens(&prompt))).expect("token ids are in range");
        assert_eq!(found.matched_tokens as usize, tokens, "the router holds what it was given");
    }
    router
}
