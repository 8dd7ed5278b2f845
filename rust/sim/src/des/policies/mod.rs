//! Rules for choosing workers, by name.
//!
//! `kv_aware`, `prefix_aware`, `least_outstanding`, `round_robin` and `random` are those of the core, run by the core. The rest
//! are other routers' rules as far as their sources tell them, and the rules that the policy study compared. They get every
//! advantage: their indexes see an own decision at once even where their deployments may not.

mod book;
mod cache_aware;
mod chwbl;
mod cost;
mod dynamo;
mod feed;
mod index;
mod llm_d;
mod peer;
mod preble;
mod trunkline;

use trunkline_core::Policy as Rule;

use super::Policy;
use crate::error::Error;
use cost::{CostRule, Terms};
use index::Source;
pub use peer::PolicyOptions;
use peer::{Peer, check_workers};
pub use trunkline::{Trunkline, TrunklineOptions};

/// Tokens of a prompt that the rules without an index hash, in the study's table.
const HEAD_TOKENS: u32 = 2048;
/// SageMaker's threshold in the study's table.
const CONCURRENCY: u32 = 32;

/// Rules that exist only here.
pub const PEERS: [&str; 11] = [
    "sagemaker",
    "chwbl",
    "cache_aware",
    "llm_d",
    "dynamo",
    "preble",
    "lmetric",
    "e1",
    "e1_lean",
    "ect",
    "ect2",
];

/// The policy of this name for a fleet of `workers`.
///
/// # Errors
/// [`Error::Config`] for an unknown name or a fleet too large for the rule; [`Error::Router`] from the core.
pub fn named(name: &str, workers: usize, options: &PolicyOptions) -> Result<Box<dyn Policy>, Error> {
    let own = Source::Own { capacity_tokens: options.kv_tokens };
    let both = Source::Both { delay_s: options.event_delay_s };
    let cost = |terms| Peer::boxed(CostRule::new(terms), Some(both), options);
    if PEERS.contains(&name) && name != "sagemaker" {
        check_workers(workers)?;
    }
    Ok(match name {
        // The core has SageMaker's rule; a token counts as 4 characters there.
        "sagemaker" => {
            let policy = Rule::PrefixAware {
                prefix_length: 4 * HEAD_TOKENS,
                concurrency_threshold: Some(CONCURRENCY),
            };
            Box::new(Trunkline::new(&core_options(policy, options))?)
        }
        "chwbl" => Peer::boxed(chwbl::BoundedRing::new(HEAD_TOKENS), None, options),
        "cache_aware" => Peer::boxed(cache_aware::CacheAware, Some(own), options),
        "llm_d" => Peer::boxed(llm_d::LlmD, Some(both), options),
        "dynamo" => Peer::boxed(dynamo::Dynamo::default(), Some(both), options),
        "preble" => Peer::boxed(preble::Preble::default(), Some(own), options),
        "lmetric" => cost(Terms::LMETRIC),
        "e1" => cost(Terms::E1),
        "e1_lean" => cost(Terms::E1_LEAN),
        "ect" => cost(Terms::ECT),
        "ect2" => cost(Terms::ECT2),
        _ if Rule::NAMES.contains(&name) => {
            let policy = match Rule::parse(name)? {
                Rule::PrefixAware { prefix_length, .. } => Rule::PrefixAware {
                    prefix_length: options.prefix_length.unwrap_or(prefix_length),
                    concurrency_threshold: options.concurrency_threshold,
                },
                other => other,
            };
            Box::new(Trunkline::new(&core_options(policy, options))?)
        }
        _ => {
            return Err(Error::Config {
                key: "policy",
                value: name.to_owned(),
                allowed: "a policy of the core or one of sagemaker, chwbl, cache_aware, llm_d, dynamo, preble, lmetric, e1, \
                          e1_lean, ect, ect2",
            });
        }
    })
}

fn core_options(policy: Rule, options: &PolicyOptions) -> TrunklineOptions {
    let has_events = options.events && matches!(policy, Rule::KvAware);
    TrunklineOptions {
        policy,
        host_events: options.host_events,
        event_delay_s: has_events.then_some(options.event_delay_s),
        routers: options.routers,
        gossip_s: options.gossip_s,
        capacity_tokens: Some(options.kv_tokens),
        seed: options.seed,
        ..TrunklineOptions::default()
    }
}
