//! What can go wrong when a gateway is started or changed. Faults of single requests are in [`crate::upstream`].

use std::io;
use std::path::PathBuf;

use rustls::pki_types::pem;

use crate::listen::Listen;

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
    /// A file that a setting names cannot be used.
    #[error("{key} = {}: {source}", path.display())]
    File {
        /// Name of the setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: FileFault,
    },
    /// A tokenizer cannot be read, or its text is not known to be exact.
    #[error("tokenizer {}: {reason}", path.display())]
    Tokenizer {
        /// Its directory, or its chat template.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The address cannot be listened on: in use, not ours, or not permitted.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: Listen,
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

/// What is wrong with a file of certificates, keys or tokens. Never quotes the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It is not PEM, or holds nothing of the wanted kind.
    #[error("not the PEM that is wanted here: {0}")]
    Pem(pem::Error),
    /// It holds no certificate.
    #[error("no certificate in it")]
    NoCertificate,
    /// A certificate or key is not fit for use, or the two do not belong together.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// A line of keys is not as it should be.
    #[error("line {number}: wanted is {wanted}")]
    Line {
        /// Number of the line, from 1.
        number: usize,
        /// What should stand there.
        wanted: &'static str,
    },
    /// It is not one line of 16 or more visible ASCII characters.
    #[error("a token is one line of 16 or more visible ASCII characters")]
    Token,
}
