//! The frame that all peers' rules share: books, an index, polls. A rule adds its choice, in a file of its own.

use super::book::{Book, Booking, Load};
use super::index::{Index, MAX_WORKERS, Source};
use crate::des::{
    Arrival, CacheChange, Fleet, Outcome, Policy, Profile, Rng, Segment, WorkerStatus, Workload,
};
use crate::error::Error;

/// What a rule has to know of the traffic and of how it is informed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyOptions {
    /// Routers in front of the fleet.
    pub routers: usize,
    /// Age of what routers know of each other's load at most; `None` if they share nothing.
    pub gossip_s: Option<f64>,
    /// Whether the core's `kv_aware` gets KV events; without them its views of the caches are its own.
    pub events: bool,
    /// Whether they tell of the host's tier too.
    pub host_events: bool,
    /// How late KV events are.
    pub event_delay_s: f64,
    /// Age of polled metrics at most.
    pub poll_s: f64,
    /// Tokens of a worker's cache.
    pub kv_tokens: u64,
    /// Segments of the workload.
    pub segments: u32,
    /// For `prefix_aware`: the characters of a prompt that it hashes (a token counts as 4), if not its default.
    pub prefix_length: Option<u32>,
    /// For `prefix_aware`: requests on a worker at which it spills; `None` for its relative bound.
    pub concurrency_threshold: Option<u32>,
    /// Of chance.
    pub seed: u64,
}

impl PolicyOptions {
    /// One router that knows the caches from its own decisions; where a rule has events and metrics, they are as old as usual.
    #[must_use]
    pub fn one_router(profile: &Profile, workload: &Workload, seed: u64) -> Self {
        Self {
            routers: 1,
            gossip_s: None,
            events: false,
            host_events: true,
            event_delay_s: 0.02,
            poll_s: 0.05,
            kv_tokens: profile.kv_tokens,
            segments: workload.segment_count(),
            prefix_length: None,
            concurrency_threshold: None,
            seed,
        }
    }
}

/// What a rule looks at for one request.
pub(super) struct View<'a> {
    pub(super) arrival: &'a Arrival<'a>,
    pub(super) fleet: &'a Fleet<'a>,
    pub(super) live: usize,
    /// Leading tokens of the prompt on each worker; empty for rules without an index.
    pub(super) hits: &'a [u32],
    /// Own loads of each worker.
    pub(super) loads: &'a [Load],
    /// Metrics of each worker, as last polled; empty unless the rule polls.
    pub(super) polled: &'a [WorkerStatus],
    pub(super) index: Option<&'a Index>,
    pub(super) rng: &'a mut Rng,
}

impl View<'_> {
    pub(super) fn deepest(&self) -> u32 {
        self.hits.iter().copied().max().unwrap_or(0)
    }

    /// The worker with the least of something; by chance among equals.
    pub(super) fn least(&mut self, of: impl Fn(&Self, usize) -> f64) -> usize {
        let values: Vec<f64> = (0..self.live).map(|worker| of(self, worker)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let equals: Vec<usize> = (0..self.live).filter(|&worker| values[worker] == least).collect();
        equals[self.rng.below(equals.len())]
    }
}

/// A rule of another router.
pub(super) trait Rule: Send {
    /// Whether it looks at metrics that are polled.
    fn polls(&self) -> bool {
        false
    }

    /// Chooses a worker.
    fn choose(&mut self, view: &mut View<'_>) -> usize;

    /// What the request will queue and hold there, as the rule books it.
    fn load(&self, view: &View<'_>, worker: usize) -> Load {
        let hit = view.hits.get(worker).copied().unwrap_or(0);
        Load {
            in_flight: 1,
            queued_tokens: i64::from(view.arrival.prompt_tokens.saturating_sub(hit)),
            kv_tokens: f64::from(view.arrival.prompt_tokens + view.arrival.output_tokens / 2),
        }
    }

    /// The request was sent.
    fn sent(&mut self, _arrival: &Arrival<'_>, _worker: usize) {}

    /// Its first token came; the booking tells when it was sent and behind how many tokens.
    fn first_token(&mut self, _booking: &Booking, _now_s: f64) {}

    /// It ended, or its worker died.
    fn ended(&mut self, _outcome: &Outcome<'_>) {}
}

/// A rule in its frame.
pub(super) struct Peer<R> {
    rule: R,
    index: Option<Index>,
    book: Book,
    polled: Vec<WorkerStatus>,
    polled_s: f64,
    poll_s: f64,
    live: usize,
    rng: Rng,
    hits: Vec<u32>,
    loads: Vec<Load>,
}

impl<R: Rule + 'static> Peer<R> {
    /// `rule`, boxed as a policy.
    pub(super) fn boxed(rule: R, source: Option<Source>, options: &PolicyOptions) -> Box<dyn Policy> {
        Box::new(Self {
            rule,
            index: source.map(|source| Index::new(source, options.routers, options.segments)),
            book: Book::new(options.routers, options.gossip_s),
            polled: Vec::new(),
            polled_s: f64::NEG_INFINITY,
            poll_s: options.poll_s,
            live: 0,
            rng: Rng::new(options.seed, 100),
            hits: Vec::new(),
            loads: Vec::new(),
        })
    }
}

/// Refuses fleets that an index of masks cannot tell apart.
pub(super) fn check_workers(workers: usize) -> Result<(), Error> {
    if workers <= MAX_WORKERS {
        return Ok(());
    }
    Err(Error::Config {
        key: "workers",
        value: workers.to_string(),
        allowed: "up to 128 for the rules of peers",
    })
}

impl<R: Rule> Policy for Peer<R> {
    fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize {
        let Self { rule, index, book, polled, polled_s, poll_s, live, rng, hits, loads } = self;
        if let Some(index) = index {
            index.hits(arrival.router, arrival.prompt, *live, arrival.now_s, hits);
        }
        book.loads(arrival.router, arrival.now_s, loads);
        if rule.polls() && (arrival.now_s - *polled_s >= *poll_s || polled.len() < *live) {
            polled.clear();
            polled.extend((0..*live).map(|worker| fleet.status(worker)));
            *polled_s = arrival.now_s;
        }
        let mut view = View { arrival, fleet, live: *live, hits, loads, polled, index: index.as_ref(), rng };
        let worker = rule.choose(&mut view);
        let load = rule.load(&view, worker);
        let queue_at_start = (loads[worker].queued_tokens + load.queued_tokens) as f64;
        let booking = Booking { router: arrival.router, worker, load, queue_at_start, sent_s: arrival.now_s };
        book.open(arrival.request, booking);
        if let Some(index) = index {
            let answer = arrival.answer.map(|id| Segment { id, tokens: arrival.output_tokens });
            index.placed(arrival.router, worker, arrival.prompt, answer, arrival.now_s);
        }
        rule.sent(arrival, worker);
        worker
    }

    fn first_token(&mut self, request: u32, now_s: f64) {
        if let Some(booking) = self.book.first_token(request) {
            self.rule.first_token(&booking, now_s);
        }
    }

    fn complete(&mut self, outcome: &Outcome<'_>) {
        self.book.close(outcome.request);
        self.rule.ended(outcome);
    }

    fn scale(&mut self, live: usize, _now_s: f64) {
        self.book.scale(live);
        if let Some(index) = &mut self.index {
            (live..self.live).for_each(|worker| index.forget(worker));
        }
        self.live = live;
    }

    fn worker_lost(&mut self, worker: usize, _now_s: f64) {
        if let Some(index) = &mut self.index {
            index.forget(worker);
        }
    }

    fn wants_cache_changes(&self) -> bool {
        self.index.as_ref().is_some_and(Index::wants_events)
    }

    fn cache_changed(&mut self, worker: usize, change: CacheChange, now_s: f64) {
        if let Some(index) = &mut self.index {
            index.event(worker, change, now_s);
        }
    }
}
