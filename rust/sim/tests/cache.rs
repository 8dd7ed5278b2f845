//! The prefix cache against a naive model: random sequences over a small tree of prompts, every step compared.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use trunkline_sim::cache::{BlockCache, Lease, SequenceHash, block_chain};

const CAPACITY: u32 = 12;

/// The chain of a path through a tree with three children per block: the name of a block spells its path.
fn chain(path: &[u64]) -> Vec<SequenceHash> {
    path.iter()
        .scan(0, |name, child| {
            *name = *name * 4 + child + 1;
            Some(SequenceHash(*name))
        })
        .collect()
}

fn parent(block: SequenceHash) -> Option<SequenceHash> {
    (block.0 > 4).then_some(SequenceHash(block.0 / 4))
}

/// What the cache promises, spelt out with lists and linear searches.
#[derive(Default)]
struct Model {
    held: HashMap<SequenceHash, u32>,
    /// Evicted from the front.
    idle: Vec<SequenceHash>,
    reserved: u32,
    evicted: u64,
}

impl Model {
    fn present(&self, block: SequenceHash) -> bool {
        self.held.contains_key(&block) || self.idle.contains(&block)
    }

    fn size(&self) -> u32 {
        (self.held.len() + self.idle.len()) as u32
    }

    fn hold(&mut self, block: SequenceHash) {
        self.idle.retain(|&other| other != block);
        *self.held.entry(block).or_default() += 1;
    }

    fn admit(&mut self, chain: &[SequenceHash], max_hit: u32, total: u32) -> Option<u32> {
        let hits: Vec<_> = chain
            .iter()
            .copied()
            .take(max_hit.min(total) as usize)
            .take_while(|&block| self.present(block))
            .collect();
        let held: HashSet<_> = self.held.keys().copied().chain(hits.iter().copied()).collect();
        let room = total - hits.len() as u32;
        if held.len() as u32 + self.reserved + room > CAPACITY {
            return None;
        }
        hits.iter().for_each(|&block| self.hold(block));
        self.reserved += room;
        while self.size() + self.reserved > CAPACITY {
            self.idle.remove(0);
            self.evicted += 1;
        }
        Some(hits.len() as u32)
    }

    fn release(&mut self, chain: &[SequenceHash], reserved: u32) {
        self.reserved -= reserved;
        for block in chain.iter().rev() {
            let count = self.held.get_mut(block).expect("a running sequence holds it");
            *count -= 1;
            if *count == 0 {
                self.held.remove(block);
                self.idle.push(*block);
            }
        }
    }
}

/// A sequence that runs in both.
struct Running {
    chain: Vec<SequenceHash>,
    lease: Lease,
    committed: u32,
    total: u32,
}

#[derive(Clone, Debug)]
enum Step {
    /// Path, how much of it is prompt (in blocks that may be hit), blocks beyond the path.
    Admit {
        path: Vec<u64>,
        max_hit: u32,
        extra: u32,
    },
    /// Commits some more blocks of a running sequence.
    Commit {
        pick: usize,
        blocks: u32,
    },
    Release {
        pick: usize,
    },
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let admit = (prop::collection::vec(0_u64..3, 0..6), 0_u32..7, 0_u32..3)
        .prop_map(|(path, max_hit, extra)| Step::Admit { path, max_hit, extra });
    let commit = (any::<usize>(), 1_u32..4).prop_map(|(pick, blocks)| Step::Commit { pick, blocks });
    let release = any::<usize>().prop_map(|pick| Step::Release { pick });
    prop::collection::vec(prop_oneof![5 => admit, 5 => commit, 4 => release, 1 => Just(Step::Clear)], 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_naive_model(steps in steps()) {
        let mut cache = BlockCache::new(CAPACITY);
        let mut model = Model::default();
        let mut running: Vec<Running> = Vec::new();
        let mut seen: Vec<Vec<SequenceHash>> = Vec::new();
        for step in steps {
            match step {
                Step::Admit { path, max_hit, extra } => {
                    let chain = chain(&path);
                    let total = chain.len() as u32 + extra;
                    let expected = model.admit(&chain, max_hit, total);
                    let lease = cache.admit(&chain, max_hit, total);
                    prop_assert_eq!(lease.as_ref().map(Lease::hit_blocks), expected);
                    seen.push(chain.clone());
                    if let Some(lease) = lease {
                        running.push(Running { committed: lease.hit_blocks(), chain, lease, total });
                    }
                }
                Step::Commit { pick, blocks } if !running.is_empty() => {
                    let index = pick % running.len();
                    let sequence = &mut running[index];
                    let end = (sequence.committed + blocks).min(sequence.chain.len() as u32);
                    cache.commit(&sequence.chain, &mut sequence.lease, end);
                    for &block in &sequence.chain[sequence.committed as usize..end as usize] {
                        model.hold(block);
                        model.reserved -= 1;
                    }
                    sequence.committed = end;
                }
                Step::Release { pick } if !running.is_empty() => {
                    let sequence = running.swap_remove(pick % running.len());
                    model.release(&sequence.chain[..sequence.committed as usize], sequence.total - sequence.committed);
                    cache.release(&sequence.chain, sequence.lease);
                }
                Step::Clear => {
                    model.idle.clear();
                    prop_assert_eq!(cache.clear(), running.iter().all(|sequence| sequence.total == 0));
                }
                Step::Commit { .. } | Step::Release { .. } => {}
            }
            prop_assert_eq!(cache.present_blocks(), model.size());
            prop_assert_eq!(cache.used_blocks(), model.held.len() as u32 + model.reserved);
            prop_assert_eq!(cache.evicted_blocks(), model.evicted);
            prop_assert!(cache.present_blocks() + model.reserved <= CAPACITY);
            for chain in &seen {
                let expected = chain.iter().take_while(|&&block| model.present(block)).count() as u32;
                prop_assert_eq!(cache.matched_blocks(chain), expected);
            }
            for &block in model.held.keys().chain(&model.idle) {
                prop_assert!(parent(block).is_none_or(|parent| model.present(parent)), "a prefix was evicted first");
            }
        }
    }
}

#[test]
fn chains_part_at_the_first_different_token_and_by_root() {
    let tokens: Vec<u32> = (0..40).collect();
    let mut other = tokens.clone();
    other[20] = 99;
    let (a, b) = (block_chain(1, &tokens, 8), block_chain(1, &other, 8));
    assert_eq!(a.len(), 5);
    assert_eq!(a[..2], b[..2]);
    assert!(a[2..].iter().zip(&b[2..]).all(|(a, b)| a != b));
    assert!(block_chain(2, &tokens, 8).iter().zip(&a).all(|(a, b)| a != b));
    assert_eq!(block_chain(1, &tokens[..39], 8), a[..4]);
}
