//! Prefix-aware routing for LLM inference: the decision, and nothing else.
//!
//! A prompt is a sequence of *blocks* (16 tokens, or 64 bytes of text). Two prompts that begin with the same blocks share
//! a *prefix*; a worker that served one of them has computed the KV cache of that prefix and answers the other sooner.
//! [`Router::route`] picks a worker for a prompt in five steps:
//!
//! 1. [`key`] turns the prompt into block hashes;
//! 2. [`index`] walks a path-compressed radix tree once and knows how much of the prompt every worker holds;
//! 3. [`jump`] names the prompt's *home*, the same one on every replica, for prefixes that nobody holds;
//! 4. [`policy`] compares the workers' expected cost in tokens;
//! 5. the choice is booked: requests and queued tokens on the worker, its new blocks in the index.
//!
//! [`Router::first_token`] and [`Router::complete`] release what was booked.
//!
//! There is no I/O here, no clock (time is an argument), no thread and no async: a gateway, a simulator and a Python
//! program drive the same code.
//!
//! ```
//! use trunkline_core::{Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec};
//!
//! let router = Router::new(RouterConfig::default())?;
//! for name in ["http://10.0.0.1:8000", "http://10.0.0.2:8000"] {
//!     router.add_worker(WorkerSpec::new(name))?;
//! }
//! let tokens: Vec<u32> = (0..512).collect();
//! let request = RouteRequest::new(Prompt::Tokens(&tokens));
//! let first = router.route(&request, Millis(0))?;
//! router.first_token(first.id, Millis(40));
//! router.complete(first.id, None, Millis(90));
//!
//! let second = router.route(&request, Millis(100))?;
//! assert_eq!(second.worker, first.worker);
//! assert_eq!(second.matched_tokens, 512);
//! # Ok::<(), trunkline_core::Error>(())
//! ```

#![deny(unsafe_code)]

mod book;
mod choice;
pub mod decision;
pub mod error;
pub mod events;
mod exact;
mod fleet;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hits;
pub mod index;
pub mod jump;
pub mod key;
pub mod policy;
pub mod router;
mod shared;
pub mod snapshot;
mod state;
mod sync;
mod view;
pub mod worker;

pub use decision::{CandidateView, Decision, DecisionId, Explanation, Reason};
pub use error::Error;
pub use events::{CacheEvent, Handle, Medium, Spelling, Stored};
pub use exact::{Applied, ExactPrompt};
pub use index::{PrefixIndex, Writer};
pub use jump::jump_hash;
pub use key::{BlockHash, BlockHasher, BlockSource, Prompt, Root};
pub use policy::Policy;
pub use router::{Best, Match, Millis, RouteRequest, Router, RouterConfig, Stats, Usage};
pub use snapshot::SnapshotFault;
pub use view::CacheView;
pub use worker::{WorkerId, WorkerSpec, WorkerView};
