//! Request logs with prompts in them: OpenAI's requests as JSON lines, and what vLLM logs with `--enable-log-requests`.
//!
//! Prompts are text, cut into blocks of 64 bytes (16 tokens at 4 bytes each), named by all of the text up to their end. A
//! JSON line is a request body, or has one under `body` or `request`; its time is under `timestamp`, `time`, `ts` or `created`
//! (seconds, or milliseconds if above 10^11), the length of its answer under `usage.completion_tokens` (also below
//! `response` or `response.body`). Without times, requests arrive at the rate of the options.

use serde::Deserialize;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Names, Skipped, Trace};
use crate::des::rng::Rng;
use crate::des::{Segment, Turn, WorkloadBuilder};
use crate::error::Error;

/// Bytes of a block of text, and of a token.
const BLOCK_BYTES: usize = 64;
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

#[derive(Debug, PartialEq)]
struct Row {
    text: String,
    at_s: Option<f64>,
    output_tokens: Option<u32>,
}

/// Reads a log.
///
/// # Errors
/// [`Error::Trace`] if no line can be read.
pub fn request_log(text: &str, options: &LogOptions) -> Result<Trace, Error> {
    let (mut rows, mut skipped) = (Vec::new(), Skipped::default());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if rows.len() >= options.limit.unwrap_or(usize::MAX) {
            break;
        }
        let read = if line.trim_start().starts_with('{') { json_row(line) } else { vllm_row(line) };
        match read {
            Ok(row) => rows.push(row),
            Err(problem) => skipped.add(at + 1, problem),
        }
    }
    let recorded = options.rate_rps.is_none() && rows.iter().all(|row| row.at_s.is_some());
    let first_s = rows.iter().filter_map(|row| row.at_s).fold(f64::INFINITY, f64::min);
    let rate = options.rate_rps.unwrap_or(10.0);
    let (mut rng, mut builder, mut names) = (Rng::new(options.seed, 7), WorkloadBuilder::new(), Names::new());
    let mut drawn_s = 0.0;
    for row in rows {
        drawn_s += rng.exponential(1.0 / rate);
        let at_s = row.at_s.filter(|_| recorded).map_or(drawn_s, |at_s| at_s - first_s);
        let mut before = 0;
        let prompt: Vec<Segment> = (row.text.as_bytes().chunks(BLOCK_BYTES))
            .map(|block| {
                before = xxh3_64_with_seed(block, before);
                let tokens = block.len().div_ceil(TOKEN_BYTES) as u32;
                Segment { id: names.segment(before, &mut builder), tokens }
            })
            .collect();
        let output_tokens = row.output_tokens.unwrap_or(options.output_tokens);
        let turn = Turn { prompt: &prompt, output_tokens, answer: None, group: prompt[0].id };
        builder.begin(at_s, &turn);
    }
    Trace::of(builder, skipped)
}

fn json_row(line: &str) -> Result<Row, String> {
    let row: Value = serde_json::from_str(line).map_err(|problem| problem.to_string())?;
    let body = ["body", "request"].iter().find_map(|key| row.get(key)).unwrap_or(&row);
    // OpenAI's logs may hold the body as a string.
    let parsed;
    let body = match body.as_str() {
        Some(text) => {
            parsed = serde_json::from_str::<Value>(text).map_err(|problem| problem.to_string())?;
            &parsed
        }
        None => body,
    };
    let text = prompt_text(body).ok_or("no messages, prompt or input")?;
    if text.is_empty() {
        return Err("an empty prompt".into());
    }
    let time = ["timestamp", "time", "ts", "created"].iter().find_map(|key| row.get(key)?.as_f64());
    let at_s =
        time.filter(|time| time.is_finite()).map(|time| if time > 1e11 { time / 1000.0 } else { time });
    let answers =
        [Some(&row), row.get("response"), row.get("response").and_then(|answer| answer.get("body"))];
    let counted =
        answers.into_iter().flatten().find_map(|answer| answer.get("usage")?.get("completion_tokens"));
    let asked = || body.get("max_completion_tokens").or_else(|| body.get("max_tokens"));
    let output_tokens = counted.or_else(asked).and_then(Value::as_u64);
    Ok(Row { text, at_s, output_tokens: output_tokens.map(|tokens| tokens.min(1 << 20) as u32) })
}

/// The text of messages, each behind its role, or of a completion's prompt.
fn prompt_text(body: &Value) -> Option<String> {
    let one = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(messages) = body.get("messages").and_then(Value::as_array) {
        let mut text = String::new();
        for message in messages {
            text.push_str(message.get("role").and_then(Value::as_str).unwrap_or("user"));
            text.push('\n');
            match message.get("content") {
                Some(Value::Array(parts)) => {
                    let parts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                    parts.for_each(|part| text.push_str(part));
                }
                Some(content) => text.push_str(content.as_str().unwrap_or_default()),
                None => {}
            }
            text.push('\n');
        }
        return Some(text);
    }
    let prompt = body.get("prompt").or_else(|| body.get("input"))?;
    match prompt {
        Value::Array(prompts) => prompts.first().and_then(one),
        other => one(other),
    }
}

/// `INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: 'text', params: SamplingParams(..., max_tokens=16, ...`
fn vllm_row(line: &str) -> Result<Row, String> {
    let (head, rest) =
        line.split_once(" Received request ").ok_or("neither JSON nor a request that vLLM logged")?;
    let (_, rest) = rest.split_once("prompt: ").ok_or("vLLM logged no prompt")?;
    let quote =
        rest.chars().next().filter(|quote| matches!(quote, '\'' | '"')).ok_or("vLLM logged no prompt")?;
    let (text, params) = rest[1..].rsplit_once(&format!("{quote}, params: ")).ok_or("a cut line")?;
    let after = |key: &str| params.split_once(key).map(|(_, rest)| rest);
    let digits =
        after("max_tokens=").map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(""));
    if text.is_empty() {
        return Err("an empty prompt".into());
    }
    Ok(Row {
        text: text.to_owned(),
        at_s: head.split_whitespace().find_map(clock_s),
        output_tokens: digits.and_then(|digits| digits.parse().ok()),
    })
}

/// Seconds of the day of `12:34:56`.
fn clock_s(word: &str) -> Option<f64> {
    let parts: Vec<f64> = word.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    match parts[..] {
        [hours, minutes, seconds] => Some(hours * 3600.0 + minutes * 60.0 + seconds),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn completions_and_bodies_as_strings_are_read() {
        let row =
            json_row(r#"{"request": "{\"prompt\": [\"abc\"], \"max_tokens\": 5}", "created": 12}"#).unwrap();
        assert_eq!(row, Row { text: "abc".into(), at_s: Some(12.0), output_tokens: Some(5) });
        for bad in ["{}", r#"{"prompt": ""}"#, r#"{"prompt": 5}"#, r#"{"body": "{"}"#] {
            assert!(json_row(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_vllm_logs_is_read() {
        let line = "INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: 'Say \\'hi\\'', params: \
                    SamplingParams(n=1, max_tokens=16, min_tokens=0), prompt_token_ids: None";
        let row = vllm_row(line).unwrap();
        assert_eq!((row.at_s, row.output_tokens, &row.text[..3]), (Some(43_201.0), Some(16), "Say"));
        assert!(vllm_row("INFO: 127.0.0.1 - \"POST /v1/completions HTTP/1.1\" 200 OK").is_err());
    }
}
