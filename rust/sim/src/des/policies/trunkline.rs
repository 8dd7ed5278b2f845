//! The real router, by the simulated clock: what a gateway tells it, in the same order.
//!
//! Prompts reach it as token ids ([`spell`]). With several routers each has a [`Router`] of its own. If they gossip, a
//! decision of one is booked by the others with the next round of gossip, and so are its first token and its end: what
//! replicas that share their load and their newest placements every `gossip_s` know of each other.

use std::collections::{HashMap, VecDeque};

use trunkline_core::{
    DecisionId, Millis, Policy as Rule, Prompt, RouteRequest, Router, RouterConfig, Usage, WorkerId,
    WorkerSpec,
};

use crate::des::workload::{Segment, spell};
use crate::des::{Arrival, Fleet, Outcome, Policy};
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
            capacity_tokens: options.capacity_tokens,
            tokens: Vec::new(),
            live: 0,
            placed_by: HashMap::new(),
        })
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
        let Self { replicas, tokens, .. } = self;
        let replica = &mut replicas[arrival.router];
        replica.listen(arrival.now_s, tokens);
        spell(arrival.prompt, tokens);
        let asked = RouteRequest::new(Prompt::Tokens(tokens));
        let decision = replica.router.route(&asked, millis(arrival.now_s)).expect("a worker is live");
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

    fn worker_lost(&mut self, worker: usize, _now_s: f64) {
        for replica in &self.replicas {
            replica.router.reset_worker(replica.workers[worker]).expect("it is known");
        }
    }
}
