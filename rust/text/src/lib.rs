//! x
#![allow(dead_code)]
mod error;
pub mod escape;
mod json;
mod python;
mod template;
pub use error::{Error, Result};
pub use template::Limits;
