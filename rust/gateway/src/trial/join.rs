//! How a request takes part: whose it is, so which arm it has, and what the shadow would do with it.
//!
//! Its tenant is that of its API key, else `X-Amzn-SageMaker-Prefix-Aware-Id`, else its `prompt_cache_key`. A request that names
//! none counts as its conversation, so that all turns of one stay in one arm and find what the turns before left in its caches.
//! Requests to a configured endpoint of SageMaker have their variant's workers and policy, and take no part.

use super::{Part, Ticket, Unit};
use crate::place::Placing;

/// Salt of the groups of a request that is in no trial.
const NO_TRIAL: u64 = 0;

impl Placing<'_> {
    /// Takes part in what is tried; `None` if that is nothing. One that generates nothing is sent by its arm and not counted.
    pub(crate) fn join(&self, is_generation: bool) -> Option<Box<Part>> {
        let trials = &self.shared.trials;
        if !trials.is_on() || self.scope.is_some() {
            return None;
        }
        let now = self.shared.now();
        let ticket = trials.trial().map(|trial| {
            let unit = trial.unit(|salt| self.unit(salt));
            Ticket::draw(&trial, unit, is_generation.then_some(self.since), now)
        });
        let shadowed = trials.shadow().filter(|_| is_generation).and_then(|shadow| {
            let unit = self.unit(NO_TRIAL).unwrap_or_else(|| Unit::of_number(now.0, NO_TRIAL));
            self.shadow(&shadow, unit.group())
        });
        Some(Box::new(Part::new(ticket, shadowed)))
    }

    /// What decides for its tenant; `None` if nothing says whose it is.
    fn unit(&self, salt: u64) -> Option<Unit> {
        let key = self.key.map(|key| key.tenant.as_bytes());
        let cache_key = || Some(self.located.as_ref()?.prompt_cache_key()?.as_bytes());
        if let Some(tenant) = key.or(self.tenant).or_else(cache_key) {
            return Some(Unit::of_tenant(tenant, salt));
        }
        let conversation = self.located.as_ref()?.conversation_hash(salt)?;
        Some(Unit::of_number(conversation, salt))
    }
}
