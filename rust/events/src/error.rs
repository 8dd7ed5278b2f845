//! What can be wrong with a source before it is connected to.

/// Why sources cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint that no feed can use.
    #[error("endpoint {endpoint}: allowed is tcp://host:port or ipc://path")]
    Endpoint {
        /// As it was given.
        endpoint: String,
    },
    /// The answer of `/kv_event_sources` has another shape.
    #[error("not an answer of /kv_event_sources: {reason}")]
    Sources {
        /// What the JSON reader says.
        reason: String,
    },
}
