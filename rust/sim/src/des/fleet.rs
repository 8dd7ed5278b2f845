//! The fleet as a policy may see it: what workers would answer if they were asked for their metrics now.

use super::profile::Profile;
use super::worker::Worker;

/// What a worker's metrics page says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerStatus {
    /// Sequences that prefill or decode.
    pub running: u32,
    /// Sequences that are not admitted yet.
    pub waiting: u32,
    /// Share of the KV cache that running sequences hold.
    pub kv_use: f64,
    /// Blocks that are taken: cached ones, and those kept for answers.
    pub used_blocks: u64,
}

/// The workers.
#[derive(Debug, Clone, Copy)]
pub struct Fleet<'a> {
    pub(crate) workers: &'a [Worker],
    pub(crate) live: usize,
    pub(crate) profile: &'a Profile,
}

impl Fleet<'_> {
    /// Workers that take requests: those numbered below this.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    /// What each worker is able to do, speed aside.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        self.profile
    }

    /// What the worker's metrics say now.
    #[must_use]
    pub fn status(&self, worker: usize) -> WorkerStatus {
        self.workers[worker].status(self.profile)
    }
}
