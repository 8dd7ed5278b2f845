//! Settings of a trial.

use trunkline_core::Policy;

use super::assign::Share;
use crate::error::Error;

/// What decides which arm a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrialBy {
    /// Its tenant: the tenant of its API key, else `X-Amzn-SageMaker-Prefix-Aware-Id`, else `prompt_cache_key`; of a request
    /// that names none, its conversation (all up to its first user message).
    #[default]
    Tenant,
    /// Chance, request by request.
    Request,
}

/// A second arm for a part of the traffic: another policy, another pool of workers, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialConfig {
    /// How arm B's workers are chosen; `None` as everybody's.
    pub policy: Option<Policy>,
    /// Arm B's workers: those with `#pool=` this name behind their URL. Arm A then has all others. `None` for all workers.
    pub pool: Option<String>,
    /// Arm B's share of the tenants or requests, 0 to 1.
    pub share: f64,
    /// What decides which arm a request gets.
    pub by: TrialBy,
}

impl TrialConfig {
    /// Refuses values outside their range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        if self.policy.is_none() && self.pool.is_none() {
            return refuse("trial_share", self.share.to_string(), "a share with trial_policy or trial_pool");
        }
        if Share::new(self.share).is_none() {
            return refuse("trial_share", self.share.to_string(), "0 to 1");
        }
        if self.pool.as_deref().is_some_and(|pool| !is_pool(pool)) {
            return refuse("trial_pool", self.pool.clone().unwrap_or_default(), POOL_NAMES);
        }
        if let Some(policy) = &self.policy {
            policy.check()?;
        }
        Ok(())
    }
}

/// What a pool may be called, in words and in code.
const POOL_NAMES: &str = "1 to 63 letters, digits and hyphens, a letter or digit first";

pub(crate) fn is_pool(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_named() {
        let good = TrialConfig { policy: None, pool: Some("new".into()), share: 0.5, by: TrialBy::Tenant };
        good.check().unwrap();
        let key = |config: TrialConfig| match config.check() {
            Err(Error::Config { key, .. }) => key,
            Err(Error::Router(trunkline_core::Error::Config { key, .. })) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(TrialConfig { pool: None, ..good.clone() }), "trial_share");
        assert_eq!(key(TrialConfig { share: 1.5, ..good.clone() }), "trial_share");
        assert_eq!(key(TrialConfig { share: f64::NAN, ..good.clone() }), "trial_share");
        for odd in ["", "-new", "a b", "a&b"] {
            assert_eq!(key(TrialConfig { pool: Some(odd.into()), ..good.clone() }), "trial_pool", "{odd}");
        }
        let policy = Some(Policy::PrefixAware { prefix_length: 1, concurrency_threshold: None });
        assert_eq!(key(TrialConfig { policy, ..good }), "prefix_length");
    }
}
