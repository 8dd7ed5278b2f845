//! Everything of a router that must change together, and the choice over it.
//!
//! [`State::choose`] only reads; [`State::book`] writes down what was chosen. [`Router`](crate::Router) holds the lock around
//! both.

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::book::{Booking, Bookings};
use crate::decision::{Decision, DecisionId, Reason};
use crate::error::Error;
use crate::index::{BatchMatches, Matches, ViewId, Writer};
use crate::jump::Slots;
use crate::key::{BlockHash, BlockHasher, combine};
use crate::policy::{self, Candidate, Policy, Score, Situation, Verdict};
use crate::router::{Millis, RouteRequest, RouterConfig, Usage};
use crate::shared::{Length, Shared, TextLength};
use crate::worker::{Counters, FleetSpeed, Load, Speed, Worker, WorkerId, WorkerSpec};

/// Fleet size from which `kv_aware` scores [`MATCHED`] + [`HASHED`] + [`CHANCE`] candidates instead of all workers.
pub(crate) const SAMPLE_FROM: usize = 64;
/// Candidates with the deepest matches, by hash of the prompt, and by chance. Source: policy study, section 7.
const MATCHED: usize = 4;
const HASHED: u64 = 4;
const CHANCE: usize = 2;
const SAMPLE: usize = MATCHED + HASHED as usize + CHANCE;

/// Home bonus per token that nobody holds: replicas that share their load, and replicas that share nothing. With one router
/// there is nobody to agree with. Source: policy study, section 6.
const BETA_SHARED: f64 = 0.3;
const BETA_ALONE: f64 = 0.7;

/// Weight of a new answer in the mean answer length, and its start. Source: policy study, section 2.
const ANSWER_WEIGHT: f64 = 0.02;
const ANSWER_START_TOKENS: f64 = 150.0;

/// Buffers of one call, kept by the thread so that a decision does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) matches: Matches,
    pub(crate) batch: BatchMatches,
    pool: Vec<WorkerId>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) scores: Vec<Score>,
}

/// Everything that must change together.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) workers: Vec<Option<Worker>>,
    pub(crate) by_name: HashMap<String, WorkerId>,
    /// Healthy workers that do not drain, ascending.
    pub(crate) live: Vec<WorkerId>,
    /// One bit for each id, set for these workers.
    live_bits: Vec<u64>,
    /// Sum of their requests in flight.
    live_in_flight: u64,
    /// [`SAMPLE_FROM`], unless a test wants to see what a scan of all workers chooses.
    pub(crate) sample_from: usize,
    pub(crate) slots: Slots,
    /// Hasher of homes.
    placement: BlockHasher,
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: Writer,
    pub(crate) bookings: Bookings,
    pub(crate) fleet_speed: FleetSpeed,
    pub(crate) mean_answer_tokens: f64,
    pub(crate) incarnations: u64,
    pub(crate) turn: u64,
    pub(crate) decisions: [u64; Reason::ALL.len()],
    pub(crate) prompt_tokens: u64,
    pub(crate) matched_tokens: u64,
}

/// The workers that may take one request: at least one.
#[derive(Debug, Clone, Copy)]
struct Pool<'a> {
    /// Ascending.
    ids: &'a [WorkerId],
    /// Sum of their requests in flight.
    in_flight: u64,
    /// If these are all live workers: a bit for each.
    live_bits: Option<&'a [u64]>,
}

impl Pool<'_> {
    fn contains(&self, id: WorkerId) -> bool {
        match self.live_bits {
            Some(bits) => is_set(bits, id),
            None => self.ids.binary_search(&id).is_ok(),
        }
    }
}

fn is_set(bits: &[u64], id: WorkerId) -> bool {
    bits.get(id.0 as usize / 64).is_some_and(|bits| bits >> (id.0 % 64) & 1 == 1)
}

/// Whom a policy chose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) worker: WorkerId,
    pub(crate) reason: Reason,
    pub(crate) preferred: Option<WorkerId>,
}

impl State {
    pub(crate) fn new(config: &RouterConfig, shared: Arc<Shared>, index: Writer) -> Self {
        Self {
            workers: Vec::new(),
            by_name: HashMap::new(),
            live: Vec::new(),
            live_bits: Vec::new(),
            live_in_flight: 0,
            sample_from: SAMPLE_FROM,
            slots: Slots::default(),
            placement: BlockHasher::new(config.placement_seed),
            shared,
            index,
            bookings: Bookings::new(config.index_seed),
            fleet_speed: FleetSpeed::default(),
            mean_answer_tokens: ANSWER_START_TOKENS,
            incarnations: 0,
            turn: config.index_seed,
            decisions: [0; Reason::ALL.len()],
            prompt_tokens: 0,
            matched_tokens: 0,
        }
    }

    fn worker(&self, id: WorkerId) -> Result<&Worker, Error> {
        self.workers.get(id.0 as usize).and_then(Option::as_ref).ok_or(Error::UnknownWorker { id })
    }

    pub(crate) fn worker_mut(&mut self, id: WorkerId) -> Result<&mut Worker, Error> {
        self.workers.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(Error::UnknownWorker { id })
    }

    /// A worker that is known to be present.
    fn present(&self, id: WorkerId) -> &Worker {
        self.workers[id.0 as usize].as_ref().expect("live workers and owners of views are present")
    }

    /// Whether the worker is in `live`.
    fn is_live(&self, id: WorkerId) -> bool {
        is_set(&self.live_bits, id)
    }

    pub(crate) fn add_worker(&mut self, spec: WorkerSpec, config: &RouterConfig) -> Result<WorkerId, Error> {
        if self.by_name.contains_key(&spec.name) {
            return Err(Error::DuplicateWorker { name: spec.name });
        }
        let former = self.slots.former(&spec.name);
        let id = former.unwrap_or(WorkerId(self.workers.len() as u32));
        let view = self.open_view(id, spec.capacity_tokens, config)?;
        self.incarnations += 1;
        let worker = Worker {
            view,
            incarnation: self.incarnations,
            healthy: true,
            draining: false,
            load: Load::default(),
            speed: Speed::default(),
            counters: Counters::default(),
            spec,
        };
        self.slots.add(&worker.spec.name, id, worker.spec.weight);
        self.by_name.insert(worker.spec.name.clone(), id);
        match former {
            Some(_) => self.workers[id.0 as usize] = Some(worker),
            None => self.workers.push(Some(worker)),
        }
        if self.decisions.iter().all(|&count| count == 0) {
            let mut names: Vec<_> = self.by_name.iter().collect();
            names.sort_unstable();
            let weight = |id: WorkerId| self.present(id).spec.weight;
            let sorted: Vec<_> = names.into_iter().map(|(_, &id)| (id, weight(id))).collect();
            self.slots.rebuild(sorted.into_iter());
        }
        self.count_live();
        Ok(id)
    }

    pub(crate) fn remove_worker(&mut self, id: WorkerId) -> Result<(), Error> {
        let worker =
            self.workers.get_mut(id.0 as usize).and_then(Option::take).ok_or(Error::UnknownWorker { id })?;
        self.by_name.remove(&worker.spec.name);
        self.slots.remove(&worker.spec.name, id);
        self.shared.set_owner(worker.view, None);
        self.index.remove_view(worker.view);
        self.count_live();
        Ok(())
    }

    /// Gives the worker a new, empty view.
    pub(crate) fn reset_worker(&mut self, id: WorkerId, config: &RouterConfig) -> Result<(), Error> {
        let worker = self.worker(id)?;
        let (old, capacity_tokens) = (worker.view, worker.spec.capacity_tokens);
        let view = self.open_view(id, capacity_tokens, config)?;
        self.shared.set_owner(old, None);
        self.index.remove_view(old);
        self.worker_mut(id)?.view = view;
        Ok(())
    }

    pub(crate) fn set_capacity(
        &mut self,
        id: WorkerId,
        capacity_tokens: Option<u64>,
        config: &RouterConfig,
    ) -> Result<(), Error> {
        let worker = self.worker_mut(id)?;
        worker.spec.capacity_tokens = capacity_tokens;
        let view = worker.view;
        self.index.set_capacity(view, capacity_blocks(capacity_tokens, config));
        Ok(())
    }

    pub(crate) fn open_view(
        &mut self,
        id: WorkerId,
        capacity_tokens: Option<u64>,
        config: &RouterConfig,
    ) -> Result<ViewId, Error> {
        let view =
            self.index.add_view(capacity_blocks(capacity_tokens, config)).ok_or_else(|| Error::Config {
                key: "workers",
                value: self.by_name.len().to_string(),
                allowed: "up to 65535, those that left recently included".into(),
            })?;
        self.shared.set_owner(view, Some(id));
        Ok(view)
    }

    pub(crate) fn count_live(&mut self) {
        let workers = self.workers.iter().enumerate();
        let live =
            workers.filter_map(|(id, worker)| Some((id, worker.as_ref().filter(|worker| worker.is_live())?)));
        self.live.clear();
        self.live_bits.clear();
        self.live_bits.resize(self.workers.len().div_ceil(64), 0);
        self.live_in_flight = 0;
        for (id, worker) in live {
            self.live.push(WorkerId(id as u32));
            self.live_bits[id / 64] |= 1 << (id % 64);
            self.live_in_flight += u64::from(worker.load.in_flight);
        }
    }

    pub(crate) fn slowness(&self, worker: &Worker, config: &RouterConfig) -> f64 {
        let sees_all_load = config.replicas == 1 || config.shared_state;
        match worker.spec.slowness {
            Some(configured) => configured,
            None if sees_all_load => worker.speed.slowness(),
            None => 1.0,
        }
    }

    /// The workers that may take the request; listed in `listed` unless they are all that are live.
    fn pool<'a>(
        &'a self,
        request: &RouteRequest<'_>,
        listed: &'a mut Vec<WorkerId>,
    ) -> Result<Pool<'a>, Error> {
        let pool = match request.eligible {
            None if request.exclude.is_empty() => {
                Pool { ids: &self.live, in_flight: self.live_in_flight, live_bits: Some(&self.live_bits) }
            }
            eligible => {
                let allowed = eligible.unwrap_or(&self.live).iter();
                listed.clear();
                listed.extend(allowed.filter(|&&id| self.is_live(id) && !request.exclude.contains(&id)));
                listed.sort_unstable();
                listed.dedup();
                let in_flight = listed.iter().map(|&id| u64::from(self.present(id).load.in_flight)).sum();
                Pool { ids: listed, in_flight, live_bits: None }
            }
        };
        if pool.ids.is_empty() {
            let (known, live) = (self.by_name.len(), self.live.len());
            return Err(Error::NoWorkerAvailable { known, live, eligible: 0 });
        }
        Ok(pool)
    }

    /// Chooses by the policy. `scratch.matches` holds the prompt's matches; the candidates and scores of a choice by cost stay
    /// in the scratch.
    pub(crate) fn choose(
        &self,
        request: &RouteRequest<'_>,
        length: &Length,
        config: &RouterConfig,
        scratch: &mut Scratch,
    ) -> Result<Choice, Error> {
        scratch.candidates.clear();
        scratch.scores.clear();
        let mut listed = std::mem::take(&mut scratch.pool);
        let choice = self.pool(request, &mut listed).map(|pool| {
            let choice = self.choose_from(&pool, request, length, config, scratch);
            if pool.ids.len() == 1 {
                return Choice { reason: Reason::Only, preferred: None, ..choice };
            }
            choice
        });
        scratch.pool = listed;
        choice
    }

    fn choose_from(
        &self,
        pool: &Pool<'_>,
        request: &RouteRequest<'_>,
        length: &Length,
        config: &RouterConfig,
        scratch: &mut Scratch,
    ) -> Choice {
        let ids = pool.ids;
        match config.policy {
            Policy::KvAware => self.kv_aware(pool, request, length, config, scratch),
            Policy::PrefixAware { prefix_length, concurrency_threshold } => {
                let key =
                    request.prompt.head_hash(request.root, config.placement_seed, prefix_length as usize);
                self.prefix_aware(key, concurrency_threshold, pool)
            }
            Policy::RoundRobin => Choice::baseline(ids[(self.turn % ids.len() as u64) as usize]),
            Policy::LeastOutstanding => Choice::baseline(self.least_outstanding(ids)),
            Policy::Random => Choice::baseline(ids[self.chance(0, ids.len())]),
        }
    }

    /// Lists the workers that a choice without costs had, with their requests in flight as the cost.
    pub(crate) fn list_candidates(
        &self,
        request: &RouteRequest<'_>,
        length: &Length,
        config: &RouterConfig,
        scratch: &mut Scratch,
    ) {
        let Scratch { matches, pool: listed, candidates, scores, .. } = scratch;
        if let Ok(pool) = self.pool(request, listed) {
            candidates.extend(pool.ids.iter().map(|&id| self.candidate(id, length, config, matches)));
            let cost = |candidate: &Candidate| f64::from(candidate.in_flight);
            scores.extend(
                candidates.iter().map(|candidate| Score { cost: cost(candidate), ..Score::default() }),
            );
        }
    }

    fn candidate(
        &self,
        id: WorkerId,
        length: &Length,
        config: &RouterConfig,
        matches: &Matches,
    ) -> Candidate {
        let worker = self.present(id);
        let depth_blocks = matches.depth(worker.view);
        Candidate {
            worker: id,
            depth_blocks,
            hit_tokens: length.of_blocks(depth_blocks),
            queued_tokens: worker.load.queued_tokens,
            in_flight: worker.load.in_flight,
            used_tokens: self.index.active_blocks(worker.view) as f64 * length.tokens_per_block
                + worker.load.answer_tokens as f64,
            capacity_tokens: worker.spec.capacity_tokens,
            slowness: self.slowness(worker, config),
        }
    }

    fn kv_aware(
        &self,
        pool: &Pool<'_>,
        request: &RouteRequest<'_>,
        length: &Length,
        config: &RouterConfig,
        scratch: &mut Scratch,
    ) -> Choice {
        let Scratch { matches, candidates, scores, .. } = scratch;
        let in_pool = |id| pool.contains(id);
        let (mut deepest, mut deepest_holders) = (0, 0);
        for (view, depth) in matches.holders() {
            if depth >= deepest && self.shared.owner(view).is_some_and(in_pool) {
                deepest_holders = if depth > deepest { 1 } else { deepest_holders + 1 };
                deepest = depth;
            }
        }
        let home_key = LazyCell::new(|| {
            request.prompt.home_hash(request.root, &self.placement, config.block_size, deepest as usize)
        });
        let candidate = |id| self.candidate(id, length, config, matches);
        if pool.ids.len() < self.sample_from {
            candidates.extend(pool.ids.iter().map(|&id| candidate(id)));
        } else {
            candidates.extend(self.sample(pool, *home_key, matches).into_iter().map(candidate));
        }
        let situation = Situation {
            prompt_tokens: length.tokens,
            tokens_per_block: length.tokens_per_block,
            segments: &matches.segments,
            live: pool.ids.len(),
            in_flight: pool.in_flight,
            deepest_holders,
            mean_answer_tokens: self.mean_answer_tokens,
            home: (config.replicas > 1).then(|| self.home(*home_key, config, in_pool)).flatten(),
        };
        let verdict = policy::kv_aware(candidates, &situation, scores);
        let (at, reason) = match verdict {
            Verdict::Session(at) => (at, Reason::Session),
            Verdict::Cheapest(at) => (at, Reason::Load),
            Verdict::Tie(first) => {
                let lowest = scores[first].cost;
                let position = |id| candidates.iter().position(|candidate| candidate.worker == id);
                let tied = |id| position(id).is_some_and(|at| scores[at].cost == lowest);
                (self.slots.pick(*home_key, 0, tied).and_then(position).unwrap_or(first), Reason::Home)
            }
        };
        let worker = candidates[at].worker;
        let left = candidates.iter().enumerate().filter(|(_, candidate)| candidate.depth_blocks == deepest);
        let preferred = left.min_by(|a, b| scores[a.0].cost.total_cmp(&scores[b.0].cost)).map(|(at, _)| at);
        let (reason, preferred) = match (reason, preferred) {
            (Reason::Session, _) => (Reason::Session, None),
            (_, _) if deepest > 0 && candidates[at].depth_blocks == deepest => (Reason::Prefix, None),
            (_, Some(holder)) if deepest > 0 => {
                let reason = if scores[holder].over_mean > 0.0 { Reason::Spill } else { Reason::Load };
                (reason, Some(candidates[holder].worker))
            }
            (reason, _) => (reason, None),
        };
        Choice { worker, reason, preferred }
    }

    /// The prompt's home and its bonus per token. Replicas that share their load take the lighter of two.
    fn home(
        &self,
        key: u64,
        config: &RouterConfig,
        in_pool: impl Fn(WorkerId) -> bool,
    ) -> Option<(WorkerId, f64)> {
        let first = self.slots.pick(key, 0, &in_pool)?;
        if !config.shared_state {
            return Some((first, BETA_ALONE));
        }
        let second = self.slots.pick(key, 1, &in_pool)?;
        let weight = |id| {
            let load = self.present(id).load;
            load.queued_tokens + 330 * u64::from(load.in_flight)
        };
        Some((if weight(second) < weight(first) { second } else { first }, BETA_SHARED))
    }

    /// The candidates of a large fleet: deepest matches, hashed picks, and a few by chance, each worker once.
    fn sample(&self, pool: &Pool<'_>, key: u64, matches: &Matches) -> SmallVec<[WorkerId; SAMPLE]> {
        // Deepest first; among equals the least loaded.
        let mut best: SmallVec<[(Reverse<u32>, u32, WorkerId); MATCHED + 1]> = SmallVec::new();
        for (view, depth) in matches.holders() {
            if best.get(MATCHED - 1).is_some_and(|&(Reverse(least), ..)| depth < least) {
                continue;
            }
            let Some(id) = self.shared.owner(view).filter(|&id| pool.contains(id)) else { continue };
            let holder = (Reverse(depth), self.present(id).load.in_flight, id);
            best.insert(best.partition_point(|other| *other < holder), holder);
            best.truncate(MATCHED);
        }
        let hashed = (0..HASHED).filter_map(|attempt| self.slots.pick(key, attempt, |id| pool.contains(id)));
        let chance = (0..CHANCE).map(|draw| pool.ids[self.chance(draw as u64, pool.ids.len())]);
        let mut sample = SmallVec::new();
        for id in best.into_iter().map(|(.., id)| id).chain(hashed).chain(chance) {
            if !sample.contains(&id) {
                sample.push(id);
            }
        }
        sample
    }

    fn prefix_aware(&self, key: u64, threshold: Option<u32>, pool: &Pool<'_>) -> Choice {
        let in_pool = |id| pool.contains(id);
        let outstanding = |id: WorkerId| self.present(id).load.in_flight;
        let home = self.slots.pick(key, 0, in_pool).unwrap_or(pool.ids[0]);
        let spill = |worker| Choice { worker, reason: Reason::Spill, preferred: Some(home) };
        let at_home = Choice { worker: home, reason: Reason::Home, preferred: None };
        if let Some(threshold) = threshold {
            return if outstanding(home) < threshold {
                at_home
            } else {
                spill(self.least_outstanding(pool.ids))
            };
        }
        let bound = policy::relative_bound(pool.in_flight, pool.ids.len());
        let fits = |id: WorkerId| f64::from(outstanding(id)) + 1.0 <= bound;
        if fits(home) {
            return at_home;
        }
        // The next tries come in pairs, of which the lighter counts.
        for attempt in [1, 3, 5] {
            let pair =
                [attempt, attempt + 1].map(|attempt| self.slots.pick(key, attempt, in_pool).unwrap_or(home));
            let lighter = if outstanding(pair[1]) < outstanding(pair[0]) { pair[1] } else { pair[0] };
            if fits(lighter) {
                return spill(lighter);
            }
        }
        spill(self.least_outstanding(pool.ids))
    }

    /// The worker with the fewest requests in flight, by chance among equals.
    fn least_outstanding(&self, pool: &[WorkerId]) -> WorkerId {
        let outstanding = |id: WorkerId| self.present(id).load.in_flight;
        let fewest = pool.iter().map(|&id| outstanding(id)).min().unwrap_or(0);
        let equals = || pool.iter().copied().filter(|&id| outstanding(id) == fewest);
        equals().nth(self.chance(0, equals().count())).unwrap_or(pool[0])
    }

    /// A number below `count`, another one for each decision and draw.
    fn chance(&self, draw: u64, count: usize) -> usize {
        let random = combine(self.turn, draw.wrapping_add(0x9e37_79b9_7f4a_7c15));
        ((u128::from(random) * count as u128) >> 64) as usize
    }

    pub(crate) fn book(
        &mut self,
        request: &RouteRequest<'_>,
        length: &Length,
        choice: Choice,
        scratch: &Scratch,
        now: Millis,
    ) -> Decision {
        let view = self.present(choice.worker).view;
        let matched_blocks = scratch.matches.depth(view);
        let matched_tokens = length.of_blocks(matched_blocks);
        let pin = self.index.insert_pinned(view, &scratch.hashes, &scratch.matches, now.0 as u32);
        let queued = u64::from(length.tokens.saturating_sub(matched_tokens).max(1));
        let tail = length.tokens.saturating_sub(length.of_blocks(length.blocks));
        let answer_tokens = self.mean_answer_tokens as u64 + u64::from(tail);

        let worker = self.workers[choice.worker.0 as usize].as_mut().expect("chosen from the live workers");
        worker.load.in_flight += 1;
        worker.load.queued_tokens += queued;
        worker.load.answer_tokens += answer_tokens;
        worker.counters.decisions += 1;
        worker.counters.prompt_tokens += u64::from(length.tokens);
        worker.counters.matched_tokens += u64::from(matched_tokens);
        self.live_in_flight += 1;
        self.turn = self.turn.wrapping_add(1);
        self.decisions[choice.reason as usize] += 1;
        self.prompt_tokens += u64::from(length.tokens);
        self.matched_tokens += u64::from(matched_tokens);
        let id = self.bookings.open(Booking {
            worker: choice.worker,
            incarnation: worker.incarnation,
            pin,
            queued_tokens: Some(queued),
            answer_tokens,
            queue_at_start: worker.load.queued_tokens,
            sent: now,
            text: TextLength::of(request),
        });
        Decision {
            id,
            worker: choice.worker,
            reason: choice.reason,
            preferred: choice.preferred,
            matched_blocks,
            prompt_blocks: length.blocks,
            matched_tokens,
            prompt_tokens: length.tokens,
        }
    }

    /// Takes the prompt off its worker's queue; `now` is given if a token really came.
    pub(crate) fn first_token(&mut self, id: DecisionId, now: Option<Millis>) -> bool {
        let Some(booking) = self.bookings.get_mut(id) else {
            return false;
        };
        let Some(queued) = booking.queued_tokens.take() else {
            return false;
        };
        let booking = *booking;
        let worker = self.workers[booking.worker.0 as usize].as_mut();
        if let Some(worker) = worker.filter(|worker| worker.incarnation == booking.incarnation) {
            worker.load.queued_tokens -= queued;
            if let Some(now) = now {
                let seconds = now.0.saturating_sub(booking.sent.0) as f64 / 1000.0;
                self.fleet_speed.observe(&mut worker.speed, booking.queue_at_start as f64, seconds);
            }
        }
        true
    }

    pub(crate) fn complete(&mut self, id: DecisionId, usage: Option<Usage>) -> bool {
        self.first_token(id, None);
        let Some(booking) = self.bookings.close(id) else {
            return false;
        };
        if let Some(pin) = booking.pin {
            self.index.unpin(pin);
        }
        let worker = self.workers[booking.worker.0 as usize].as_mut();
        if let Some(worker) = worker.filter(|worker| worker.incarnation == booking.incarnation) {
            worker.load.in_flight -= 1;
            worker.load.answer_tokens -= booking.answer_tokens;
            if worker.is_live() {
                self.live_in_flight -= 1;
            }
            if let Some(Usage { prompt_tokens, cached_tokens: Some(cached), .. }) = usage {
                worker.counters.reported_prompt_tokens += u64::from(prompt_tokens);
                worker.counters.reported_cached_tokens += u64::from(cached);
            }
        }
        if let Some(usage) = usage {
            self.learn(usage, booking.text);
        }
        true
    }

    fn learn(&mut self, usage: Usage, text: Option<TextLength>) {
        if usage.completion_tokens > 0 {
            self.mean_answer_tokens +=
                ANSWER_WEIGHT * (f64::from(usage.completion_tokens) - self.mean_answer_tokens);
        }
        if let Some(text) = text {
            self.shared.learn(text, usage.prompt_tokens);
        }
    }
}

fn capacity_blocks(capacity_tokens: Option<u64>, config: &RouterConfig) -> Option<u64> {
    capacity_tokens.map(|tokens| tokens / u64::from(config.block_size))
}

impl Choice {
    fn baseline(worker: WorkerId) -> Self {
        Self { worker, reason: Reason::Baseline, preferred: None }
    }
}
