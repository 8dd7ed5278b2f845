//! What can go wrong when a gateway is started or changed. Faults of single requests are in [`crate::upstream`].

use std::io;
use std::net::SocketAddr;

/// Why a gateway did not start, or a change of its fleet was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside its range.
    #[error("{key} = {value}: allowed is {allowed}")]
    Config {
        /// Name of the setting.
        key: &'static str,
        /// The value that was refused.
        value: String,
        /// The range that is allowed.
        allowed: &'static str,
    },
    /// The address cannot be listened on: in use, not ours, or not permitted.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or its event loop could not be made.
    #[error("cannot start a thread")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// No worker of this URL is in the fleet.
    #[error("no worker {url} in the fleet")]
    UnknownWorker {
        /// The URL that was given.
        url: String,
    },
    /// The router refused the change.
    #[error(transparent)]
    Router(#[from] trunkline_core::Error),
}
