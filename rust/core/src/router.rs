//! The router: one consistent view of workers, index and bookings, and the decision over them.
//!
//! Every method takes `&self` and may be called from any thread. A decision hashes its prompt and looks it up without a lock;
//! choice, booking and storing share one short critical section. There the look-up is checked again, and repeated if another
//! decision changed what it saw: concurrent calls are equal to some sequence of calls, and a burst of equal prompts sees
//! itself. [`Router::peek`] takes no lock at all.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::choice::{Choice, Rules, SAMPLE_FROM};
use crate::decision::{CandidateView, Decision, DecisionId, Explanation, Reason};
use crate::error::Error;
use crate::events::{CacheEvent, Medium, Spelling};
use crate::exact::{Applied, ExactIndex, ExactMatches, ExactPrompt, Prepared};
use crate::hits::Hits;
use crate::index::{MAX_BUDGET, MIN_BUDGET, Matches, PrefixIndex, ViewId};
use crate::key::{BlockHasher, MAX_BLOCK_SIZE, Prompt, Root};
use crate::policy::Policy;
use crate::shared::{Length, Shared};
use crate::snapshot;
use crate::state::{Scratch, State};
use crate::view::CacheView;
use crate::worker::{Worker, WorkerId, WorkerSpec, WorkerView};

/// A moment in milliseconds of any clock that does not go back; only differences count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// Settings of a [`Router`].
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// How workers are chosen.
    pub policy: Policy,
    /// Tokens per block of a token-id prompt, 1 to 256. 16 is the engines' usual block.
    pub block_size: u32,
    /// Bytes that the index may own, 1 MiB to 16 GiB. 256 MiB remember about 10 million blocks.
    pub memory_budget: usize,
    /// Bytes that what workers' events tell may own, at least 1 MiB. 1 GiB has room for 25 million blocks of workers.
    pub events_budget: usize,
    /// Seed of the index's hashes: random for each process, so that nobody can aim at a collision.
    pub index_seed: u64,
    /// Seed of homes: equal on all replicas.
    pub placement_seed: u64,
    /// Routers that share the fleet, 1 to 1,000.
    pub replicas: u32,
    /// Whether those replicas tell each other their load.
    pub shared_state: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            policy: Policy::KvAware,
            block_size: 16,
            memory_budget: 256 << 20,
            events_budget: 1 << 30,
            index_seed: 0,
            placement_seed: 0,
            replicas: 1,
            shared_state: false,
        }
    }
}

impl RouterConfig {
    fn check(&self) -> Result<(), Error> {
        let refuse =
            |key, value: String, allowed: &str| Err(Error::Config { key, value, allowed: allowed.into() });
        if !(1..=MAX_BLOCK_SIZE).contains(&self.block_size) {
            return refuse("block_size", self.block_size.to_string(), "1 to 256 tokens");
        }
        if !(MIN_BUDGET..=MAX_BUDGET).contains(&self.memory_budget) {
            return refuse("memory_budget", self.memory_budget.to_string(), "1 MiB to 16 GiB");
        }
        if self.events_budget < MIN_BUDGET {
            return refuse("events_budget", self.events_budget.to_string(), "1 MiB or more");
        }
        if !(1..=1000).contains(&self.replicas) {
            return refuse("replicas", self.replicas.to_string(), "1 to 1000");
        }
        self.policy.check()
    }
}

/// A request as the router needs it.
#[derive(Debug, Clone, Copy)]
pub struct RouteRequest<'a> {
    /// The prompt.
    pub prompt: Prompt<'a>,
    /// What parts its cache entries from those of equal prompts.
    pub root: Root,
    /// The prompt as the workers' events have it; `None` if it is not known, and own views count for all workers.
    pub exact: Option<ExactPrompt<'a>>,
    /// Workers that serve it (its model, say); `None` means all.
    pub eligible: Option<&'a [WorkerId]>,
    /// Workers that it must not go to: those that failed it.
    pub exclude: &'a [WorkerId],
    /// Any number that names its model, for the learnt bytes per token of text.
    pub text_model: u64,
    /// How its worker is chosen; `None` means as the router's settings have it.
    pub policy: Option<Policy>,
    /// The machine of each worker in `eligible`, in its order; empty if they do not matter. With them `prefix_aware`
    /// spills to another worker of the same machine first.
    pub machines: &'a [u32],
}

impl<'a> RouteRequest<'a> {
    /// A request that any worker may take.
    #[must_use]
    pub fn new(prompt: Prompt<'a>) -> Self {
        Self {
            prompt,
            root: Root::default(),
            exact: None,
            eligible: None,
            exclude: &[],
            text_model: 0,
            policy: None,
            machines: &[],
        }
    }

    /// The eligible workers on the machine of `worker`, itself included; none if machines do not matter.
    pub(crate) fn on_machine_of(&self, worker: WorkerId) -> impl Iterator<Item = WorkerId> + use<'a> {
        let (ids, machines) = (self.eligible.unwrap_or(&[]), self.machines);
        let at = ids.iter().position(|&id| id == worker);
        let machine = at.and_then(|at| machines.get(at)).copied();
        let placed = ids.iter().copied().zip(machines.iter().copied());
        placed.filter(move |&(_, other)| Some(other) == machine).map(|(id, _)| id)
    }
}

/// What an engine's answer said about its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the engine's cache; `None` if it did not say.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

/// Who holds how much of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// Tokens of the prompt (estimated for text).
    pub prompt_tokens: u32,
    /// Whole blocks of the prompt.
    pub prompt_blocks: u32,
    /// Tokens of the longest part that one worker holds.
    pub matched_tokens: u32,
    /// The workers that hold at least one block, with the tokens that they hold; in no order.
    pub workers: Vec<(WorkerId, u32)>,
}

/// The worker that holds most of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Best {
    /// The worker; of several, the one with the lowest id.
    pub worker: WorkerId,
    /// Leading tokens of the prompt that it holds.
    pub matched_tokens: u32,
}

/// Counters and sizes at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Decisions so far, by reason, in the order of [`Reason::ALL`].
    pub decisions: [u64; Reason::ALL.len()],
    /// Decisions that are not completed.
    pub in_flight: usize,
    /// Workers in the fleet, and those that may take requests.
    pub workers: usize,
    /// Of these, healthy and not draining.
    pub live_workers: usize,
    /// Prompt tokens routed so far, as estimated.
    pub prompt_tokens: u64,
    /// Of these, believed cached where they went.
    pub matched_tokens: u64,
    /// Bytes that the index owns.
    pub index_bytes: usize,
    /// Bytes that what events told owns, and the distinct blocks of that.
    pub events_bytes: usize,
    /// Distinct blocks that events told of.
    pub events_blocks: usize,
    /// Distinct blocks in the index.
    pub index_blocks: usize,
    /// Runs in the index.
    pub index_runs: usize,
    /// Blocks that views lost to their capacity or to the budget.
    pub evicted_blocks: u64,
}

/// Chooses workers for prompts and keeps count of what they were given.
///
/// ```
/// # use trunkline_core::*;
/// let router = Router::new(RouterConfig { policy: Policy::parse("round_robin")?, ..Default::default() })?;
/// let worker = router.add_worker(WorkerSpec::new("a"))?;
/// let decision = router.route(&RouteRequest::new(Prompt::Text(&[b"hello"])), Millis(0))?;
/// assert_eq!((decision.worker, decision.reason), (worker, Reason::Only));
/// assert!(router.complete(decision.id, None, Millis(1)));
/// assert!(!router.complete(decision.id, None, Millis(2)), "the second time is a no-op");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    hasher: BlockHasher,
    /// Hasher of homes.
    placement: BlockHasher,
    /// [`SAMPLE_FROM`], unless a test wants to see what a scan of all workers chooses.
    sample_from: usize,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

thread_local! {
    static PREPARED: RefCell<Prepared> = RefCell::default();
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

impl Router {
    /// A router without workers.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting that is out of range.
    pub fn new(config: RouterConfig) -> Result<Self, Error> {
        config.check()?;
        let (index, writer) = PrefixIndex::new(config.memory_budget)?;
        let exact = ExactIndex::new(config.index_seed, config.events_budget);
        let shared = Arc::new(Shared::new(index, exact));
        let state = Mutex::new(State::new(&config, Arc::clone(&shared), writer));
        let hasher = BlockHasher::new(config.index_seed);
        let placement = BlockHasher::new(config.placement_seed);
        Ok(Self { config, hasher, placement, sample_from: SAMPLE_FROM, shared, state })
    }

    /// This router as bytes for [`restore`](Self::restore); `now` is the time by which uses have their age. What is in flight
    /// is left out. Blocks decisions meanwhile. Cost: O(blocks + workers), about 15 ns for each block.
    ///
    /// [`snapshot`] describes the format.
    #[must_use]
    pub fn snapshot(&self, now: Millis) -> Vec<u8> {
        let mut bytes = snapshot::begin();
        let mut state = self.state.lock();
        let config = RouterConfig { policy: self.policy(), ..self.config.clone() };
        snapshot::put_settings(&config, &mut bytes);
        state.save_fleet(&mut bytes);
        let views: Vec<ViewId> = state.present().map(|(_, _, standing)| standing.view).collect();
        state.index.save(&views, now.0 as u32, &mut bytes);
        drop(state);
        snapshot::seal(&mut bytes);
        bytes
    }

    /// The router that [`snapshot`](Self::snapshot) saved, with nothing in flight. Its uses are as old `now` as they were when
    /// it was saved. Cost: O(blocks + holders + workers), about 30 ns for each block.
    ///
    /// # Errors
    /// [`Error::Snapshot`] for anything but a whole snapshot of this version.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self, Error> {
        let mut body = snapshot::open(bytes)?;
        let config = snapshot::settings(&mut body)?;
        config.check().map_err(|_| body.refuse("a setting is out of range"))?;
        let router = Self::new(config)?;
        let mut state = router.state.lock();
        state.load_fleet(&mut body, &router.config)?;
        let views: Vec<ViewId> = state.present().map(|(_, _, standing)| standing.view).collect();
        state.index.load(&views, now.0 as u32, &mut body)?;
        body.end()?;
        drop(state);
        Ok(router)
    }

    /// The settings that it was made with; [`policy`](Self::policy) may be another one by now.
    #[must_use]
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// The policy in use.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.shared.fleet.load().policy
    }

    /// Chooses by another policy from now on. What is known of workers and caches stays. Cost: O(workers).
    ///
    /// # Errors
    /// [`Error::Config`] for a parameter out of range.
    pub fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        policy.check()?;
        self.state.lock().set_policy(policy);
        Ok(())
    }

    /// Adds a worker, healthy and with an empty cache.
    ///
    /// While nothing was routed yet, homes depend on the set of names alone; later a worker that returns gets its slots back
    /// and a new one takes free slots or appends. Cost: O(slots).
    ///
    /// # Errors
    /// [`Error::DuplicateWorker`], or [`Error::Config`] for a weight or slowness out of range or a fleet of 65,536.
    pub fn add_worker(&self, spec: WorkerSpec) -> Result<WorkerId, Error> {
        spec.check()?;
        self.state.lock().add_worker(spec, &self.config)
    }

    /// Removes a worker and forgets its cache. What is in flight there may still be completed; it counts nowhere.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn remove_worker(&self, id: WorkerId) -> Result<(), Error> {
        self.state.lock().remove_worker(id)
    }

    /// Starts or ends draining: a draining worker takes nothing new and finishes what it has.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn drain_worker(&self, id: WorkerId, draining: bool) -> Result<(), Error> {
        self.change(id, |worker| worker.draining = draining)
    }

    /// Takes a worker out of rotation or back in. Its believed cache is kept: see [`reset_worker`](Self::reset_worker).
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn set_healthy(&self, id: WorkerId, healthy: bool) -> Result<(), Error> {
        self.change(id, |worker| worker.healthy = healthy)
    }

    fn change(&self, id: WorkerId, change: impl FnOnce(&mut Worker)) -> Result<(), Error> {
        let mut state = self.state.lock();
        change(state.worker_mut(id)?);
        state.show_fleet();
        Ok(())
    }

    /// Forgets a worker's cache, because it restarted or cleared it. What is in flight stays booked. Cost: O(workers), whatever
    /// it held.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn reset_worker(&self, id: WorkerId) -> Result<(), Error> {
        self.state.lock().reset_worker(id, &self.config)
    }

    /// Sets from where a worker's cache is known. Own views are kept up in any case, so going back to them costs nothing. With
    /// [`CacheView::Events`] a worker that told nothing yet has an empty cache.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`]; [`Error::Config`] for events of more workers than there are views.
    pub fn set_cache_view(&self, id: WorkerId, view: CacheView) -> Result<(), Error> {
        self.state.lock().set_cache_view(id, view)
    }

    /// Applies what a worker's engine told of its cache, in its order. They count once its
    /// [view](Self::set_cache_view) is [`CacheView::Events`] and a request comes with its
    /// [exact prompt](RouteRequest::exact).
    ///
    /// `spelling` turns token ids into the bytes of exact prompts; without one these are token ids. `delay_ms` is how old
    /// the events are, if that is known: what was decided is believed cached until events had several times as long to
    /// confirm it.
    ///
    /// Cost: about 0.2 us for each stored block, most of it without a lock; readers wait for one event at most.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`]; [`Error::Config`] if more than 32,767 views are in use.
    pub fn apply_events<'e>(
        &self,
        id: WorkerId,
        events: impl IntoIterator<Item = CacheEvent<'e>>,
        spelling: Option<&dyn Spelling>,
        delay_ms: Option<u64>,
        now: Millis,
    ) -> Result<Applied, Error> {
        let mut views = self.state.lock().exact_views(id, Medium::Gpu)?;
        let mut all = Applied::default();
        PREPARED.with_borrow_mut(|prepared| {
            for event in events {
                let medium = match event {
                    CacheEvent::Cleared => {
                        let mut state = self.state.lock();
                        state.reset_worker(id, &self.config)?;
                        views = state.exact_views(id, Medium::Gpu)?;
                        all.cleared = true;
                        continue;
                    }
                    CacheEvent::Stored(stored) => stored.medium,
                    CacheEvent::Removed { medium, .. } => medium,
                };
                if medium != Medium::Gpu && views.far.is_none() {
                    views = self.state.lock().exact_views(id, medium)?;
                }
                let exact = &self.shared.exact;
                let near =
                    (medium == Medium::Gpu).then(|| exact.apply(views.near, &event, spelling, prepared));
                let far = views.far.map(|far| exact.apply(far, &event, spelling, prepared));
                all += near.or(far).unwrap_or_default();
            }
            Ok::<(), Error>(())
        })?;
        self.state.lock().told(id, delay_ms, now);
        Ok(all)
    }

    /// Whether any worker's events were applied. Cost: O(1), no lock.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.shared.exact.is_used()
    }

    /// Forgets what a worker's events told, before they are told anew. Its own view stays. Cost: O(workers).
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn forget_events(&self, id: WorkerId) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.worker_mut(id)?;
        state.forget_events(id);
        state.show_cache(id);
        Ok(())
    }

    /// Tells how many requests a worker has that this router did not send, as the worker itself says. They count beside the
    /// router's own until `until`, unless told anew: what is stale must not steer. At most 65,535.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn set_other_load(&self, id: WorkerId, requests: u32, until: Millis) -> Result<(), Error> {
        self.state.lock().set_other_load(id, requests, until)
    }

    /// Sets the size of a worker's KV cache in tokens, as its engine reports it.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn set_capacity(&self, id: WorkerId, capacity_tokens: Option<u64>) -> Result<(), Error> {
        self.state.lock().set_capacity(id, capacity_tokens, &self.config)
    }

    /// The worker of this name.
    #[must_use]
    pub fn worker(&self, name: &str) -> Option<WorkerId> {
        self.state.lock().by_name.get(name).copied()
    }

    /// All workers, ascending by id.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let state = self.state.lock();
        let present = state.present();
        present
            .map(|(id, worker, standing)| WorkerView {
                id,
                name: worker.spec.name.clone(),
                endpoint: worker.spec.endpoint.clone(),
                weight: worker.spec.weight,
                healthy: worker.healthy,
                draining: worker.draining,
                capacity_tokens: worker.spec.capacity_tokens,
                in_flight: standing.in_flight,
                other_in_flight: standing.other_in_flight.into(),
                queued_tokens: standing.queued_tokens,
                cached_blocks: state.cached_blocks(standing),
                cache_view: worker.cache.view,
                slowness: standing.slowness,
                decisions: worker.counters.decisions,
                prompt_tokens: worker.counters.prompt_tokens,
                matched_tokens: worker.counters.matched_tokens,
                reported_prompt_tokens: worker.counters.reported_prompt_tokens,
                reported_cached_tokens: worker.counters.reported_cached_tokens,
            })
            .collect()
    }

    /// Chooses a worker and books the request on it, in one step.
    ///
    /// Cost: one hash per block outside the lock; inside it the walk, the score of each candidate (all workers below 64, ten
    /// from there on), and O(blocks) for what is new to the index. Does not allocate but for new blocks.
    ///
    /// # Errors
    /// [`Error::NoWorkerAvailable`], [`Error::TokenId`]; nothing is booked then.
    pub fn route(&self, request: &RouteRequest<'_>, now: Millis) -> Result<Decision, Error> {
        self.decide(request, now, |state, length, choice, scratch| {
            state.book(request, length, choice, scratch, now)
        })
    }

    /// Hashes, looks up and plans, then chooses under the lock and hands over to `finish` while it is held.
    fn decide<T>(
        &self,
        request: &RouteRequest<'_>,
        now: Millis,
        finish: impl FnOnce(&mut MutexGuard<'_, State>, &Length, Choice, &mut Scratch) -> T,
    ) -> Result<T, Error> {
        request.prompt.check()?;
        let rules = Rules {
            config: &self.config,
            shared: &self.shared,
            placement: &self.placement,
            sample_from: self.sample_from,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            if self.shared.must_settle(now) {
                self.state.lock().settle_all(now);
            }
            let Scratch { hashes, matches, exact, plan, .. } = scratch;
            request.prompt.blocks(request.root, &self.hasher, self.config.block_size).collect_into(hashes);
            let find = |matches: &mut Matches| self.shared.index.find(&hashes[..], now.0 as u32, matches);
            find(matches);
            let length = self.find_exact(request, exact);
            let fleet = self.shared.fleet.load();
            plan.make(&fleet, rules, request, Hits::of(request, &length, matches, exact))?;
            let mut state = self.state.lock();
            let found_is_current = state.index.is_current(matches, hashes);
            if !found_is_current {
                find(matches);
            }
            if !found_is_current || !Arc::ptr_eq(&fleet, &state.fleet) {
                plan.make(&state.fleet, rules, request, Hits::of(request, &length, matches, exact))?;
            }
            let choice = state.choose(request, &self.config, &length, scratch);
            Ok(finish(&mut state, &length, choice, scratch))
        })
    }

    /// Looks up what events say of the prompt, if it is known as they have it; then its lengths.
    fn find_exact(&self, request: &RouteRequest<'_>, found: &mut ExactMatches) -> Length {
        let exact = request.exact.as_ref().filter(|_| self.shared.exact.is_used());
        match exact {
            Some(exact) => self.shared.exact.find(exact, found),
            None => found.clear(),
        }
        let exact = exact.map(|exact| (exact, &*found));
        self.shared.length(&request.prompt, request.text_model, exact, &self.config)
    }

    /// Tells who holds how much of a request's prompt. Books nothing, chooses nobody: who may take it does not matter.
    ///
    /// Cost: one hash per matched block, two to three cache misses per run, O(holders).
    ///
    /// # Errors
    /// [`Error::TokenId`].
    pub fn peek(&self, request: &RouteRequest<'_>) -> Result<Match, Error> {
        request.prompt.check()?;
        SCRATCH.with_borrow_mut(|Scratch { matches, exact, .. }| {
            let blocks = request.prompt.blocks(request.root, &self.hasher, self.config.block_size);
            self.shared.index.find(blocks, 0, matches);
            let length = self.find_exact(request, exact);
            let mut workers = Vec::with_capacity(matches.holder_count());
            let hits = Hits::of(request, &length, matches, exact);
            hits.each(&self.shared.fleet.load(), &self.shared, |worker, tokens| {
                workers.push((worker, tokens))
            });
            let matched_tokens = workers.iter().map(|&(_, tokens)| tokens).max().unwrap_or(0);
            Ok(Match { prompt_tokens: length.tokens, prompt_blocks: length.blocks, matched_tokens, workers })
        })
    }

    /// Tells who holds most of each prompt by the own views, in their order; `None` where nobody holds a block. As many calls of
    /// [`peek`](Self::peek), of which each may see what was routed meanwhile.
    ///
    /// Cost: that of `peek`, but the cache misses of several prompts overlap.
    ///
    /// # Errors
    /// [`Error::TokenId`] with the position in its prompt.
    pub fn match_batch(&self, prompts: &[Prompt<'_>], root: Root) -> Result<Vec<Option<Best>>, Error> {
        prompts.iter().try_for_each(Prompt::check)?;
        let mut all = vec![None; prompts.len()];
        let blocks = prompts.iter().map(|prompt| prompt.blocks(root, &self.hasher, self.config.block_size));
        SCRATCH.with_borrow_mut(|Scratch { batch, .. }| {
            self.shared.index.find_batch(blocks, 0, batch, |number, matches| {
                let mut best: Option<(u32, Reverse<WorkerId>)> = None;
                for (view, depth) in matches.holders() {
                    if best.is_none_or(|(deepest, _)| depth >= deepest) {
                        best = best.max(self.shared.owner(view).map(|worker| (depth, Reverse(worker))));
                    }
                }
                all[number] = best.map(|(depth, Reverse(worker))| {
                    let length = self.shared.length(&prompts[number], 0, None, &self.config);
                    Best { worker, matched_tokens: length.of_blocks(depth) }
                });
            });
        });
        Ok(all)
    }

    /// Tells what [`route`](Self::route) would choose now and how each candidate scored. Books nothing.
    ///
    /// # Errors
    /// As `route`.
    pub fn explain(&self, request: &RouteRequest<'_>, now: Millis) -> Result<Explanation, Error> {
        self.decide(request, now, |state, length, choice, scratch| {
            if scratch.candidates.is_empty() {
                state.list_candidates(request, length, scratch);
            }
            let mut candidates: Vec<CandidateView> = (scratch.candidates.iter().zip(&scratch.scores))
                .map(|(candidate, score)| CandidateView {
                    worker: candidate.worker,
                    matched_tokens: candidate.hit_tokens,
                    queued_tokens: candidate.queued_tokens,
                    in_flight: candidate.in_flight,
                    unseen: score.unseen,
                    replication: score.replication,
                    memory: score.memory,
                    over_mean: score.over_mean,
                    held: score.held,
                    home_bonus: score.home_bonus,
                    slowness: candidate.slowness,
                    cost: score.cost,
                })
                .collect();
            candidates.sort_by(|a, b| a.cost.total_cmp(&b.cost));
            Explanation {
                worker: choice.worker,
                reason: choice.reason,
                preferred: choice.preferred,
                prompt_tokens: length.tokens,
                prompt_blocks: length.blocks,
                candidates,
            }
        })
    }

    /// Tells that the worker produced its first token: the prompt has left its queue. `true` the first time, else a no-op.
    pub fn first_token(&self, id: DecisionId, now: Millis) -> bool {
        self.state.lock().first_token(id, Some(now))
    }

    /// Tells that the request ended, in whatever way, and what its answer said. `true` the first time, else a no-op.
    pub fn complete(&self, id: DecisionId, usage: Option<Usage>, now: Millis) -> bool {
        self.state.lock().complete(id, usage, now)
    }

    /// Counters and sizes. Cost: O(1).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (events_bytes, events_blocks) = self.shared.exact.size();
        let state = self.state.lock();
        Stats {
            events_bytes,
            events_blocks,
            decisions: state.decisions,
            in_flight: state.bookings.len(),
            workers: state.by_name.len(),
            live_workers: state.fleet.live.len(),
            prompt_tokens: state.prompt_tokens,
            matched_tokens: state.matched_tokens,
            index_bytes: state.index.bytes(),
            index_blocks: state.index.blocks(),
            index_runs: state.index.runs(),
            evicted_blocks: state.index.evicted_blocks(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
