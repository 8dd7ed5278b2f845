//! What a rule for choosing workers sees, and what it is told.

use trunkline_core::Medium;

use super::fleet::Fleet;
use super::workload::Segment;

/// A request that needs a worker.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Its number in the workload.
    pub request: u32,
    /// Its prompt.
    pub prompt: &'a [Segment],
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Length of its answer. A router cannot know it; only rules that say so look at it.
    pub output_tokens: u32,
    /// Number of its answer as a segment.
    pub answer: Option<u32>,
    /// The router that it reached, of as many as there are.
    pub router: usize,
    /// Now.
    pub now_s: f64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// The request.
    pub request: u32,
    /// Its prompt.
    pub prompt: &'a [Segment],
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of it that the worker's cache had.
    pub cached_tokens: u32,
    /// Length of its answer; 0 if the worker was lost before its end.
    pub output_tokens: u32,
    /// The worker.
    pub worker: usize,
    /// The router that had placed it.
    pub router: usize,
    /// Now.
    pub now_s: f64,
}

/// A change of a worker's cache, as its KV events tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheChange {
    /// The segment.
    pub segment: u32,
    /// Where: the accelerator's memory, or the host's.
    pub medium: Medium,
    /// Whether it is there now, or gone.
    pub is_stored: bool,
}

/// A rule for choosing workers. One for all routers of a fleet; [`Arrival::router`] tells them apart.
pub trait Policy: Send {
    /// Chooses a worker below [`Fleet::live`] and keeps in mind that the request went there.
    fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize;

    /// The first token of the answer came.
    fn first_token(&mut self, _request: u32, _now_s: f64) {}

    /// The answer ended, or its worker was lost; then the request arrives again.
    fn complete(&mut self, _outcome: &Outcome<'_>) {}

    /// Workers `0..live` take requests from now on. Those that left finish what they have.
    fn scale(&mut self, _live: usize, _now_s: f64) {}

    /// A worker died and came back at once with an empty cache, or stays away until the next [`scale`](Self::scale).
    fn worker_lost(&mut self, _worker: usize, _now_s: f64) {}

    /// Whether it wants to be told of changes of caches.
    fn wants_cache_changes(&self) -> bool {
        false
    }

    /// A worker's cache changed. Rules that hear of it late delay it themselves.
    fn cache_changed(&mut self, _worker: usize, _change: CacheChange, _now_s: f64) {}
}
