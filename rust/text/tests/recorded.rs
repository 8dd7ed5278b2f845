//! Requests to a real engine: the prompt that was rendered here is the one that it had, and the events between them
//! carry tokens that spell it.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use support::{Directory, msgpack};
use trunkline_core::events::Spelling;
use trunkline_text::{Kind, Options, Outcome, Renderer, Scratch, Vocabulary};

const RECORDED: &str = include_str!("data/recorded_chat.jsonl");

#[derive(Deserialize)]
struct Line {
    path: Option<String>,
    body: Option<Box<RawValue>>,
    prompt_text: Option<String>,
    frames: Option<[String; 3]>,
}

#[derive(Deserialize)]
struct Vocab {
    block_size: usize,
    ids: HashMap<u32, String>,
}

fn lines() -> impl Iterator<Item = Line> {
    RECORDED.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// The recorded model: its own template, and a vocabulary of the same kind as its own.
fn model() -> Directory {
    Directory::new(&[
        ("chat_template.jinja", include_str!("data/recorded_template.jinja")),
        ("tokenizer_config.json", r#"{"bos_token": "<|bos|>"}"#),
        ("tokenizer.json", include_str!("data/tokenizers/byte_level/tokenizer.json")),
    ])
}

#[test]
fn prompts_are_those_of_the_engine() {
    let directory = model();
    let renderer = Renderer::load(directory.path(), &Options::default()).unwrap();
    let (mut scratch, mut requests) = (Scratch::default(), 0);
    for line in lines() {
        let (Some(path), Some(body), Some(prompt)) = (line.path, line.body, line.prompt_text) else {
            continue;
        };
        let kind = match path.as_str() {
            "/v1/chat/completions" => Kind::Chat,
            "/v1/completions" => Kind::Completion,
            _ => panic!("{path}"),
        };
        let outcome = renderer.render(kind, body.get().as_bytes(), 0, &mut scratch);
        assert_eq!(outcome, Outcome::Whole(prompt.as_bytes()), "{}", body.get());
        requests += 1;
    }
    assert_eq!(requests, 35);
}

#[test]
fn tokens_of_events_spell_the_prompts() {
    let vocab: Vocab = serde_json::from_str(include_str!("data/recorded_vocab.json")).unwrap();
    let tokens = vocab.ids.iter().map(|(id, bytes)| (*id, STANDARD.decode(bytes).unwrap()));
    let vocabulary = Vocabulary::new(tokens).unwrap();
    let (mut prompts, mut blocks, mut prompt_blocks) = (Vec::new(), 0, 0);
    for line in lines() {
        prompts.extend(line.prompt_text.map(String::into_bytes));
        let payload = line.frames.map(|frames| STANDARD.decode(&frames[2]).unwrap());
        for tokens in payload.iter().flat_map(|payload| msgpack::stored_tokens(payload)) {
            for block in tokens.chunks(vocab.block_size) {
                let mut bytes = Vec::new();
                assert!(vocabulary.spell(block, &mut bytes), "{block:?}");
                blocks += 1;
                let is_in = |prompt: &Vec<u8>| prompt.windows(bytes.len()).any(|window| window == bytes);
                prompt_blocks += usize::from(prompts.iter().any(is_in));
            }
        }
    }
    // The other blocks were generated.
    assert_eq!((prompt_blocks, blocks), (181, 194));
}
