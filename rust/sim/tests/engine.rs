//! The engine without a clock: what it schedules, how long it says that takes, and what it frees.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use trunkline_sim::StepModel;
use trunkline_sim::cache::{SequenceHash, block_chain};
use trunkline_sim::engine::{Change, Engine, EngineConfig, SequenceId, SequenceSpec, Token};

const BLOCK: u32 = 16;

fn config() -> EngineConfig {
    EngineConfig {
        block_size: BLOCK,
        capacity_blocks: 10_000,
        max_sequences: 256,
        step_token_budget: 8_192,
        step_model: StepModel { per_attention_pair_s: 0.0, per_kv_token_s: 0.0, ..StepModel::default() },
    }
}

/// A prompt of `shared` tokens that all have in common and `own` tokens that are `tag`'s.
fn prompt(shared: u32, own: u32, tag: u32) -> Vec<u32> {
    (0..shared).chain((0..own).map(|token| (tag << 16) + token)).collect()
}

fn spec(prompt: &[u32], output_tokens: u32) -> SequenceSpec {
    let computed = [prompt, &vec![u32::MAX; output_tokens as usize - 1]].concat();
    SequenceSpec {
        prompt_tokens: prompt.len() as u32,
        output_tokens,
        chain: block_chain(0, &computed, BLOCK),
    }
}

/// One step: its duration and its tokens.
fn step(engine: &mut Engine) -> (f64, Vec<Token>) {
    let duration_s = engine.start_step().expect("there is work");
    let mut produced = Vec::new();
    engine.finish_step(&mut produced);
    (duration_s, produced)
}

/// Steps until idle: the time that passed, and every token with the time of its step's end.
fn drain(engine: &mut Engine) -> Vec<(f64, Token)> {
    let mut now_s = 0.0;
    let mut tokens = Vec::new();
    while let Some(duration_s) = engine.start_step() {
        now_s += duration_s;
        let mut produced = Vec::new();
        engine.finish_step(&mut produced);
        tokens.extend(produced.into_iter().map(|token| (now_s, token)));
    }
    tokens
}

fn first_token_s(tokens: &[(f64, Token)], id: SequenceId) -> f64 {
    tokens.iter().find(|(_, token)| token.sequence == id).expect("it has produced a token").0
}

fn assert_near(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
}

#[test]
fn an_idle_engine_has_no_step() {
    assert_eq!(Engine::new(config()).start_step(), None);
}

#[test]
fn a_cold_prompt_takes_its_prefill_and_the_same_prompt_again_one_short_step() {
    let mut engine = Engine::new(config());
    let prompt = prompt(2_200, 0, 0);

    engine.submit(spec(&prompt, 1));
    let (duration_s, tokens) = step(&mut engine);
    assert_near(duration_s, 2_200.0 / 22_000.0 + 0.006);
    assert_eq!((tokens.len(), tokens[0].cached_tokens, tokens[0].last), (1, 0, true));

    engine.submit(spec(&prompt, 1));
    let (duration_s, tokens) = step(&mut engine);
    assert_near(duration_s, 0.014);
    assert_eq!(tokens[0].cached_tokens, 2_192, "all whole blocks but the last token's");
}

#[test]
fn the_last_token_of_a_prompt_is_computed_even_if_its_block_is_cached() {
    let mut engine = Engine::new(config());
    let prompt = prompt(4 * BLOCK, 0, 0);
    engine.submit(spec(&prompt, 1));
    drain(&mut engine);
    engine.submit(spec(&prompt, 1));
    assert_eq!(drain(&mut engine)[0].1.cached_tokens, 3 * BLOCK);
}

#[test]
fn a_long_prompt_is_prefilled_in_chunks_of_the_budget() {
    let mut engine = Engine::new(EngineConfig { step_token_budget: 1_000, ..config() });
    let id = engine.submit(spec(&prompt(2_500, 0, 0), 2));
    let durations: Vec<f64> = (0..3).map(|_| step(&mut engine).0).collect();
    assert_near(durations[0], 1_000.0 / 22_000.0 + 0.006);
    assert_near(durations[2], 500.0 / 22_000.0 + 0.006);
    let (duration_s, tokens) = step(&mut engine);
    assert_near(duration_s, 0.014 + 4e-5);
    assert_eq!(tokens, [Token { sequence: id, index: 1, cached_tokens: 0, last: true }]);
}

#[test]
fn decoding_goes_on_beside_a_prefill() {
    let mut engine = Engine::new(config());
    let talker = engine.submit(spec(&prompt(16, 0, 1), 10));
    step(&mut engine);
    let newcomer = engine.submit(spec(&prompt(0, 2_200, 2), 1));
    let (duration_s, tokens) = step(&mut engine);
    assert_near(duration_s, 2_200.0 / 22_000.0 + 0.006 + 4e-5);
    assert_eq!(tokens.iter().map(|token| token.sequence).collect::<Vec<_>>(), [talker, newcomer]);
}

#[test]
fn decoding_sequences_take_their_tokens_of_the_budget_first() {
    let mut engine = Engine::new(EngineConfig { step_token_budget: 100, max_sequences: 50, ..config() });
    for tag in 0..40 {
        engine.submit(spec(&prompt(0, 2, tag), 50));
    }
    step(&mut engine);
    engine.submit(spec(&prompt(0, 130, 99), 1));
    let steps_to_first_token =
        (1..).find(|_| step(&mut engine).1.iter().any(|token| token.last)).expect("it ends");
    assert_eq!(steps_to_first_token, 3, "60 tokens per step are left for it");
}

#[test]
fn prompts_are_served_in_order_of_arrival() {
    let mut engine = Engine::new(EngineConfig { step_token_budget: 512, ..config() });
    let ids: Vec<_> = (0..4).map(|tag| engine.submit(spec(&prompt(0, 1_100, tag), 1))).collect();
    let tokens = drain(&mut engine);
    assert_eq!(tokens.iter().map(|(_, token)| token.sequence).collect::<Vec<_>>(), ids);
    assert!(tokens.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn equal_prompts_of_one_step_are_computed_once() {
    let mut engine = Engine::new(config());
    let prompt = prompt(700, 0, 0);
    for _ in 0..4 {
        engine.submit(spec(&prompt, 1));
    }
    let (_, tokens) = step(&mut engine);
    assert_eq!(tokens.iter().map(|token| token.cached_tokens).collect::<Vec<_>>(), [0, 688, 688, 688]);
    assert_eq!(engine.cache().present_blocks(), 700 / BLOCK);
}

#[test]
fn an_answer_is_cached_for_the_next_turn() {
    let mut engine = Engine::new(config());
    let mut prompt = prompt(100, 0, 0);
    engine.submit(spec(&prompt, 61));
    drain(&mut engine);
    prompt.extend([u32::MAX; 61]);
    prompt.extend([7; 20]);
    engine.submit(spec(&prompt, 1));
    assert_eq!(drain(&mut engine)[0].1.cached_tokens, 160, "of 100 + 60 computed tokens");
}

#[test]
fn no_more_than_max_sequences_run() {
    let mut engine = Engine::new(EngineConfig { max_sequences: 3, ..config() });
    for tag in 0..5 {
        engine.submit(spec(&prompt(0, 20, tag), 4));
    }
    step(&mut engine);
    assert_eq!((engine.running(), engine.waiting()), (3, 2));
    for _ in 0..3 {
        step(&mut engine);
    }
    step(&mut engine);
    assert_eq!((engine.running(), engine.waiting()), (2, 0));
}

#[test]
fn a_prompt_without_room_holds_back_those_behind_it_until_blocks_are_free() {
    let mut engine = Engine::new(EngineConfig { capacity_blocks: 10, ..config() });
    let first = engine.submit(spec(&prompt(0, 90, 1), 6));
    let big = engine.submit(spec(&prompt(0, 90, 2), 6));
    let small = engine.submit(spec(&prompt(0, 10, 3), 1));
    step(&mut engine);
    assert_eq!((engine.running(), engine.waiting()), (1, 2));
    let tokens = drain(&mut engine);
    let end_of_first_s = tokens.iter().rfind(|(_, token)| token.sequence == first).expect("it ran").0;
    assert!(end_of_first_s < first_token_s(&tokens, big));
    assert_near(first_token_s(&tokens, small), first_token_s(&tokens, big));
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_at_once_and_keeps_what_it_has_computed() {
    let mut engine = Engine::new(EngineConfig { step_token_budget: 320, ..config() });
    let id = engine.submit(spec(&prompt(640, 0, 0), 10));
    step(&mut engine);
    assert!(engine.cancel(id));
    assert!(!engine.cancel(id));
    assert_eq!((engine.running(), engine.cache().used_blocks(), engine.cache().present_blocks()), (0, 0, 20));
    assert_eq!(engine.start_step(), None);
    engine.submit(spec(&prompt(640, 0, 0), 1));
    assert_eq!(drain(&mut engine)[0].1.cached_tokens, 320);
}

#[test]
fn cancelling_inside_a_step_leaves_the_others_alone() {
    let mut engine = Engine::new(config());
    let ids: Vec<_> = (0..3).map(|tag| engine.submit(spec(&prompt(0, 50, tag), 3))).collect();
    engine.start_step().expect("there is work");
    engine.cancel(ids[1]);
    let mut produced = Vec::new();
    engine.finish_step(&mut produced);
    assert_eq!(produced.iter().map(|token| token.sequence).collect::<Vec<_>>(), [ids[0], ids[2]]);
    assert_eq!(drain(&mut engine).len(), 4);
}

#[test]
#[should_panic(expected = "fits the cache")]
fn a_sequence_larger_than_the_cache_is_a_fault_of_the_caller() {
    let mut engine = Engine::new(EngineConfig { capacity_blocks: 10, ..config() });
    engine.submit(spec(&prompt(150, 0, 0), 20));
}

/// Does to a set of blocks what an engine says has changed; every change has to change something.
fn apply(
    held: &mut HashSet<SequenceHash>,
    chains: &HashMap<SequenceId, Vec<SequenceHash>>,
    changes: Vec<Change>,
) {
    for change in changes {
        match change {
            Change::Stored { sequence, blocks } => {
                let blocks = &chains[&sequence][blocks.start as usize..blocks.end as usize];
                assert!(!blocks.is_empty() && blocks.iter().all(|&block| held.insert(block)));
            }
            Change::Removed(blocks) => {
                assert!(!blocks.is_empty() && blocks.iter().all(|block| held.remove(block)));
            }
            Change::Cleared => held.clear(),
        }
    }
}

#[test]
fn changes_are_forgotten_unless_somebody_wants_them() {
    let mut engine = Engine::new(config());
    engine.submit(spec(&prompt(0, 50, 0), 3));
    drain(&mut engine);
    assert!(engine.take_changes().is_empty());
    engine.remember_changes();
    assert!(engine.clear_cache());
    assert_eq!(engine.take_changes(), [Change::Cleared]);
    let id = engine.submit(spec(&prompt(0, 50, 0), 15));
    drain(&mut engine);
    let stored = |blocks| Change::Stored { sequence: id, blocks };
    assert_eq!(engine.take_changes(), [stored(0..3), stored(3..4)], "of the prompt, and of the answer");
    assert!(engine.take_changes().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever comes and goes: every sequence that stays gets all its tokens in order, all blocks are free in the end.
    #[test]
    fn all_sequences_end_and_nothing_leaks(
        actions in prop::collection::vec((0_u32..4, 1_u32..200, 1_u32..20, any::<usize>()), 1..60),
        capacity_blocks in 16_u32..64,
        step_token_budget in 9_u32..300,
    ) {
        let mut engine = Engine::new(EngineConfig { capacity_blocks, step_token_budget, max_sequences: 8, ..config() });
        let mut expected = HashMap::new();
        let mut tokens = Vec::new();
        for (action, prompt_tokens, output_tokens, pick) in actions {
            match action {
                0 | 1 => {
                    let shared = prompt_tokens / 2;
                    let prompt = prompt(shared, prompt_tokens - shared, pick as u32 % 5);
                    expected.insert(engine.submit(spec(&prompt, output_tokens)), output_tokens);
                }
                2 => {
                    let mut ids: Vec<_> = expected.keys().copied().collect();
                    ids.sort_by_key(|id| id.0);
                    if let Some(&id) = ids.get(pick % ids.len().max(1))
                        && engine.cancel(id)
                    {
                        expected.remove(&id);
                    }
                }
                _ => {
                    if engine.start_step().is_some() {
                        engine.finish_step(&mut tokens);
                    }
                }
            }
            prop_assert!(engine.running() <= 8);
            prop_assert!(engine.cache().used_blocks() <= capacity_blocks);
        }
        while engine.start_step().is_some() {
            engine.finish_step(&mut tokens);
        }
        for (id, output_tokens) in expected {
            let own: Vec<_> = tokens.iter().filter(|token| token.sequence == id).collect();
            prop_assert!(own.iter().map(|token| token.index).eq(0..output_tokens));
            prop_assert!(own.iter().all(|token| token.last == (token.index + 1 == output_tokens)));
        }
        prop_assert_eq!((engine.running(), engine.waiting(), engine.cache().used_blocks()), (0, 0, 0));
    }

    /// Who follows the changes knows at any time what the cache holds.
    #[test]
    fn changes_tell_what_the_cache_holds(
        actions in prop::collection::vec((0_u32..6, 1_u32..200, 1_u32..20, any::<usize>()), 1..60),
        capacity_blocks in 16_u32..64,
    ) {
        let mut engine =
            Engine::new(EngineConfig { capacity_blocks, step_token_budget: 60, max_sequences: 8, ..config() });
        engine.remember_changes();
        let mut chains = HashMap::new();
        let mut held = HashSet::new();
        let mut tokens = Vec::new();
        for (action, prompt_tokens, output_tokens, pick) in actions {
            match action {
                0 | 1 => {
                    let shared = prompt_tokens / 2;
                    let spec = spec(&prompt(shared, prompt_tokens - shared, pick as u32 % 5), output_tokens);
                    let chain = spec.chain.clone();
                    chains.insert(engine.submit(spec), chain);
                }
                2 => _ = engine.cancel(SequenceId((pick % (chains.len() + 1)) as u64)),
                3 if pick % 4 == 0 => _ = engine.clear_cache(),
                _ => {
                    if engine.start_step().is_some() {
                        engine.finish_step(&mut tokens);
                    }
                }
            }
            apply(&mut held, &chains, engine.take_changes());
            prop_assert_eq!(held.len() as u32, engine.cache().present_blocks());
            for chain in chains.values() {
                let leading = chain.iter().take_while(|block| held.contains(block)).count();
                prop_assert_eq!(leading as u32, engine.cache().matched_blocks(chain));
            }
        }
    }
}
