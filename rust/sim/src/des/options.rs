//! The fleet of a simulation and what befalls it.

use serde::Deserialize;

use crate::error::Error;

/// The last worker dies with its cache and comes back empty.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// When it dies. What it had in flight arrives again 10 ms later.
    pub down_s: f64,
    /// When it is back.
    pub up_s: f64,
}

/// The fleet and what befalls it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Workers at the start, at least 1.
    pub workers: usize,
    /// Speed of the first workers, 1 = as the profile says; those not listed have 1.
    pub speeds: Vec<f64>,
    /// Routers that requests reach in turn, at least 1.
    pub routers: usize,
    /// Clients that each send a request, wait for its answer and send the next one; `None` for arrivals by the workload's
    /// clock.
    pub clients: Option<usize>,
    /// From when on how many workers take requests.
    pub scale: Vec<(f64, usize)>,
    /// Deaths of the last worker.
    pub losses: Vec<Loss>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 7,
            speeds: Vec::new(),
            routers: 1,
            clients: None,
            scale: Vec::new(),
            losses: Vec::new(),
        }
    }
}

impl Options {
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        let sizes = self.scale.iter().map(|&(_, workers)| workers).chain([self.workers]);
        if let Some(wrong) = sizes.clone().find(|workers| !(1..=4096).contains(workers)) {
            return refuse("workers", wrong.to_string(), "1 to 4096");
        }
        if let Some(wrong) = self.speeds.iter().find(|speed| !(0.01..=100.0).contains(*speed)) {
            return refuse("speeds", wrong.to_string(), "0.01 to 100");
        }
        if !(1..=64).contains(&self.routers) {
            return refuse("routers", self.routers.to_string(), "1 to 64");
        }
        if self.clients == Some(0) {
            return refuse("clients", "0".into(), "at least 1");
        }
        if !self.losses.is_empty() && sizes.min() == Some(1) {
            return refuse("losses", self.losses.len().to_string(), "none with one worker");
        }
        Ok(())
    }
}
