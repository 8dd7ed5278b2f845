//! Request logs with prompts in them ([`crate::log`] reads their lines) as a workload: blocks of 64 bytes are segments.
//!
//! When a chat goes on, its new prompt holds the answer to an earlier one; the worker that generated it has it cached. So a prompt
//! that continues another one has its segments, then the answer as one segment, then the rest in blocks.
//!
//! Times of a log jump as clocks do; [`Clock`] says what becomes of them. Without times, requests arrive at the rate of the options.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use trunkline_core::{BlockHash, BlockHasher};

use super::{Names, Skipped, Trace};
use crate::des::rng::{Rng, mix};
use crate::des::workloads::check_rate;
use crate::des::{Segment, Turn, Workload, WorkloadBuilder};
use crate::error::Error;
use crate::log::{BLOCK_BYTES, Clock, LoggedRequest, NoRequest, Reader};

/// Bytes of a token of text, and of a token id.
const TOKEN_BYTES: usize = 4;

/// How to read what a log leaves open.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogOptions {
    /// Requests per second; `None` for the times of the log.
    pub rate_rps: Option<f64>,
    /// Length of an answer that the log does not tell.
    pub output_tokens: u32,
    /// Requests to take; `None` for all.
    pub limit: Option<usize>,
    /// Of chance.
    pub seed: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { rate_rps: None, output_tokens: 150, limit: None, seed: 1 }
    }
}

/// Makes a workload of logged requests, one by one. Memory: 8 bytes for each block of a prompt, and some 40 for each that is new.
pub(crate) struct LogWorkload {
    options: LogOptions,
    rng: Rng,
    hasher: BlockHasher,
    builder: WorkloadBuilder,
    names: Names<u64>,
    /// Requests by their whole prompt.
    asked: HashMap<u64, u32>,
    /// Blocks of all prompts, and those that were new.
    pub(crate) blocks: usize,
    pub(crate) new_blocks: usize,
    drawn_s: f64,
    /// Whether times are those of the log; the first request decides.
    is_recorded: Option<bool>,
    hashes: Vec<BlockHash>,
    chain: Vec<u64>,
}

impl LogWorkload {
    pub(crate) fn new(options: LogOptions) -> Self {
        Self {
            rng: Rng::new(options.seed, 7),
            hasher: BlockHasher::new(0),
            options,
            builder: WorkloadBuilder::new(),
            names: Names::new(),
            asked: HashMap::new(),
            blocks: 0,
            new_blocks: 0,
            drawn_s: 0.0,
            is_recorded: None,
            hashes: Vec::new(),
            chain: Vec::new(),
        }
    }

    /// Requests so far.
    pub(crate) fn len(&self) -> usize {
        self.builder.len()
    }

    /// Whether requests arrive at the times of the log.
    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded.unwrap_or(false)
    }

    /// Adds a request that arrived at `at_s` of a [`Clock`].
    pub(crate) fn push(&mut self, request: &LoggedRequest, at_s: Option<f64>) {
        let before = self.builder.segment_count();
        let prompt = self.segments(request);
        let answer = self.builder.fresh();
        self.blocks += prompt.len();
        self.new_blocks += (self.builder.segment_count() - before) as usize;
        let is_recorded = *self.is_recorded.get_or_insert(self.options.rate_rps.is_none() && at_s.is_some());
        self.drawn_s += self.rng.exponential(1.0 / self.options.rate_rps.unwrap_or(DEFAULT_RATE_RPS));
        let arrives_s = at_s.filter(|_| is_recorded).unwrap_or(self.drawn_s);
        let output_tokens = request.output_tokens.unwrap_or(self.options.output_tokens);
        let turn = Turn { prompt: &prompt, output_tokens, answer: Some(answer), group: prompt[0].id };
        let number = self.builder.begin(arrives_s, &turn);
        self.asked.insert(self.name_of(request, request.prompt.len()), number);
    }

    /// The prompt: behind an answer that comes back, the segments of the request that it answers, and the answer.
    fn segments(&mut self, request: &LoggedRequest) -> Vec<Segment> {
        let history = request.answer.as_ref().and_then(|answer| {
            let asked = *self.asked.get(&self.name_of(request, answer.start))?;
            Some((asked, answer.clone()))
        });
        let (mut prompt, rest) = match history {
            None => {
                request.chain_into(&self.hasher, &mut self.hashes, &mut self.chain);
                (Vec::with_capacity(self.chain.len() + 1), &request.prompt[..])
            }
            Some((asked, answer)) => {
                let mut prompt = self.builder.prompt(asked).to_vec();
                let tokens = answer.len().div_ceil(TOKEN_BYTES) as u32;
                let answered = self.builder.answered(asked, tokens);
                prompt.extend(answered);
                let rest = &request.prompt[answer.end..];
                let mut name = answered.map_or(0, |answer| mix(u64::from(answer.id)));
                self.chain.clear();
                self.chain.extend(rest.chunks_exact(BLOCK_BYTES).map(|block| {
                    name = mix(name ^ self.hasher.hash(block));
                    name
                }));
                (prompt, rest)
            }
        };
        let whole = (BLOCK_BYTES / TOKEN_BYTES) as u32;
        for &name in &self.chain {
            prompt.push(Segment { id: self.names.segment(name, &mut self.builder), tokens: whole });
        }
        // A part of a block is cached with what is generated behind it, and never else.
        let part = (rest.len() % BLOCK_BYTES).div_ceil(TOKEN_BYTES) as u32;
        if part > 0 {
            prompt.push(Segment { id: self.builder.fresh(), tokens: part });
        }
        prompt
    }

    /// A number for the beginning of a prompt.
    fn name_of(&self, request: &LoggedRequest, bytes: usize) -> u64 {
        let mut root = DefaultHasher::new();
        request.root.hash(&mut root);
        mix(root.finish() ^ self.hasher.hash(&request.prompt[..bytes]))
    }

    /// The workload.
    pub(crate) fn build(self) -> Workload {
        self.builder.build()
    }
}

/// Requests per second of a log without times.
pub(crate) const DEFAULT_RATE_RPS: f64 = 10.0;

/// Reads a log.
///
/// # Errors
/// [`Error::Trace`] if no line can be read; [`Error::Config`] for an option out of range.
pub fn request_log(text: &str, options: &LogOptions) -> Result<Trace, Error> {
    options.rate_rps.map_or(Ok(()), |rate| check_rate("rate_rps", rate))?;
    let (mut reader, mut clock, mut skipped) = (Reader::default(), Clock::default(), Skipped::default());
    let mut workload = LogWorkload::new(options.clone());
    let limit = options.limit.unwrap_or(usize::MAX);
    let mut found = |request: LoggedRequest, workload: &mut LogWorkload| {
        if workload.len() < limit {
            workload.push(&request, clock.at(request.at_s));
        }
    };
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if workload.len() >= limit {
            break;
        }
        match reader.line(line, &mut |request| found(request, &mut workload)) {
            Ok(()) => {}
            Err(NoRequest::Aside) => skipped.add(at + 1, "no request"),
            Err(NoRequest::Broken(problem)) => skipped.add(at + 1, problem),
        }
    }
    reader.end(&mut |request| found(request, &mut workload));
    Trace::of(workload.builder, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_back_is_cached_since_it_was_generated() {
        let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        let mut messages = vec![message("user", &"question ".repeat(50))];
        let mut lines = Vec::new();
        for (time, length) in [(1.0, 40), (2.0, 70), (3.0, 0)] {
            lines.push(serde_json::json!({"timestamp": time, "body": {"messages": messages}}).to_string());
            messages.push(message("assistant", &"answer ".repeat(length)));
            messages.push(message("user", &"more ".repeat(30)));
        }
        let workload = request_log(&lines.join("\n"), &LogOptions::default()).unwrap().workload;
        let [a, b, c] = [0, 1, 2].map(|at| &workload.requests()[at]);
        assert_eq!((a.output_tokens, b.output_tokens, c.output_tokens), (73, 125, 150));
        for (earlier, later) in [(a, b), (b, c)] {
            let (prompt, next) = (workload.prompt(earlier), workload.prompt(later));
            assert_eq!((&next[..prompt.len()], Some(next[prompt.len()].id)), (prompt, earlier.answer));
        }
        let known = a.prompt_tokens + a.output_tokens + b.prompt_tokens + b.output_tokens;
        let all = a.prompt_tokens + b.prompt_tokens + c.prompt_tokens;
        assert!((workload.ideal_hit_rate() - f64::from(known) / f64::from(all)).abs() < 1e-9);
    }

    #[test]
    fn requests_that_begin_alike_share_segments() {
        let system = "You are a helpful assistant. ".repeat(20);
        let line = |time: f64, question: &str| {
            serde_json::json!({"timestamp": time, "body": {"messages": [
                {"role": "system", "content": system}, {"role": "user", "content": question}]},
                "response": {"usage": {"completion_tokens": 7}}})
            .to_string()
        };
        let text = [line(1.7e12, "One?"), "{\"broken".to_owned(), line(1.7e12 + 500.0, "Two?")].join("\n");
        let trace = request_log(&text, &LogOptions::default()).unwrap();
        let requests = trace.workload.requests();
        assert_eq!((requests.len(), trace.skipped.named[0].0), (2, 2));
        assert_eq!((requests[1].at_s, requests[1].output_tokens), (0.5, 7));
        let [a, b] = [0, 1].map(|at| trace.workload.prompt(&requests[at]));
        let shared = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        assert_eq!((shared, a.len()), (9, 10));
    }
}
