//! A trial and a shadow as Python gives them: one mapping with the keys of the configuration file.

use pyo3::prelude::*;
use trunkline_gateway::{TrialBy, TrialConfig, Tried};

use crate::error;
use crate::router;

/// All but `trial_by` may be left out: `{"trial_policy": ..., "trial_pool": ..., "trial_share": ..., "trial_by": ..., "shadow_policy": ...}`, and the parameters
/// of `prefix_aware`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Trial {
    #[pyo3(default)]
    trial_policy: Option<String>,
    #[pyo3(default)]
    trial_pool: Option<String>,
    #[pyo3(default)]
    trial_share: f64,
    trial_by: String,
    #[pyo3(default)]
    shadow_policy: Option<String>,
    #[pyo3(default = 4096)]
    prefix_length: u32,
    #[pyo3(default)]
    concurrency_threshold: Option<u32>,
}

impl Trial {
    /// The trial, if it names a policy or a pool, and the policy in the shadow. Errors: `ConfigError`.
    pub(crate) fn tried(self, py: Python<'_>) -> PyResult<Tried> {
        let policy = |name: Option<String>| {
            name.map(|name| router::parsed(&name, self.prefix_length, self.concurrency_threshold))
                .transpose()
                .map_err(|refused| error::core(py, refused))
        };
        let (trial_policy, shadow) = (policy(self.trial_policy)?, policy(self.shadow_policy)?);
        let by = match self.trial_by.as_str() {
            "tenant" => TrialBy::Tenant,
            "request" => TrialBy::Request,
            other => return Err(error::config(py, "trial_by", &other, "tenant or request")),
        };
        let config = TrialConfig { policy: trial_policy, pool: self.trial_pool, share: self.trial_share, by };
        // A share of nothing is no mistake; any other is one.
        let is_none = config.policy.is_none() && config.pool.is_none() && config.share == 0.0;
        Ok(Tried { trial: (!is_none).then_some(config), shadow })
    }
}
