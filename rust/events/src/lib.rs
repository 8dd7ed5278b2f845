//! What inference engines tell about their KV caches, received and put in order.
//!
//! - [`Decoder`]: a message of vLLM, SGLang or TensorRT-LLM becomes a [`Batch`] of [`CacheEvent`](trunkline_core::CacheEvent)s;
//! - [`Sequencer`]: what to do about messages that are missing, come again or begin anew;
//! - [`Feeds`]: messages that somebody else received, decoded and applied to a router;
//! - [`Feed`]: a worker's messages over ZeroMQ, in order, to a [`Sink`]; [`source`] finds them;
//! - [`Publisher`]: the other end, for workers that are simulated.

mod batch;
pub mod decode;
mod error;
pub mod feed;
mod feeds;
mod publisher;
pub mod sequencer;
pub mod source;
mod zmtp;

pub use batch::Batch;
pub use decode::{Decoder, Extra, Fault, extra_hash};
pub use error::Error;
pub use feed::{Drain, Feed, Sink, Stats};
pub use feeds::{Feeds, Refused};
pub use publisher::{Publisher, PublisherConfig};
pub use sequencer::{Health, Sequencer};
pub use source::{Endpoint, Source};
