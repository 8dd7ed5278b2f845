use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use trunkline_core::events::Spelling;

use super::*;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
}

/// The ids are those of the `tokenizers` package: spelled by the table they must be what the rule makes of the text.
#[test]
fn ids_of_real_tokenizers_spell_the_canonical_text() {
    let mut kinds = 0;
    for directory in std::fs::read_dir(data("tokenizers")).unwrap() {
        let directory = directory.unwrap().path();
        let tokenizer = Tokenizer::load(&directory, &Config::default()).unwrap();
        let encoded = std::fs::read_to_string(directory.join("encoded.json")).unwrap();
        let encoded: Vec<Encoded> = serde_json::from_str(&encoded).unwrap();
        assert!(encoded.len() > 80);
        for Encoded { text, ids } in encoded {
            // Unigram takes the name of a byte for the byte, if that makes the likelier text.
            if directory.ends_with("unigram") && text == "<0x0A>" {
                continue;
            }
            let mut spelled = Vec::new();
            assert!(tokenizer.vocabulary.spell(&ids, &mut spelled));
            let spelled = String::from_utf8_lossy(&spelled);
            assert_eq!(tokenizer.canonical.apply(&text), spelled, "{}: {text:?}", directory.display());
        }
        kinds += 1;
    }
    assert_eq!(kinds, 9);
}

fn read_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(data(name)).unwrap()).unwrap()
}

fn load(file: &Value, config: &Config) -> Result<Tokenizer> {
    json::load(Path::new("tokenizer.json"), &file.to_string(), config)
}

#[test]
fn what_loses_text_is_refused_by_name() {
    let byte_level = read_json("tokenizers/byte_level/tokenizer.json");
    let pieces = read_json("tokenizers/pieces_replace/tokenizer.json");
    let cases = [
        (&byte_level, "normalizer", json!({"type": "Lowercase"}), "normalizer"),
        (
            &byte_level,
            "normalizer",
            json!({"type": "Strip", "strip_left": true, "strip_right": false}),
            "normalizer",
        ),
        (&byte_level, "normalizer", json!({"type": "StripAccents"}), "normalizer"),
        (&byte_level, "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""}), "normalizer"),
        (&byte_level, "normalizer", json!({"type": "BertNormalizer"}), "normalizer"),
        (
            &byte_level,
            "normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}),
            "normalizer",
        ),
        (
            &byte_level,
            "pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true}),
            "pre_tokenizer",
        ),
        (&byte_level, "pre_tokenizer", json!({"type": "WhitespaceSplit"}), "pre_tokenizer"),
        (&byte_level, "pre_tokenizer", json!({"type": "Split", "behavior": "Removed"}), "pre_tokenizer"),
        (&byte_level, "decoder", json!({"type": "WordPiece"}), "decoder"),
        (&byte_level, "decoder", Value::Null, "decoder"),
        (&byte_level, "model", json!({"type": "WordPiece", "vocab": {}}), "model"),
        (&byte_level, "model", json!({"type": "BPE", "vocab": {}, "end_of_word_suffix": "</w>"}), "model"),
        (&pieces, "model", json!({"type": "BPE", "vocab": {}, "byte_fallback": false}), "model"),
        (
            &byte_level,
            "added_tokens",
            json!([{"id": 1, "content": "x", "single_word": true}]),
            "added_tokens",
        ),
    ];
    for (file, key, value, wanted) in cases {
        let mut file = file.clone();
        file[key] = value.clone();
        match load(&file, &Config::default()) {
            Err(Error::Unsupported { part, .. }) => assert_eq!(part, wanted, "{value}"),
            other => panic!("{value}: {other:?}"),
        }
    }
    let mut file = read_json("tokenizers/byte_level_nfc/tokenizer.json");
    file["added_tokens"][0]["normalized"] = true.into();
    assert!(matches!(load(&file, &Config::default()), Err(Error::Unsupported { part: "added_tokens", .. })));
}

#[test]
fn the_post_processor_says_what_stands_around_a_text() {
    let pieces = read_json("tokenizers/pieces_replace/tokenizer.json");
    let config = |adds_bos| Config { adds_bos, ..Config::default() };
    let bos = Affixes { before: b"<s>".to_vec(), after: Vec::new() };
    assert_eq!(load(&pieces, &config(None)).unwrap().affixes, Some(bos.clone()));
    assert_eq!(load(&pieces, &config(Some(true))).unwrap().affixes, Some(bos));
    assert_eq!(load(&pieces, &config(Some(false))).unwrap().affixes, None);
    let byte_level = read_json("tokenizers/byte_level/tokenizer.json");
    assert_eq!(load(&byte_level, &config(None)).unwrap().affixes, Some(Affixes::default()));
    let mut other = byte_level;
    other["post_processor"] = json!({"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 2]});
    assert_eq!(load(&other, &config(None)).unwrap().affixes, None);
}

/// A directory that is gone when the test ends.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("trunkline-text-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (file, text) in files {
            std::fs::write(path.join(file), text).unwrap();
        }
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ranks_are_base64_bytes() {
    let config = r#"{"added_tokens_decoder": {"3": {"content": "<|end|>"}}, "chat_template": "x"}"#;
    let directory = Directory::new(
        "ranks",
        &[("own.tiktoken", "YQ== 0\n8J8= 1\nIGI= 2\n"), ("tokenizer_config.json", config)],
    );
    let config = Config::load(&directory.0).unwrap();
    let tokenizer = Tokenizer::load(&directory.0, &config).unwrap();
    let mut bytes = Vec::new();
    assert!(tokenizer.vocabulary.spell(&[2, 0, 1, 3], &mut bytes));
    assert_eq!(bytes, b" ba\xf0\x9f<|end|>");
    assert_eq!(config.template("default"), Some("x"));

    let tekken = r#"{"config": {"default_vocab_size": 4, "default_num_special_tokens": 2},
        "vocab": [{"rank": 0, "token_bytes": "YQ=="}, {"rank": 1, "token_bytes": "YmM="}, {"rank": 2, "token_bytes": "ZA=="}],
        "special_tokens": [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}]}"#;
    let directory = Directory::new("tekken", &[("tekken.json", tekken)]);
    let tokenizer = Tokenizer::load(&directory.0, &Config::default()).unwrap();
    bytes.clear();
    assert!(tokenizer.vocabulary.spell(&[1, 3, 2], &mut bytes));
    assert_eq!(bytes, b"<s>bca");
    assert!(!tokenizer.vocabulary.spell(&[4], &mut bytes));
}

#[test]
fn a_directory_without_a_vocabulary_is_named() {
    let directory = Directory::new("none", &[]);
    let load = || Tokenizer::load(&directory.0, &Config::default());
    assert!(matches!(load(), Err(Error::NoVocabulary { path }) if path == directory.0));
    std::fs::write(directory.0.join("tokenizer.model"), b"\x0a\x0b\xff").unwrap();
    assert!(matches!(load(), Err(Error::Malformed { .. })));
    std::fs::write(directory.0.join("tokenizer.json"), "{").unwrap();
    assert!(matches!(load(), Err(Error::Malformed { .. })));
}

#[test]
fn templates_come_from_the_first_place_that_has_them() {
    let named = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
        "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
        "additional_special_tokens": ["<x>"], "extra_special_tokens": {"image_token": "<image>"}}"#;
    let directory = Directory::new("templates", &[("tokenizer_config.json", named)]);
    let config = Config::load(&directory.0).unwrap();
    assert_eq!((config.template("default"), config.template("tool_use")), (Some("a"), Some("b")));
    assert_eq!(config.special_token("bos_token"), Some("<s>"));
    assert_eq!(config.special_token("eos_token"), Some("</s>"));
    assert_eq!(config.special_token("image_token"), Some("<image>"));
    assert_eq!(config.special_token("pad_token"), None);
    std::fs::write(directory.0.join("chat_template.jinja"), "c").unwrap();
    let config = Config::load(&directory.0).unwrap();
    assert_eq!((config.template("default"), config.template("tool_use")), (Some("c"), Some("b")));
}
