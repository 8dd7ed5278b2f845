//! Vocabularies whose tokens are written as base64 bytes: tiktoken ranks and Mistral's `tekken.json`.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Canonical, Config, Tokenizer, Vocabulary, malformed};
use crate::error::{Error, Result};

/// The file of tiktoken ranks in `directory`, if there is one: `*.tiktoken`, else `tiktoken.model`, else
/// `tokenizer.model`.
pub(super) fn find(directory: &Path) -> Result<Option<PathBuf>> {
    let files =
        std::fs::read_dir(directory).map_err(|source| Error::Read { path: directory.to_owned(), source })?;
    let mut paths: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    paths.sort();
    let ranks = paths.iter().find(|path| path.extension().is_some_and(|extension| extension == "tiktoken"));
    let named = |name: &str| paths.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    Ok(ranks.or_else(|| named("tiktoken.model")).or_else(|| named("tokenizer.model")).cloned())
}

/// Reads lines of `base64 rank`. Special tokens come from `config`.
pub(super) fn load(path: &Path, config: &Config) -> Result<Tokenizer> {
    let read = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let text = std::str::from_utf8(&read);
    let text = text
        .map_err(|_| malformed(path, "no tiktoken ranks (a sentencepiece model needs its tokenizer.json)"))?;
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let token = line
            .split_once(' ')
            .and_then(|(token, rank)| Some((rank.trim().parse().ok()?, STANDARD.decode(token).ok()?)));
        tokens.push(token.ok_or_else(|| malformed(path, format_args!("line {} is no rank", number + 1)))?);
    }
    tokens.extend(config.added_tokens.iter().map(|(id, token)| (*id, token.clone().into_bytes())));
    tokenizer(path, tokens)
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    default_vocab_size: u32,
    default_num_special_tokens: u32,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: u32,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

/// Reads `tekken.json`: special tokens first, then ranks up to the size of the vocabulary.
pub(super) fn load_tekken(path: &Path, text: &str) -> Result<Tokenizer> {
    let tekken: Tekken = serde_json::from_str(text).map_err(|error| malformed(path, error))?;
    let special = tekken.config.default_num_special_tokens;
    let ranks = tekken.config.default_vocab_size.saturating_sub(special);
    let mut tokens = Vec::new();
    for token in tekken.vocab.iter().filter(|token| token.rank < ranks) {
        let bytes = STANDARD.decode(&token.token_bytes).map_err(|error| malformed(path, error))?;
        tokens.push((token.rank + special, bytes));
    }
    let names = tekken.special_tokens.into_iter().flatten();
    tokens.extend(names.map(|token| (token.rank, token.token_str.into_bytes())));
    tokenizer(path, tokens)
}

/// Their encoders put nothing around a text that these files tell of.
fn tokenizer(path: &Path, tokens: Vec<(u32, Vec<u8>)>) -> Result<Tokenizer> {
    let vocabulary =
        Vocabulary::new(tokens).ok_or_else(|| malformed(path, "an id or a token is too large"))?;
    Ok(Tokenizer { vocabulary, canonical: Canonical::default(), affixes: None })
}
