//! What inference engines tell about their KV caches, received and put in order.
//!
//! - [`Decoder`]: a message of vLLM, SGLang or TensorRT-LLM becomes a [`Batch`] of [`CacheEvent`](trunkline_core::CacheEvent)s.

mod batch;
pub mod decode;

pub use batch::Batch;
pub use decode::{Decoder, Extra, Fault, extra_hash};
