//! A ramp: arm B's share grows in stages for as long as B is not worse, and goes back to nothing when it is.
//!
//! Each stage compares what both arms did during it. Tenants that it has moved find cold caches in another pool: so times to
//! first token count once the arms have had some time to settle, errors at once. It ends when it has lasted long enough, both arms have had enough
//! requests, and neither B's p90 of time to first token nor its error rate looks worse than A's by more than its margin. It
//! stops as soon as one of the two *is* worse by more than its margin, with intervals that hold although they are looked at all
//! the time ([`Level::Always`]); all looks of all stages together stop a good arm with a chance of at most 5 %. In between,
//! where B looks worse and it may be chance, the stage goes on. On the way to all of the traffic nothing is left to compare
//! with: then A's figures of the stage before are what B is held to.
//!
//! Time and figures come from outside: nothing here reads a clock.

use std::fmt;
use std::time::Duration;

use trunkline_core::Millis;

use super::assign::{Arm, Share};
use super::estimate::{Level, difference, quotient};
use super::record::{Count, Figures, is_beyond_measure};
use crate::error::Error;

/// Chance that any look of a ramp stops an arm that is within its margins.
const ALPHA: f64 = 0.05;
/// Figures that can stop a ramp.
const FIGURES: f64 = 2.0;
/// Requests of B below which nothing is concluded: the intervals are those of large numbers.
const FEW: u64 = 20;
/// The quantile of the time to first token that is compared.
pub(crate) const P90: f64 = 0.9;

/// How a ramp goes up, and what stops it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RampPlan {
    /// B's shares, ascending.
    pub(crate) stages: Vec<Share>,
    /// Time at the beginning of a stage whose times to first token do not count.
    pub(crate) settle: Duration,
    /// Shortest time of a stage after that.
    pub(crate) stage: Duration,
    /// Fewest requests of each arm in a stage.
    pub(crate) min_requests: u64,
    /// By how much of A's p90 of time to first token B's may be longer.
    pub(crate) ttft_margin: f64,
    /// By how much B's error rate may be above A's.
    pub(crate) error_margin: f64,
}

impl Default for RampPlan {
    /// 1, 5, 25, 50 and 100 %, five minutes each after one to settle: the next turn of a conversation comes within a minute, a
    /// slow leak shows, and all is over in half an hour. 200 requests have 20
    /// above their p90. Margins of a tenth of the TTFT and of one request in a hundred are what a user would begin to notice.
    fn default() -> Self {
        Self {
            stages: [10_000, 50_000, 250_000, 500_000, 1_000_000].map(Share).to_vec(),
            settle: Duration::from_secs(60),
            stage: Duration::from_secs(300),
            min_requests: 200,
            ttft_margin: 0.1,
            error_margin: 0.01,
        }
    }
}

impl RampPlan {
    /// Refuses values outside their range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        let ascends = self.stages.is_sorted_by(|a, b| a < b) && self.stages.first() > Some(&Share(0));
        if !ascends || self.stages.len() > 20 {
            let shares: Vec<f64> = self.stages.iter().map(|share| share.as_f64()).collect();
            return refuse("stages", format!("{shares:?}"), "1 to 20 ascending shares above 0, up to 1");
        }
        for (key, time) in [("settle_s", self.settle), ("stage_s", self.stage)] {
            if time > Duration::from_secs(7 * 24 * 3600) {
                return refuse(key, time.as_secs_f64().to_string(), "0 to 604800");
            }
        }
        if !(FEW..=1_000_000_000).contains(&self.min_requests) {
            return refuse("min_requests", self.min_requests.to_string(), "20 to 1000000000");
        }
        if !(0.0..=10.0).contains(&self.ttft_margin) {
            return refuse("ttft_margin", self.ttft_margin.to_string(), "0 to 10");
        }
        if !(0.0..=1.0).contains(&self.error_margin) {
            return refuse("error_margin", self.error_margin.to_string(), "0 to 1");
        }
        Ok(())
    }

    fn level(&self) -> Level {
        let alpha = ALPHA / (FIGURES * self.stages.len() as f64);
        Level::Always { alpha, planned: self.min_requests as f64 }
    }
}

/// A figure that is worse in B.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Worse {
    /// The p90 of time to first token, in seconds.
    Ttft { a: f64, b: f64 },
    /// The error rate.
    Errors { a: f64, b: f64 },
}

impl fmt::Display for Worse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ttft { a, b } => {
                write!(out, "TTFT p90 is {} in b and {} in a", told(*b), told(*a))
            }
            Self::Errors { a, b } => write!(out, "error rate is {b:.4} in b and {a:.4} in a"),
        }
    }
}

fn told(ttft_s: f64) -> String {
    if is_beyond_measure(ttft_s) { "still waited for".to_owned() } else { format!("{:.1} ms", ttft_s * 1e3) }
}

/// Why a stage goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Hold {
    /// The arms have not settled yet.
    Settling { left: Duration },
    /// It has not lasted long enough.
    Time { left: Duration },
    /// An arm has had too few requests.
    Requests { arm: Arm, have: u64, want: u64 },
    /// B looks worse, and it may be chance.
    Unclear(Worse),
}

impl fmt::Display for Hold {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settling { left } => {
                write!(out, "caches have {:.0} s to warm up", left.as_secs_f64().ceil())
            }
            Self::Time { left } => write!(out, "{:.0} s of this stage are left", left.as_secs_f64().ceil()),
            Self::Requests { arm, have, want } => {
                write!(out, "arm {} has had {have} of {want} requests", arm.as_str())
            }
            Self::Unclear(worse) => write!(out, "{worse}: over the margin, but it may be chance"),
        }
    }
}

/// What a look at the figures of a stage comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Hold(Hold),
    Next,
    Stop(Worse),
}

/// What an arm did in a stage: all of it, and what came once it had settled.
#[derive(Debug, Clone)]
struct Seen {
    all: Figures,
    settled: Option<Figures>,
}

/// Judges a stage, which has lasted so long, by what the arms did in it. Pure.
fn judge(plan: &RampPlan, elapsed: Duration, a: &Seen, b: &Seen) -> Step {
    let level = plan.level();
    let mut unclear = None;
    if let (Some(of_a), Some(of_b)) = (a.all.error_rate(level), b.all.error_rate(level)) {
        let worse = Worse::Errors { a: of_a.value, b: of_b.value };
        let more = difference(of_a, of_b);
        if b.all.total(Count::Requests) >= FEW && more.low.is_some_and(|low| low > plan.error_margin) {
            return Step::Stop(worse);
        }
        if more.value > plan.error_margin {
            unclear = Some(worse);
        }
    }
    let (Some(a), Some(b)) = (&a.settled, &b.settled) else {
        return Step::Hold(Hold::Settling { left: plan.settle.saturating_sub(elapsed) });
    };
    if let (Some(of_a), Some(of_b)) = (a.ttft_s(P90, level), b.ttft_s(P90, level))
        && let Some(times) = quotient(of_a, of_b)
    {
        let worse = Worse::Ttft { a: of_a.value, b: of_b.value };
        let allowed = 1.0 + plan.ttft_margin;
        if b.timed() >= FEW && times.low.is_some_and(|low| low > allowed) {
            return Step::Stop(worse);
        }
        if times.value > allowed {
            unclear = unclear.or(Some(worse));
        }
    }
    let whole = plan.settle + plan.stage;
    if elapsed < whole {
        return Step::Hold(Hold::Time { left: whole - elapsed });
    }
    for (arm, figures) in [(Arm::A, a), (Arm::B, b)] {
        let have = figures.total(Count::Requests);
        if have < plan.min_requests {
            return Step::Hold(Hold::Requests { arm, have, want: plan.min_requests });
        }
    }
    unclear.map_or(Step::Next, |worse| Step::Hold(Hold::Unclear(worse)))
}

/// How a ramp ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// At its last share, which stays.
    Done,
    /// B was worse, at this share; it has nothing now.
    Stopped { worse: Worse, at: Share },
}

/// What both arms did in a stage.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Its place in the plan.
    pub(crate) number: usize,
    pub(crate) share: Share,
    /// The stage whose figures are A's: the one before where nobody is left in A.
    pub(crate) of_a: usize,
    pub(crate) elapsed: Duration,
    pub(crate) arms: [Figures; 2],
}

/// A ramp under way, or how it ended.
#[derive(Debug)]
pub(crate) struct Ramp {
    pub(crate) plan: RampPlan,
    pub(crate) stage: usize,
    pub(crate) hold: Hold,
    pub(crate) end: Option<End>,
    since: Millis,
    /// The figures of both arms when the stage began, and when they had settled.
    base: [Figures; 2],
    settled: Option<[Figures; 2]>,
    /// What B is held to when nobody is left in A.
    reference: Option<Seen>,
    /// When it ended, and the figures of both arms then.
    last: Option<(Millis, [Figures; 2])>,
}

impl Ramp {
    /// Begins at the first stage that is not below `share`. `figures` are those of both arms now.
    pub(crate) fn begin(plan: RampPlan, share: Share, now: Millis, figures: [Figures; 2]) -> Self {
        let last = plan.stages.len() - 1;
        let stage = plan.stages.iter().position(|stage| *stage >= share).unwrap_or(last);
        Self::at(plan, stage, None, now, figures)
    }

    /// Begins its stage anew. What B is held to without anybody in A stays: nobody could measure it again.
    pub(crate) fn again(self, now: Millis, figures: [Figures; 2]) -> Self {
        Self::at(self.plan, self.stage, self.reference, now, figures)
    }

    fn at(plan: RampPlan, stage: usize, reference: Option<Seen>, now: Millis, figures: [Figures; 2]) -> Self {
        let hold = Hold::Settling { left: plan.settle };
        let settled = plan.settle.is_zero().then(|| figures.clone());
        Self { plan, stage, hold, end: None, since: now, base: figures, settled, reference, last: None }
    }

    /// B's share now.
    pub(crate) fn share(&self) -> Share {
        match self.end {
            Some(End::Stopped { .. }) => Share(0),
            _ => self.plan.stages[self.stage],
        }
    }

    /// What both arms have done in this stage, by their figures now; of a ramp that has ended, what they did in its last one.
    pub(crate) fn stage(&self, now: Millis, figures: &[Figures; 2]) -> Stage {
        let (until, figures) = self.last.as_ref().map_or((now, figures), |(ended, then)| (*ended, then));
        let [mut a, b] = Arm::BOTH.map(|arm| figures[arm as usize].since(&self.base[arm as usize]));
        let share = self.plan.stages[self.stage];
        let mut of_a = self.stage;
        if let Some(reference) = self.reference.as_ref().filter(|_| share.is_all()) {
            (of_a, a) = (self.stage - 1, reference.all.clone());
        }
        let elapsed = Duration::from_millis(until.0.saturating_sub(self.since.0));
        Stage { number: self.stage, share, of_a, elapsed, arms: [a, b] }
    }

    /// Looks at the figures of both arms, and goes on, stays, or ends. `late` tells how many requests of an arm have waited for
    /// so many seconds by now. A ramp that has ended stays as it is.
    pub(crate) fn look(&mut self, now: Millis, figures: [Figures; 2], late: impl Fn(Arm, f64) -> u64) {
        if self.end.is_some() {
            return;
        }
        let elapsed = Duration::from_millis(now.0.saturating_sub(self.since.0));
        if self.settled.is_none() && elapsed >= self.plan.settle {
            self.settled = Some(figures.clone());
        }
        let [mut a, mut b] = Arm::BOTH.map(|arm| self.seen(arm, &figures[arm as usize]));
        if let Some(reference) = self.reference.clone().filter(|_| self.share().is_all()) {
            a = reference;
        } else {
            self.add_waiting(&mut a, None, |limit| late(Arm::A, limit));
        }
        self.add_waiting(&mut b, a.settled.as_ref(), |limit| late(Arm::B, limit));
        match judge(&self.plan, elapsed, &a, &b) {
            Step::Hold(hold) => self.hold = hold,
            Step::Stop(worse) => self.end_with(End::Stopped { worse, at: self.share() }, now, figures),
            Step::Next if self.stage + 1 == self.plan.stages.len() => self.end_with(End::Done, now, figures),
            Step::Next => {
                self.stage += 1;
                self.since = now;
                self.settled = self.plan.settle.is_zero().then(|| figures.clone());
                self.base = figures;
                self.reference = Some(a);
                self.hold = Hold::Settling { left: self.plan.settle };
            }
        }
    }

    fn end_with(&mut self, end: End, now: Millis, figures: [Figures; 2]) {
        self.end = Some(end);
        self.last = Some((now, figures));
    }

    /// What an arm has done in this stage, by its figures now.
    fn seen(&self, arm: Arm, now: &Figures) -> Seen {
        let settled = self.settled.as_ref().map(|settled| now.since(&settled[arm as usize]));
        Seen { all: now.since(&self.base[arm as usize]), settled }
    }

    /// Counts requests that still wait among an arm's slow ones, once they are late by what A (the arm itself if `None`) needs.
    fn add_waiting(&self, seen: &mut Seen, a: Option<&Figures>, late: impl Fn(f64) -> u64) {
        let Some(figures) = seen.settled.take() else { return };
        let limit_s = a.unwrap_or(&figures).ttft_s(P90, Level::Once);
        let waiting = limit_s.map_or(0, |limit| late(limit.value * (1.0 + self.plan.ttft_margin)));
        seen.settled = Some(figures.with_waiting(waiting));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::estimate::GROUPS;
    use super::super::record::Record;
    use super::*;

    /// Numbers by chance, the same in every run.
    struct Chance(u64);

    impl Chance {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// A time to first token: from 50 ms on, with a tail.
        fn ttft_s(&mut self) -> f64 {
            0.05 - 0.05 * (1.0 - self.next()).ln()
        }
    }

    /// Two arms of which B is so many times as slow and fails with this chance; A with a chance of 0.2 %.
    struct Arms {
        records: [Record; 2],
        chance: Chance,
        slowness: f64,
        failure: f64,
        /// How slow each tenant's prompts are by themselves, in a group of its own.
        tenants: Vec<f64>,
    }

    impl Arms {
        fn new(seed: u64, slowness: f64, failure: f64) -> Self {
            Self {
                records: Default::default(),
                chance: Chance(seed),
                slowness,
                failure,
                tenants: vec![1.0; GROUPS],
            }
        }

        fn serve(&mut self, arm: Arm, requests: usize) {
            for _ in 0..requests {
                let group = (self.chance.next() * self.tenants.len() as f64) as usize;
                let record = &self.records[arm as usize];
                let (slowness, failure) =
                    if arm == Arm::B { (self.slowness, self.failure) } else { (1.0, 0.002) };
                record.add(group, Count::Requests, 1);
                if self.chance.next() < failure {
                    record.add(group, Count::Errors, 1);
                }
                let seconds = self.chance.ttft_s() * slowness * self.tenants[group];
                record.time(group, Duration::from_secs_f64(seconds));
            }
        }

        fn figures(&self) -> [Figures; 2] {
            [self.records[0].figures(), self.records[1].figures()]
        }

        fn look(&self, ramp: &mut Ramp, now: Millis) {
            ramp.look(now, self.figures(), |arm, limit| self.records[arm as usize].waiting_for(limit, now));
        }
    }

    fn plan() -> RampPlan {
        RampPlan { settle: Duration::ZERO, stage: Duration::from_secs(10), ..RampPlan::default() }
    }

    fn begin(arms: &Arms) -> Ramp {
        Ramp::begin(plan(), Share(0), Millis(0), arms.figures())
    }

    /// Runs to its end: each second `requests` in all, split by the share, at most so many seconds.
    fn run(arms: &mut Arms, requests: usize, seconds: u64) -> (Ramp, u64) {
        let mut ramp = begin(arms);
        for second in 1..=seconds {
            let to_b = (requests as f64 * ramp.share().as_f64()).round() as usize;
            arms.serve(Arm::B, to_b);
            arms.serve(Arm::A, requests - to_b);
            arms.look(&mut ramp, Millis(second * 1000));
            if ramp.end.is_some() {
                return (ramp, second);
            }
        }
        (ramp, seconds)
    }

    #[test]
    fn a_good_arm_gets_everything_in_its_time() {
        let mut arms = Arms::new(1, 1.0, 0.002);
        let (ramp, seconds) = run(&mut arms, 2000, 200);
        assert_eq!((ramp.end, ramp.share()), (Some(End::Done), Share(1_000_000)));
        assert!((50..120).contains(&seconds), "five stages of ten seconds took {seconds}");
    }

    #[test]
    fn a_stage_has_the_figures_since_it_began_and_the_last_one_those_until_the_end() {
        let mut arms = Arms::new(11, 1.0, 0.0);
        let two = RampPlan { stages: [500_000, 1_000_000].map(Share).to_vec(), ..plan() };
        arms.serve(Arm::A, 3000);
        let mut ramp = Ramp::begin(two, Share(0), Millis(0), arms.figures());
        let seen = |ramp: &Ramp, arms: &Arms, second: u64| {
            let Stage { number, share, of_a, elapsed, arms } =
                ramp.stage(Millis(second * 1000), &arms.figures());
            (number, share, of_a, elapsed.as_secs(), arms.map(|arm| arm.total(Count::Requests)))
        };
        assert_eq!(seen(&ramp, &arms, 0), (0, Share(500_000), 0, 0, [0, 0]));
        arms.serve(Arm::A, 600);
        arms.serve(Arm::B, 500);
        assert_eq!(seen(&ramp, &arms, 9), (0, Share(500_000), 0, 9, [600, 500]));
        arms.look(&mut ramp, Millis(10_000));
        assert_eq!(seen(&ramp, &arms, 10), (1, Share(1_000_000), 0, 0, [600, 0]), "nobody is left in a");
        arms.serve(Arm::B, 400);
        arms.look(&mut ramp, Millis(20_000));
        assert_eq!(ramp.end, Some(End::Done));
        arms.serve(Arm::B, 70);
        assert_eq!(seen(&ramp, &arms, 30), (1, Share(1_000_000), 0, 10, [600, 400]));
    }

    #[test]
    fn a_slow_arm_is_stopped_early_and_gets_nothing() {
        let mut arms = Arms::new(2, 2.0, 0.002);
        let (ramp, seconds) = run(&mut arms, 2000, 200);
        let Some(End::Stopped { worse: Worse::Ttft { a, b }, at }) = ramp.end else {
            panic!("{:?}", ramp.end)
        };
        assert!(b > 1.1 * a && at == Share(10_000) && seconds < 40, "{a} {b} {at:?} {seconds}");
        assert_eq!(ramp.share(), Share(0));
    }

    #[test]
    fn a_failing_arm_is_stopped() {
        let mut arms = Arms::new(3, 1.0, 0.1);
        let (ramp, _) = run(&mut arms, 2000, 200);
        let Some(End::Stopped { worse: Worse::Errors { a, b }, .. }) = ramp.end else {
            panic!("{:?}", ramp.end)
        };
        assert!(b > a + 0.01 && Worse::Errors { a, b }.to_string().contains("error rate"));
    }

    #[test]
    fn an_arm_that_only_waits_is_stopped() {
        let mut arms = Arms::new(4, 1.0, 0.0);
        let mut ramp = begin(&arms);
        arms.serve(Arm::A, 2000);
        for _ in 0..FEW {
            arms.records[1].waits(Millis(1000));
        }
        arms.look(&mut ramp, Millis(2000));
        assert_eq!(ramp.end, None, "a second is no long time");
        arms.look(&mut ramp, Millis(9000));
        let Some(End::Stopped { worse, .. }) = ramp.end else { panic!("{:?}", ramp.end) };
        assert!(worse.to_string().starts_with("TTFT p90 is still waited for in b and 1"), "{worse}");
    }

    #[test]
    fn cold_caches_have_time_to_warm_and_errors_have_none() {
        let cold = |failure| {
            let mut arms = Arms::new(6, 5.0, failure);
            let plan = RampPlan { settle: Duration::from_secs(30), ..plan() };
            let mut ramp = Ramp::begin(plan, Share(0), Millis(0), arms.figures());
            for arm in Arm::BOTH {
                arms.serve(arm, 1000);
            }
            arms.look(&mut ramp, Millis(20_000));
            (arms, ramp)
        };
        assert!(matches!(cold(0.2).1.end, Some(End::Stopped { worse: Worse::Errors { .. }, .. })));
        let (mut arms, mut ramp) = cold(0.002);
        assert_eq!((ramp.end, ramp.hold), (None, Hold::Settling { left: Duration::from_secs(10) }));
        arms.look(&mut ramp, Millis(30_000));
        arms.slowness = 1.0;
        for arm in Arm::BOTH {
            arms.serve(arm, 5000);
        }
        arms.look(&mut ramp, Millis(39_000));
        assert_eq!((ramp.end, ramp.stage), (None, 0));
        arms.look(&mut ramp, Millis(40_000));
        assert_eq!((ramp.end, ramp.stage), (None, 1));
    }

    #[test]
    fn without_anybody_left_in_a_its_last_figures_count() {
        let mut arms = Arms::new(5, 1.0, 0.002);
        let mut ramp = Ramp::begin(plan(), Share(500_000), Millis(0), arms.figures());
        assert_eq!(ramp.stage, 3, "who has a half is not taken back to a hundredth");
        arms.serve(Arm::A, 5000);
        arms.serve(Arm::B, 5000);
        arms.look(&mut ramp, Millis(10_000));
        assert!(ramp.share().is_all());
        arms.slowness = 2.0;
        arms.serve(Arm::B, 2000);
        arms.look(&mut ramp, Millis(11_000));
        assert!(matches!(ramp.end, Some(End::Stopped { worse: Worse::Ttft { .. }, .. })), "{:?}", ramp.end);
    }

    #[test]
    fn a_last_stage_that_begins_anew_is_held_to_the_same() {
        let mut arms = Arms::new(9, 1.0, 0.002);
        let mut ramp = Ramp::begin(plan(), Share(500_000), Millis(0), arms.figures());
        arms.serve(Arm::A, 5000);
        arms.serve(Arm::B, 5000);
        arms.look(&mut ramp, Millis(10_000));
        let mut again = ramp.again(Millis(11_000), arms.figures());
        assert!(again.share().is_all());
        arms.serve(Arm::B, 2000);
        arms.look(&mut again, Millis(21_000));
        assert_eq!(again.end, Some(End::Done));
    }

    #[test]
    fn good_arms_are_seldom_stopped_however_often_one_looks() {
        let runs = 30;
        let stopped = (0..runs).filter(|seed| {
            let mut arms = Arms::new(100 + seed, 1.0, 0.002);
            matches!(run(&mut arms, 400, 60).0.end, Some(End::Stopped { .. }))
        });
        assert!(stopped.count() <= 3, "5 % of {runs} at most, and chance");
    }

    #[test]
    fn a_few_tenants_who_differ_are_no_regression_unless_all_are_worse() {
        let end = |slowness| {
            let mut arms = Arms::new(8, slowness, 0.002);
            let mut ramp = begin(&arms);
            arms.serve(Arm::A, 5000);
            arms.tenants = vec![0.6, 1.0, 1.2, 3.0];
            for second in 1..=20 {
                arms.serve(Arm::B, 100);
                arms.look(&mut ramp, Millis(second * 1000));
            }
            ramp.end
        };
        assert_eq!(end(1.0), None, "one of four asks for long prompts");
        assert!(matches!(end(20.0), Some(End::Stopped { worse: Worse::Ttft { .. }, .. })));
    }

    #[test]
    fn plans_out_of_range_are_named() {
        let key = |change: fn(&mut RampPlan)| {
            let mut plan = RampPlan::default();
            change(&mut plan);
            match plan.check() {
                Err(Error::Config { key, .. }) => key,
                other => panic!("{other:?}"),
            }
        };
        RampPlan::default().check().unwrap();
        assert_eq!(key(|plan| plan.stages.clear()), "stages");
        assert_eq!(key(|plan| plan.stages.insert(0, Share(0))), "stages");
        assert_eq!(key(|plan| plan.stages.swap(0, 1)), "stages");
        assert_eq!(key(|plan| plan.min_requests = 1), "min_requests");
        assert_eq!(key(|plan| plan.ttft_margin = f64::NAN), "ttft_margin");
        assert_eq!(key(|plan| plan.error_margin = -0.1), "error_margin");
        assert_eq!(key(|plan| plan.stage = Duration::MAX), "stage_s");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn too_little_never_takes_it_further(
            of_a in 0usize..400, of_b in 0usize..400, seconds in 0u64..20, seed: u64,
        ) {
            let mut arms = Arms::new(seed, 1.0, 0.002);
            let mut ramp = begin(&arms);
            arms.serve(Arm::A, of_a);
            arms.serve(Arm::B, of_b);
            arms.look(&mut ramp, Millis(seconds * 1000));
            if of_a < 200 || of_b < 200 || seconds < 10 {
                prop_assert_eq!(ramp.stage, 0);
            }
            prop_assert!(ramp.stage <= 1, "one stage at a time");
        }

        #[test]
        fn a_regression_always_stops_and_stays_stopped(
            seed: u64, slowness in 1.5f64..5.0, failure in 0.05f64..1.0, is_slow: bool,
        ) {
            let (slowness, failure) = if is_slow { (slowness, 0.002) } else { (1.0, failure) };
            let mut arms = Arms::new(seed, slowness, failure);
            let (mut ramp, seconds) = run(&mut arms, 2000, 200);
            prop_assert!(matches!(ramp.end, Some(End::Stopped { .. })), "{:?}", ramp.end);
            let end = ramp.end;
            arms.slowness = 0.1;
            arms.serve(Arm::A, 1000);
            arms.serve(Arm::B, 1000);
            arms.look(&mut ramp, Millis((seconds + 100) * 1000));
            prop_assert_eq!((ramp.end, ramp.share()), (end, Share(0)));
        }
    }
}
