//! A discrete-event model of a fleet behind a router: hours of traffic in seconds, without a GPU.
//!
//! Five parts, each usable without those below it:
//!
//! - [`Workload`]: requests as chains of *segments* (a number, a length), so that a prompt of 50,000 tokens is a few
//!   hundred pairs; [`workloads`] makes them and [`traces`] reads them;
//! - [`Profile`]: what a worker is able to do, with the sources of the figures;
//! - [`Policy`]: who gets a request. [`policies::Trunkline`] drives the real [`trunkline_core::Router`] by the simulated clock;
//!   the others are the rules of other routers, each with its source, and live only here;
//! - [`Simulation`]: events in order of time until every request is answered;
//! - [`Report`]: what a planner asks.
//!
//! A prompt's segments are cached and evicted whole (they have at most 512 tokens), which is what makes a million requests
//! a minute possible; the router sees the same prompts as token ids, in blocks of 16. Equal workload, equal seed: equal
//! result, to the last bit.
//!
//! Not modelled: speculative decoding, split prefill and decode, the network, time that the router itself takes.

mod cache;
mod fleet;
mod options;
mod placement;
pub mod policies;
mod policy;
mod profile;
mod report;
mod rng;
mod run;
mod scenarios;
mod spec;
pub mod traces;
mod worker;
mod workload;
pub mod workloads;

pub use fleet::{Fleet, WorkerStatus};
pub use options::{Loss, Options};
pub use placement::{Moves, Window, Windowed};
pub use policy::{Arrival, CacheChange, Outcome, Policy};
pub use profile::Profile;
pub use report::{Bin, Report, Times, WorkerReport};
pub use rng::Rng;
pub(crate) use rng::mix;
pub use run::{Answer, Progress, Simulation};
pub use scenarios::{Needs, Scenario};
pub use spec::{Compare, Found, Source, Spec};
pub use workload::{Request, Segment, Turn, Workload, WorkloadBuilder, spelled};
