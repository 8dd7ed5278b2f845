//! Which workers a request should rather not go to now, and how strongly.
//!
//! | list | workers | unless |
//! | --- | --- | --- |
//! | `full` | at their cap of requests in flight | never: the cap is strict |
//! | `resting` | that said "busy" or failed a moment ago, or hang ([`Standing::Silent`]) | nobody else is left |
//! | `over` | that have enough: [`Standing::Late`] and [`Standing::Quiet`] ones, and those that came (back) a moment ago | nobody else is left |
//!
//! Slow start: a worker that joins a running fleet, or is back after a fault, has a cold cache and no requests, so every
//! rule would send it everything at once. Until it has been there for the slow-start time its requests in flight are
//! bounded by a growing share of the fleet's mean; one is always allowed, so a quiet fleet notices nothing.
//!
//! In a fleet where nothing is wrong all this costs three loads per request, and one look at each worker every five
//! milliseconds.

use std::sync::atomic::Ordering;

use trunkline_core::{Millis, WorkerId};

use crate::fleet::{Fleet, Ids, Snapshot, Worker};
use crate::pulse::Standing;

/// Time between two looks for silent workers.
const LOOK_INTERVAL_MS: u64 = 5;
/// A late worker may have as many requests in flight as the policy thinks fit for one that holds the prompt's prefix:
/// `max(6, 1.25 * mean + 1)`. A quiet one may have the mean, or so many.
const LATE_FLOOR: f64 = 6.0;
const LATE_SHARE: f64 = 1.25;
const QUIET_FLOOR: f64 = 2.0;
/// Share of the mean with which slow start begins.
const FIRST_SHARE: f64 = 0.1;

/// Workers to avoid.
#[derive(Debug, Default)]
pub(crate) struct Avoid {
    pub(crate) full: Ids,
    pub(crate) resting: Ids,
    pub(crate) over: Ids,
    /// Workers that are full or said so, and when the first of those that said so is worth another try.
    pub(crate) busy: Ids,
    pub(crate) busy_until: Option<Millis>,
}

impl Avoid {
    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.resting.is_empty() && self.over.is_empty()
    }
}

impl Fleet {
    /// Looks at every worker.
    pub(crate) fn avoid(&self, snapshot: &Snapshot, now: Millis) -> Avoid {
        self.look_if_due(snapshot, now);
        let mut avoid = Avoid::default();
        let is_quiet = self.doubted.load(Ordering::Relaxed) > 0;
        let is_ramping = now.0 < self.ramping_until_ms.load(Ordering::Relaxed);
        let is_paused = now.0 < self.paused_until_ms.load(Ordering::Relaxed);
        if !is_quiet && !is_ramping && !is_paused && !snapshot.has_caps {
            return avoid;
        }
        let mean = mean_in_flight(snapshot);
        for worker in snapshot.workers.iter().filter(|worker| worker.is_live()) {
            let in_flight = worker.in_flight.load(Ordering::Relaxed);
            let standing = worker.pulse.standing();
            let is_over = |bound: f64| f64::from(in_flight) + 1.0 > bound;
            let busy_until = worker.backoff.busy_until(now);
            if worker.is_full(in_flight) {
                avoid.full.push(worker.id);
                avoid.busy.push(worker.id);
            } else if busy_until.is_some() {
                avoid.busy.push(worker.id);
                avoid.busy_until = [avoid.busy_until, busy_until].into_iter().flatten().min();
            }
            if worker.backoff.is_paused(now) || standing == Standing::Silent {
                avoid.resting.push(worker.id);
                continue;
            }
            let by_silence = match standing {
                Standing::Late => is_over((LATE_SHARE * mean + 1.0).max(LATE_FLOOR)),
                Standing::Quiet => is_over(mean.max(QUIET_FLOOR)),
                Standing::Normal | Standing::Silent => false,
            };
            if by_silence
                || self.ramp_share(worker, now).is_some_and(|share| is_over((share * mean).max(1.0)))
            {
                avoid.over.push(worker.id);
            }
        }
        avoid
    }

    /// Looks for silent workers, as [`avoid`](Self::avoid) does now and then.
    pub(crate) fn look(&self, snapshot: &Snapshot, now: Millis) {
        if !self.rules.hang_detection {
            return;
        }
        let normal = self.expectation.normal();
        let standings = snapshot.workers.iter().map(|worker| worker.pulse.look(now, &normal));
        let doubted = standings.filter(|standing| *standing != Standing::Normal).count();
        self.doubted.store(doubted, Ordering::Relaxed);
    }

    fn look_if_due(&self, snapshot: &Snapshot, now: Millis) {
        let looked = self.looked_ms.load(Ordering::Relaxed);
        if now.0 >= looked + LOOK_INTERVAL_MS
            && self.looked_ms.compare_exchange(looked, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.look(snapshot, now);
        }
    }

    /// A worker came (back) into a running fleet: its slow start begins.
    pub(crate) fn ramp_up(&self, worker: &Worker, now: Millis) {
        if !self.rules.slow_start.is_zero() {
            let until_ms = now.0 + self.rules.slow_start.as_millis() as u64;
            worker.ramping_until_ms.store(until_ms, Ordering::Relaxed);
            self.ramping_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        }
    }

    /// Its share of the mean while its slow start lasts.
    fn ramp_share(&self, worker: &Worker, now: Millis) -> Option<f64> {
        let left_ms =
            worker.ramping_until_ms.load(Ordering::Relaxed).checked_sub(now.0).filter(|&left| left > 0)?;
        Some((1.0 - left_ms as f64 / self.rules.slow_start.as_millis() as f64).max(FIRST_SHARE))
    }
}

/// Requests in flight per live worker.
fn mean_in_flight(snapshot: &Snapshot) -> f64 {
    let live = snapshot.workers.iter().filter(|worker| worker.is_live());
    let (count, sum) = live.fold((0_u32, 0.0), |(count, sum), worker| {
        (count + 1, sum + f64::from(worker.in_flight.load(Ordering::Relaxed)))
    });
    sum / f64::from(count.max(1))
}

/// Whether `ids` holds a worker that is `eligible` and not `tried`.
pub(crate) fn any_left(ids: &[WorkerId], eligible: Option<&[WorkerId]>, tried: &[WorkerId]) -> bool {
    ids.iter().any(|id| !tried.contains(id) && eligible.is_none_or(|eligible| eligible.contains(id)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use trunkline_core::{Router, RouterConfig};

    use super::*;
    use crate::config::GatewayConfig;
    use crate::exact::Exact;
    use crate::pulse::Kind;
    use crate::sagemaker::Layout;

    fn fleet(change: impl FnOnce(&mut GatewayConfig)) -> Fleet {
        let mut config = GatewayConfig::default();
        change(&mut config);
        let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
        let fleet = Fleet::new(router, 1, Arc::default(), Layout::default(), Exact::default(), &config);
        for url in ["http://a:1", "http://b:1", "http://c:1", "http://d:1"] {
            fleet.add(url, None).unwrap();
        }
        fleet
    }

    fn load(fleet: &Fleet, in_flight: [u32; 4]) {
        for (worker, in_flight) in fleet.snapshot().workers.iter().zip(in_flight) {
            worker.in_flight.store(in_flight, Ordering::Relaxed);
        }
    }

    #[test]
    fn caps_are_the_setting_or_the_workers_own() {
        let fleet = fleet(|config| {
            config.max_in_flight = Some(3);
            config.worker_caps = vec![("http://b:1/".into(), 5)];
        });
        load(&fleet, [3, 4, 2, 5]);
        let avoid = fleet.avoid(&fleet.snapshot(), Millis(0));
        let ids: Vec<_> = fleet.snapshot().workers.iter().map(|worker| worker.id).collect();
        assert_eq!(avoid.full.as_slice(), [ids[0], ids[3]]);
        assert_eq!(avoid.busy, avoid.full);
    }

    #[test]
    fn slow_start_grows_with_the_mean_and_allows_one_in_any_case() {
        let fleet = fleet(|config| config.slow_start = Duration::from_secs(2));
        let snapshot = fleet.snapshot();
        let newcomer = &snapshot.workers[3];
        fleet.ramp_up(newcomer, Millis(1000));
        let over_with = |own: u32, now: u64| {
            load(&fleet, [10, 10, 20 - own, own]);
            !fleet.avoid(&snapshot, Millis(now)).over.is_empty()
        };
        assert_eq!([0, 1].map(|own| over_with(own, 1000)), [false, true], "a tenth of 10, at least one");
        assert_eq!([4, 5].map(|own| over_with(own, 2000)), [false, true], "a half of 10");
        assert!(!over_with(20, 3000));
    }

    #[test]
    fn a_silent_worker_rests_and_a_quiet_one_keeps_its_share() {
        let fleet = fleet(|_| {});
        let snapshot = fleet.snapshot();
        let hung = &snapshot.workers[1];
        for _ in 0..20 {
            hung.pulse.wait(&fleet.expectation, Kind::Whole, 10, Millis(0)).answered(true);
        }
        fleet.avoid(&snapshot, Millis(100));
        let _stuck = hung.pulse.wait(&fleet.expectation, Kind::Whole, 10, Millis(100));
        load(&fleet, [4, 4, 4, 4]);
        assert!(fleet.avoid(&snapshot, Millis(110)).is_empty());
        assert_eq!(fleet.avoid(&snapshot, Millis(200)).over.as_slice(), [hung.id]);
        assert_eq!(fleet.avoid(&snapshot, Millis(500)).resting.as_slice(), [hung.id]);
        load(&fleet, [5, 1, 5, 5]);
        assert!(fleet.avoid(&snapshot, Millis(200)).over.is_empty(), "below its share");
    }
}
