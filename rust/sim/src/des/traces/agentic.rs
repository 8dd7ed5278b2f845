//! Sessions of coding agents: one session a line, prompts as ranges of ids of 64 tokens.
//!
//! Source of the format: github.com/callanjfox/kv-cache-tester, traces, with `ids` as inclusive ranges. Ids are local to a
//! session; sessions with the same number of tool and system tokens are taken to share that prefix.

use serde::Deserialize;

use super::{Names, Skipped, Trace};
use crate::des::rng::Rng;
use crate::des::workloads::check_rate;
use crate::des::{Segment, Turn, WorkloadBuilder};
use crate::error::Error;

/// Ids that make one segment.
const IDS_PER_SEGMENT: usize = 4;
/// Longest prompt: no model has a context of that length.
const MAX_TOKENS: u128 = 100_000_000;

/// Which sessions, and when they begin.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgenticOptions {
    /// New sessions per second.
    pub sessions_per_s: f64,
    /// Sessions, drawn in any order and again from the start when there are too few; `None` for each once.
    pub sessions: Option<usize>,
    /// A session ends before its first longer prompt.
    pub max_prompt_tokens: u32,
    /// Longest time between an answer and the next request.
    pub max_think_s: f64,
    /// Most requests of a session.
    pub max_turns: usize,
    /// Of chance.
    pub seed: u64,
}

impl Default for AgenticOptions {
    fn default() -> Self {
        Self {
            sessions_per_s: 0.1,
            sessions: None,
            max_prompt_tokens: 65_536,
            max_think_s: 30.0,
            max_turns: 60,
            seed: 1,
        }
    }
}

#[derive(Deserialize)]
struct Session {
    block_size: u32,
    #[serde(default)]
    tool_tokens: Option<u64>,
    #[serde(default)]
    system_tokens: Option<u64>,
    requests: Vec<Row>,
}

impl Session {
    fn problem(&self) -> Option<&'static str> {
        if self.block_size == 0 {
            return Some("block_size is 0");
        }
        let blocks = |row: &Row| {
            row.ids.iter().map(|&(first, last)| (u128::from(last) + 1).saturating_sub(first.into())).sum()
        };
        let longest: u128 = self.requests.iter().map(blocks).max().unwrap_or(0);
        (longest * u128::from(self.block_size) > MAX_TOKENS).then_some("a prompt of more than 100 M tokens")
    }
}

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "in")]
    input: u32,
    out: u32,
    ids: Vec<(u64, u64)>,
    #[serde(default)]
    think_time: Option<f64>,
}

/// Whose ids they are: those of a shared prefix, or a session's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Space {
    Shared(Option<u64>, Option<u64>),
    Own(usize),
}

/// Reads a trace.
///
/// # Errors
/// [`Error::Trace`] if no line can be read; [`Error::Config`] for an option out of range.
pub fn agentic(text: &str, options: &AgenticOptions) -> Result<Trace, Error> {
    check_rate("sessions_per_s", options.sessions_per_s)?;
    Error::unless_within("max_think_s", options.max_think_s, 0.0..=1e9, "0 to 1000000000")?;
    let sessions = options.sessions.unwrap_or(0);
    Error::unless_within("sessions", sessions, 0..=2_000_000, "0 to 2000000")?;
    let (mut sessions, mut skipped) = (Vec::new(), Skipped::default());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Session>(line) {
            Ok(session) => match session.problem() {
                None => sessions.push(session),
                Some(problem) => skipped.add(at + 1, problem),
            },
            Err(problem) => skipped.add(at + 1, problem.to_string()),
        }
    }
    let (mut rng, mut builder, mut names) = (Rng::new(options.seed, 6), WorkloadBuilder::new(), Names::new());
    rng.shuffle(&mut sessions);
    let count = if sessions.is_empty() { 0 } else { options.sessions.unwrap_or(sessions.len()) };
    let mut at_s = 0.0;
    for number in 0..count {
        let session = &sessions[number % sessions.len()];
        at_s += rng.exponential(1.0 / options.sessions_per_s);
        let [tools, system] = [session.tool_tokens, session.system_tokens].map(Option::unwrap_or_default);
        let shared = tools.saturating_add(system) / u64::from(session.block_size);
        let mut last = None;
        for row in session.requests.iter().take(options.max_turns) {
            if row.input > options.max_prompt_tokens {
                break;
            }
            let ids: Vec<u64> = row.ids.iter().flat_map(|&(first, last)| first..=last).collect();
            let mut prompt: Vec<Segment> = Vec::new();
            for (part, ids) in ids.chunks(IDS_PER_SEGMENT).enumerate() {
                let is_shared = ((part + 1) * IDS_PER_SEGMENT) as u64 <= shared
                    && ids.last().is_some_and(|&id| id <= shared);
                let space = if is_shared {
                    Space::Shared(session.tool_tokens, session.system_tokens)
                } else {
                    Space::Own(number)
                };
                let parent = prompt.last().map(|segment| segment.id);
                let id = names.segment((parent, space, ids.to_vec()), &mut builder);
                prompt.push(Segment { id, tokens: session.block_size * ids.len() as u32 });
            }
            let Some(first) = prompt.first() else { continue };
            let turn = Turn { prompt: &prompt, output_tokens: row.out, answer: None, group: first.id };
            let think_s = row.think_time.unwrap_or(0.0).clamp(0.0, options.max_think_s);
            last = Some(match last {
                None => builder.begin(at_s, &turn),
                Some(previous) => builder.follow(previous, think_s, &turn),
            });
        }
    }
    Trace::of(builder, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_their_tools_and_keep_the_rest() {
        let session = r#"{"block_size":64,"tool_tokens":256,"system_tokens":256,"requests":[
            {"in":640,"out":9,"ids":[[1,10]]},{"in":704,"out":9,"ids":[[1,11]],"think_time":99.0}]}"#
            .replace('\n', "");
        let text = format!("{session}\n{{}}\n{session}\n");
        let trace = agentic(&text, &AgenticOptions::default()).unwrap();
        let requests = trace.workload.requests();
        assert_eq!((requests.len(), trace.workload.heads().len(), trace.skipped.lines), (4, 2, 1));
        assert_eq!((requests[1].think_s, requests[1].prompt_tokens), (30.0, 704));
        let [a, b] = [0, 2].map(|at| trace.workload.prompt(&requests[at]));
        assert_eq!((a[0], a[1]), (b[0], b[1]), "8 blocks are tools and system prompt");
        assert_ne!(a[2], b[2]);
        // Ten ids are two and a half segments: the half one is another when it grows.
        let next = trace.workload.prompt(&requests[1]);
        assert_eq!(next[..2], a[..2]);
    }
}
