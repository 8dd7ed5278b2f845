//! Mooncake's traces: one request a line, prompts as chained ids of 512 tokens.
//!
//! Source of the format: github.com/kvcache-ai/Mooncake, FAST25-release/traces: `timestamp` in ms, `input_length`,
//! `output_length`, `hash_ids`. An id stands for all of the prompt up to its end, the last one for what is left.

use serde::Deserialize;

use super::{Names, Skipped, Trace};
use crate::des::rng::Rng;
use crate::des::workload::MAX_SEGMENT;
use crate::des::workloads::check_rate;
use crate::des::{Segment, Turn, WorkloadBuilder};
use crate::error::Error;

/// Time to the next one that is assumed behind the last batch of requests.
const LAST_BATCH_S: f64 = 3.0;

/// Which part of a trace, and when it arrives.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MooncakeOptions {
    /// Requests to leave out at the start.
    pub skip: usize,
    /// Requests to take; `None` for all.
    pub limit: Option<usize>,
    /// Longer prompts are left out.
    pub max_prompt_tokens: u32,
    /// Requests per second. Gaps are then drawn anew, each half the recorded one and half exponential, so that seeds differ.
    /// `None` for the recorded times, of which those with one stamp are spread evenly up to the next one.
    pub rate_rps: Option<f64>,
    /// Which id of a prompt names its group: all prompts of the conversation trace begin with the same one.
    pub group_at: usize,
    /// Of chance.
    pub seed: u64,
}

impl Default for MooncakeOptions {
    fn default() -> Self {
        Self { skip: 0, limit: None, max_prompt_tokens: 131_072, rate_rps: None, group_at: 1, seed: 1 }
    }
}

#[derive(Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

impl Row {
    fn problem(&self) -> Option<&'static str> {
        let ids = self.hash_ids.len() as u64;
        if self.input_length == 0 || ids == 0 {
            return Some("an empty prompt");
        }
        if !self.timestamp.is_finite() {
            return Some("a time that is no number");
        }
        if u64::from(self.input_length) > ids * u64::from(MAX_SEGMENT)
            || u64::from(self.input_length) <= (ids - 1) * u64::from(MAX_SEGMENT)
        {
            return Some("input_length does not fit hash_ids of 512 tokens");
        }
        None
    }
}

/// Reads a trace.
///
/// # Errors
/// [`Error::Trace`] if no line can be read; [`Error::Config`] for an option out of range.
pub fn mooncake(text: &str, options: &MooncakeOptions) -> Result<Trace, Error> {
    options.rate_rps.map_or(Ok(()), |rate| check_rate("rate_rps", rate))?;
    let (mut rows, mut skipped) = (Vec::new(), Skipped::default());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Row>(line) {
            Ok(row) => match row.problem() {
                None => rows.push(row),
                Some(problem) => skipped.add(at + 1, problem),
            },
            Err(problem) => skipped.add(at + 1, problem.to_string()),
        }
    }
    rows.drain(..options.skip.min(rows.len()));
    let times_s = spread(&rows);
    let (mut builder, mut names) = (WorkloadBuilder::new(), Names::new());
    let (mut rng, mut at_s) = (Rng::new(options.seed, 5), 0.0);
    let kept: Vec<(Row, f64)> = (rows.into_iter().zip(times_s))
        .filter(|(row, _)| row.input_length <= options.max_prompt_tokens)
        .take(options.limit.unwrap_or(usize::MAX))
        .collect();
    let (first_s, last_s) = match (kept.first(), kept.last()) {
        (Some((_, first)), Some((_, last))) => (*first, *last),
        _ => (0.0, 0.0),
    };
    let mean_gap_s = ((last_s - first_s) / kept.len().max(1) as f64).max(1e-9);
    let mut before_s = first_s;
    for (row, recorded_s) in kept {
        at_s = match options.rate_rps {
            None => recorded_s - first_s,
            Some(rate) => {
                let gap = 0.5 * (recorded_s - before_s) / mean_gap_s + 0.5 * rng.exponential(1.0);
                at_s + gap / rate
            }
        };
        before_s = recorded_s;
        let last = row.hash_ids.len() - 1;
        let prompt: Vec<Segment> = (row.hash_ids.iter().enumerate())
            .map(|(place, &id)| Segment {
                id: names.segment(id, &mut builder),
                tokens: if place < last { MAX_SEGMENT } else { row.input_length - MAX_SEGMENT * last as u32 },
            })
            .collect();
        let group = prompt[options.group_at.min(last)].id;
        let turn = Turn { prompt: &prompt, output_tokens: row.output_length, answer: None, group };
        builder.begin(at_s, &turn);
    }
    Trace::of(builder, skipped)
}

/// Times in seconds; those with one stamp spread evenly up to the next one.
fn spread(rows: &[Row]) -> Vec<f64> {
    let mut times = Vec::with_capacity(rows.len());
    for batch in rows.chunk_by(|a, b| a.timestamp == b.timestamp) {
        let from_s = batch[0].timestamp / 1000.0;
        let next = rows.get(times.len() + batch.len());
        let to_s = next.map_or(from_s + LAST_BATCH_S, |row| row.timestamp / 1000.0);
        // A clock that jumps back spreads nothing.
        let width_s = (to_s - from_s).max(0.0);
        times.extend((0..batch.len()).map(|at| from_s + width_s * at as f64 / batch.len() as f64));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
{"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [7, 8]}
{"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [7, 9, 10]}
not json
{"timestamp": 3000, "input_length": 1100, "output_length": 20, "hash_ids": [7]}
{"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [7]}
"#;

    #[test]
    fn ids_become_segments_and_equal_stamps_are_spread() {
        let trace = mooncake(SAMPLE, &MooncakeOptions::default()).unwrap();
        let requests = trace.workload.requests();
        assert_eq!(requests.iter().map(|request| request.at_s).collect::<Vec<_>>(), [0.0, 1.5, 3.0]);
        assert_eq!(
            requests.iter().map(|request| request.prompt_tokens).collect::<Vec<_>>(),
            [1000, 1100, 512]
        );
        let prompts: Vec<_> = requests.iter().map(|request| trace.workload.prompt(request)).collect();
        assert_eq!(prompts[0][0], prompts[1][0]);
        assert_ne!(prompts[0][1].id, prompts[1][1].id);
        assert_eq!(trace.skipped.named.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5]);
    }

    #[test]
    fn a_rate_draws_arrivals_anew() {
        let text: String = (0..1000)
            .map(|at| {
                format!("{{\"timestamp\":{at},\"input_length\":5,\"output_length\":1,\"hash_ids\":[{at}]}}\n")
            })
            .collect();
        let options = MooncakeOptions { rate_rps: Some(50.0), ..MooncakeOptions::default() };
        let last =
            |options: &MooncakeOptions| mooncake(&text, options).unwrap().workload.requests()[999].at_s;
        assert!((last(&options) - 20.0).abs() < 2.0, "{}", last(&options));
        assert_ne!(last(&options), last(&MooncakeOptions { seed: 2, ..options.clone() }));
    }

    #[test]
    fn a_file_without_a_request_is_an_error() {
        assert!(matches!(mooncake("", &MooncakeOptions::default()), Err(Error::Trace { line: 0, .. })));
        assert!(matches!(mooncake("\u{0}\u{1}", &MooncakeOptions::default()), Err(Error::Trace { .. })));
    }
}
