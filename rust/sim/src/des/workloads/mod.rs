//! Made workloads. Each is a struct of parameters with a `build`; equal parameters give equal workloads.
//!
//! Lengths and shapes are those of the policy study, so that its figures can be looked for here. A `check` keeps a workload within
//! what fits memory: all of it is made before anything runs.

mod agents;
mod chatbot;
mod shared;

use crate::error::Error;

pub use agents::AgentLoops;
pub use chatbot::{Chatbot, Spike};
pub use shared::{Bursts, SharedPrefixes};

/// Longest piece of a prompt.
const MAX_TOKENS: u32 = 1_000_000;

/// Refuses a rate and a time that are none, and too many requests.
fn check_amount(rate_rps: f64, duration_s: f64) -> Result<(), Error> {
    check_rate("rate_rps", rate_rps)?;
    Error::unless_within("duration_s", duration_s, 0.0..=1e9, "0 to 1000000000")?;
    let allowed = "at most 5000000 requests, which are rate_rps times duration_s";
    Error::unless_within("requests", rate_rps * duration_s, 0.0..=5e6, allowed)
}

pub(super) fn check_rate(key: &'static str, rate: f64) -> Result<(), Error> {
    Error::unless_within(key, rate, 1e-6..=1e6, "0.000001 to 1000000")
}

fn check_tokens(key: &'static str, tokens: u32) -> Result<(), Error> {
    Error::unless_within(key, tokens, 0..=MAX_TOKENS, "0 to 1000000")
}

fn check_skew(skew: f64) -> Result<(), Error> {
    Error::unless_within("skew", skew, 0.0..=10.0, "0 to 10")
}
