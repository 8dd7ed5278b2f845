//! A trial that runs: arm B's share, what both arms have done, and the ramp, if one is under way.
//!
//! Requests read the share, one atomic word, and write to the records. Operators, and the task that looks after a ramp, take a
//! lock among themselves.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use trunkline_core::Millis;
use xxhash_rust::xxh3::xxh3_64;

use super::assign::{Arm, Share, Unit};
use super::config::{TrialBy, TrialConfig};
use super::ramp::{End, Hold, Ramp, RampPlan, Stage, Worse};
use super::record::{Figures, Record};
use crate::fleet::Fleet;

/// Time between two looks at a ramp. A look costs less than a millisecond.
const LOOK: Duration = Duration::from_millis(200);

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Denied {
    /// No trial is configured.
    NoTrial,
    /// The ramp stopped by itself.
    Stopped(Worse),
    /// A ramp would begin with nobody in A.
    NothingToCompare,
}

/// A trial. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) config: TrialConfig,
    salt: u64,
    share: AtomicU32,
    records: [Record; 2],
    /// Requests that were given an arm by their number.
    drawn: AtomicU64,
    course: Mutex<Course>,
}

/// What operators change.
#[derive(Debug)]
struct Course {
    ramp: Option<Ramp>,
    /// What the records held when somebody last reset the figures, and when that was.
    base: Option<[Figures; 2]>,
    since: Millis,
    /// Counts ramps, so that the task of an earlier one ends.
    ramps: u64,
}

/// How a trial stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    /// Nobody is in B.
    Off,
    /// B has its share until somebody changes it.
    Split,
    Ramping(Ramping),
    /// The ramp has reached its last share.
    Done,
    /// The ramp stopped by itself at this share: B has nothing until an operator resets it.
    Stopped {
        worse: Worse,
        at: Share,
    },
}

/// A ramp under way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ramping {
    pub(crate) plan: RampPlan,
    pub(crate) stage: usize,
    pub(crate) hold: Hold,
}

/// Both arms at one moment.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) standing: Standing,
    pub(crate) share: Share,
    pub(crate) since: Millis,
    /// What they have done since the figures were begun.
    pub(crate) arms: [Figures; 2],
    /// What they did in a ramp's stage: the one under way, or the last one of a ramp that has ended.
    pub(crate) stage: Option<Stage>,
}

impl Trial {
    /// A trial with settings that were checked.
    pub(crate) fn new(config: TrialConfig, now: Millis) -> Self {
        let name = format!("{:?} {:?}", config.policy.map(|policy| policy.name()), config.pool);
        let share = Share::new(config.share).unwrap_or_default();
        Self {
            salt: xxh3_64(name.as_bytes()),
            config,
            share: AtomicU32::new(share.0),
            records: Default::default(),
            drawn: AtomicU64::new(0),
            course: Mutex::new(Course { ramp: None, base: None, since: now, ramps: 0 }),
        }
    }

    /// B's share.
    pub(crate) fn share(&self) -> Share {
        Share(self.share.load(Ordering::Relaxed))
    }

    /// What decides for a request of `tenant`; `None` if that is chance.
    pub(crate) fn unit(&self, tenant: impl FnOnce(u64) -> Option<Unit>) -> Unit {
        let by_tenant = if self.config.by == TrialBy::Tenant { tenant(self.salt) } else { None };
        by_tenant.unwrap_or_else(|| Unit::of_number(self.drawn.fetch_add(1, Ordering::Relaxed), self.salt))
    }

    /// What an arm has done.
    pub(crate) fn record(&self, arm: Arm) -> &Record {
        &self.records[arm as usize]
    }

    fn figures(&self) -> [Figures; 2] {
        Arm::BOTH.map(|arm| self.record(arm).figures())
    }

    /// Gives B a share until somebody changes it. Ends a ramp.
    pub(crate) fn set_share(&self, share: Share) -> Result<(), Denied> {
        let mut course = self.course.lock();
        course.may_change()?;
        course.ramp = None;
        self.share.store(share.0, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a ramp with a plan that was checked, where A has something left. Returns its number, for [`watch`].
    pub(crate) fn ramp(&self, plan: RampPlan, now: Millis) -> Result<u64, Denied> {
        let mut course = self.course.lock();
        course.may_change()?;
        let ramp = Ramp::begin(plan, self.share(), now, self.figures());
        if ramp.share().is_all() {
            return Err(Denied::NothingToCompare);
        }
        self.share.store(ramp.share().0, Ordering::Relaxed);
        course.ramp = Some(ramp);
        course.ramps += 1;
        Ok(course.ramps)
    }

    /// Takes everything from B, and ends a ramp. One that stopped by itself stays so.
    pub(crate) fn stop(&self) {
        let mut course = self.course.lock();
        if course.may_change().is_ok() {
            course.ramp = None;
        }
        self.share.store(0, Ordering::Relaxed);
    }

    /// Begins the figures anew. A ramp that stopped by itself is forgotten; one under way begins its stage anew.
    pub(crate) fn reset(&self, now: Millis) {
        let mut course = self.course.lock();
        let figures = self.figures();
        course.since = now;
        course.base = Some(figures.clone());
        course.ramp = match course.ramp.take() {
            Some(ramp) if ramp.end.is_none() => Some(ramp.again(now, figures)),
            _ => None,
        };
    }

    /// How it stands.
    pub(crate) fn standing(&self) -> Standing {
        self.course.lock().standing(self.share())
    }

    /// How it stands, and what both arms have done.
    pub(crate) fn look(&self, now: Millis) -> Look {
        let course = self.course.lock();
        let figures = self.figures();
        let stage = course.ramp.as_ref().map(|ramp| ramp.stage(now, &figures));
        let arms = match &course.base {
            None => figures,
            Some(base) => Arm::BOTH.map(|arm| figures[arm as usize].since(&base[arm as usize])),
        };
        let share = self.share();
        Look { standing: course.standing(share), share, since: course.since, arms, stage }
    }

    /// Takes the ramp of this number further, if it is still that one. Returns whether it goes on.
    fn advance(&self, number: u64, now: Millis) -> bool {
        let mut course = self.course.lock();
        let is_current = course.ramps == number;
        let Some(ramp) = course.ramp.as_mut().filter(|ramp| is_current && ramp.end.is_none()) else {
            return false;
        };
        ramp.look(now, self.figures(), |arm, limit_s| self.record(arm).waiting_for(limit_s, now));
        self.share.store(ramp.share().0, Ordering::Relaxed);
        ramp.end.is_none()
    }
}

impl Course {
    fn standing(&self, share: Share) -> Standing {
        match &self.ramp {
            None if share == Share(0) => Standing::Off,
            None => Standing::Split,
            Some(Ramp { end: Some(End::Done), .. }) => Standing::Done,
            Some(Ramp { end: Some(End::Stopped { worse, at }), .. }) => {
                Standing::Stopped { worse: *worse, at: *at }
            }
            Some(Ramp { plan, stage, hold, end: None, .. }) => {
                Standing::Ramping(Ramping { plan: plan.clone(), stage: *stage, hold: *hold })
            }
        }
    }

    /// What stopped by itself stays so until somebody has looked at it.
    fn may_change(&self) -> Result<(), Denied> {
        match &self.ramp {
            Some(Ramp { end: Some(End::Stopped { worse, .. }), .. }) => Err(Denied::Stopped(*worse)),
            _ => Ok(()),
        }
    }
}

/// Looks after a ramp until it ends, or the trial does.
pub(crate) async fn watch(trial: Weak<Trial>, number: u64, fleet: Arc<Fleet>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if !trial.upgrade().is_some_and(|trial| trial.advance(number, fleet.now())) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Count;
    use super::*;

    fn trial(share: f64, by: TrialBy) -> Trial {
        Trial::new(TrialConfig { policy: None, pool: Some("new".into()), share, by }, Millis(0))
    }

    fn fail_all_of_b(trial: &Trial) {
        for arm in Arm::BOTH {
            trial.record(arm).add(0, Count::Requests, 100);
        }
        trial.record(Arm::B).add(0, Count::Errors, 100);
    }

    #[test]
    fn a_ramp_that_stopped_stays_so_until_it_is_reset() {
        let trial = trial(0.0, TrialBy::Tenant);
        assert_eq!(trial.look(Millis(0)).standing, Standing::Off);
        let number = trial.ramp(RampPlan::default(), Millis(0)).unwrap();
        assert_eq!(trial.share(), Share(10_000));
        assert!(trial.advance(number, Millis(200)));
        fail_all_of_b(&trial);
        assert!(!trial.advance(number, Millis(400)));
        assert!(matches!(trial.look(Millis(0)).standing, Standing::Stopped { at: Share(10_000), .. }));
        assert_eq!(trial.share(), Share(0));
        assert!(matches!(trial.set_share(Share(5)), Err(Denied::Stopped(_))));
        assert!(matches!(trial.ramp(RampPlan::default(), Millis(500)), Err(Denied::Stopped(_))));
        trial.stop();
        assert!(matches!(trial.look(Millis(0)).standing, Standing::Stopped { .. }), "nothing hides why");
        trial.reset(Millis(600));
        let look = trial.look(Millis(600));
        assert_eq!((look.standing, look.arms[1].total(Count::Requests)), (Standing::Off, 0));
        trial.set_share(Share(5)).unwrap();
        assert_eq!(trial.look(Millis(0)).standing, Standing::Split);
    }

    #[test]
    fn the_task_of_an_earlier_ramp_moves_nothing() {
        let trial = trial(0.0, TrialBy::Tenant);
        let first = trial.ramp(RampPlan::default(), Millis(0)).unwrap();
        trial.set_share(Share(70_000)).unwrap();
        assert!(!trial.advance(first, Millis(200)));
        let second = trial.ramp(RampPlan::default(), Millis(300)).unwrap();
        assert!(!trial.advance(first, Millis(400)) && trial.advance(second, Millis(400)));
        assert_eq!(trial.share(), Share(250_000), "the first stage that is not below 7 %");
    }

    #[test]
    fn a_ramp_that_would_have_nothing_to_compare_is_refused() {
        let trial = trial(1.0, TrialBy::Tenant);
        assert_eq!(trial.ramp(RampPlan::default(), Millis(0)), Err(Denied::NothingToCompare));
        trial.set_share(Share(0)).unwrap();
        let at_once = RampPlan { stages: vec![Share(1_000_000)], ..RampPlan::default() };
        assert_eq!(trial.ramp(at_once, Millis(0)), Err(Denied::NothingToCompare));
        assert_eq!((trial.share(), trial.look(Millis(0)).standing), (Share(0), Standing::Off));
    }

    #[test]
    fn tenants_stay_and_requests_do_not() {
        let by_tenant = trial(0.5, TrialBy::Tenant);
        let arm = |trial: &Trial| trial.unit(|salt| Some(Unit::of_tenant(b"acme", salt))).arm(trial.share());
        let first = arm(&by_tenant);
        assert!((0..100).all(|_| arm(&by_tenant) == first));
        let by_request = trial(0.5, TrialBy::Request);
        let in_b = (0..1000).filter(|_| arm(&by_request) == Arm::B).count();
        assert!((400..600).contains(&in_b), "{in_b}");
    }
}
