//! What can go wrong when a mock worker or a simulation is started. Faults of a request are answered over HTTP and never end up here.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Why a mock worker or a simulation did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside its range.
    #[error("{key} = {value}: must be {allowed}")]
    Config {
        /// Name of the field.
        key: &'static str,
        /// The refused value.
        value: String,
        /// The allowed range, in words.
        allowed: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The router of a simulation refused its settings.
    #[error(transparent)]
    Router(#[from] trunkline_core::Error),
    /// The description of a simulation is not one.
    #[error("not a simulation: {0}")]
    Spec(String),
    /// A trace or a log cannot be read.
    #[error("{}{problem}", at_line(*line))]
    Trace {
        /// Number of the line, from 1; 0 for the file as a whole.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The worker's thread or its event loop could not be created.
    #[error("cannot start the worker's thread")]
    Thread(#[source] io::Error),
}

impl Error {
    /// Refuses a value outside `range`, which `allowed` says in words; not a number is in none.
    #[expect(clippy::needless_pass_by_value, reason = "numbers are")]
    pub(crate) fn unless_within<T: PartialOrd + Display>(
        key: &'static str,
        value: T,
        range: RangeInclusive<T>,
        allowed: &'static str,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => Err(Self::Config { key, value: value.to_string(), allowed }),
        }
    }
}

/// Names a line, if it is one.
fn at_line(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}
