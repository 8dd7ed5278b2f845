//! One worker: continuous batching with chunked prefill over a prefix cache, advanced by events.
//!
//! A step gives every decoding sequence one token of the budget, then goes on with the prompts under way, then admits
//! waiting ones in order of arrival while there are fewer than `max_sequences` and their KV fits. The first that does not fit
//! holds back the rest, as in vLLM. Steps in which nobody prefills are leapt over in closed form until the next answer ends or
//! the next request arrives. What a prompt computes counts as cached from its admission on (prompts are computed in order, so
//! whoever comes later finds it computed).

mod memory;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use super::cache::Tier;
use super::fleet::WorkerStatus;
use super::policy::CacheChange;
use super::profile::Profile;
use super::run::Run;
use super::workload::Workload;
use crate::step::StepWork;

/// Decode steps that are leapt over while a request waits that did not fit.
const STEPS_WHILE_WAITING: u64 = 8;

/// What a worker reads and writes of the simulation.
pub(crate) struct Scene<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) profile: &'a Profile,
    pub(crate) runs: &'a mut [Run],
}

/// What became of a request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progressed {
    FirstToken(u32),
    Finished(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// One step with prefill.
    Mixed,
    /// Steps of pure decode.
    Decode,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) speed: f64,
    cache: Tier,
    host: Option<Tier>,
    /// Blocks kept for answers.
    reserved_blocks: u64,
    waiting: VecDeque<u32>,
    prefilling: VecDeque<u32>,
    /// Decoding sequences by the step of their last token.
    decoding: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Sum of their contexts, and of their answers so far, in tokens.
    context_tokens: u64,
    answer_tokens: u64,
    step: u64,
    state: State,
    /// Which of the events of this worker counts.
    pub(crate) version: u32,
    started_s: f64,
    steps: u64,
    duration_s: f64,
    plan: Vec<(u32, u32)>,
    order: u64,
    /// When it computed, one span from idle to idle.
    busy: Vec<Range<f64>>,
    pub(crate) evicted_blocks: u64,
    pub(crate) preemptions: u64,
    /// What changed in the cache, if somebody wants to know.
    pub(crate) changes: Option<Vec<CacheChange>>,
}

impl Worker {
    pub(crate) fn new(workload: &Workload, profile: &Profile, speed: f64, watched: bool) -> Self {
        let segments = workload.segment_count();
        Self {
            speed,
            cache: Tier::new(segments),
            host: (profile.host_blocks() > 0).then(|| Tier::new(segments)),
            reserved_blocks: 0,
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            decoding: BinaryHeap::new(),
            context_tokens: 0,
            answer_tokens: 0,
            step: 0,
            state: State::Idle,
            version: 0,
            started_s: 0.0,
            steps: 0,
            duration_s: 0.0,
            plan: Vec::new(),
            order: 0,
            busy: Vec::new(),
            evicted_blocks: 0,
            preemptions: 0,
            changes: watched.then(Vec::new),
        }
    }

    pub(crate) fn status(&self, profile: &Profile) -> WorkerStatus {
        let held = self.cache.pinned_blocks() + self.reserved_blocks;
        WorkerStatus {
            running: (self.decoding.len() + self.prefilling.len()) as u32,
            waiting: self.waiting.len() as u32,
            kv_use: held as f64 / profile.kv_blocks() as f64,
            used_blocks: self.used_blocks(),
        }
    }

    /// Time within `window_s` in which it computed.
    pub(crate) fn busy_s(&self, window_s: &Range<f64>) -> f64 {
        let within = |span: &Range<f64>| span.end.min(window_s.end) - span.start.max(window_s.start);
        self.busy.iter().map(|span| within(span).max(0.0)).sum()
    }

    /// Blocks that are taken: cached ones and those kept for answers.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.cache.blocks() + self.reserved_blocks
    }

    /// Dies: what is cached and in flight is gone. Returns the requests that were in flight.
    pub(crate) fn lose(&mut self) -> Vec<u32> {
        let mut lost: Vec<u32> = self.waiting.drain(..).chain(self.prefilling.drain(..)).collect();
        let decoding = std::mem::take(&mut self.decoding).into_sorted_vec();
        lost.extend(decoding.into_iter().rev().map(|Reverse((_, _, request))| request));
        self.clear_cache();
        (self.reserved_blocks, self.context_tokens, self.answer_tokens) = (0, 0, 0);
        self.state = State::Idle;
        self.plan.clear();
        self.version += 1;
        lost
    }

    /// Empties the cache of a worker that has nothing in flight.
    pub(crate) fn clear_cache(&mut self) {
        self.cache.clear();
        if let Some(host) = &mut self.host {
            host.clear();
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Queues a request. Returns when the step under way ends, if that has changed.
    pub(crate) fn enqueue(&mut self, request: u32, now_s: f64, scene: &mut Scene<'_>) -> Option<f64> {
        self.waiting.push_back(request);
        match self.state {
            State::Idle => self.start_step(now_s, scene),
            State::Decode if self.steps > 1 => {
                // The leap ends with the step under way, so that the request is looked at.
                let each = self.duration_s / self.steps as f64;
                let steps = (((now_s - self.started_s) / each) as u64 + 1).max(1);
                if steps >= self.steps {
                    return None;
                }
                self.duration_s *= steps as f64 / self.steps as f64;
                self.steps = steps;
                self.version += 1;
                Some(self.started_s + self.duration_s)
            }
            _ => None,
        }
    }

    /// Plans the next step or leap. Returns when it ends; `None` if there is nothing to do.
    pub(crate) fn start_step(&mut self, now_s: f64, scene: &mut Scene<'_>) -> Option<f64> {
        if scene.profile.preemption {
            self.make_room(scene);
        }
        let decoding = self.decoding.len() as u32;
        let mut budget = scene.profile.step_token_budget.saturating_sub(decoding);
        let mut work = StepWork { decoding, context_tokens: self.context_tokens, ..StepWork::default() };
        self.plan.clear();
        let mut at = 0;
        while budget > 0 {
            if at == self.prefilling.len() && !self.admit_next(scene) {
                break;
            }
            let request = self.prefilling[at];
            let run = &scene.runs[request as usize];
            let tokens = run.remaining.min(budget);
            work.prefill_tokens += tokens;
            work.attention_pairs += f64::from(tokens) * (f64::from(run.position) + 0.5 * f64::from(tokens));
            budget -= tokens;
            self.plan.push((request, tokens));
            at += 1;
        }
        let model = &scene.profile.step;
        if work.prefill_tokens > 0 {
            (self.state, self.steps) = (State::Mixed, 1);
            self.duration_s = model.duration_s(&work);
        } else if decoding > 0 {
            self.state = State::Decode;
            self.steps = self.leap(scene.profile);
            if scene.profile.preemption {
                self.reserve(self.steps, scene);
                self.evict(self.used_blocks().saturating_sub(scene.profile.kv_blocks()), scene.profile);
            }
            let (steps, each) =
                (self.steps as f64, model.step_s + model.per_sequence_s * f64::from(decoding));
            let growth = f64::from(decoding) * steps * (steps - 1.0) * 0.5;
            self.duration_s =
                steps * each + model.per_kv_token_s * (steps * self.context_tokens as f64 + growth);
        } else {
            self.state = State::Idle;
            return None;
        }
        self.duration_s /= self.speed;
        self.started_s = now_s;
        self.version += 1;
        Some(now_s + self.duration_s)
    }

    /// Decode steps until something may change.
    fn leap(&self, profile: &Profile) -> u64 {
        let first = self.decoding.peek().map_or(self.step + 1, |&Reverse((step, ..))| step);
        let mut steps = first - self.step;
        if !self.waiting.is_empty() {
            steps = steps.min(STEPS_WHILE_WAITING);
        }
        if profile.preemption {
            let room = profile.kv_blocks().saturating_sub(self.cache.pinned_blocks());
            while steps > 1 && self.growing_blocks(steps) > room {
                steps /= 2;
            }
        }
        steps
    }

    fn admit_next(&mut self, scene: &mut Scene<'_>) -> bool {
        if self.decoding.len() + self.prefilling.len() >= scene.profile.max_sequences as usize {
            return false;
        }
        let Some(&request) = self.waiting.front() else { return false };
        if !self.admit(request, scene) {
            return false;
        }
        self.waiting.pop_front();
        self.prefilling.push_back(request);
        true
    }

    /// Ends the step under way. `progressed` learns whose first token and whose last one it made.
    pub(crate) fn end_step(&mut self, now_s: f64, scene: &mut Scene<'_>, progressed: &mut Vec<Progressed>) {
        match self.busy.last_mut() {
            Some(span) if span.end == self.started_s => span.end = now_s,
            _ => self.busy.push(self.started_s..now_s),
        }
        let decoding = self.decoding.len() as u64;
        self.step += self.steps;
        self.context_tokens += decoding * self.steps;
        self.answer_tokens += decoding * self.steps;
        while let Some(&Reverse((step, _, request))) = self.decoding.peek()
            && step <= self.step
        {
            self.decoding.pop();
            let asked = &scene.workload.requests()[request as usize];
            self.context_tokens -= u64::from(asked.prompt_tokens) + u64::from(asked.output_tokens);
            self.answer_tokens -= u64::from(asked.output_tokens);
            self.finish(request, scene, progressed);
        }
        for &(request, tokens) in &self.plan {
            let run = &mut scene.runs[request as usize];
            run.remaining -= tokens;
            run.position += tokens;
        }
        self.plan.clear();
        while let Some(&request) = self.prefilling.front()
            && scene.runs[request as usize].remaining == 0
        {
            self.prefilling.pop_front();
            let asked = &scene.workload.requests()[request as usize];
            let run = &mut scene.runs[request as usize];
            if run.generated == 0 {
                progressed.push(Progressed::FirstToken(request));
            }
            run.generated += 1;
            let generated = run.generated;
            if generated >= asked.output_tokens {
                self.finish(request, scene, progressed);
                continue;
            }
            if scene.profile.preemption {
                // From here on its room grows with the others'.
                self.reserved_blocks -= u64::from(std::mem::take(&mut run.reserved_blocks));
            }
            self.context_tokens += u64::from(asked.prompt_tokens) + u64::from(generated);
            self.answer_tokens += u64::from(generated);
            self.order += 1;
            let last = self.step + u64::from(asked.output_tokens - generated);
            self.decoding.push(Reverse((last, self.order, request)));
        }
    }

    fn finish(&mut self, request: u32, scene: &Scene<'_>, progressed: &mut Vec<Progressed>) {
        self.release(request, scene, true);
        progressed.push(Progressed::Finished(request));
    }
}
