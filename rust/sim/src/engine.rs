//! Continuous batching with chunked prefill, as a state machine: what a worker computes in each step and how long that
//! takes. No clock, no threads: the caller lets the returned time pass, on a real clock or a simulated one.
//!
//! A step works as vLLM's scheduler does. Every decoding sequence takes one token of the step's budget. What is left
//! goes to prompts in order of arrival, in chunks: first to those already started, then to new ones while there are
//! fewer than `max_sequences` and their blocks fit (those of the answer are reserved at once, so nothing is ever
//! pre-empted). A prompt that does not fit holds back all behind it. The step that computes the last token of a prompt
//! yields the first token of its answer.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::cache::{BlockCache, Lease, SequenceHash};
use crate::step::{StepModel, StepWork};

/// Limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the cache, prefixes and running sequences together.
    pub capacity_blocks: u32,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Tokens computed per step, prefill and decode together.
    pub step_token_budget: u32,
    /// Durations.
    pub step_model: StepModel,
}

/// Names a sequence of one engine, for as long as the engine lives.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SequenceId(pub u64);

/// A sequence to run.
#[derive(Clone, Debug)]
pub struct SequenceSpec {
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Length of the answer, at least 1.
    pub output_tokens: u32,
    /// Names of the full blocks of prompt and answer without its last token (whose KV is never computed):
    /// `(prompt_tokens + output_tokens - 1) / block_size` of them, from [`block_chain`](crate::cache::block_chain).
    pub chain: Vec<SequenceHash>,
}

/// A token that a step has produced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Token {
    /// Whose.
    pub sequence: SequenceId,
    /// Its place in the answer, from 0.
    pub index: u32,
    /// Tokens of the prompt that came from the cache.
    pub cached_tokens: u32,
    /// True for the last token of the answer: the sequence is gone.
    pub last: bool,
}

/// What has changed in the prefix cache, see [`Engine::take_changes`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// These blocks of a sequence's chain, by their positions, were computed and were not cached before.
    Stored {
        /// Whose. It may be gone already.
        sequence: SequenceId,
        /// Positions in its chain.
        blocks: Range<u32>,
    },
    /// These blocks were evicted, in this order.
    Removed(Vec<SequenceHash>),
    /// The whole cache was emptied.
    Cleared,
}

/// Totals since the engine was made (or [`Engine::reset_counters`]).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Sequences submitted.
    pub sequences: u64,
    /// Prompt tokens of admitted sequences.
    pub prompt_tokens: u64,
    /// Those of them that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Sequences that ran to their end.
    pub finished: u64,
    /// Sequences cancelled.
    pub cancelled: u64,
}

/// A sequence that waits or runs.
#[derive(Debug)]
struct Sequence {
    spec: SequenceSpec,
    /// Its blocks; `None` while it waits.
    lease: Option<Lease>,
    cached_tokens: u32,
    /// Tokens of prompt and answer whose KV is in the cache.
    computed_tokens: u32,
    generated_tokens: u32,
}

impl Sequence {
    fn missing_prompt_tokens(&self) -> u32 {
        self.spec.prompt_tokens - self.computed_tokens
    }

    fn context_tokens(&self) -> u64 {
        u64::from(self.spec.prompt_tokens + self.generated_tokens)
    }
}

/// One engine. Alternate [`Engine::start_step`] and [`Engine::finish_step`]; submit and cancel at any time.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    sequences: HashMap<SequenceId, Sequence>,
    waiting: VecDeque<SequenceId>,
    prefilling: VecDeque<SequenceId>,
    decoding: Vec<SequenceId>,
    /// Prompts that the step under way works on, in order.
    plan: Vec<SequenceId>,
    counters: Counters,
    next_id: u64,
    /// What has changed since somebody asked; `None` if nobody will.
    changes: Option<Vec<Change>>,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            config,
            cache: BlockCache::new(config.capacity_blocks),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: Vec::new(),
            plan: Vec::new(),
            counters: Counters::default(),
            next_id: 0,
            changes: None,
        }
    }

    /// Makes it remember what changes in its cache, for [`Engine::take_changes`].
    pub fn remember_changes(&mut self) {
        self.changes.get_or_insert_default();
        self.cache.remember_evicted();
    }

    /// What has changed in the cache since the last call, in order; nothing if it was not told to remember that.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The prefix cache.
    #[must_use]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Totals.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sequences that prefill or decode.
    #[must_use]
    pub fn running(&self) -> usize {
        self.prefilling.len() + self.decoding.len()
    }

    /// Sequences that are not admitted yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens of prompt and answer together that a sequence can have.
    #[must_use]
    pub fn max_sequence_tokens(&self) -> u32 {
        self.config.capacity_blocks * self.config.block_size
    }

    /// Queues a sequence.
    ///
    /// # Panics
    /// If the prompt or the answer is empty, they are longer than [`Engine::max_sequence_tokens`] together, or the
    /// chain does not fit them.
    pub fn submit(&mut self, spec: SequenceSpec) -> SequenceId {
        assert!(spec.prompt_tokens > 0 && spec.output_tokens > 0, "a sequence has a prompt and an answer");
        assert!(
            spec.prompt_tokens.saturating_add(spec.output_tokens) <= self.max_sequence_tokens(),
            "the sequence fits the cache"
        );
        assert_eq!(
            spec.chain.len() as u32,
            (spec.prompt_tokens + spec.output_tokens - 1) / self.config.block_size,
            "the chain names every full block"
        );
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.counters.sequences += 1;
        let sequence =
            Sequence { spec, lease: None, cached_tokens: 0, computed_tokens: 0, generated_tokens: 0 };
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        id
    }

    /// Drops a sequence, waiting or running, and frees its blocks at once; what it has computed stays cached.
    /// False if it is gone already. Cost: O(sequences + its blocks).
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        if !self.sequences.contains_key(&id) {
            return false;
        }
        self.waiting.retain(|&other| other != id);
        self.prefilling.retain(|&other| other != id);
        self.decoding.retain(|&other| other != id);
        self.plan.retain(|&other| other != id);
        self.remove(id);
        self.counters.cancelled += 1;
        true
    }

    /// Plans the next step and returns how long it takes in seconds; `None` if there is nothing to do.
    pub fn start_step(&mut self) -> Option<f64> {
        let mut work = StepWork { decoding: self.decoding.len() as u32, ..StepWork::default() };
        work.context_tokens = self.decoding.iter().map(|id| self.sequences[id].context_tokens()).sum();

        self.plan.clear();
        let mut budget = self.config.step_token_budget.saturating_sub(work.decoding);
        for index in 0.. {
            if budget == 0 || (index >= self.prefilling.len() && !self.admit_next()) {
                break;
            }
            let id = self.prefilling[index];
            let sequence = &self.sequences[&id];
            let tokens = sequence.missing_prompt_tokens().min(budget);
            let before = f64::from(sequence.computed_tokens);
            work.prefill_tokens += tokens;
            work.attention_pairs += f64::from(tokens) * (before + 0.5 * f64::from(tokens));
            budget -= tokens;
            self.plan.push(id);
            // Later prompts of this very step may build on these blocks.
            self.compute(id, tokens);
        }
        (work != StepWork::default()).then(|| self.config.step_model.duration_s(&work))
    }

    /// Ends the step that [`Engine::start_step`] planned and appends the tokens that it has produced to `produced`.
    pub fn finish_step(&mut self, produced: &mut Vec<Token>) {
        for id in std::mem::take(&mut self.decoding) {
            self.compute(id, 1);
            self.produce(id, produced);
        }
        for id in std::mem::take(&mut self.plan) {
            if self.sequences[&id].missing_prompt_tokens() == 0 {
                let done = self.prefilling.pop_front();
                debug_assert_eq!(done, Some(id), "prompts finish in order");
                self.produce(id, produced);
            }
        }
    }

    /// Empties the cache of what no running sequence holds. True if nothing is left in it.
    pub fn clear_cache(&mut self) -> bool {
        let is_empty = self.cache.clear();
        let dropped = self.cache.take_evicted();
        if let Some(changes) = &mut self.changes {
            match is_empty {
                true => changes.push(Change::Cleared),
                false if dropped.is_empty() => {}
                false => changes.push(Change::Removed(dropped)),
            }
        }
        is_empty
    }

    /// Sets the totals to 0.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.cache.reset_evicted();
    }

    /// Moves the first waiting sequence to prefill if there is one and it fits.
    fn admit_next(&mut self) -> bool {
        if self.running() >= self.config.max_sequences {
            return false;
        }
        let Some(&id) = self.waiting.front() else {
            return false;
        };
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence exists");
        let spec = &sequence.spec;
        // The last token of a prompt is always computed: it yields the first one of the answer.
        let max_hit_blocks = (spec.prompt_tokens - 1) / self.config.block_size;
        let total_blocks = (spec.prompt_tokens + spec.output_tokens).div_ceil(self.config.block_size);
        let Some(lease) = self.cache.admit(&spec.chain, max_hit_blocks, total_blocks) else {
            return false;
        };
        let evicted = self.cache.take_evicted();
        if let Some(changes) = self.changes.as_mut().filter(|_| !evicted.is_empty()) {
            changes.push(Change::Removed(evicted));
        }
        sequence.cached_tokens = lease.hit_blocks() * self.config.block_size;
        sequence.computed_tokens = sequence.cached_tokens;
        sequence.lease = Some(lease);
        self.counters.prompt_tokens += u64::from(spec.prompt_tokens);
        self.counters.cached_tokens += u64::from(sequence.cached_tokens);
        self.waiting.pop_front();
        self.prefilling.push_back(id);
        true
    }

    /// Accounts for `tokens` more computed tokens of a running sequence.
    fn compute(&mut self, id: SequenceId, tokens: u32) {
        let sequence = self.sequences.get_mut(&id).expect("a running sequence exists");
        sequence.computed_tokens += tokens;
        let lease = sequence.lease.as_mut().expect("a running sequence has blocks");
        let computed_blocks = sequence.computed_tokens / self.config.block_size;
        let added = self.cache.commit(&sequence.spec.chain, lease, computed_blocks);
        if let Some(changes) = &mut self.changes {
            changes.extend(added.into_iter().map(|blocks| Change::Stored { sequence: id, blocks }));
        }
    }

    /// Yields the next token of a running sequence, which then decodes on or is gone.
    fn produce(&mut self, id: SequenceId, produced: &mut Vec<Token>) {
        let sequence = self.sequences.get_mut(&id).expect("a running sequence exists");
        let index = sequence.generated_tokens;
        sequence.generated_tokens += 1;
        self.counters.generated_tokens += 1;
        let last = sequence.generated_tokens == sequence.spec.output_tokens;
        produced.push(Token { sequence: id, index, cached_tokens: sequence.cached_tokens, last });
        if last {
            self.remove(id);
            self.counters.finished += 1;
        } else {
            self.decoding.push(id);
        }
    }

    fn remove(&mut self, id: SequenceId) {
        let sequence = self.sequences.remove(&id).expect("the caller has looked it up");
        if let Some(lease) = sequence.lease {
            self.cache.release(&sequence.spec.chain, lease);
        }
    }
}
