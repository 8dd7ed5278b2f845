//! A tokenizer's directory: which bytes a token spells, and which text its tokens spell together.
//!
//! `tokenizer.json` says both. What it says is accepted only if tokens lose no text: the concatenated bytes of a text's
//! tokens must follow from the text by the few rules of [`Canonical`]. Everything else is refused by name.

mod canonical;
mod config;
mod json;
mod ranks;
mod vocabulary;

use std::path::Path;

pub use self::canonical::Canonical;
pub(crate) use self::config::{Config, SpecialToken};
pub use self::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// What a tokenizer's files say.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) canonical: Canonical,
    /// What is put around a text that is not made by a chat template, if that is known.
    pub(crate) affixes: Option<Affixes>,
}

/// Bytes of the special tokens around a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Affixes {
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
}

impl Affixes {
    /// Whether nothing is put around a text.
    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

impl Tokenizer {
    /// Reads the files in `directory`: `tokenizer.json`, else `tekken.json`, else tiktoken ranks.
    pub(crate) fn load(directory: &Path, config: &Config) -> Result<Self> {
        let file = directory.join("tokenizer.json");
        if let Some(text) = read(&file)? {
            return json::load(&file, &text, config);
        }
        let file = directory.join("tekken.json");
        if let Some(text) = read(&file)? {
            return ranks::load_tekken(&file, &text);
        }
        match ranks::find(directory)? {
            Some(file) => ranks::load(&file, config),
            None => Err(Error::NoVocabulary { path: directory.to_owned() }),
        }
    }
}

/// The text of a file; `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

pub(crate) fn malformed(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Malformed { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests;
