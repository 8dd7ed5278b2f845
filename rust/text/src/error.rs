//! Why a tokenizer's text cannot be had.

use std::path::PathBuf;

/// Why [`Renderer::load`](crate::Renderer::load) refused a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No file with a vocabulary was found.
    #[error("{}: no tokenizer.json, tekken.json or tiktoken ranks", path.display())]
    NoVocabulary {
        /// The directory.
        path: PathBuf,
    },
    /// The tokenizer loses or changes text in a way that is not told from its tokens.
    #[error("the tokenizer's {part} is not supported: {reason}")]
    Unsupported {
        /// Which part of it: `model`, `normalizer`, `pre_tokenizer`, `decoder`, `added_tokens`, `post_processor`.
        part: &'static str,
        /// Its kind, and why not.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("the chat template: {source}")]
    Template {
        /// Where and why.
        #[from]
        source: minijinja::Error,
    },
    /// A time zone is unknown here.
    #[error("time zone {name:?}: {source}")]
    TimeZone {
        /// Its name as configured.
        name: String,
        /// Why.
        source: jiff::Error,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
