//! A decision and its reason: every choice can explain itself.

use crate::worker::WorkerId;

/// Names one booking of one router. Stays valid until `complete`; after that every use is a no-op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DecisionId(pub(crate) u64);

impl DecisionId {
    /// The id as a number, for logs, arrays and foreign languages.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The id that [`to_u64`](Self::to_u64) gave. A made-up number names no booking and is harmless.
    #[must_use]
    pub fn from_u64(id: u64) -> Self {
        Self(id)
    }
}

/// Why a worker was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It holds the longest cached part of the prompt and costs least.
    Prefix,
    /// It alone holds this prompt's own history (a session's last turn) and keeps it, although another worker costs a
    /// little less.
    Session,
    /// Nothing decided between the best workers, so the hash of the prompt did.
    Home,
    /// It costs least, although it holds less of the prompt than another worker or nothing at all.
    Load,
    /// The preferred worker was over its bound.
    Spill,
    /// It was the only worker allowed.
    Only,
    /// Its turn (`round_robin`), its luck (`random`) or its few requests (`least_outstanding`).
    Baseline,
}

impl Reason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 7] =
        [Self::Prefix, Self::Session, Self::Home, Self::Load, Self::Spill, Self::Only, Self::Baseline];

    /// The name used in metrics, headers and Python.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Session => "session",
            Self::Home => "home",
            Self::Load => "load",
            Self::Spill => "spill",
            Self::Only => "only",
            Self::Baseline => "baseline",
        }
    }
}

/// What [`Router::route`](crate::Router::route) chose. The request counts as in flight on `worker` until `complete`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Pass it to `first_token` and `complete`.
    pub id: DecisionId,
    /// Where the request goes.
    pub worker: WorkerId,
    /// Why.
    pub reason: Reason,
    /// The worker with the longest cached part, or the home, when the choice left it.
    pub preferred: Option<WorkerId>,
    /// The same in blocks.
    pub matched_blocks: u32,
    /// Whole blocks of the prompt.
    pub prompt_blocks: u32,
    /// Leading tokens of the prompt believed cached on `worker`.
    pub matched_tokens: u32,
    /// What the worker's events alone say of that; `None` where they do not count.
    pub told_tokens: Option<u32>,
    /// Tokens of the prompt (estimated for text: bytes / learnt bytes per token).
    pub prompt_tokens: u32,
}

/// One worker's row in an [`Explanation`].
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateView {
    /// The worker.
    pub worker: WorkerId,
    /// Tokens of the prompt believed cached there.
    pub matched_tokens: u32,
    /// Prefill tokens sent there that have produced no first byte yet.
    pub queued_tokens: u64,
    /// Requests sent there and not finished.
    pub in_flight: u32,
    /// Tokens that routers of whose requests this one hears late may have sent there: by chance, up to what is uncached.
    pub unseen: f64,
    /// Price in tokens of computing there what another worker already holds.
    pub replication: f64,
    /// Penalty in tokens for a full KV cache.
    pub memory: f64,
    /// Penalty in tokens for being over the fleet's mean.
    pub over_mean: f64,
    /// Price in tokens of placing a new prompt there, by what it holds beside the others' mean; negative if less.
    pub held: f64,
    /// Home bonus in tokens, 0 for all others.
    pub home_bonus: f64,
    /// Learnt slowness, 1 = like the fleet.
    pub slowness: f64,
    /// The sum that the policy compares; lower wins.
    pub cost: f64,
}

/// What a decision would be and how each candidate scored; books nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Where the request would go.
    pub worker: WorkerId,
    /// Why.
    pub reason: Reason,
    /// The worker that a free choice would have taken, when it was left.
    pub preferred: Option<WorkerId>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Whole blocks of the prompt.
    pub prompt_blocks: u32,
    /// All candidates, cheapest first. Policies other than `kv_aware` fill `in_flight`, `matched_tokens` and `cost` only.
    pub candidates: Vec<CandidateView>,
}
