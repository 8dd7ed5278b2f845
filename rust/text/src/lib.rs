//! The text that an engine's tokenizer sees, and the bytes that its tokens spell.
//!
//! An engine tells in token ids which blocks it keeps; a request comes as JSON. Both become bytes here, so that one can
//! be matched with the other without tokenizing any request:
//!
//! - [`Vocabulary`] spells token ids: a look-up per token;
//! - [`Renderer`] makes of a request's body the text of its prompt, as the engine does ([`EngineRules`]) and its chat
//!   template, and then what the tokens of that text spell ([`Canonical`]).
//!
//! Where that is not known to be exact, the [`Outcome`] says so and the caller falls back. No I/O after loading, no
//! clock, no threads.

mod engine;
mod error;
pub mod escape;
mod json;
mod python;
mod renderer;
mod template;
mod tokenizer;

pub use engine::{EngineRules, Field, VLLM};
pub use error::{Error, Result};
pub use renderer::{Kind, Options, Outcome, Renderer, Scratch};
pub use template::Limits;
pub use template::format::ContentFormat;
pub use tokenizer::{Canonical, Vocabulary};
