//! Made workloads. Each is a struct of parameters with a `build`; equal parameters give equal workloads.
//!
//! Lengths and shapes are those of the policy study, so that its figures can be looked for here.

mod agents;
mod chatbot;
mod shared;

pub use agents::AgentLoops;
pub use chatbot::{Chatbot, Spike};
pub use shared::{Bursts, SharedPrefixes};
