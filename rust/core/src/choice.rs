//! The choice of a worker: what can be known of it before the lock, and the rest over the loads.
//!
//! A [`Plan`] is made from the fleet and from what the index says; [`State::choose`] adds what is booked now. So the lock
//! is held for O(candidates), and nothing is hashed while it is.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::decision::Reason;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::hits::{Hits, Part};
use crate::key::{BlockHasher, combine};
use crate::policy::{self, Candidate, Policy, Score, Situation, Verdict};
use crate::router::{RouteRequest, RouterConfig};
use crate::shared::{Length, Shared};
use crate::state::{Scratch, State};
use crate::worker::WorkerId;

/// Fleet size from which `kv_aware` scores [`MATCHED`] + [`HASHED`] + [`CHANCE`] candidates instead of all workers.
pub(crate) const SAMPLE_FROM: usize = 64;
/// Candidates with the deepest matches, by hash of the prompt, and by chance. Source: policy study, section 7.
const MATCHED: usize = 4;
const HASHED: usize = 4;
const CHANCE: usize = 2;
const SAMPLE: usize = MATCHED + HASHED + CHANCE;

/// Home bonus per token that nobody holds: replicas that share their load, and replicas that share nothing. With one router
/// there is nobody to agree with. Source: policy study, section 6.
const BETA_SHARED: f64 = 0.3;
const BETA_ALONE: f64 = 0.7;

/// Whom a policy chose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) worker: WorkerId,
    pub(crate) reason: Reason,
    pub(crate) preferred: Option<WorkerId>,
}

impl Choice {
    fn baseline(worker: WorkerId) -> Self {
        Self { worker, reason: Reason::Baseline, preferred: None }
    }
}

/// What a choice needs to know of the router, besides its loads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) config: &'a RouterConfig,
    pub(crate) shared: &'a Shared,
    /// Hasher of homes.
    pub(crate) placement: &'a BlockHasher,
    /// [`SAMPLE_FROM`], unless a test wants to see what a scan of all workers chooses.
    pub(crate) sample_from: usize,
}

/// All of a choice that the loads do not change.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    policy: Policy,
    /// Whether not all live workers may take the request, and then who may, ascending.
    is_limited: bool,
    listed: Vec<WorkerId>,
    /// Deepest match among them, in tokens, and how many of them have it.
    deepest: u32,
    deepest_holders: usize,
    /// What the prompt's places follow from.
    key: u64,
    /// The first places of the key, as many as the policy needs.
    places: SmallVec<[WorkerId; HASHED]>,
    /// The parts of the prompt that workers hold.
    parts: Vec<Part>,
    /// Holders of which the deepest [`MATCHED`] are candidates, with their tokens; empty if all workers are.
    holders: Vec<(u32, WorkerId)>,
    samples: bool,
}

impl Plan {
    /// Makes the plan of a request of which `hits` tells who holds how much.
    pub(crate) fn make(
        &mut self,
        fleet: &Fleet,
        rules: Rules<'_>,
        request: &RouteRequest<'_>,
        hits: Hits<'_>,
    ) -> Result<(), Error> {
        self.list(fleet, request);
        if self.ids(fleet).is_empty() {
            return Err(Error::NoWorkerAvailable { known: fleet.known, live: fleet.live.len(), eligible: 0 });
        }
        self.places.clear();
        self.holders.clear();
        let placement = rules.placement;
        self.policy = request.policy.unwrap_or(fleet.policy);
        match self.policy {
            Policy::KvAware => self.plan_costs(fleet, rules, request, hits),
            Policy::PrefixAware { prefix_length, .. } => {
                self.key = request.prompt.head_hash(request.root, placement.seed(), prefix_length as usize);
                self.find_places(fleet, 1);
            }
            Policy::RoundRobin | Policy::LeastOutstanding | Policy::Random => {}
        }
        Ok(())
    }

    fn list(&mut self, fleet: &Fleet, request: &RouteRequest<'_>) {
        self.is_limited = request.eligible.is_some() || !request.exclude.is_empty();
        if self.is_limited {
            self.listed.clear();
            let allowed = request.eligible.unwrap_or(&fleet.live).iter().copied();
            self.listed.extend(allowed.filter(|id| fleet.contains(*id) && !request.exclude.contains(id)));
            self.listed.sort_unstable();
            self.listed.dedup();
        }
    }

    fn ids<'a>(&'a self, fleet: &'a Fleet) -> &'a [WorkerId] {
        if self.is_limited { &self.listed } else { &fleet.live }
    }

    fn contains(&self, fleet: &Fleet, id: WorkerId) -> bool {
        if self.is_limited { self.listed.binary_search(&id).is_ok() } else { fleet.contains(id) }
    }

    fn find_places(&mut self, fleet: &Fleet, count: usize) {
        for attempt in 0..count as u64 {
            let place = fleet.pick(self.key, attempt, |id| self.contains(fleet, id));
            self.places.extend(place);
        }
    }

    fn plan_costs(&mut self, fleet: &Fleet, rules: Rules<'_>, request: &RouteRequest<'_>, hits: Hits<'_>) {
        let Rules { config, shared, placement, sample_from } = rules;
        self.samples = self.ids(fleet).len() >= sample_from;
        let mut most = [0; MATCHED];
        (self.deepest, self.deepest_holders) = (0, 0);
        hits.each(fleet, shared, |id, tokens| {
            if !self.contains(fleet, id) {
                return;
            }
            if tokens >= self.deepest {
                self.deepest_holders = if tokens > self.deepest { 1 } else { self.deepest_holders + 1 };
                self.deepest = tokens;
            }
            if self.samples {
                self.holders.push((tokens, id));
                if tokens > most[MATCHED - 1] {
                    most[MATCHED - 1] = tokens;
                    most.sort_unstable_by_key(|&tokens| Reverse(tokens));
                }
            }
        });
        self.holders.retain(|&(tokens, _)| tokens >= most[MATCHED - 1]);
        hits.parts(&mut self.parts);
        let block = hits.length.blocks_of(self.deepest) as usize;
        self.key = request.prompt.home_hash(request.root, placement, config.block_size, block);
        let places = if self.samples {
            HASHED
        } else if config.replicas > 1 {
            2
        } else {
            0
        };
        self.find_places(fleet, places);
    }
}

impl State {
    /// Chooses by the policy. The candidates and scores of a choice by cost stay in the scratch.
    pub(crate) fn choose(
        &self,
        request: &RouteRequest<'_>,
        config: &RouterConfig,
        length: &Length,
        scratch: &mut Scratch,
    ) -> Choice {
        let Scratch { plan, matches, exact, candidates, scores, .. } = scratch;
        let hits = Hits::of(request, length, matches, exact);
        candidates.clear();
        scores.clear();
        let ids = plan.ids(&self.fleet);
        let choice = match plan.policy {
            Policy::KvAware => self.kv_aware(plan, config, hits, candidates, scores),
            Policy::PrefixAware { concurrency_threshold, .. } => {
                self.prefix_aware(plan, concurrency_threshold, request)
            }
            Policy::RoundRobin => Choice::baseline(ids[(self.turn % ids.len() as u64) as usize]),
            Policy::LeastOutstanding => Choice::baseline(self.least_outstanding(ids)),
            Policy::Random => Choice::baseline(ids[self.chance(0, ids.len())]),
        };
        if ids.len() == 1 {
            return Choice { reason: Reason::Only, preferred: None, ..choice };
        }
        choice
    }

    /// Lists the workers that a choice without costs had, with their requests in flight as the cost.
    pub(crate) fn list_candidates(&self, request: &RouteRequest<'_>, length: &Length, scratch: &mut Scratch) {
        let Scratch { plan, matches, exact, candidates, scores, .. } = scratch;
        let hits = Hits::of(request, length, matches, exact);
        candidates.extend(plan.ids(&self.fleet).iter().map(|&id| self.candidate(id, hits)));
        let cost = |candidate: &Candidate| f64::from(candidate.in_flight);
        scores.extend(candidates.iter().map(|candidate| Score { cost: cost(candidate), ..Score::default() }));
    }

    /// Requests in flight on the workers that may take this one.
    fn in_flight(&self, plan: &Plan) -> u64 {
        if plan.is_limited {
            return plan.listed.iter().map(|&id| u64::from(self.standing(id).requests())).sum();
        }
        self.live_in_flight
    }

    #[inline]
    fn candidate(&self, id: WorkerId, hits: Hits<'_>) -> Candidate {
        let standing = self.standing(id);
        Candidate {
            worker: id,
            hit_tokens: hits.tokens(standing.view, standing.known),
            queued_tokens: standing.queued_tokens,
            in_flight: standing.requests(),
            used_tokens: f64::from(standing.pinned_blocks) * hits.length.tokens_per_block
                + standing.answer_tokens as f64,
            capacity_tokens: standing.capacity_tokens,
            slowness: standing.slowness,
            held_blocks: 0,
            chance: 0.0,
        }
    }

    fn kv_aware(
        &self,
        plan: &Plan,
        config: &RouterConfig,
        hits: Hits<'_>,
        candidates: &mut Vec<Candidate>,
        scores: &mut Vec<Score>,
    ) -> Choice {
        let &Plan { deepest, deepest_holders, .. } = plan;
        let ids = plan.ids(&self.fleet);
        // What workers hold counts for prompts that are new by half. Where fewer than half of the workers have a request,
        // equal ones tie and the prompt goes home, as after a restart. Replicas have homes to agree on, and fill the same
        // caches without knowing it; a few workers out of many do not tell what the fleet holds.
        let in_flight = self.in_flight(plan);
        let spreads = config.replicas == 1
            && ids.len() < SAMPLE_FROM
            && 2 * in_flight >= ids.len() as u64
            && deepest < hits.length.tokens.div_ceil(2);
        let held = |id| if spreads { self.index.view_blocks(self.standing(id).view) } else { 0 };
        let hears_late = config.replicas > 1 && config.shared_state;
        let chance = |id: WorkerId| if hears_late { self.fraction(id) } else { 0.0 };
        let candidate =
            |id| Candidate { held_blocks: held(id), chance: chance(id), ..self.candidate(id, hits) };
        if plan.samples {
            candidates.extend(self.sample(plan).into_iter().map(candidate));
        } else {
            candidates.extend(ids.iter().map(|&id| candidate(id)));
        }
        let situation = Situation {
            prompt_tokens: hits.length.tokens,
            parts: &plan.parts,
            live: ids.len(),
            in_flight,
            deepest_holders,
            mean_answer_tokens: self.mean_answer_tokens,
            home: if config.replicas > 1 { self.home(plan, config) } else { None },
        };
        let (at, reason) = match policy::kv_aware(candidates, &situation, scores) {
            Verdict::Session(at) => (at, Reason::Session),
            Verdict::Cheapest(at) => (at, Reason::Load),
            Verdict::Tie(first) => {
                let lowest = scores[first].cost;
                let tied = |id| {
                    let at = candidates.iter().position(|candidate| candidate.worker == id)?;
                    (scores[at].cost == lowest).then_some(at)
                };
                (self.tied_home(plan, tied).unwrap_or(first), Reason::Home)
            }
        };
        let worker = candidates[at].worker;
        let left = candidates.iter().enumerate().filter(|(_, candidate)| candidate.hit_tokens == deepest);
        let preferred = left.min_by(|a, b| scores[a.0].cost.total_cmp(&scores[b.0].cost)).map(|(at, _)| at);
        let (reason, preferred) = match (reason, preferred) {
            (Reason::Session, _) => (Reason::Session, None),
            (_, _) if deepest > 0 && candidates[at].hit_tokens == deepest => (Reason::Prefix, None),
            (_, Some(holder)) if deepest > 0 => {
                let reason = if scores[holder].over_mean > 0.0 { Reason::Spill } else { Reason::Load };
                (reason, Some(candidates[holder].worker))
            }
            (reason, _) => (reason, None),
        };
        Choice { worker, reason, preferred }
    }

    /// The first of the prompt's places that `tied` knows. With one router any other choice would do as well.
    fn tied_home<T>(&self, plan: &Plan, tied: impl Fn(WorkerId) -> Option<T>) -> Option<T> {
        if !plan.places.is_empty() {
            return plan.places.iter().find_map(|&id| tied(id));
        }
        let usable = |id| plan.contains(&self.fleet, id);
        (0..HASHED as u64).find_map(|attempt| tied(self.fleet.pick(plan.key, attempt, usable)?))
    }

    /// The prompt's home and its bonus per token. Replicas that share their load take the lighter of two.
    fn home(&self, plan: &Plan, config: &RouterConfig) -> Option<(WorkerId, f64)> {
        let &[first, second, ..] = &plan.places[..] else { return None };
        if !config.shared_state {
            return Some((first, BETA_ALONE));
        }
        let weight = |id| {
            let standing = self.standing(id);
            standing.queued_tokens + 330 * u64::from(standing.requests())
        };
        Some((if weight(second) < weight(first) { second } else { first }, BETA_SHARED))
    }

    /// The candidates of a large fleet: deepest matches, hashed picks, and a few by chance, each worker once.
    fn sample(&self, plan: &Plan) -> SmallVec<[WorkerId; SAMPLE]> {
        // Deepest first; among equals the least loaded.
        let mut best: SmallVec<[(Reverse<u32>, u32, WorkerId); MATCHED + 1]> = SmallVec::new();
        for &(tokens, id) in &plan.holders {
            let holder = (Reverse(tokens), self.standing(id).requests(), id);
            if best.get(MATCHED - 1).is_none_or(|last| holder < *last) {
                best.insert(best.partition_point(|other| *other < holder), holder);
                best.truncate(MATCHED);
            }
        }
        let ids = plan.ids(&self.fleet);
        let chance = (0..CHANCE).map(|draw| ids[self.chance(draw as u64, ids.len())]);
        let mut sample = SmallVec::new();
        for id in best.into_iter().map(|(.., id)| id).chain(plan.places.iter().copied()).chain(chance) {
            if !sample.contains(&id) {
                sample.push(id);
            }
        }
        sample
    }

    fn prefix_aware(&self, plan: &Plan, threshold: Option<u32>, request: &RouteRequest<'_>) -> Choice {
        let ids = plan.ids(&self.fleet);
        let outstanding = |id: WorkerId| self.standing(id).requests();
        let home = plan.places.first().copied().unwrap_or(ids[0]);
        let spill = |worker| Choice { worker, reason: Reason::Spill, preferred: Some(home) };
        let at_home = Choice { worker: home, reason: Reason::Home, preferred: None };
        let bound = match threshold {
            Some(threshold) => f64::from(threshold),
            None => policy::relative_bound(self.in_flight(plan), ids.len()),
        };
        let fits = |id: WorkerId| f64::from(outstanding(id)) + 1.0 <= bound;
        if fits(home) {
            return at_home;
        }
        let near = request.on_machine_of(home).filter(|&id| plan.contains(&self.fleet, id) && fits(id));
        if let Some(near) = near.min_by_key(|&id| outstanding(id)) {
            return spill(near);
        }
        if threshold.is_some() {
            return spill(self.least_outstanding(ids));
        }
        let place = |attempt| {
            let usable = |id| plan.contains(&self.fleet, id);
            self.fleet.pick(plan.key, attempt, usable).unwrap_or(home)
        };
        // The next tries come in pairs, of which the lighter counts.
        for attempt in [1, 3, 5] {
            let pair = [place(attempt), place(attempt + 1)];
            let lighter = if outstanding(pair[1]) < outstanding(pair[0]) { pair[1] } else { pair[0] };
            if fits(lighter) {
                return spill(lighter);
            }
        }
        spill(self.least_outstanding(ids))
    }

    /// The worker with the fewest requests in flight, by chance among equals.
    fn least_outstanding(&self, ids: &[WorkerId]) -> WorkerId {
        let outstanding = |id: WorkerId| self.standing(id).requests();
        let fewest = ids.iter().map(|&id| outstanding(id)).min().unwrap_or(0);
        let equals = || ids.iter().copied().filter(|&id| outstanding(id) == fewest);
        equals().nth(self.chance(0, equals().count())).unwrap_or(ids[0])
    }

    /// A number below `count`, another one for each decision and draw.
    fn chance(&self, draw: u64, count: usize) -> usize {
        ((u128::from(self.random(draw)) * count as u128) >> 64) as usize
    }

    /// A number of 0 to 1, another one for each decision and worker, and for each router whose index has a seed of its own.
    fn fraction(&self, id: WorkerId) -> f64 {
        self.random(CHANCE as u64 + u64::from(id.0)) as f64 / u64::MAX as f64
    }

    /// Mixed twice: once leaves the high bits of one turn close to those of the next.
    fn random(&self, draw: u64) -> u64 {
        const SALT: u64 = 0x9e37_79b9_7f4a_7c15;
        combine(combine(self.turn, draw.wrapping_add(SALT)), SALT)
    }
}
