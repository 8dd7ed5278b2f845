//! What an analysis found, as one JSON document. Lengths are in tokens.

use serde::Serialize;

use super::advice::{self, Kind};
use super::forecast::Forecast;
use super::reuse::hit_rate;
use super::{ALLOWED_BYTES_PER_TOKEN, Analysis, Totals};
use crate::des::traces::DEFAULT_RATE_RPS;
use crate::log::BLOCK_BYTES;

/// Bytes of a token, where nothing tells. Source: the router's start value.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Findings of advice that are listed.
const MAX_ADVICE: usize = 20;
/// Points of a curve that are listed.
const MAX_POINTS: usize = 120;

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FileFound {
    /// As it was given.
    pub name: String,
    /// Lines read.
    pub lines: u64,
    /// Requests found.
    pub requests: u64,
    /// Lines that should have been requests.
    pub skipped_lines: u64,
    /// Lines that servers log beside requests.
    pub other_lines: u64,
    /// What is wrong with it as a whole, such as a cut gzip stream.
    pub problem: Option<String>,
}

/// A line that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedLine {
    /// Place of its file.
    pub file: usize,
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: String,
}

/// What became of the log's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClockFound {
    /// Steps back of more than a minute and pauses of more than an hour, which were taken out.
    pub jumps: u64,
    /// Requests without a time.
    pub missing: u64,
}

/// A size of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Its tokens.
    pub cache_tokens: u64,
    /// Prompt tokens that it has / prompt tokens.
    pub hit_rate: f64,
}

/// A prefix that prompts share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrefixFound {
    /// The one that it follows, by place.
    pub parent: Option<usize>,
    /// Where it begins.
    pub from_tokens: u64,
    /// Its length.
    pub tokens: u64,
    /// Prompts that have it.
    pub requests: u32,
    /// Tokens that it saves on an endless cache.
    pub saved_tokens: u64,
    /// The same as a share of all prompt tokens.
    pub share: f64,
    /// How it begins; empty if that is not known or not wanted.
    pub text: String,
}

/// A place where prompts diverge too early.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdviceFound {
    /// What differs.
    pub kind: Kind,
    /// Templates that have it, of those sampled.
    pub templates: usize,
    /// Requests that it concerns, estimated.
    pub requests: u64,
    /// Where prompts diverge; the median.
    pub at_tokens: u64,
    /// Length of what differs; the median.
    pub varying_tokens: u64,
    /// Shared text behind it that is computed anew, per request; the mean.
    pub shared_tokens: u64,
    /// Tokens that would be saved on an endless cache, estimated.
    pub saved_tokens: u64,
    /// The same as a share of all prompt tokens: what the hit rate would gain.
    pub share: f64,
    /// What stands before it.
    pub before: String,
    /// What stands there in two requests.
    pub values: [String; 2],
    /// What stands behind it.
    pub after: String,
}

/// What the figures rest on where a log is larger than the memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Coverage {
    /// Share of the blocks that hit rates were computed from.
    pub reuse_rate: f64,
    /// Uses of a prefix that may not be counted.
    pub prefix_missed: u32,
    /// Share of the requests that advice was looked for in.
    pub sample_rate: f64,
    /// Requests that the forecast replays, the first ones.
    pub window_requests: usize,
    /// Whether they arrive at the times of the log.
    pub window_is_recorded: bool,
    /// Requests per second of the forecast, if not.
    pub window_rate_rps: f64,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Findings {
    /// Whether it was ended before all was read.
    pub partial: bool,
    /// Files.
    pub files: Vec<FileFound>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests.
    pub requests: u64,
    /// Their prompts' length.
    pub prompt_tokens: u64,
    /// Bytes of a token of text.
    pub bytes_per_token: f64,
    /// Whether the log has told it.
    pub bytes_per_token_is_measured: bool,
    /// The first lines that were left out.
    pub skipped: Vec<SkippedLine>,
    /// The clock.
    pub clock: ClockFound,
    /// What the figures rest on.
    pub coverage: Coverage,
    /// Hit rate of one endless cache.
    pub ideal_hit_rate: f64,
    /// Hit rates of one cache of any size, ascending.
    pub curve: Vec<CurvePoint>,
    /// Hit rates of one cache of the sizes asked for.
    pub sizes: Vec<CurvePoint>,
    /// Prefixes that save most, each behind what it follows.
    pub prefixes: Vec<PrefixFound>,
    /// Where prompts diverge too early, largest saving first.
    pub advice: Vec<AdviceFound>,
    /// What fleets would do.
    pub forecast: Vec<Forecast>,
}

impl Findings {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts are always JSON")
    }
}

impl Totals {
    /// Bytes of a token, and whether the log has told them. A log that tells what no tokenizer does is not believed.
    fn bytes_per_token(&self, told: Option<f64>) -> (f64, bool) {
        let measured = self.counted_bytes as f64 / self.counted_tokens as f64;
        match told {
            Some(bytes) => (bytes, false),
            None if ALLOWED_BYTES_PER_TOKEN.contains(&measured) => (measured, true),
            None => (BYTES_PER_TOKEN, false),
        }
    }
}

/// Puts together what an analysis knows.
pub(super) fn collect(
    analysis: &Analysis,
    forecast: Vec<Forecast>,
    window_requests: usize,
    window_is_recorded: bool,
) -> Findings {
    let (options, totals) = (&analysis.options, analysis.totals);
    let (bytes_per_token, is_measured) = totals.bytes_per_token(options.bytes_per_token);
    let tokens = |bytes: f64| (bytes / bytes_per_token).round() as u64;
    let of_blocks = |blocks: u64| tokens(blocks as f64 * BLOCK_BYTES as f64);
    let all_bytes = totals.prompt_bytes.max(1) as f64;
    // Hit rates count whole blocks; the rest of a prompt is never cached.
    let whole = (analysis.reuse.blocks() * BLOCK_BYTES as u64) as f64 / all_bytes;
    let curve = analysis.reuse.curve();
    let sizes = options.cache_tokens.iter().map(|&cache_tokens| CurvePoint {
        cache_tokens,
        hit_rate: whole
            * hit_rate(&curve, (cache_tokens as f64 * bytes_per_token) as u64 / BLOCK_BYTES as u64),
    });
    let quoted = |text: &str| if options.text { text.to_owned() } else { String::new() };
    let prefixes = analysis.tree.top(options.top).into_iter().map(|piece| PrefixFound {
        parent: piece.parent,
        from_tokens: of_blocks(u64::from(piece.depth)),
        tokens: of_blocks(u64::from(piece.blocks)),
        requests: piece.count,
        saved_tokens: of_blocks(piece.saved_blocks()),
        share: (piece.saved_blocks() * BLOCK_BYTES as u64) as f64 / all_bytes,
        text: piece.text.map_or(String::new(), |text| quoted(&String::from_utf8_lossy(&text))),
    });
    let found = advice::advice(&analysis.sample, options.advice_from * all_bytes);
    let advice = found.into_iter().take(MAX_ADVICE).map(|advice| AdviceFound {
        kind: advice.kind,
        templates: advice.templates,
        requests: advice.requests.round() as u64,
        at_tokens: tokens(advice.at_bytes as f64),
        varying_tokens: tokens(advice.varying_bytes as f64),
        shared_tokens: tokens(advice.shared_bytes),
        saved_tokens: tokens(advice.saved_bytes),
        share: advice.saved_bytes / all_bytes,
        before: quoted(&advice.example.before),
        values: advice.example.values.each_ref().map(|value| quoted(value)),
        after: quoted(&advice.example.after),
    });
    Findings {
        partial: analysis.is_partial,
        files: analysis.files.clone(),
        read_bytes: analysis.read_bytes,
        requests: totals.requests,
        prompt_tokens: tokens(totals.prompt_bytes as f64),
        bytes_per_token,
        bytes_per_token_is_measured: is_measured,
        skipped: analysis.skipped.clone(),
        clock: ClockFound { jumps: analysis.clock.jumps, missing: analysis.clock.missing },
        coverage: Coverage {
            reuse_rate: analysis.reuse.rate(),
            prefix_missed: analysis.tree.missed(),
            sample_rate: 1.0 / analysis.sample.scale(),
            window_requests,
            window_is_recorded,
            window_rate_rps: options.forecast.rate_rps.unwrap_or(DEFAULT_RATE_RPS),
        },
        ideal_hit_rate: whole * analysis.reuse.endless(),
        curve: thinned(&curve)
            .map(|(blocks, rate)| CurvePoint { cache_tokens: of_blocks(blocks), hit_rate: whole * rate })
            .collect(),
        sizes: sizes.collect(),
        prefixes: prefixes.collect(),
        advice: advice.collect(),
        forecast,
    }
}

/// At most [`MAX_POINTS`] of a curve, those where the hit rate has grown most, and the last one.
fn thinned(curve: &[(u64, f64)]) -> impl Iterator<Item = (u64, f64)> {
    let step = curve.last().map_or(0.0, |&(_, rate)| rate / MAX_POINTS as f64);
    let mut shown = f64::NEG_INFINITY;
    curve.iter().enumerate().filter_map(move |(at, &(size, rate))| {
        let is_shown = rate - shown >= step || at + 1 == curve.len();
        if is_shown {
            shown = rate;
        }
        is_shown.then_some((size, rate))
    })
}
