//! x
#![allow(dead_code)]
mod error;
pub mod escape;
mod json;
mod python;
mod template;
mod tokenizer;
pub use error::{Error, Result};
pub use template::Limits;
pub use tokenizer::{Canonical, Vocabulary};
