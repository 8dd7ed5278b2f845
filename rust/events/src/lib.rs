//! What inference engines tell about their KV caches, received and put in order.
//!
//! - [`Decoder`]: a message of vLLM, SGLang or TensorRT-LLM becomes a [`Batch`] of [`CacheEvent`](trunkline_core::CacheEvent)s;
//! - [`Sequencer`]: what to do about messages that are missing, come again or begin anew;
//! - [`source`]: where a worker's events come from.

mod batch;
pub mod decode;
mod error;
pub mod sequencer;
pub mod source;

pub use batch::Batch;
pub use decode::{Decoder, Extra, Fault, extra_hash};
pub use error::Error;
pub use sequencer::{Health, Sequencer};
pub use source::{Endpoint, Source};
