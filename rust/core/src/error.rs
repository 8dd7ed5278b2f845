//! Everything that can go wrong in the core: bad configuration, unknown workers, nobody to route to.

use crate::snapshot::SnapshotFault;
use crate::worker::WorkerId;

/// What a caller did, or what the fleet lacks. The core never panics on input; it returns one of these.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside its range; nothing was changed.
    #[error("{key} = {value}: allowed is {allowed}")]
    Config {
        /// Name of the setting as users write it.
        key: &'static str,
        /// The value that was refused.
        value: String,
        /// The range or the names that are allowed.
        allowed: String,
    },
    /// The id does not name a worker of this router (never added, or removed).
    #[error("worker {id:?} is not known to this router")]
    UnknownWorker {
        /// The id that was given.
        id: WorkerId,
    },
    /// A worker with this name is already in the fleet.
    #[error("worker {name:?} is already in the fleet")]
    DuplicateWorker {
        /// The name that was given twice.
        name: String,
    },
    /// No worker may take the request: none was added, or all are drained, unhealthy, excluded or not eligible.
    #[error("no worker can take the request: {known} known, {live} live, {eligible} eligible")]
    NoWorkerAvailable {
        /// Workers in the fleet.
        known: usize,
        /// Of these, healthy and not draining.
        live: usize,
        /// Of these, allowed for this request.
        eligible: usize,
    },
    /// A token id is outside 0..2^32.
    #[error("token id {value} at position {position} is outside 0..2^32")]
    TokenId {
        /// Position in the prompt.
        position: usize,
        /// The value found there.
        value: i64,
    },
    /// The bytes are no snapshot that this version can restore; no router was made of them.
    #[error("this snapshot cannot be restored: {fault}")]
    Snapshot {
        /// What is wrong with it.
        fault: SnapshotFault,
    },
}
