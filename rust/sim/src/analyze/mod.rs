//! What a log of requests says about prefix-aware routing, in one pass and bounded memory.
//!
//! [`Analysis`] is fed files and asked for [`Findings`] at any time. Each request goes to four parts: the tree of shared prefixes
//! (`prefixes`), reuse distances for hit rates of all cache sizes (`reuse`), a sample of prompts for advice (`sample`, `advice`), and,
//! while there is room, a window of traffic that the simulator replays under different policies ([`crate::des`]). What
//! each part leaves out on a log that is larger than its memory is said in [`Coverage`].

mod advice;
mod findings;
mod forecast;
mod lines;
mod prefixes;
mod reuse;
mod sample;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use trunkline_core::{BlockHash, BlockHasher};

pub use advice::Kind;
pub use findings::{
    AdviceFound, ClockFound, Coverage, CurvePoint, FileFound, Findings, PrefixFound, SkippedLine,
};
pub use forecast::{Forecast, ForecastOptions, PolicyForecast};

use self::lines::{Lines, MAX_LINE_BYTES, Next};
use self::prefixes::PrefixTree;
use self::reuse::ReuseDistances;
use self::sample::Sample;
use crate::des::traces::{LogOptions, LogWorkload};
use crate::error::Error;
use crate::log::{BLOCK_BYTES, Clock, LoggedRequest, NoRequest, Reader};

/// Lines of which the numbers are kept.
const NAMED: usize = 100;
/// Bytes that a block of the tree and one of the reuse distances take, tables that are being enlarged included.
const TREE_BYTES: usize = 100;
const REUSE_BYTES: usize = 130;
/// Bytes of a block of the window: each use, and each new one with its name.
const WINDOW_USE_BYTES: usize = 12;
const WINDOW_NEW_BYTES: usize = 60;

/// Bytes of a token that can be: of the densest languages less than one, of runs of spaces many.
const ALLOWED_BYTES_PER_TOKEN: std::ops::RangeInclusive<f64> = 0.5..=32.0;

/// A map whose keys are hashes already.
pub(crate) type ByName<V> = HashMap<u64, V, BuildHasherDefault<AsIs>>;

/// Takes a number for its hash.
#[derive(Debug, Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("names are numbers");
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}

/// What is wanted of an analysis.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnalyzeOptions {
    /// Bytes that it may use, shared among its parts. 16 MiB to 1 TiB: moments of reuse distances are 32 bits wide.
    pub memory_bytes: usize,
    /// Sizes of a cache, in tokens, of which the hit rate is wanted.
    #[serde(default)]
    pub cache_tokens: Vec<u64>,
    /// Prefixes that are listed.
    #[serde(default = "twenty")]
    pub top: usize,
    /// Whether findings quote prompts.
    #[serde(default = "yes")]
    pub text: bool,
    /// Bytes of a token of text; `None` for what the log tells (`usage.prompt_tokens`), else 4.
    #[serde(default)]
    pub bytes_per_token: Option<f64>,
    /// Of the hit rate, what advice must save to be given: 0.005.
    #[serde(default = "half_a_point")]
    pub advice_from: f64,
    /// Fleets and policies for which the window is replayed.
    pub forecast: ForecastOptions,
}

fn twenty() -> usize {
    20
}

fn yes() -> bool {
    true
}

fn half_a_point() -> f64 {
    0.005
}

impl AnalyzeOptions {
    /// The options that `json` holds.
    ///
    /// # Errors
    /// [`Error::Spec`] names what is wrong; [`Error::Config`] what is out of range.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let options: Self =
            serde_json::from_slice(json).map_err(|problem| Error::Spec(problem.to_string()))?;
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        if !(16 << 20..=1 << 40).contains(&options.memory_bytes) {
            return refuse("memory_bytes", options.memory_bytes.to_string(), "16 MiB to 1 TiB");
        }
        if let Some(bytes) = options.bytes_per_token.filter(|bytes| !ALLOWED_BYTES_PER_TOKEN.contains(bytes))
        {
            return refuse("bytes_per_token", bytes.to_string(), "0.5 to 32");
        }
        options.forecast.check()?;
        Ok(options)
    }
}

/// How far an analysis is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnalyzeProgress {
    /// Bytes read of all files, compressed as they are.
    pub read_bytes: u64,
    /// Requests found.
    pub requests: u64,
    /// Share of the forecasts that is done; 0 while files are read.
    pub forecast: f64,
    /// Whether the file has nothing to read now, so that it may be long until the next look.
    pub waits: bool,
}

/// An analysis under way. Memory: that of its options, and one line. Not thread-safe.
pub struct Analysis {
    options: AnalyzeOptions,
    hasher: BlockHasher,
    hashes: Vec<BlockHash>,
    names: Vec<u64>,
    tree: PrefixTree,
    reuse: ReuseDistances,
    sample: Sample,
    window: LogWorkload,
    window_bytes: usize,
    window_is_full: bool,
    clock: Clock,
    totals: Totals,
    files: Vec<FileFound>,
    skipped: Vec<SkippedLine>,
    read_bytes: u64,
    is_partial: bool,
}

/// Sums over all requests.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    requests: u64,
    prompt_bytes: u64,
    /// Bytes and tokens of the requests whose lengths the log tells.
    counted_bytes: u64,
    counted_tokens: u64,
}

impl Analysis {
    /// An analysis that has read nothing.
    #[must_use]
    pub fn new(options: AnalyzeOptions) -> Self {
        let quarter = options.memory_bytes / 4;
        let log = LogOptions { rate_rps: options.forecast.rate_rps, ..LogOptions::default() };
        Self {
            // A fixed seed, so that runs agree.
            hasher: BlockHasher::new(0),
            hashes: Vec::new(),
            names: Vec::new(),
            tree: PrefixTree::new(quarter / TREE_BYTES),
            reuse: ReuseDistances::new(quarter / REUSE_BYTES),
            // Its chunks take as much again while advice is made.
            sample: Sample::new(quarter / 2),
            window: LogWorkload::new(log),
            window_bytes: quarter,
            window_is_full: false,
            clock: Clock::default(),
            totals: Totals::default(),
            files: Vec::new(),
            skipped: Vec::new(),
            read_bytes: 0,
            is_partial: false,
            options,
        }
    }

    /// Reads a file to its end, or until `watch` breaks: then the findings are partial. It is asked after every line, within
    /// long ones, and whenever a read is interrupted ([`ErrorKind::Interrupted`]), after which the read is repeated.
    pub fn read(
        &mut self,
        name: &str,
        file: impl Read + Send,
        mut watch: impl FnMut(AnalyzeProgress) -> ControlFlow<()>,
    ) {
        let mut found = FileFound { name: name.to_owned(), ..FileFound::default() };
        let before_bytes = self.read_bytes;
        let counter = AtomicU64::new(0);
        let counted = Counted { file, bytes: &counter };
        let requests = self.totals.requests;
        let mut reader = Reader::default();
        let mut lines = Lines::new(counted, MAX_LINE_BYTES);
        let mut goes_on = |analysis: &mut Self, waits: bool| {
            analysis.read_bytes = before_bytes + counter.load(Ordering::Relaxed);
            watch(analysis.progress(waits)).is_continue()
        };
        self.read_lines(&mut lines, &mut reader, &mut found, &mut goes_on);
        drop(lines);
        reader.end(&mut |request| self.request(&request));
        self.read_bytes = before_bytes + counter.into_inner();
        found.requests = self.totals.requests - requests;
        self.files.push(found);
    }

    fn read_lines(
        &mut self,
        lines: &mut Lines<'_>,
        reader: &mut Reader,
        found: &mut FileFound,
        goes_on: &mut dyn FnMut(&mut Self, bool) -> bool,
    ) {
        loop {
            let next = lines.next();
            let waits = next.is_err();
            match next {
                Ok(Next::End) => return,
                Ok(Next::Part) => {}
                Ok(whole) => {
                    found.lines += 1;
                    match whole {
                        Next::TooLong => {
                            self.skip(found, format!("longer than {} MiB", MAX_LINE_BYTES >> 20));
                        }
                        Next::Cut(problem) => {
                            self.skip(found, format!("the file ends here: {problem}"));
                            found.problem = Some(problem);
                        }
                        _ => self.line(&lines.line, reader, found),
                    }
                    lines.clear();
                }
                Err(interrupted) => debug_assert_eq!(interrupted.kind(), ErrorKind::Interrupted),
            }
            if !goes_on(self, waits) {
                self.is_partial = true;
                return;
            }
        }
    }

    fn line(&mut self, line: &[u8], reader: &mut Reader, found: &mut FileFound) {
        let line = String::from_utf8_lossy(line);
        if line.trim().is_empty() {
            return;
        }
        match reader.line(&line, &mut |request| self.request(&request)) {
            Ok(()) => {}
            Err(NoRequest::Aside) => found.other_lines += 1,
            Err(NoRequest::Broken(problem)) => self.skip(found, problem),
        }
    }

    fn skip(&mut self, found: &mut FileFound, problem: String) {
        found.skipped_lines += 1;
        if self.skipped.len() < NAMED {
            self.skipped.push(SkippedLine { file: self.files.len(), line: found.lines, problem });
        }
    }

    fn request(&mut self, request: &LoggedRequest) {
        request.chain_into(&self.hasher, &mut self.hashes, &mut self.names);
        let generated = request.generated(self.tree.request(&self.names, &request.prompt));
        self.sample.request(request, generated.end * BLOCK_BYTES);
        self.reuse.request(&self.names, generated);
        let at_s = self.clock.at(request.at_s);
        if !self.window_is_full {
            self.window.push(request, at_s);
            let used = self.window.blocks * WINDOW_USE_BYTES + self.window.new_blocks * WINDOW_NEW_BYTES;
            self.window_is_full =
                used >= self.window_bytes || self.window.len() >= self.options.forecast.requests;
        }
        let totals = &mut self.totals;
        totals.requests += 1;
        totals.prompt_bytes += request.prompt.len() as u64;
        if let Some(tokens) = request.prompt_tokens.filter(|_| !request.is_tokens) {
            totals.counted_bytes += request.prompt.len() as u64;
            totals.counted_tokens = totals.counted_tokens.saturating_add(tokens);
        }
    }

    fn progress(&self, waits: bool) -> AnalyzeProgress {
        AnalyzeProgress { read_bytes: self.read_bytes, requests: self.totals.requests, forecast: 0.0, waits }
    }

    /// What was found. `watch` may end the forecasts early, too.
    ///
    /// # Errors
    /// [`Error::Trace`] if no request was found.
    pub fn finish(
        mut self,
        watch: impl FnMut(AnalyzeProgress) -> ControlFlow<()>,
    ) -> Result<Findings, Error> {
        if self.totals.requests == 0 {
            return Err(Error::Trace { line: 0, problem: self.why_nothing() });
        }
        let window = std::mem::replace(&mut self.window, LogWorkload::new(LogOptions::default()));
        let (window_requests, is_recorded) = (window.len(), window.is_recorded());
        let progress = self.progress(false);
        let (forecast, ended) = forecast::forecast(&window.build(), &self.options.forecast, progress, watch)?;
        self.is_partial |= ended;
        Ok(findings::collect(&self, forecast, window_requests, is_recorded))
    }

    fn why_nothing(&self) -> String {
        let lines: u64 = self.files.iter().map(|file| file.lines).sum();
        let aside: u64 = self.files.iter().map(|file| file.other_lines).sum();
        match self.skipped.first() {
            _ if lines == 0 => "it is empty".to_owned(),
            Some(SkippedLine { line, problem, .. }) => {
                format!("no request can be read; line {line}: {problem}")
            }
            None if aside > 0 => format!(
                "{aside} lines of a server's log, but no request: vLLM logs prompts with --enable-log-requests at log level DEBUG"
            ),
            None => "it holds empty lines only".to_owned(),
        }
    }
}

/// Counts what is read of a file.
struct Counted<'a, R> {
    file: R,
    bytes: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
