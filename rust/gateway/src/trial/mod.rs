//! Trials: another policy or another pool of workers for a part of the traffic, and a policy in the shadow of the live one.
//!
//! ```text
//! assign   a request's tenant -> its arm
//! join     whose a request is
//! ticket   what its arm's record learns of it          record    counters and times, by groups of tenants
//! running  the share, and what operators change        ramp      1 % -> 100 %, or a stop
//! shadow   a policy that decides and routes nothing    estimate  figures with intervals
//! report, metrics                                      what operators see
//! ```
//!
//! Without a trial a request pays for one look at a flag. With one, both arms share the router, its books and its view of the
//! caches; arm B's policy comes with each of its requests ([`trunkline_core::RouteRequest::policy`]), and a pool is a set of
//! eligible workers. `docs/trials.md` says how to read the figures, with sources.

mod assign;
mod config;
mod estimate;
mod join;
mod metrics;
mod ramp;
mod record;
mod report;
mod running;
mod shadow;
mod ticket;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use trunkline_core::{Decision, Policy, Reason, Usage};

pub(crate) use self::assign::{Arm, Share, Unit};
pub(crate) use self::config::is_pool;
pub use self::config::{TrialBy, TrialConfig};
pub(crate) use self::metrics::TrialMetrics;
pub(crate) use self::ramp::RampPlan;
pub(crate) use self::report::report;
pub(crate) use self::running::{Denied, Trial, watch};
pub(crate) use self::shadow::{Shadow, Shadowed};
pub(crate) use self::ticket::Ticket;
use crate::error::Error;
use crate::server::Shared;

/// The trial and the shadow of a gateway, if it has them. Replaced as a whole when the configuration changes.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    is_on: AtomicBool,
    trial: ArcSwapOption<Trial>,
    shadow: ArcSwapOption<Shadow>,
}

impl Trials {
    /// Whether there is anything for requests to take part in.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The trial, if there is one.
    pub(crate) fn trial(&self) -> Option<Arc<Trial>> {
        self.trial.load_full()
    }

    /// The shadow, if there is one.
    pub(crate) fn shadow(&self) -> Option<Arc<Shadow>> {
        self.shadow.load_full()
    }
}

/// What is tried beside a gateway's policy. Default: nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tried {
    /// Another policy or another pool of workers for a part of the traffic.
    pub trial: Option<TrialConfig>,
    /// A policy that decides for every request beside the live one, in books of its own, and routes none. It needs as much
    /// memory as the live router.
    pub shadow: Option<Policy>,
}

/// A trial and a shadow that can be put in force.
pub(crate) struct Prepared {
    trial: Option<Arc<Trial>>,
    shadow: Option<Arc<Shadow>>,
}

impl Shared {
    /// Makes a trial and a shadow, and changes nothing.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Router`] for a value outside its range, and without memory for a shadow.
    pub(crate) fn prepare_trial(&self, tried: Tried) -> Result<Prepared, Error> {
        if let Some(trial) = &tried.trial {
            trial.check()?;
        }
        let shadow = tried.shadow.map(|policy| Shadow::new(policy, &self.fleet)).transpose()?.map(Arc::new);
        Ok(Prepared { trial: tried.trial.map(|config| Arc::new(Trial::new(config, self.now()))), shadow })
    }

    /// Puts a trial and a shadow in force, in place of those that were there, whose figures are forgotten.
    pub(crate) fn set_trial(&self, Prepared { trial, shadow }: Prepared) {
        if let Some(shadow) = &shadow {
            self.spawn(shadow::follow(Arc::downgrade(shadow), Arc::clone(&self.fleet)));
        }
        let is_on = trial.is_some() || shadow.is_some();
        self.trials.trial.store(trial);
        self.trials.shadow.store(shadow);
        self.trials.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Begins a ramp, and looks after it.
    pub(crate) fn ramp_trial(&self, plan: RampPlan) -> Result<(), Denied> {
        let trial = self.trials.trial().ok_or(Denied::NoTrial)?;
        let number = trial.ramp(plan, self.now())?;
        self.spawn(watch(Arc::downgrade(&trial), number, Arc::clone(&self.fleet)));
        Ok(())
    }
}

/// A request's part in what is tried. Dropping it counts the request.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) ticket: Option<Ticket>,
    /// What the shadow decided, and whether that was compared with what was done.
    shadowed: Option<Shadowed>,
    is_compared: bool,
}

impl Part {
    pub(crate) fn new(ticket: Option<Ticket>, shadowed: Option<Shadowed>) -> Self {
        Self { ticket, shadowed, is_compared: false }
    }

    /// A worker was chosen for it; `reason` is `None` without a prompt, `is_crossed` says that the other arm's workers took it.
    pub(crate) fn placed(&mut self, decision: &Decision, reason: Option<Reason>, is_crossed: bool) {
        if let Some(ticket) = &mut self.ticket {
            ticket.placed(decision, reason, is_crossed);
        }
        if !std::mem::replace(&mut self.is_compared, true)
            && let Some(shadowed) = &mut self.shadowed
        {
            shadowed.compare(decision);
        }
    }

    /// An attempt failed, or its answer broke.
    pub(crate) fn failed(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            ticket.failed();
        }
    }

    /// An answer has begun; `is_timed` if its first token is still to come and tells something.
    pub(crate) fn answered(&mut self, status: u16, is_timed: bool) {
        if let Some(ticket) = &mut self.ticket {
            ticket.answered(status, is_timed);
        }
    }

    /// Its first token came.
    pub(crate) fn first_token(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            ticket.first_token();
        }
        if let Some(shadowed) = &self.shadowed {
            shadowed.first_token();
        }
    }

    /// It is over, and this is what its answer said.
    pub(crate) fn complete(&mut self, usage: Option<Usage>) {
        if let Some(ticket) = &mut self.ticket {
            ticket.complete(usage);
        }
        if let Some(shadowed) = &mut self.shadowed {
            shadowed.complete(usage);
        }
    }
}
