//! Rules for choosing workers.

mod trunkline;

pub use trunkline::{Trunkline, TrunklineOptions};
