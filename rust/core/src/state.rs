//! Everything of a router that must change together: who the workers are, and what is booked on them.
//!
//! [`Router`](crate::Router) holds the lock around it; [`choice`](crate::choice) chooses over it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::book::{Booking, Bookings};
use crate::choice::{Choice, Plan};
use crate::decision::{Decision, DecisionId, Reason};
use crate::error::Error;
use crate::exact::ExactMatches;
use crate::fleet::Fleet;
use crate::hits::Hits;
use crate::index::{BatchMatches, Matches, ViewId, Writer};
use crate::jump::Slots;
use crate::key::BlockHash;
use crate::policy::{Candidate, Policy, Score};
use crate::router::{Millis, RouteRequest, RouterConfig, Usage};
use crate::shared::{Length, Shared, TextLength};
use crate::view::Known;
use crate::worker::{FleetSpeed, Standing, Worker, WorkerId, WorkerSpec};

/// Weight of a new answer in the mean answer length, and its start. Source: policy study, section 2.
const ANSWER_WEIGHT: f64 = 0.02;
const ANSWER_START_TOKENS: f64 = 150.0;

/// Buffers of one call, kept by the thread so that a decision does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) matches: Matches,
    pub(crate) exact: ExactMatches,
    pub(crate) batch: BatchMatches,
    pub(crate) plan: Plan,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) scores: Vec<Score>,
}

/// Everything that must change together.
#[derive(Debug)]
pub(crate) struct State {
    policy: Policy,
    /// By id; `None` for a worker that left.
    pub(crate) workers: Vec<Option<Box<Worker>>>,
    /// By id.
    standings: Vec<Standing>,
    pub(crate) by_name: BTreeMap<String, WorkerId>,
    /// Who may take requests: the one that [`Shared`] shows.
    pub(crate) fleet: Arc<Fleet>,
    /// Sum of the requests in flight on live workers, others' included.
    pub(crate) live_in_flight: u64,
    pub(crate) slots: Slots,
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: Writer,
    pub(crate) bookings: Bookings,
    pub(crate) fleet_speed: FleetSpeed,
    /// Whether a worker's answers tell how fast it is: not if others load it unseen.
    sees_all_load: bool,
    pub(crate) mean_answer_tokens: f64,
    pub(crate) incarnations: u64,
    pub(crate) turn: u64,
    pub(crate) decisions: [u64; Reason::ALL.len()],
    pub(crate) prompt_tokens: u64,
    pub(crate) matched_tokens: u64,
}

impl State {
    pub(crate) fn new(config: &RouterConfig, shared: Arc<Shared>, index: Writer) -> Self {
        let mut state = Self {
            policy: config.policy,
            workers: Vec::new(),
            standings: Vec::new(),
            by_name: BTreeMap::new(),
            fleet: shared.fleet.load_full(),
            live_in_flight: 0,
            slots: Slots::default(),
            shared,
            index,
            bookings: Bookings::new(config.index_seed),
            fleet_speed: FleetSpeed::default(),
            sees_all_load: config.replicas == 1 || config.shared_state,
            mean_answer_tokens: ANSWER_START_TOKENS,
            incarnations: 0,
            turn: config.index_seed,
            decisions: [0; Reason::ALL.len()],
            prompt_tokens: 0,
            matched_tokens: 0,
        };
        state.show_fleet();
        state
    }

    /// Chooses by another policy from now on.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.show_fleet();
    }

    fn worker(&self, id: WorkerId) -> Result<&Worker, Error> {
        self.workers.get(id.0 as usize).and_then(Option::as_deref).ok_or(Error::UnknownWorker { id })
    }

    pub(crate) fn worker_mut(&mut self, id: WorkerId) -> Result<&mut Worker, Error> {
        self.workers.get_mut(id.0 as usize).and_then(Option::as_deref_mut).ok_or(Error::UnknownWorker { id })
    }

    /// Workers that are present, ascending.
    pub(crate) fn present(&self) -> impl Iterator<Item = (WorkerId, &Worker, &Standing)> {
        let all = self.workers.iter().zip(&self.standings).enumerate();
        all.filter_map(|(id, (worker, standing))| Some((WorkerId(id as u32), worker.as_deref()?, standing)))
    }

    /// Standing of a worker that was added once.
    #[inline]
    pub(crate) fn standing(&self, id: WorkerId) -> &Standing {
        &self.standings[id.0 as usize]
    }

    pub(crate) fn standing_mut(&mut self, id: WorkerId) -> &mut Standing {
        &mut self.standings[id.0 as usize]
    }

    pub(crate) fn add_worker(&mut self, spec: WorkerSpec, config: &RouterConfig) -> Result<WorkerId, Error> {
        if self.by_name.contains_key(&spec.name) {
            return Err(Error::DuplicateWorker { name: spec.name });
        }
        let former = self.slots.former(&spec.name);
        let id = former.unwrap_or(WorkerId(self.workers.len() as u32));
        let (name, weight) = (spec.name.clone(), spec.weight);
        self.put_worker(id, Worker::new(spec), config)?;
        self.slots.add(&name, id, weight);
        if self.decisions.iter().all(|&count| count == 0) {
            let weight = |id| self.worker(id).map_or(0, |worker| worker.spec.weight);
            let sorted: Vec<_> = self.by_name.values().map(|&id| (id, weight(id))).collect();
            self.slots.rebuild(sorted.into_iter());
        }
        self.show_fleet();
        Ok(id)
    }

    /// Makes a worker present under this id, the next one or one that is free, with an empty view and nothing booked.
    pub(crate) fn put_worker(
        &mut self,
        id: WorkerId,
        worker: Worker,
        config: &RouterConfig,
    ) -> Result<(), Error> {
        let view = self.open_view(id, worker.spec.capacity_tokens, config)?;
        self.incarnations += 1;
        let standing = Standing {
            view,
            known: Known::Own,
            other_in_flight: 0,
            in_flight: 0,
            queued_tokens: 0,
            answer_tokens: 0,
            pinned_blocks: 0,
            capacity_tokens: known_capacity(worker.spec.capacity_tokens),
            slowness: self.slowness(&worker),
            incarnation: NonZeroU64::new(self.incarnations),
        };
        self.by_name.insert(worker.spec.name.clone(), id);
        self.skip_ids(id.0 as usize + 1);
        self.workers[id.0 as usize] = Some(Box::new(worker));
        self.standings[id.0 as usize] = standing;
        Ok(())
    }

    /// Makes the ids below `count` those of workers that left, unless they are somebody's.
    pub(crate) fn skip_ids(&mut self, count: usize) {
        while self.workers.len() < count {
            self.workers.push(None);
            self.standings.push(Standing::left());
        }
    }

    pub(crate) fn remove_worker(&mut self, id: WorkerId) -> Result<(), Error> {
        self.worker_mut(id)?;
        self.forget_events(id);
        let worker =
            self.workers.get_mut(id.0 as usize).and_then(Option::take).ok_or(Error::UnknownWorker { id })?;
        self.by_name.remove(&worker.spec.name);
        self.slots.remove(&worker.spec.name, id);
        let standing = std::mem::replace(&mut self.standings[id.0 as usize], Standing::left());
        self.shared.set_owner(standing.view, None);
        self.index.remove_view(standing.view);
        self.show_fleet();
        Ok(())
    }

    /// Gives the worker a new, empty view.
    pub(crate) fn reset_worker(&mut self, id: WorkerId, config: &RouterConfig) -> Result<(), Error> {
        let view = self.open_view(id, self.worker(id)?.spec.capacity_tokens, config)?;
        let standing = &mut self.standings[id.0 as usize];
        let old = std::mem::replace(&mut standing.view, view);
        standing.pinned_blocks = 0;
        self.shared.set_owner(old, None);
        self.index.remove_view(old);
        self.forget_events(id);
        // Plans that count on the old view are made anew.
        self.show_cache(id);
        Ok(())
    }

    pub(crate) fn set_capacity(
        &mut self,
        id: WorkerId,
        capacity_tokens: Option<u64>,
        config: &RouterConfig,
    ) -> Result<(), Error> {
        self.worker_mut(id)?.spec.capacity_tokens = capacity_tokens;
        let standing = &mut self.standings[id.0 as usize];
        standing.capacity_tokens = known_capacity(capacity_tokens);
        self.index.set_capacity(standing.view, capacity_blocks(capacity_tokens, config));
        Ok(())
    }

    fn open_view(
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

    /// Makes known who may take requests, after a change of that.
    pub(crate) fn show_fleet(&mut self) {
        self.fleet = Arc::new(Fleet::new(self.policy, &self.workers, &self.standings, &self.slots));
        self.live_in_flight = self.fleet.live.iter().map(|&id| u64::from(self.standing(id).requests())).sum();
        self.shared.fleet.store(Arc::clone(&self.fleet));
    }

    /// Notes how many requests of others a worker has; it counts until then.
    pub(crate) fn set_other_load(&mut self, id: WorkerId, requests: u32, until: Millis) -> Result<(), Error> {
        self.worker_mut(id)?.others_until = until;
        let now = u16::try_from(requests).unwrap_or(u16::MAX);
        let before = std::mem::replace(&mut self.standing_mut(id).other_in_flight, now);
        if self.fleet.contains(id) {
            self.live_in_flight = self.live_in_flight + u64::from(now) - u64::from(before);
        }
        if now > 0 {
            self.shared.settle_by(until);
        }
        Ok(())
    }

    /// Forgets what a worker told of others' requests, if it was told too long ago.
    pub(crate) fn age_other_load(&mut self, id: WorkerId, now: Millis) {
        if self.standing(id).other_in_flight == 0 {
            return;
        }
        match self.worker(id).map(|worker| worker.others_until) {
            Ok(until) if until.0 > now.0 => self.shared.settle_by(until),
            // An error means that it left, and took its requests along.
            _ => _ = self.set_other_load(id, 0, now),
        }
    }

    fn slowness(&self, worker: &Worker) -> f64 {
        match worker.spec.slowness {
            Some(configured) => configured,
            None if self.sees_all_load => worker.speed.slowness(),
            None => 1.0,
        }
    }

    pub(crate) fn book(
        &mut self,
        request: &RouteRequest<'_>,
        length: &Length,
        choice: Choice,
        scratch: &Scratch,
        now: Millis,
    ) -> Decision {
        let Standing { view, known, .. } = *self.standing(choice.worker);
        let hits = Hits::of(request, length, &scratch.matches, &scratch.exact);
        let matched_tokens = hits.tokens(view, known);
        let pin = self.index.insert_pinned(view, &scratch.hashes, &scratch.matches, now.0 as u32);
        let queued = u64::from(length.tokens.saturating_sub(matched_tokens).max(1));
        let tail = length.tokens.saturating_sub(length.of_blocks(length.blocks));
        let answer_tokens = self.mean_answer_tokens as u64 + u64::from(tail);

        let standing = &mut self.standings[choice.worker.0 as usize];
        standing.in_flight += 1;
        standing.queued_tokens += queued;
        standing.answer_tokens += answer_tokens;
        standing.pinned_blocks += pin.map_or(0, |(_, newly)| newly as u32);
        let id = self.bookings.open(Booking {
            worker: choice.worker,
            incarnation: standing.incarnation,
            pin: pin.map(|(pin, _)| pin),
            queued_tokens: Some(queued),
            answer_tokens,
            queue_at_start: standing.queued_tokens,
            sent: now,
            tick: self.index.tick(),
            text: TextLength::of(request),
        });
        let worker = self.workers[choice.worker.0 as usize].as_mut().expect("chosen from the live workers");
        worker.counters.decisions += 1;
        worker.counters.prompt_tokens += u64::from(length.tokens);
        worker.counters.matched_tokens += u64::from(matched_tokens);
        worker.cache.sent(self.index.tick());
        self.live_in_flight += 1;
        self.turn = self.turn.wrapping_add(1);
        self.decisions[choice.reason as usize] += 1;
        self.prompt_tokens += u64::from(length.tokens);
        self.matched_tokens += u64::from(matched_tokens);
        Decision {
            id,
            worker: choice.worker,
            reason: choice.reason,
            preferred: choice.preferred,
            matched_blocks: length.blocks_of(matched_tokens),
            prompt_blocks: length.blocks,
            matched_tokens,
            told_tokens: hits.told(known),
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
        let at = booking.worker.0 as usize;
        if self.standings[at].incarnation == booking.incarnation {
            self.standings[at].queued_tokens -= queued;
            if let (Some(now), Some(worker)) = (now, &mut self.workers[at]) {
                let seconds = now.0.saturating_sub(booking.sent.0) as f64 / 1000.0;
                self.fleet_speed.observe(&mut worker.speed, booking.queue_at_start as f64, seconds);
            }
            if let (Some(_), Some(worker)) = (now, &self.workers[at]) {
                self.standings[at].slowness = self.slowness(worker);
            }
        }
        if let Some(now) = now {
            self.answered(&booking, now);
        }
        true
    }

    pub(crate) fn complete(&mut self, id: DecisionId, usage: Option<Usage>, now: Millis) -> bool {
        self.first_token(id, None);
        let Some(booking) = self.bookings.close(id) else {
            return false;
        };
        let freed = booking.pin.map_or(0, |pin| self.index.unpin(pin));
        self.answered(&booking, now);
        let at = booking.worker.0 as usize;
        let standing = &mut self.standings[at];
        if standing.incarnation == booking.incarnation {
            standing.in_flight -= 1;
            standing.answer_tokens -= booking.answer_tokens;
            standing.pinned_blocks -= freed as u32;
            if self.fleet.contains(booking.worker) {
                self.live_in_flight -= 1;
            }
            if let (Some(Usage { prompt_tokens, cached_tokens: Some(cached), .. }), Some(worker)) =
                (usage, &mut self.workers[at])
            {
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

/// A cache without a token counts as one of one token.
fn known_capacity(capacity_tokens: Option<u64>) -> Option<NonZeroU64> {
    capacity_tokens.and_then(|tokens| NonZeroU64::new(tokens.max(1)))
}
