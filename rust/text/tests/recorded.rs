//! Requests to a real engine: the prompt that was rendered here is the one that it had, and the events between them
//! carry tokens that spell it.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use support::Directory;
use trunkline_core::events::Spelling;
use trunkline_core::{
    CacheEvent, CacheView, ExactPrompt, Millis, Prompt, Root, RouteRequest, Router, RouterConfig, WorkerSpec,
};
use trunkline_events::{Batch, Decoder};
use trunkline_text::{Kind, Options, Outcome, Renderer, Scratch, Vocabulary};

const RECORDED: &str = include_str!("data/recorded_chat.jsonl");

#[derive(Deserialize)]
struct Line {
    path: Option<String>,
    body: Option<Box<RawValue>>,
    prompt_text: Option<String>,
    cached_tokens: Option<u32>,
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

fn vocabulary() -> (Vocabulary, usize) {
    let vocab: Vocab = serde_json::from_str(include_str!("data/recorded_vocab.json")).unwrap();
    let tokens = vocab.ids.iter().map(|(id, bytes)| (*id, STANDARD.decode(bytes).unwrap()));
    (Vocabulary::new(tokens).unwrap(), vocab.block_size)
}

#[test]
fn tokens_of_events_spell_the_prompts() {
    let (vocabulary, block_size) = vocabulary();
    let (mut decoder, mut batch) = (Decoder::new(), Batch::new());
    let (mut prompts, mut blocks, mut prompt_blocks) = (Vec::new(), 0, 0);
    for line in lines() {
        prompts.extend(line.prompt_text.map(String::into_bytes));
        let Some(frames) = line.frames else { continue };
        decoder.decode(&STANDARD.decode(&frames[2]).unwrap(), &mut batch).unwrap();
        for event in batch.events() {
            let CacheEvent::Stored(stored) = event else { continue };
            for block in stored.tokens.chunks(block_size) {
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

#[test]
fn a_router_expects_from_text_alone_what_the_engine_finds() {
    #[derive(Deserialize)]
    struct Salted {
        cache_salt: Option<String>,
    }
    let (directory, (vocabulary, _)) = (model(), vocabulary());
    let renderer = Renderer::load(directory.path(), &Options::default()).unwrap();
    let router = Router::new(RouterConfig::default()).unwrap();
    let worker = router.add_worker(WorkerSpec::new("w0")).unwrap();
    router.set_cache_view(worker, CacheView::Events).unwrap();
    let (mut scratch, mut decoder, mut batch) = (Scratch::default(), Decoder::new(), Batch::new());
    let mut requests = 0;
    // Here a request stands before its own events.
    for line in lines() {
        if let Some(frames) = line.frames {
            decoder.decode(&STANDARD.decode(&frames[2]).unwrap(), &mut batch).unwrap();
            router.apply_events(worker, batch.events(), Some(&vocabulary), None, Millis(0)).unwrap();
            continue;
        }
        let (path, body) = (line.path.unwrap(), line.body.unwrap());
        let kind = if path.contains("chat") { Kind::Chat } else { Kind::Completion };
        let Outcome::Whole(text) = renderer.render(kind, body.get().as_bytes(), 0, &mut scratch) else {
            panic!("{}", body.get());
        };
        let root = match serde_json::from_str::<Salted>(body.get()).unwrap().cache_salt {
            Some(salt) => Root::default().with("cache_salt", salt.as_bytes()),
            None => Root::default(),
        };
        let exact = ExactPrompt { bytes: text, root, ..ExactPrompt::default() };
        let pieces = [text];
        let request = RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Text(&pieces)) };
        let expected = router.peek(&request).unwrap().matched_tokens;
        assert_eq!(Some(expected), line.cached_tokens, "{}", body.get());
        requests += 1;
    }
    assert_eq!(requests, 35);
}

#[test]
fn a_chat_of_too_many_messages_is_not_rendered() {
    let directory = model();
    let renderer = Renderer::load(directory.path(), &Options::default()).unwrap();
    let mut scratch = Scratch::default();
    let mut render = |messages: usize| {
        let all = vec![r#"{"role":"user","content":"a"}"#; messages].join(",");
        let body = format!(r#"{{"messages":[{all}]}}"#);
        match renderer.render(Kind::Chat, body.as_bytes(), 0, &mut scratch) {
            Outcome::Unsupported(reason) => Some(reason),
            _ => None,
        }
    };
    assert_eq!(render(4096), None);
    assert_eq!(render(4097), Some("too many messages"));
}
