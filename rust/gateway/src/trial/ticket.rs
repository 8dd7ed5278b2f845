//! A request's part in a trial: which arm it has, and what that arm's record learns of it.
//!
//! A request counts for the arm that it was given, whoever served it in the end: leaving out those that had to be served
//! elsewhere would make a bad arm look good (intention to treat). It counts when it is over, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_core::{Decision, Millis, Policy, Reason, Usage};

use super::assign::{Arm, Unit};
use super::record::{Count, Record};
use super::running::Trial;

/// A request's part. Dropping it counts the request.
#[derive(Debug)]
pub(crate) struct Ticket {
    trial: Arc<Trial>,
    pub(crate) arm: Arm,
    group: usize,
    /// When the request came; `None` for one that generates nothing, which is sent by its arm and not counted.
    since: Option<Instant>,
    /// Where it waits in the record, until its first token.
    waits: Option<usize>,
    is_placed: bool,
    is_failed: bool,
    is_crossed: bool,
}

impl Ticket {
    /// Gives a request its arm. `since` is when it came, if it is to be counted.
    pub(crate) fn draw(trial: &Arc<Trial>, unit: Unit, since: Option<Instant>, now: Millis) -> Self {
        let arm = unit.arm(trial.share());
        Self {
            waits: since.map(|_| trial.record(arm).waits(now)),
            trial: Arc::clone(trial),
            arm,
            group: unit.group(),
            since,
            is_placed: false,
            is_failed: false,
            is_crossed: false,
        }
    }

    /// The policy of its arm; `None` for everybody's.
    pub(crate) fn policy(&self) -> Option<Policy> {
        self.trial.config.policy.filter(|_| self.arm == Arm::B)
    }

    /// The pool that parts the workers, if one does.
    pub(crate) fn pool(&self) -> Option<&str> {
        self.trial.config.pool.as_deref()
    }

    fn record(&self) -> &Record {
        self.trial.record(self.arm)
    }

    fn count(&self, count: Count, number: u64) {
        if self.since.is_some() {
            self.record().add(self.group, count, number);
        }
    }

    /// It was placed. `reason` is `None` for one without a prompt; `is_crossed` if the other arm's workers had to take it.
    pub(crate) fn placed(&mut self, decision: &Decision, reason: Option<Reason>, is_crossed: bool) {
        if is_crossed {
            self.failed();
            if !std::mem::replace(&mut self.is_crossed, true) {
                self.count(Count::Crossed, 1);
            }
        }
        // What a second attempt sees is a fleet that has failed it.
        if std::mem::replace(&mut self.is_placed, true) || reason.is_none() {
            return;
        }
        self.count(Count::Placed, 1);
        self.count(Count::Spills, u64::from(reason == Some(Reason::Spill)));
        self.count(Count::PromptTokens, decision.prompt_tokens.into());
        self.count(Count::MatchedTokens, decision.matched_tokens.into());
    }

    /// An attempt failed, or its answer broke.
    pub(crate) fn failed(&mut self) {
        self.is_failed = true;
    }

    /// An answer has begun, with this status; `is_timed` if its first token is still to come and tells something.
    pub(crate) fn answered(&mut self, status: u16, is_timed: bool) {
        if status >= 500 || status == 429 {
            self.failed();
        }
        if !is_timed {
            self.stops_waiting();
        }
    }

    /// Its first token came.
    pub(crate) fn first_token(&mut self) {
        if let Some(waited) = self.stops_waiting() {
            self.record().time(self.group, waited);
        }
    }

    /// It is over, and this is what its answer said.
    pub(crate) fn complete(&mut self, usage: Option<Usage>) {
        if let Some(Usage { prompt_tokens, cached_tokens: Some(cached), .. }) = usage {
            self.count(Count::ReportedTokens, prompt_tokens.into());
            self.count(Count::CachedTokens, cached.min(prompt_tokens).into());
        }
    }

    /// How long it has waited for a first token, unless it does no longer.
    fn stops_waiting(&mut self) -> Option<Duration> {
        let second = self.waits.take()?;
        self.record().came(second);
        Some(self.since?.elapsed())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(waited) = self.stops_waiting()
            && !self.is_failed
        {
            // Its client gave up: its first token would have taken longer than this.
            self.record().time(self.group, waited);
        }
        self.count(Count::Requests, 1);
        self.count(Count::Errors, u64::from(self.is_failed));
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{TrialBy, TrialConfig};
    use super::super::record::Figures;
    use super::*;

    fn trial(share: f64) -> Arc<Trial> {
        let config = TrialConfig { policy: Some(Policy::Random), pool: None, share, by: TrialBy::Request };
        Arc::new(Trial::new(config, Millis(0)))
    }

    fn draw(trial: &Arc<Trial>) -> Ticket {
        Ticket::draw(trial, Unit::of_number(1, 2), Some(Instant::now()), Millis(0))
    }

    fn figures(trial: &Trial) -> Figures {
        trial.record(Arm::B).figures()
    }

    #[test]
    fn a_request_counts_once_when_it_is_over() {
        let trial = trial(1.0);
        let mut ticket = draw(&trial);
        assert_eq!((ticket.arm, ticket.policy()), (Arm::B, Some(Policy::Random)));
        ticket.answered(200, true);
        ticket.first_token();
        ticket.first_token();
        ticket.complete(Some(Usage { prompt_tokens: 100, cached_tokens: Some(60), completion_tokens: 5 }));
        assert_eq!(figures(&trial).total(Count::Requests), 0);
        drop(ticket);
        let figures = figures(&trial);
        let totals = [Count::Requests, Count::Errors, Count::ReportedTokens, Count::CachedTokens];
        assert_eq!(totals.map(|count| figures.total(count)), [1, 0, 100, 60]);
        assert_eq!(figures.timed(), 1);
        assert_eq!(trial.record(Arm::B).waiting_for(0.0, Millis(60_000)), 0);
    }

    #[test]
    fn failures_count_once_however_many_there_are() {
        let trial = trial(1.0);
        let mut ticket = draw(&trial);
        ticket.failed();
        ticket.failed();
        ticket.answered(503, false);
        drop(ticket);
        let figures = figures(&trial);
        assert_eq!((figures.total(Count::Errors), figures.timed()), (1, 0));
    }

    #[test]
    fn who_gives_up_has_waited_and_who_is_refused_has_not() {
        let trial = trial(1.0);
        drop(draw(&trial));
        assert_eq!(figures(&trial).timed(), 1, "it would have taken longer");
        let mut refused = draw(&trial);
        refused.answered(400, false);
        drop(refused);
        let figures = figures(&trial);
        assert_eq!(
            (figures.timed(), figures.total(Count::Errors), figures.total(Count::Requests)),
            (1, 0, 2),
            "a bad request is its client's fault"
        );
    }

    #[test]
    fn what_generates_nothing_is_sent_by_its_arm_and_not_counted() {
        let trial = trial(1.0);
        let mut ticket = Ticket::draw(&trial, Unit::of_number(1, 2), None, Millis(0));
        ticket.failed();
        drop(ticket);
        assert_eq!((figures(&trial).total(Count::Requests), figures(&trial).total(Count::Errors)), (0, 0));
    }
}
