//! A policy in the shadow: it decides for every request and routes none.
//!
//! It has a router of its own, a copy of the live one under its policy, and books there what it would have done. So its loads,
//! its spills and its view of the caches are those of a fleet that it alone had placed, and the live router never hears of it.
//! What it cannot know are the answers: a request occupies the worker of its choice for as long as the live one took, and there
//! is no time to first token and no hit rate of an engine, only the expected hit. Its fleet follows the live one within
//! [`FOLLOW`]; workers' caps, pauses and slow starts do not hold it back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use trunkline_core::{
    Decision, DecisionId, Policy, Reason, RouteRequest, Router, Usage, WorkerId, WorkerSpec,
};

use super::estimate::{Estimate, GROUPS, Level, Pair, proportion, ratio};
use crate::error::Error;
use crate::fleet::Fleet;

/// Time between two looks at the live fleet.
const FOLLOW: Duration = Duration::from_secs(1);

/// What is counted, by groups of tenants.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum Count {
    Requests,
    Agreed,
    LiveSpills,
    ShadowSpills,
    PromptTokens,
    LiveMatched,
    ShadowMatched,
}

const COUNTS: usize = Count::ShadowMatched as usize + 1;

/// A policy in the shadow. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) policy: Policy,
    router: Router,
    /// Our worker for each of the live router's.
    ours: ArcSwap<Vec<Option<WorkerId>>>,
    groups: Box<[[AtomicU64; COUNTS]]>,
    /// Requests that each worker got, and would have got.
    given: Mutex<Vec<[u64; 2]>>,
}

impl Shadow {
    /// A copy of the fleet's router as it is now, under another policy. Cost: O(blocks), during which decisions wait.
    ///
    /// # Errors
    /// [`Error::Router`] for a parameter of the policy out of range.
    pub(crate) fn new(policy: Policy, fleet: &Fleet) -> Result<Self, Error> {
        let now = fleet.now();
        let router = Router::restore(&fleet.router.snapshot(now), now)?;
        router.set_policy(policy)?;
        let group = || std::array::from_fn(|_| AtomicU64::new(0));
        let shadow = Self {
            policy,
            router,
            ours: ArcSwap::default(),
            groups: (0..GROUPS).map(|_| group()).collect(),
            given: Mutex::default(),
        };
        shadow.follow(fleet);
        Ok(shadow)
    }

    /// Makes our fleet like the gateway's, which may share its router with others. Cost: O(workers).
    fn follow(&self, fleet: &Fleet) {
        let (mut wanted, known) = (fleet.router.workers(), self.router.workers());
        let snapshot = fleet.snapshot();
        wanted.retain(|view| snapshot.get(view.id).is_some());
        for gone in known.iter().filter(|own| !wanted.iter().any(|view| view.name == own.name)) {
            // Whatever goes wrong here is put right by the next look.
            let _ = self.router.remove_worker(gone.id);
        }
        let mut ours = Vec::new();
        for view in &wanted {
            let own = known.iter().find(|own| own.name == view.name);
            let spec = || WorkerSpec {
                weight: view.weight,
                capacity_tokens: view.capacity_tokens,
                ..WorkerSpec::new(view.name.as_str())
            };
            let Some(id) = own.map(|own| own.id).or_else(|| self.router.add_worker(spec()).ok()) else {
                continue;
            };
            let (was_healthy, was_draining) = own.map_or((true, false), |own| (own.healthy, own.draining));
            if view.healthy != was_healthy {
                let _ = self.router.set_healthy(id, view.healthy);
            }
            if view.healthy && !was_healthy {
                // It came back, most likely without its cache.
                let _ = self.router.reset_worker(id);
            }
            if view.draining != was_draining {
                let _ = self.router.drain_worker(id, view.draining);
            }
            if own.is_some_and(|own| own.capacity_tokens != view.capacity_tokens) {
                let _ = self.router.set_capacity(id, view.capacity_tokens);
            }
            let at = view.id.0 as usize;
            if ours.len() <= at {
                ours.resize(at + 1, None);
            }
            ours[at] = Some(id);
        }
        self.ours.store(Arc::new(ours));
    }

    /// Decides for a request, of which `eligible` are the live workers that may serve it, `None` for all.
    pub(crate) fn decide(
        self: &Arc<Self>,
        request: &RouteRequest<'_>,
        group: usize,
        fleet: &Arc<Fleet>,
    ) -> Option<Shadowed> {
        let ours = self.ours.load();
        let own = |live: &WorkerId| ours.get(live.0 as usize).copied().flatten();
        let eligible: Option<SmallVec<[WorkerId; 32]>> =
            request.eligible.map(|eligible| eligible.iter().filter_map(own).collect());
        // Events are told to the live router only.
        let request = RouteRequest {
            eligible: eligible.as_deref(),
            policy: None,
            exact: None,
            machines: &[],
            exclude: &[],
            ..*request
        };
        let decision = self.router.route(&request, fleet.now()).ok()?;
        Some(Shadowed { shadow: Arc::clone(self), fleet: Arc::clone(fleet), decision, group, is_open: true })
    }

    fn add(&self, group: usize, count: Count, number: u32) {
        self.groups[group][count as usize].fetch_add(number.into(), Ordering::Relaxed);
    }

    fn total(&self, count: Count) -> u64 {
        self.groups.iter().map(|group| group[count as usize].load(Ordering::Relaxed)).sum()
    }

    fn pairs(&self, part: impl Fn(&dyn Fn(Count) -> f64) -> f64, whole: Count) -> Vec<Pair> {
        let pair = |group: &[AtomicU64; COUNTS]| {
            let of = |count: Count| group[count as usize].load(Ordering::Relaxed) as f64;
            (part(&of), of(whole))
        };
        self.groups.iter().map(pair).collect()
    }

    /// What it has come to.
    pub(crate) fn look(&self, live: &Router) -> ShadowLook {
        let rate = |count: Count, whole| {
            Some(ratio(&self.pairs(|of| of(count), whole), Level::Once)?.within(0.0, 1.0))
        };
        let share = |count| proportion(&self.pairs(|of| of(count), Count::Requests), Level::Once);
        let more = |a: Count, b: Count, whole| ratio(&self.pairs(|of| of(b) - of(a), whole), Level::Once);
        // The live router's events know of blocks that decisions do not tell of.
        let is_alike = !live.has_events();
        ShadowLook {
            requests: self.total(Count::Requests),
            agreement: share(Count::Agreed),
            expected_hit: [Count::LiveMatched, Count::ShadowMatched]
                .map(|count| rate(count, Count::PromptTokens)),
            expected_hit_difference: more(Count::LiveMatched, Count::ShadowMatched, Count::PromptTokens)
                .filter(|_| is_alike),
            spill_rate: [Count::LiveSpills, Count::ShadowSpills].map(share),
            spill_rate_difference: more(Count::LiveSpills, Count::ShadowSpills, Count::Requests),
            load_spread: self.load_spread(live),
        }
    }

    /// The largest share that a worker got times the number of workers, live and ours; 1 is even.
    fn load_spread(&self, live: &Router) -> [Option<f64>; 2] {
        let (given, ours) = (self.given.lock(), self.ours.load());
        let counts: Vec<[u64; 2]> = (live.workers().iter())
            .filter(|view| ours.get(view.id.0 as usize).copied().flatten().is_some())
            .map(|view| given.get(view.id.0 as usize).copied().unwrap_or_default())
            .collect();
        [0, 1].map(|side| {
            let sum: u64 = counts.iter().map(|count| count[side]).sum();
            let most = counts.iter().map(|count| count[side]).max()?;
            (sum > 0).then(|| most as f64 * counts.len() as f64 / sum as f64)
        })
    }

    /// Counters for metrics: requests, agreed, spills of both, matched tokens of both.
    pub(crate) fn counters(&self) -> ShadowCounters {
        ShadowCounters {
            requests: self.total(Count::Requests),
            agreed: self.total(Count::Agreed),
            spills: [Count::LiveSpills, Count::ShadowSpills].map(|count| self.total(count)),
            matched_tokens: [Count::LiveMatched, Count::ShadowMatched].map(|count| self.total(count)),
        }
    }
}

/// What a shadow has come to. Pairs are (live, shadow); differences are paired, request by request.
#[derive(Debug)]
pub(crate) struct ShadowLook {
    pub(crate) requests: u64,
    /// Requests that both would have sent to the same worker.
    pub(crate) agreement: Option<Estimate>,
    pub(crate) expected_hit: [Option<Estimate>; 2],
    /// `None` also where the live router knows more than a shadow can.
    pub(crate) expected_hit_difference: Option<Estimate>,
    pub(crate) spill_rate: [Option<Estimate>; 2],
    pub(crate) spill_rate_difference: Option<Estimate>,
    pub(crate) load_spread: [Option<f64>; 2],
}

/// Totals of a shadow. Pairs are (live, shadow).
#[derive(Debug)]
pub(crate) struct ShadowCounters {
    pub(crate) requests: u64,
    pub(crate) agreed: u64,
    pub(crate) spills: [u64; 2],
    pub(crate) matched_tokens: [u64; 2],
}

/// What the shadow decided for a request, booked in its own books until the request is over.
#[derive(Debug)]
pub(crate) struct Shadowed {
    shadow: Arc<Shadow>,
    fleet: Arc<Fleet>,
    decision: Decision,
    group: usize,
    is_open: bool,
}

impl Shadowed {
    /// Compares it with what the live router decided, once.
    pub(crate) fn compare(&mut self, live: &Decision) {
        let (shadow, own, group) = (&self.shadow, &self.decision, self.group);
        let ours = shadow.ours.load();
        shadow.add(group, Count::Requests, 1);
        let is_same = ours.get(live.worker.0 as usize).copied().flatten() == Some(own.worker);
        shadow.add(group, Count::Agreed, u32::from(is_same));
        shadow.add(group, Count::LiveSpills, u32::from(live.reason == Reason::Spill));
        shadow.add(group, Count::ShadowSpills, u32::from(own.reason == Reason::Spill));
        shadow.add(group, Count::PromptTokens, live.prompt_tokens);
        shadow.add(group, Count::LiveMatched, live.matched_tokens);
        shadow.add(group, Count::ShadowMatched, own.matched_tokens.min(live.prompt_tokens));
        let of_shadow = ours.iter().position(|id| *id == Some(own.worker));
        let mut given = shadow.given.lock();
        for (side, at) in [(0, Some(live.worker.0 as usize)), (1, of_shadow)] {
            if let Some(at) = at {
                if given.len() <= at {
                    given.resize(at + 1, [0; 2]);
                }
                given[at][side] += 1;
            }
        }
    }

    /// The live worker's first token came.
    pub(crate) fn first_token(&self) {
        self.shadow.router.first_token(self.decision.id, self.fleet.now());
    }

    /// The request is over.
    pub(crate) fn complete(&mut self, usage: Option<Usage>) {
        if std::mem::take(&mut self.is_open) {
            // What was cached where it really went says nothing of where it would have gone.
            let usage = usage.map(|usage| Usage { cached_tokens: None, ..usage });
            self.shadow.router.complete(self.id(), usage, self.fleet.now());
        }
    }

    fn id(&self) -> DecisionId {
        self.decision.id
    }
}

impl Drop for Shadowed {
    fn drop(&mut self) {
        self.complete(None);
    }
}

/// Keeps a shadow's fleet like the live one until the shadow ends.
pub(crate) async fn follow(shadow: Weak<Shadow>, fleet: Arc<Fleet>) {
    loop {
        tokio::time::sleep(FOLLOW).await;
        let Some(shadow) = shadow.upgrade() else { return };
        shadow.follow(&fleet);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{Prompt, RouterConfig};

    use super::*;
    use crate::config::GatewayConfig;
    use crate::exact::Exact;
    use crate::sagemaker::Layout;

    /// A gateway's workers, and one of somebody else in the same router.
    fn fleet(urls: &[&str]) -> Arc<Fleet> {
        let router = Arc::new(Router::new(RouterConfig::default()).unwrap());
        router.add_worker(WorkerSpec::new("somebody's")).unwrap();
        let config = GatewayConfig::default();
        let fleet = Fleet::new(router, 1, Arc::default(), Layout::default(), Exact::default(), &config);
        for url in urls {
            fleet.add(url, None).unwrap();
        }
        Arc::new(fleet)
    }

    fn decide(shadow: &Arc<Shadow>, fleet: &Arc<Fleet>) -> Shadowed {
        shadow.decide(&RouteRequest::new(Prompt::Text(&[b"hello"])), 0, fleet).unwrap()
    }

    #[test]
    fn what_it_booked_ends_with_the_request() {
        let fleet = fleet(&["http://a:1", "http://b:1"]);
        let shadow = Arc::new(Shadow::new(Policy::RoundRobin, &fleet).unwrap());
        let in_flight = || shadow.router.stats().in_flight;
        let [mut answered, given_up, orphan] = std::array::from_fn(|_| decide(&shadow, &fleet));
        assert_eq!(in_flight(), 3);
        answered.complete(None);
        answered.complete(None);
        drop((answered, given_up));
        assert_eq!(in_flight(), 1);
        fleet.remove("http://a:1").unwrap();
        shadow.follow(&fleet);
        drop(orphan);
        assert_eq!((in_flight(), fleet.router.stats().in_flight), (0, 0));
    }

    #[test]
    fn its_fleet_is_the_gateways_and_nobody_elses() {
        let fleet = fleet(&["http://a:1", "http://b:1"]);
        let shadow = Arc::new(Shadow::new(Policy::RoundRobin, &fleet).unwrap());
        let names = || -> Vec<String> {
            shadow.router.workers().into_iter().map(|view| view.name.as_str().to_owned()).collect()
        };
        assert_eq!(names(), ["http://a:1", "http://b:1"]);
        for live in fleet.snapshot().ids() {
            let mut shadowed = decide(&shadow, &fleet);
            let live = Decision { worker: *live, ..shadowed.decision };
            shadowed.compare(&live);
        }
        assert_eq!(shadow.look(&fleet.router).load_spread, [Some(1.0); 2]);
        fleet.remove("http://a:1").unwrap();
        fleet.add("http://c:1", None).unwrap();
        shadow.follow(&fleet);
        assert_eq!(names(), ["http://b:1", "http://c:1"]);
    }
}
