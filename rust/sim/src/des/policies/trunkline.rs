//! The real router, by the simulated clock: what a gateway tells it, in the same order.
//!
//! Prompts reach it as token ids ([`spell`]). With several routers each has a [`Router`] of its own. If they gossip, a
//! decision of one is booked by the others with the next round of gossip, and so are its first token and its end: what
//! replicas that share their load and their newest placements every `gossip_s` know of each other. With KV events all
//! routers hear those of all workers, and requests come with their exact prompt.

use std::collections::{HashMap, VecDeque};

use trunkline_core::{
    CacheView, DecisionId, ExactPrompt, Millis, Policy as Rule, Prompt, RouteRequest, Router, RouterConfig,
    Usage, WorkerId, WorkerSpec,
};

use super::feed::Feed;
use crate::des::workload::{Segment, spell};
use crate::des::{Arrival, CacheChange, Fleet, Outcome, Policy};
use crate::error::Error;

/// How the router is set up.
#[derive(Debug, Clone)]
pub struct TrunklineOptions {
    /// Its policy.
    pub policy: Rule,
    /// Routers that share the fleet.
    pub routers: usize,
    /// Time between two rounds of gossip; `None` if they share nothing.
    pub gossip_s: Option<f64>,
    /// How late workers' KV events are; `None` without events: the routers' views of the caches are their own.
    pub event_delay_s: Option<f64>,
    /// Whether events tell of the host's tier too.
    pub host_events: bool,
    /// Size of a worker's cache in tokens, as the router is told.
    pub capacity_tokens: Option<u64>,
    /// Bytes of each router's index.
    pub memory_budget: usize,
    /// Seed of its hashes and of its chance.
    pub seed: u64,
}

impl Default for TrunklineOptions {
    fn default() -> Self {
        Self {
            policy: Rule::KvAware,
            routers: 1,
            gossip_s: None,
            event_delay_s: None,
            host_events: true,
            capacity_tokens: None,
            memory_budget: RouterConfig::default().memory_budget,
            seed: 0,
        }
    }
}

/// What the other routers are still to hear.
#[derive(Debug)]
enum News {
    Placed { request: u32, worker: usize, prompt: Vec<Segment> },
    FirstToken { request: u32 },
    Complete { request: u32, usage: Option<Usage> },
}

struct Replica {
    router: Router,
    workers: Vec<WorkerId>,
    /// Bookings by request; those of other routers' requests too.
    bookings: HashMap<u32, DecisionId>,
    heard: VecDeque<(f64, News)>,
}

/// Routers of the core in front of the simulated fleet.
pub struct Trunkline {
    replicas: Vec<Replica>,
    gossip_s: Option<f64>,
    feed: Option<Feed>,
    capacity_tokens: Option<u64>,
    tokens: Vec<u32>,
    live: usize,
    /// Which router placed each request in flight.
    placed_by: HashMap<u32, usize>,
}

impl Trunkline {
    /// Routers without workers; the simulation adds them.
    ///
    /// # Errors
    /// [`Error::Router`] for a setting out of range.
    pub fn new(options: &TrunklineOptions) -> Result<Self, Error> {
        let replicas = (0..options.routers.max(1))
            .map(|number| {
                let config = RouterConfig {
                    policy: options.policy,
                    memory_budget: options.memory_budget,
                    index_seed: options.seed.wrapping_add(number as u64),
                    replicas: options.routers as u32,
                    shared_state: options.gossip_s.is_some(),
                    ..RouterConfig::default()
                };
                Ok(Replica {
                    router: Router::new(config)?,
                    workers: Vec::new(),
                    bookings: HashMap::new(),
                    heard: VecDeque::new(),
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            replicas,
            gossip_s: options.gossip_s.filter(|_| options.routers > 1),
            feed: options.event_delay_s.map(|delay_s| Feed::new(delay_s, options.host_events)),
            capacity_tokens: options.capacity_tokens,
            tokens: Vec::new(),
            live: 0,
            placed_by: HashMap::new(),
        })
    }

    /// Tells all routers what workers told up to now.
    fn hear_events(&mut self, now_s: f64) {
        let Some(feed) = &mut self.feed else { return };
        let delay_ms = Some(feed.delay_ms());
        feed.deliver(now_s, |worker, event, at_s| {
            for Replica { router, workers, .. } in &self.replicas {
                router
                    .apply_events(workers[worker], [event], None, delay_ms, millis(at_s))
                    .expect("it is known, and there are few views");
            }
        });
    }

    /// Tells the other routers with the next round of gossip.
    fn tell_others(&mut self, from: usize, now_s: f64, news: impl Fn() -> News) {
        let Some(gossip_s) = self.gossip_s else { return };
        let at_s = if gossip_s > 0.0 { ((now_s / gossip_s).floor() + 1.0) * gossip_s } else { now_s };
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            if number != from {
                replica.heard.push_back((at_s, news()));
            }
        }
    }
}

/// A request with its prompt as own views and as events have it.
fn request_of(tokens: &[u32]) -> RouteRequest<'_> {
    let bytes = bytemuck::must_cast_slice(tokens);
    let exact = ExactPrompt { bytes, is_tokens: true, ..ExactPrompt::default() };
    RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Tokens(tokens)) }
}

fn millis(seconds: f64) -> Millis {
    Millis((seconds * 1000.0) as u64)
}

impl Replica {
    /// Takes in what it has heard up to now.
    fn listen(&mut self, now_s: f64, tokens: &mut Vec<u32>) {
        while let Some((at_s, news)) = self.heard.pop_front_if(|(at_s, _)| *at_s <= now_s) {
            match news {
                News::Placed { request, worker, prompt } => {
                    let only = [self.workers[worker]];
                    spell(&prompt, tokens);
                    // Without the exact prompt: events may have told of it already, and the work would count for nothing.
                    let asked =
                        RouteRequest { eligible: Some(&only), ..RouteRequest::new(Prompt::Tokens(tokens)) };
                    // A worker that left meanwhile takes nothing.
                    if let Ok(decision) = self.router.route(&asked, millis(at_s)) {
                        self.bookings.insert(request, decision.id);
                    }
                }
                News::FirstToken { request } => self.first_token(request, at_s),
                News::Complete { request, usage } => self.complete(request, usage, at_s),
            }
        }
    }

    fn first_token(&mut self, request: u32, now_s: f64) {
        if let Some(&id) = self.bookings.get(&request) {
            self.router.first_token(id, millis(now_s));
        }
    }

    fn complete(&mut self, request: u32, usage: Option<Usage>, now_s: f64) {
        if let Some(id) = self.bookings.remove(&request) {
            self.router.complete(id, usage, millis(now_s));
        }
    }
}

impl Policy for Trunkline {
    fn place(&mut self, arrival: &Arrival<'_>, _fleet: &Fleet<'_>) -> usize {
        if let Some(feed) = &mut self.feed {
            feed.learn(arrival);
        }
        self.hear_events(arrival.now_s);
        let Self { replicas, tokens, .. } = self;
        let replica = &mut replicas[arrival.router];
        replica.listen(arrival.now_s, tokens);
        spell(arrival.prompt, tokens);
        let decision =
            replica.router.route(&request_of(tokens), millis(arrival.now_s)).expect("a worker is live");
        replica.bookings.insert(arrival.request, decision.id);
        let worker = replica.workers.iter().position(|&id| id == decision.worker).expect("one of the fleet");
        self.placed_by.insert(arrival.request, arrival.router);
        let request = arrival.request;
        self.tell_others(arrival.router, arrival.now_s, || News::Placed {
            request,
            worker,
            prompt: arrival.prompt.to_vec(),
        });
        worker
    }

    fn first_token(&mut self, request: u32, now_s: f64) {
        if let Some(&router) = self.placed_by.get(&request) {
            self.replicas[router].first_token(request, now_s);
            self.tell_others(router, now_s, || News::FirstToken { request });
        }
    }

    fn complete(&mut self, outcome: &Outcome<'_>) {
        let Some(router) = self.placed_by.remove(&outcome.request) else { return };
        let usage = (outcome.output_tokens > 0).then_some(Usage {
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: Some(outcome.cached_tokens),
            completion_tokens: outcome.output_tokens,
        });
        self.replicas[router].complete(outcome.request, usage, outcome.now_s);
        let request = outcome.request;
        self.tell_others(router, outcome.now_s, || News::Complete { request, usage });
    }

    fn scale(&mut self, live: usize, _now_s: f64) {
        for replica in &mut self.replicas {
            for worker in self.live.min(live)..self.live.max(live) {
                let is_new = worker >= replica.workers.len();
                if is_new {
                    let spec = WorkerSpec {
                        capacity_tokens: self.capacity_tokens,
                        ..WorkerSpec::new(format!("worker-{worker:04}"))
                    };
                    let id = replica.router.add_worker(spec).expect("a name of its own");
                    if self.feed.is_some() {
                        replica.router.set_cache_view(id, CacheView::Events).expect("it was just added");
                    }
                    replica.workers.push(id);
                } else if live > self.live {
                    // Whoever comes back has an empty cache.
                    let id = replica.workers[worker];
                    replica.router.reset_worker(id).expect("it is known");
                    replica.router.drain_worker(id, false).expect("it is known");
                } else {
                    replica.router.drain_worker(replica.workers[worker], true).expect("it is known");
                }
            }
        }
        self.live = live;
    }

    fn wants_cache_changes(&self) -> bool {
        self.feed.is_some()
    }

    fn cache_changed(&mut self, worker: usize, change: CacheChange, now_s: f64) {
        if let Some(feed) = &mut self.feed {
            feed.changed(worker, change, now_s);
        }
    }

    fn worker_lost(&mut self, worker: usize, _now_s: f64) {
        if let Some(feed) = &mut self.feed {
            feed.forget(worker);
        }
        for replica in &self.replicas {
            replica.router.reset_worker(replica.workers[worker]).expect("it is known");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::des::workloads::Chatbot;
    use crate::des::{Options, Profile, Simulation};

    /// Lets a test look at the routers after a run.
    struct Shown(Arc<Mutex<Trunkline>>);

    impl Policy for Shown {
        fn place(&mut self, arrival: &Arrival<'_>, fleet: &Fleet<'_>) -> usize {
            self.0.lock().place(arrival, fleet)
        }

        fn first_token(&mut self, request: u32, now_s: f64) {
            self.0.lock().first_token(request, now_s);
        }

        fn complete(&mut self, outcome: &Outcome<'_>) {
            self.0.lock().complete(outcome);
        }

        fn scale(&mut self, live: usize, now_s: f64) {
            self.0.lock().scale(live, now_s);
        }

        fn wants_cache_changes(&self) -> bool {
            self.0.lock().wants_cache_changes()
        }

        fn cache_changed(&mut self, worker: usize, change: CacheChange, now_s: f64) {
            self.0.lock().cache_changed(worker, change, now_s);
        }
    }

    /// Tokens that the router expected in the caches, and those that were there, for one client at a time.
    fn expected_and_found(event_delay_s: Option<f64>, host_tokens: u64) -> (u64, u64) {
        let chatbot =
            Chatbot { sessions: 200, tenants: 100, header_tokens: 1500, turns: 3.0, ..Chatbot::default() };
        let workload = chatbot.build();
        let profile = Profile { kv_tokens: 30_000, host_tokens, ..Profile::default() };
        let options = Options { workers: 2, clients: Some(1), ..Options::default() };
        // The router is told a size that is far off: only events can make up for it.
        let told = TrunklineOptions {
            event_delay_s,
            capacity_tokens: Some(1_000_000),
            ..TrunklineOptions::default()
        };
        let shown = Arc::new(Mutex::new(Trunkline::new(&told).unwrap()));
        let policy = Box::new(Shown(Arc::clone(&shown)));
        let mut simulation = Simulation::new(&workload, profile, options, policy).unwrap();
        simulation.run(|_| ControlFlow::Continue(()));
        let found = simulation.answers().iter().map(|answer| u64::from(answer.cached_tokens)).sum();
        let stats = shown.lock().replicas[0].router.stats();
        assert_eq!(stats.events_blocks > 0, event_delay_s.is_some());
        (stats.matched_tokens, found)
    }

    #[test]
    fn events_tell_what_the_caches_hold() {
        for host_tokens in [0, 60_000] {
            let (expected, found) = expected_and_found(Some(0.0), host_tokens);
            println!("{expected} expected, {found} found, host tier of {host_tokens}");
            assert!(found > 100_000 && expected.abs_diff(found) * 200 < found, "{expected} beside {found}");
        }
        let (expected, found) = expected_and_found(None, 0);
        println!("{expected} expected, {found} found, without events");
        assert!(expected.abs_diff(found) * 30 > found, "{expected} beside {found} without events");
    }
}
