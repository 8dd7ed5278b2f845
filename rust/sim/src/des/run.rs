//! The simulation: events in order of time, from the first arrival to the last answer.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use super::fleet::Fleet;
use super::options::Options;
use super::policy::{Arrival, Outcome, Policy};
use super::profile::{BLOCK_TOKENS, Profile};
use super::worker::{Progressed, Scene, Worker};
use super::workload::Workload;
use crate::error::Error;

/// Time from a worker's death to the new arrival of what it had in flight.
const RETRY_S: f64 = 0.01;
/// Time between the first requests of two clients of a closed loop.
const CLIENT_GAP_S: f64 = 0.02;
/// Events between two looks at whoever wants to know how far it is.
const EVENTS_PER_LOOK: u64 = 1 << 14;

/// How far a simulation is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Requests answered.
    pub answered: usize,
    /// Requests in all.
    pub requests: usize,
    /// Simulated time.
    pub now_s: f64,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// Its number in the workload.
    pub request: u32,
    /// The worker that answered.
    pub worker: u32,
    /// Its first arrival.
    pub arrived_s: f64,
    /// When the first token came.
    pub first_token_s: f64,
    /// When the last token came.
    pub done_s: f64,
    /// Prompt tokens that the worker's cache had, both tiers together.
    pub cached_tokens: u32,
}

/// A request's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) arrived_s: f64,
    first_token_s: f64,
    worker: u32,
    router: u32,
    pub(crate) cached_tokens: u32,
    /// Tokens to compute before the next token of the answer, and how many come before them.
    pub(crate) remaining: u32,
    pub(crate) position: u32,
    /// Tokens of the answer that were made before the last admission.
    pub(crate) generated: u32,
    pub(crate) reserved_blocks: u32,
    /// Its place in the order of admissions.
    pub(crate) order: u64,
}

impl Run {
    const NEW: Self = Self {
        arrived_s: f64::NAN,
        first_token_s: f64::NAN,
        worker: 0,
        router: 0,
        cached_tokens: 0,
        remaining: 0,
        position: 0,
        generated: 0,
        reserved_blocks: 0,
        order: 0,
    };
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    StepEnds { worker: u32, version: u32 },
    Arrives { request: u32 },
    Scales { live: usize },
    LosesLast,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at_s: f64,
    /// Events of one moment happen in the order in which they were planned.
    order: u64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A fleet, a policy and a workload. Not thread-safe; many may run at once on threads of their own.
pub struct Simulation<'w> {
    workload: &'w Workload,
    profile: Profile,
    options: Options,
    policy: Box<dyn Policy>,
    workers: Vec<Worker>,
    live: usize,
    runs: Vec<Run>,
    events: BinaryHeap<Reverse<Event>>,
    planned: u64,
    /// Sessions that have not begun, of a closed loop.
    next_head: usize,
    arrivals: usize,
    answers: Vec<Answer>,
    refused: usize,
    progressed: Vec<Progressed>,
}

impl<'w> Simulation<'w> {
    /// A fleet that has not started.
    ///
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn new(
        workload: &'w Workload,
        profile: Profile,
        options: Options,
        mut policy: Box<dyn Policy>,
    ) -> Result<Self, Error> {
        profile.check()?;
        options.check()?;
        let most = options.scale.iter().map(|&(_, workers)| workers).fold(options.workers, usize::max);
        let watched = policy.wants_cache_changes();
        let speed = |worker| options.speeds.get(worker).copied().unwrap_or(1.0);
        let workers = (0..most).map(|at| Worker::new(workload, &profile, speed(at), watched)).collect();
        policy.scale(options.workers, 0.0);
        Ok(Self {
            workload,
            profile,
            live: options.workers,
            options,
            policy,
            workers,
            runs: vec![Run::NEW; workload.requests().len()],
            events: BinaryHeap::new(),
            planned: 0,
            next_head: 0,
            arrivals: 0,
            answers: Vec::with_capacity(workload.requests().len()),
            refused: 0,
            progressed: Vec::new(),
        })
    }

    /// Runs until every request is answered, or until `watch` says that it is enough. It is asked every few milliseconds.
    pub fn run(&mut self, mut watch: impl FnMut(Progress) -> ControlFlow<()>) {
        self.plan_start();
        let mut looked = 0;
        while let Some(Reverse(event)) = self.events.pop() {
            self.happen(event);
            looked += 1;
            if looked % EVENTS_PER_LOOK == 0 {
                let requests = self.runs.len();
                let progress = Progress { answered: self.answers.len(), requests, now_s: event.at_s };
                if watch(progress).is_break() {
                    return;
                }
            }
        }
    }

    /// What was answered so far, in the order of last tokens.
    #[must_use]
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Requests that no worker can take, because they are longer than its cache; they are not simulated.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// The workload.
    #[must_use]
    pub fn workload(&self) -> &'w Workload {
        self.workload
    }

    pub(crate) fn workers(&self) -> (&[Worker], usize) {
        (&self.workers, self.live)
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    fn plan(&mut self, at_s: f64, what: What) {
        self.planned += 1;
        self.events.push(Reverse(Event { at_s, order: self.planned, what }));
    }

    fn plan_start(&mut self) {
        let workload = self.workload;
        match self.options.clients {
            None => {
                for &request in workload.heads() {
                    self.plan(workload.requests()[request as usize].at_s, What::Arrives { request });
                }
            }
            Some(clients) => {
                self.next_head = clients.min(workload.heads().len());
                for (client, &request) in workload.heads()[..self.next_head].iter().enumerate() {
                    self.plan(client as f64 * CLIENT_GAP_S, What::Arrives { request });
                }
            }
        }
        for (at_s, live) in self.options.scale.clone() {
            self.plan(at_s, What::Scales { live });
        }
        for loss in self.options.losses.clone() {
            self.plan(loss.down_s, What::LosesLast);
            self.plan(loss.up_s, What::Scales { live: self.live });
        }
    }

    fn happen(&mut self, event: Event) {
        let now_s = event.at_s;
        match event.what {
            What::StepEnds { worker, version } => {
                if self.workers[worker as usize].version == version {
                    self.end_step(worker as usize, now_s);
                }
            }
            What::Arrives { request } => self.arrive(request, now_s),
            What::Scales { live } => {
                for worker in self.workers.iter_mut().take(live).skip(self.live) {
                    // A worker that comes is a new one.
                    if worker.is_idle() {
                        worker.clear_cache();
                    }
                }
                self.live = live;
                self.policy.scale(live, now_s);
            }
            What::LosesLast => self.lose_last(now_s),
        }
    }

    fn lose_last(&mut self, now_s: f64) {
        self.live -= 1;
        let last = self.live;
        for request in self.workers[last].lose() {
            self.tell_complete(request, now_s, 0);
            let run = &mut self.runs[request as usize];
            (run.generated, run.reserved_blocks) = (0, 0);
            self.plan(now_s + RETRY_S, What::Arrives { request });
        }
        self.policy.worker_lost(last, now_s);
        self.policy.scale(last, now_s);
    }

    fn arrive(&mut self, request: u32, now_s: f64) {
        let asked = &self.workload.requests()[request as usize];
        let run = &mut self.runs[request as usize];
        if run.arrived_s.is_nan() {
            run.arrived_s = now_s;
        }
        let prompt = self.workload.prompt(asked);
        let blocks: u64 = prompt.iter().map(|segment| u64::from(segment.blocks())).sum();
        let answer = asked.output_tokens.div_ceil(BLOCK_TOKENS) + 1;
        if blocks + u64::from(answer) > self.profile.kv_blocks() {
            self.refused += 1;
            self.follow(request, now_s);
            return;
        }
        let router = self.arrivals % self.options.routers;
        self.arrivals += 1;
        let arrival = Arrival {
            request,
            prompt,
            prompt_tokens: asked.prompt_tokens,
            output_tokens: asked.output_tokens,
            answer: asked.answer,
            router,
            now_s,
        };
        let fleet = Fleet { workers: &self.workers, live: self.live, profile: &self.profile };
        let worker = self.policy.place(&arrival, &fleet);
        assert!(worker < self.live, "a policy places on a live worker");
        run.worker = worker as u32;
        run.router = router as u32;
        let mut scene = Scene { workload: self.workload, profile: &self.profile, runs: &mut self.runs };
        let ends_s = self.workers[worker].enqueue(request, now_s, &mut scene);
        self.plan_step(worker, ends_s, now_s);
    }

    fn end_step(&mut self, worker: usize, now_s: f64) {
        let mut progressed = std::mem::take(&mut self.progressed);
        let mut scene = Scene { workload: self.workload, profile: &self.profile, runs: &mut self.runs };
        self.workers[worker].end_step(now_s, &mut scene, &mut progressed);
        for progress in progressed.drain(..) {
            match progress {
                Progressed::FirstToken(request) => {
                    let first = &mut self.runs[request as usize].first_token_s;
                    if first.is_nan() {
                        *first = now_s;
                    }
                    self.policy.first_token(request, now_s);
                }
                Progressed::Finished(request) => self.finish(request, now_s),
            }
        }
        self.progressed = progressed;
        let mut scene = Scene { workload: self.workload, profile: &self.profile, runs: &mut self.runs };
        let ends_s = self.workers[worker].start_step(now_s, &mut scene);
        self.plan_step(worker, ends_s, now_s);
    }

    fn plan_step(&mut self, worker: usize, ends_s: Option<f64>, now_s: f64) {
        if let Some(at_s) = ends_s {
            let version = self.workers[worker].version;
            self.plan(at_s, What::StepEnds { worker: worker as u32, version });
        }
        if let Some(changes) = &mut self.workers[worker].changes {
            for change in changes.drain(..) {
                self.policy.cache_changed(worker, change, now_s);
            }
        }
    }

    fn finish(&mut self, request: u32, now_s: f64) {
        let run = self.runs[request as usize];
        self.answers.push(Answer {
            request,
            worker: run.worker,
            arrived_s: run.arrived_s,
            first_token_s: run.first_token_s,
            done_s: now_s,
            cached_tokens: run.cached_tokens,
        });
        self.tell_complete(request, now_s, self.workload.requests()[request as usize].output_tokens);
        self.follow(request, now_s);
    }

    /// What comes after a request: the session's next one, or a client's next session.
    fn follow(&mut self, request: u32, now_s: f64) {
        let workload = self.workload;
        if let Some(next) = workload.requests()[request as usize].next {
            let think_s = workload.requests()[next as usize].think_s;
            self.plan(now_s + think_s, What::Arrives { request: next });
        } else if self.options.clients.is_some()
            && let Some(&request) = workload.heads().get(self.next_head)
        {
            self.next_head += 1;
            self.plan(now_s, What::Arrives { request });
        }
    }

    fn tell_complete(&mut self, request: u32, now_s: f64, output_tokens: u32) {
        let asked = &self.workload.requests()[request as usize];
        let run = &self.runs[request as usize];
        self.policy.complete(&Outcome {
            request,
            prompt: self.workload.prompt(asked),
            prompt_tokens: asked.prompt_tokens,
            cached_tokens: run.cached_tokens,
            output_tokens,
            worker: run.worker as usize,
            router: run.router as usize,
            now_s,
        });
    }
}
