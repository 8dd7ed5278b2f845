//! Chooses a worker for a request and books it there.
//!
//! A request with a prompt is the router's to place. One without (a GET, a body that cannot be read) goes to the
//! worker with the fewest requests in flight, and is booked with the router as well, so that prompts see its load.
//!
//! Workers that are better left alone ([`Avoid`]) are left out as long as that leaves anybody; if everybody who is left is
//! busy, the request is to wait.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::header::HeaderValue;
use trunkline_core::{Decision, Millis, Prompt, Reason, RouteRequest, WorkerId};

use crate::answer::Refusal;
use crate::avoid::{Avoid, any_left};
use crate::booking::Booking;
use crate::exact::Prompted;
use crate::fleet::{Ids, Snapshot, Worker};
use crate::headers;
use crate::keys::Key;
use crate::metrics::BY_LOAD;
use crate::prompt::Located;
use crate::pulse::Kind;
use crate::sagemaker::{Pool, Scope};
use crate::server::Shared;
use crate::trial::{Arm, Shadow, Shadowed, Ticket};

/// A worker, booked, and why.
pub(crate) struct Choice {
    pub(crate) booking: Booking,
    /// How its answer will begin, if this is a generation.
    pub(crate) kind: Option<Kind>,
    /// The reason for the client, if clients are told.
    pub(crate) annotation: Option<HeaderValue>,
    /// `None` for one without a prompt.
    pub(crate) reason: Option<Reason>,
    /// Whether the workers of its arm could not take it, and those of the other one did.
    pub(crate) is_crossed: bool,
}

/// What came of choosing.
pub(crate) enum Outcome {
    Placed(Choice),
    /// Everybody who is left is busy; it is worth another try when something changes, or at this time.
    Busy(Option<Millis>),
    /// Nobody is left that lives, serves the model and may be asked.
    Nobody,
}

/// What is known about a request that wants a worker.
pub(crate) struct Placing<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) located: Option<Located<'a>>,
    /// Its prompt as workers' events have it.
    pub(crate) exact: Option<&'a Prompted>,
    /// A tenant key from a header.
    pub(crate) tenant: Option<&'a [u8]>,
    /// The variant or component that it is for, if it is for one.
    pub(crate) scope: Option<&'a Scope>,
    /// The API key that it came with.
    pub(crate) key: Option<&'a Arc<Key>>,
    /// Its part in a trial.
    pub(crate) ticket: Option<&'a Ticket>,
    /// Workers that failed it: it must not go there again.
    pub(crate) failed: &'a [WorkerId],
    /// Workers that said they are busy: worth another try only after a wait.
    pub(crate) refused: &'a [WorkerId],
    /// When it arrived.
    pub(crate) since: Instant,
    /// When it first had to wait; kept over several attempts, so that all its waiting has one end.
    pub(crate) queued_since: &'a mut Option<Instant>,
}

/// The workers that a request may go to.
#[derive(Clone, Copy)]
struct Allowed<'a> {
    /// `None` means all.
    eligible: Option<&'a [WorkerId]>,
    /// The machine of each, if they are known.
    machines: &'a [u32],
}

impl Placing<'_> {
    fn model(&self) -> Option<&str> {
        self.located.as_ref()?.model.as_deref()
    }

    /// Chooses and books. If everybody is busy, waits in the queue until somebody is not; `must_wait` if that has been
    /// found out already.
    pub(crate) async fn place(&mut self, must_wait: bool) -> Result<Choice, Refusal> {
        let queue = &self.shared.fleet.queue;
        if queue.len() == 0 && !must_wait {
            match self.choose(self.refused) {
                Outcome::Placed(choice) => return Ok(choice),
                Outcome::Nobody => return Err(self.nobody()),
                Outcome::Busy(_) => {}
            }
        }
        // Seldom taken: apart from the future that every request is moved in.
        Box::pin(self.wait()).await
    }

    /// Waits in the queue for a place.
    async fn wait(&mut self) -> Result<Choice, Refusal> {
        let queue = &self.shared.fleet.queue;
        let (metrics, came) = (&self.shared.metrics, *self.queued_since.get_or_insert_with(Instant::now));
        let Some(seat) = queue.join(self.lane().as_deref(), !self.failed.is_empty(), self.since) else {
            metrics.queue_full.inc();
            return Err(Refusal::QueueFull);
        };
        let deadline = came + self.shared.config.queue_timeout;
        loop {
            let mut until = deadline;
            if seat.is_first() {
                match self.choose(&[]) {
                    Outcome::Placed(choice) => {
                        metrics.queued(came.elapsed());
                        return Ok(choice);
                    }
                    Outcome::Nobody => return Err(self.nobody()),
                    Outcome::Busy(pause_ends) => {
                        until =
                            pause_ends.map_or(deadline, |end| self.shared.fleet.instant(end).min(deadline));
                    }
                }
            }
            if Instant::now() >= deadline {
                metrics.queue_timeouts.inc();
                return Err(Refusal::Busy);
            }
            seat.changed(until).await;
        }
    }

    /// What those who wait for the same workers have in common.
    fn lane(&self) -> Option<Cow<'_, str>> {
        match self.scope.and_then(Scope::pool) {
            Some(pool) => Some(format!("{pool} {}", self.model().unwrap_or_default()).into()),
            None => self.model().map(Cow::Borrowed),
        }
    }

    /// The workers of its scope, if it has one, that serve its model.
    fn pool(&self, snapshot: &Snapshot, eligible: Option<&[WorkerId]>) -> Option<Pool> {
        let is_live = |id| snapshot.get(id).is_some_and(|worker| worker.is_live());
        snapshot.pools.narrow(self.scope?, eligible, is_live)
    }

    /// Why nobody was found for a request that was tried nowhere.
    fn refusal(&self) -> Refusal {
        let fleet = &self.shared.fleet;
        let snapshot = fleet.snapshot();
        let eligible = snapshot.eligible(self.model());
        if eligible.is_some_and(<[WorkerId]>::is_empty) {
            fleet.list_again(self.shared.now());
            return Refusal::UnknownModel;
        }
        let pool = self.scope.and_then(|scope| snapshot.pools.narrow(scope, eligible, |_| false));
        let eligible = pool.as_ref().map(|pool| pool.ids.as_slice()).or(eligible);
        let allowed = |worker: &&Arc<Worker>| eligible.is_none_or(|eligible| eligible.contains(&worker.id));
        let mut workers = snapshot.workers.iter().filter(allowed).peekable();
        if workers.peek().is_some() && workers.all(|worker| worker.health.is_starting()) {
            return Refusal::NotReady;
        }
        Refusal::NoWorker
    }

    /// [`refusal`](Self::refusal), or that nobody else is there.
    fn nobody(&self) -> Refusal {
        if self.failed.is_empty() && self.refused.is_empty() { self.refusal() } else { Refusal::NoWorker }
    }

    /// Chooses and books, now, if possible none of `refused`; in a trial of pools, if possible a worker of its arm.
    fn choose(&self, refused: &[WorkerId]) -> Outcome {
        let snapshot = self.shared.fleet.snapshot();
        let eligible = snapshot.eligible(self.model());
        let Some((label, arm)) = self.ticket.and_then(|ticket| Some((ticket.pool()?, ticket.arm))) else {
            return self.choose_among_eligible(&snapshot, eligible, refused);
        };
        let of = |arm: Arm| -> Ids {
            let side = snapshot.side(label, arm == Arm::B).iter().copied();
            side.filter(|id| eligible.is_none_or(|eligible| eligible.contains(id))).collect()
        };
        let own = self.choose_among_eligible(&snapshot, Some(&of(arm)), refused);
        if let Outcome::Placed(_) = own {
            return own;
        }
        match (own, self.choose_among_eligible(&snapshot, Some(&of(arm.other())), refused)) {
            (_, Outcome::Placed(choice)) => Outcome::Placed(Choice { is_crossed: true, ..choice }),
            (Outcome::Busy(until), _) => Outcome::Busy(until),
            (_, other) => other,
        }
    }

    fn choose_among_eligible(
        &self,
        snapshot: &Snapshot,
        eligible: Option<&[WorkerId]>,
        refused: &[WorkerId],
    ) -> Outcome {
        let fleet = &self.shared.fleet;
        let pool = self.pool(snapshot, eligible);
        let allowed = match &pool {
            Some(pool) => Allowed { eligible: Some(&pool.ids), machines: &pool.machines },
            // A router that others use as well must be told who is ours.
            None => Allowed {
                eligible: eligible.or_else(|| fleet.is_shared().then(|| snapshot.ids())),
                machines: &[],
            },
        };
        let now = self.shared.now();
        let avoid = fleet.avoid(snapshot, now);
        let choose = |exclude: &[&[WorkerId]]| {
            let exclude: Ids = exclude.iter().copied().flatten().copied().collect();
            self.choose_among(snapshot, allowed, exclude, now)
        };
        let Avoid { full, resting, over, busy, busy_until } = &avoid;
        if let Some(choice) = choose(&[self.failed, refused, full, resting, over]) {
            return Outcome::Placed(choice);
        }
        if avoid.is_empty() {
            return Outcome::Nobody;
        }
        if !over.is_empty()
            && let Some(choice) = choose(&[self.failed, refused, full, resting])
        {
            return Outcome::Placed(choice);
        }
        if fleet.queue.is_on() && any_left(busy, allowed.eligible, self.failed) {
            return Outcome::Busy(*busy_until);
        }
        // Better a worker that should rest than none.
        match choose(&[self.failed, refused, full]) {
            Some(choice) => Outcome::Placed(choice),
            None => Outcome::Nobody,
        }
    }

    fn choose_among<'s>(
        &self,
        snapshot: &'s Snapshot,
        mut allowed: Allowed<'s>,
        mut exclude: Ids,
        now: Millis,
    ) -> Option<Choice> {
        loop {
            let (decision, reason) = self.decide(snapshot, allowed, &exclude, now)?;
            let fleet = &self.shared.fleet;
            match self.worker(snapshot, &decision) {
                Some(worker) if worker.take_place() => {
                    self.shared.metrics.decided(reason);
                    let told = self.shared.config.annotate;
                    let arm = self.ticket.map(|ticket| ticket.arm);
                    let annotation = told.then(|| {
                        headers::decision_value(reason.map_or(BY_LOAD, Reason::as_str), &decision, arm)
                    });
                    let kind = self.located.as_ref().map(|located| located.kind());
                    let watched = self.exact.and_then(Prompted::watched);
                    let key = self.key.cloned();
                    let booking = Booking::new(Arc::clone(self.shared), worker, decision, key, watched);
                    return Some(Choice { booking, kind, annotation, reason, is_crossed: false });
                }
                // Its last place was taken in this moment.
                Some(worker) => exclude.push(worker.id),
                // It is somebody else's, or was removed in this moment.
                None => {
                    exclude.push(decision.worker);
                    if fleet.router.workers().iter().any(|view| view.id == decision.worker) {
                        fleet.found_shared();
                        allowed.eligible = allowed.eligible.or(Some(snapshot.ids()));
                    }
                }
            }
            fleet.router.complete(decision.id, None, now);
        }
    }

    /// Asks the router, or looks for the lightest worker.
    fn decide(
        &self,
        snapshot: &Snapshot,
        Allowed { eligible, machines }: Allowed<'_>,
        exclude: &[WorkerId],
        now: Millis,
    ) -> Option<(Decision, Option<Reason>)> {
        let of_arm = || self.ticket.and_then(Ticket::policy);
        let policy = self.scope.and_then(|scope| scope.policy).or_else(of_arm);
        let by_prompt = self.with_request(eligible, |request| {
            self.route(&RouteRequest { policy, machines, exclude, ..*request }, now)
        });
        if let Some(decision) = by_prompt {
            return decision.map(|decision| (decision, Some(decision.reason)));
        }
        let lightest = [self.shared.fleet.lightest(snapshot, eligible, exclude)?];
        let request = RouteRequest { eligible: Some(&lightest), ..RouteRequest::new(Prompt::Text(&[])) };
        self.route(&request, now).map(|decision| (decision, None))
    }

    /// Calls `act` with what the router has to know of it; `None` if it has no prompt.
    fn with_request<R>(
        &self,
        eligible: Option<&[WorkerId]>,
        act: impl FnOnce(&RouteRequest<'_>) -> R,
    ) -> Option<R> {
        let located = self.located.as_ref()?;
        let (mut root, text_model) = (located.root(self.tenant), located.model_key());
        let exact = self.exact.map(Prompted::prompt);
        if let Some(key) = self.key {
            root = root.with("api_key_tenant", key.tenant.as_bytes());
        }
        located.with_prompt(|prompt| {
            act(&RouteRequest { root, exact, eligible, text_model, ..RouteRequest::new(prompt) })
        })
    }

    /// What a policy in the shadow decides for it; its figures are added to this group.
    pub(crate) fn shadow(&self, shadow: &Arc<Shadow>, group: usize) -> Option<Shadowed> {
        let fleet = &self.shared.fleet;
        let snapshot = fleet.snapshot();
        let eligible = snapshot.eligible(self.model());
        self.with_request(eligible, |request| shadow.decide(request, group, fleet))?
    }

    /// `None` also for a prompt that the router refuses: its worker would refuse it as well, but it has none.
    fn route(&self, request: &RouteRequest<'_>, now: Millis) -> Option<Decision> {
        self.shared.fleet.router.route(request, now).ok()
    }

    /// The chosen worker. One that was added since the snapshot was read is in a newer one.
    fn worker(&self, snapshot: &Snapshot, decision: &Decision) -> Option<Arc<Worker>> {
        let known = snapshot.get(decision.worker).cloned();
        known.or_else(|| self.shared.fleet.settled().get(decision.worker).cloned())
    }
}

/// Whether a request may be sent once more as far as the retry budget goes.
pub(crate) fn may_retry(shared: &Shared) -> bool {
    let snapshot = shared.fleet.snapshot();
    let in_flight = snapshot.workers.iter().map(|worker| u64::from(worker.in_flight.load(Ordering::Relaxed)));
    let may = shared.retries.retry(shared.now(), in_flight.sum());
    if !may {
        shared.metrics.retries_denied.inc();
    }
    may
}
