//! Chooses a worker for a request and books it there.
//!
//! A request with a prompt is the router's to place. One without (a GET, a body that cannot be read) goes to the
//! worker with the fewest requests in flight, and is booked with the router as well, so that prompts see its load.

use std::sync::Arc;

use http::header::HeaderValue;
use trunkline_core::{Decision, Millis, Prompt, Reason, RouteRequest, WorkerId};

use crate::answer::Refusal;
use crate::booking::Booking;
use crate::fleet::{Snapshot, Worker};
use crate::headers;
use crate::keys::Key;
use crate::metrics::BY_LOAD;
use crate::prompt::Located;
use crate::sagemaker::Scope;
use crate::server::Shared;

/// A worker, booked, and why.
pub(crate) struct Choice {
    pub(crate) booking: Booking,
    /// The reason for the client, if clients are told.
    pub(crate) annotation: Option<HeaderValue>,
}

/// What is known about a request that wants a worker.
pub(crate) struct Placing<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) located: Option<Located<'a>>,
    /// A tenant key from a header.
    pub(crate) tenant: Option<&'a [u8]>,
    /// The variant or component that it is for, if it is for one.
    pub(crate) scope: Option<&'a Scope>,
    /// The API key that it came with.
    pub(crate) key: Option<&'a Arc<Key>>,
    /// Workers that it must not go to again.
    pub(crate) tried: &'a [WorkerId],
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
    /// Chooses and books; `None` if no live worker is left that serves the model and was not tried.
    pub(crate) fn choose(&self) -> Option<Choice> {
        let fleet = &self.shared.fleet;
        let snapshot = fleet.snapshot();
        let model = self.located.as_ref().and_then(|located| located.model.as_deref());
        let eligible = snapshot.eligible(model);
        let is_live = |id| snapshot.get(id).is_some_and(|worker| worker.is_live());
        let pool = self.scope.and_then(|scope| snapshot.pools.narrow(scope, eligible, is_live));
        let allowed = match &pool {
            Some(pool) => Allowed { eligible: Some(&pool.ids), machines: &pool.machines },
            None => Allowed { eligible, machines: &[] },
        };
        let now = self.shared.now();
        let mut exclude = fleet.paused(&snapshot, now);
        if exclude.is_empty() {
            return self.choose_among(&snapshot, allowed, self.tried, now);
        }
        exclude.extend_from_slice(self.tried);
        // Better a busy worker than none.
        let choice = self.choose_among(&snapshot, allowed, &exclude, now);
        choice.or_else(|| self.choose_among(&snapshot, allowed, self.tried, now))
    }

    /// Why [`choose`](Self::choose) found nobody for a request that was tried nowhere.
    pub(crate) fn refusal(&self) -> Refusal {
        let fleet = &self.shared.fleet;
        let snapshot = fleet.snapshot();
        let model = self.located.as_ref().and_then(|located| located.model.as_deref());
        let eligible = snapshot.eligible(model);
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

    fn choose_among(
        &self,
        snapshot: &Snapshot,
        Allowed { eligible, machines }: Allowed<'_>,
        exclude: &[WorkerId],
        now: Millis,
    ) -> Option<Choice> {
        let policy = self.scope.and_then(|scope| scope.policy);
        let by_prompt = self.located.as_ref().and_then(|located| {
            let (mut root, text_model) = (located.root(self.tenant), located.model_key());
            if let Some(key) = self.key {
                root = root.with("api_key_tenant", key.tenant.as_bytes());
            }
            located.with_prompt(|prompt| {
                let request =
                    RouteRequest { root, eligible, exclude, text_model, ..RouteRequest::new(prompt) };
                self.route(&RouteRequest { policy, machines, ..request }, now)
            })
        });
        let (decision, reason) = match by_prompt {
            Some(decision) => (decision?, Some(decision?.reason)),
            None => {
                let lightest = [self.shared.fleet.lightest(snapshot, eligible, exclude)?];
                let request =
                    RouteRequest { eligible: Some(&lightest), ..RouteRequest::new(Prompt::Text(&[])) };
                (self.route(&request, now)?, None)
            }
        };
        let worker = self.worker(snapshot, &decision, now)?;
        self.shared.metrics.decided(reason);
        let told = self.shared.config.annotate;
        let annotation =
            told.then(|| headers::decision_value(reason.map_or(BY_LOAD, Reason::as_str), &decision));
        Some(Choice {
            booking: Booking::new(Arc::clone(self.shared), worker, decision, self.key.cloned()),
            annotation,
        })
    }

    /// `None` also for a prompt that the router refuses: its worker would refuse it as well, but it has none.
    fn route(&self, request: &RouteRequest<'_>, now: Millis) -> Option<Decision> {
        self.shared.fleet.router.route(request, now).ok()
    }

    /// The chosen worker. One that was added since the snapshot was read is in a newer one.
    fn worker(&self, snapshot: &Snapshot, decision: &Decision, now: Millis) -> Option<Arc<Worker>> {
        let fleet = &self.shared.fleet;
        let worker =
            snapshot.get(decision.worker).cloned().or_else(|| fleet.settled().get(decision.worker).cloned());
        if worker.is_none() {
            // It was removed in this moment.
            fleet.router.complete(decision.id, None, now);
        }
        worker
    }
}
