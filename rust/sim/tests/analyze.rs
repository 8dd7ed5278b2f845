//! Whole analyses: of what planners have, of what is broken, and of more than the memory holds.

use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use trunkline_sim::analyze::{Analysis, AnalyzeOptions, Findings, Kind};
use trunkline_sim::des::{Profile, Rng};

fn options(memory_bytes: usize, changes: &Value) -> AnalyzeOptions {
    let profile: Value = serde_json::from_str(&Profile::all_json()[0].1).expect("profiles are JSON");
    let mut forecast = json!({"workers": [], "policies": ["random", "kv_aware"], "profile": profile, "requests": 10_000, "seeds": 1});
    let mut options = json!({"memory_bytes": memory_bytes, "cache_tokens": [10_000, 1_000_000]});
    for (key, value) in changes.as_object().expect("an object") {
        let into = if key == "workers" || key == "rate_rps" { &mut forecast } else { &mut options };
        into[key] = value.clone();
    }
    options["forecast"] = forecast;
    AnalyzeOptions::parse(options.to_string().as_bytes()).expect("options in range")
}

fn analyze(files: &[(&str, &[u8])], changes: &Value) -> Result<Findings, String> {
    let mut analysis = Analysis::new(options(64 << 20, changes));
    for (name, bytes) in files {
        analysis.read(name, *bytes, |_| ControlFlow::Continue(()));
    }
    analysis.finish(|_| ControlFlow::Continue(())).map_err(|problem| problem.to_string())
}

/// Words of `bytes` bytes, of chance.
fn words(rng: &mut Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 12);
    while text.len() < bytes {
        let letters = 3 + rng.below(7);
        text.extend((0..letters).map(|_| char::from(b'a' + rng.below(26) as u8)));
        text.push(' ');
    }
    text
}

/// A line: one of `tenants` system prompts of 2,000 bytes, a question of 400.
fn line(number: u64, tenants: u64) -> String {
    let tenant = Rng::new(number, 3).below(tenants as usize) as u64;
    let system = words(&mut Rng::new(tenant, 1), 2000);
    let question = words(&mut Rng::new(number, 2), 400);
    let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": question}]);
    json!({"timestamp": 1_700_000_000.0 + number as f64 / 20.0, "body": {"model": "m", "messages": messages, "max_tokens": 20}})
        .to_string()
}

fn log(count: u64, tenants: u64) -> String {
    (0..count).map(|number| line(number, tenants) + "\n").collect()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

#[test]
fn a_log_tells_what_it_shares_and_what_a_fleet_would_do() {
    let text = log(600, 60);
    let found = analyze(&[("log", text.as_bytes())], &json!({"workers": [4]})).unwrap();
    assert_eq!((found.requests, found.files[0].skipped_lines, found.partial), (600, 0, false));
    // 540 of 600 requests find 31 of 38 blocks.
    assert!((found.ideal_hit_rate - 0.9 * 31.0 / 37.8).abs() < 0.03, "{}", found.ideal_hit_rate);
    assert!(found.curve.windows(2).all(|pair| pair[0].hit_rate <= pair[1].hit_rate + 1e-9));
    assert!(found.sizes[0].hit_rate < 0.6 * found.sizes[1].hit_rate, "{:?}", found.sizes);
    assert!((found.sizes[1].hit_rate - found.ideal_hit_rate).abs() < 1e-9);
    assert!(found.prefixes.iter().all(|prefix| prefix.text.starts_with("system")), "{:?}", found.prefixes);
    assert!(found.advice.is_empty(), "{:?}", found.advice);
    let [random, aware] = &found.forecast[0].policies[..] else { panic!("{:?}", found.forecast) };
    assert!(
        random.hit_rate + 0.1 < aware.hit_rate && aware.hit_rate <= found.ideal_hit_rate + 1e-9,
        "{random:?} {aware:?}"
    );
    assert_eq!((found.coverage.window_requests, found.coverage.window_is_recorded), (600, true));
}

#[test]
fn text_can_be_left_out_of_the_findings() {
    let lines: String = (0..200)
        .map(|number| {
            let (head, shared) = (words(&mut Rng::new(2, 1), 80), words(&mut Rng::new(1, 1), 3000));
            json!({"prompt": format!("{head} It is {:02}:{:02}. {shared}", number / 60, number % 60)})
                .to_string()
                + "\n"
        })
        .collect();
    let quoting = analyze(&[("log", lines.as_bytes())], &json!({})).unwrap();
    assert!(quoting.advice[0].before.contains("It is") && !quoting.prefixes[0].text.is_empty());
    let silent = analyze(&[("log", lines.as_bytes())], &json!({"text": false})).unwrap();
    assert_eq!(silent.advice[0].kind, quoting.advice[0].kind);
    assert!(!String::from_utf8(silent.to_json()).unwrap().contains("It is"));
}

#[test]
fn broken_input_is_counted_and_named_and_the_run_goes_on() {
    let good = line(1, 5);
    let vllm = "INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: 'Say hi', params: SamplingParams(n=1)";
    let access = "INFO:     127.0.0.1:5000 - \"POST /v1/completions HTTP/1.1\" 200 OK";
    let mut mixed = [good.as_str(), "{\"broken\": ", vllm, access, "{\"model\": \"m\"}", "", "\u{1}\u{2}"]
        .join("\n")
        .into_bytes();
    mixed.extend_from_slice(b"\n\xff\xfe\x00\n");
    mixed.extend_from_slice(good.as_bytes());
    let whole = gzip(log(300, 5).as_bytes());
    let files: [(&str, &[u8]); 3] =
        [("mixed", &mixed), ("cut.gz", &whole[..whole.len() / 2]), ("empty", b"")];
    let found = analyze(&files, &json!({})).unwrap();
    let [mixed, cut, empty] = &found.files[..] else { panic!("{:?}", found.files) };
    assert_eq!((mixed.requests, mixed.skipped_lines, mixed.other_lines), (3, 4, 1));
    let named: Vec<_> = found.skipped.iter().filter(|line| line.file == 0).map(|line| line.line).collect();
    assert_eq!(named, [2, 5, 7, 8]);
    assert!(cut.requests > 20 && cut.requests < 300 && cut.problem.is_some(), "{cut:?}");
    assert_eq!(found.skipped.last().unwrap().line, cut.lines);
    assert_eq!((empty.lines, empty.requests), (0, 0));
}

#[test]
fn lengths_that_no_tokenizer_gives_are_not_believed() {
    for tokens in [0, 1, u64::MAX] {
        let text = json!({"prompt": "x".repeat(200), "usage": {"prompt_tokens": tokens}}).to_string() + "\n";
        let found = analyze(&[("log", text.repeat(2).as_bytes())], &json!({})).unwrap();
        assert_eq!((found.bytes_per_token, found.bytes_per_token_is_measured), (4.0, false), "{tokens}");
        assert_eq!(found.prompt_tokens, 100);
    }
}

#[test]
fn what_gives_nothing_says_why() {
    let access = "INFO:     127.0.0.1:5000 - \"POST /v1/completions HTTP/1.1\" 200 OK\n".repeat(3);
    let binary: Vec<u8> = (0..20_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (bytes, why) in [
        (&b""[..], "it is empty"),
        (b"\n\n", "empty lines"),
        (access.as_bytes(), "--enable-log-requests"),
        (&binary, "no request can be read; line 1"),
        (b"\x1f\x8b\x08garbage", "no request can be read; line 1"),
        (b"{\"hash_ids\": [1]}\n", "no messages, prompt or input"),
    ] {
        let refused = analyze(&[("log", bytes)], &json!({})).unwrap_err();
        assert!(!refused.contains("line 0"), "{refused}");
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn a_clock_that_jumps_stretches_no_forecast() {
    let mut lines: Vec<String> = (0..200).map(|number| line(number, 10)).collect();
    for (at, line) in lines.iter_mut().enumerate().skip(100) {
        // A clock that was wrong by years for a while, and a line without a time.
        let wrong = 1_000_000_000.0 + at as f64 / 20.0;
        *line = line.replace(&format!("{}", 1_700_000_000.0 + at as f64 / 20.0), &format!("{wrong}"));
    }
    lines[150] = lines[150].replace("timestamp", "other");
    let found = analyze(&[("log", lines.join("\n").as_bytes())], &json!({"workers": [2]})).unwrap();
    assert_eq!((found.clock.jumps, found.clock.missing), (1, 1));
    let timeline = &found.forecast[0].policies[0].timeline;
    assert!(timeline.last().unwrap().0 < 30.0, "{timeline:?}");
}

#[test]
fn whoever_watches_may_end_it_and_gets_what_was_read() {
    let text = log(1000, 10);
    let mut analysis = Analysis::new(options(64 << 20, &json!({"workers": [2]})));
    let mut looks = 0;
    analysis.read("log", text.as_bytes(), |at| {
        looks += 1;
        if at.requests >= 256 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let found = analysis.finish(|_| ControlFlow::Break(())).unwrap();
    assert!(found.partial && looks > 2);
    assert_eq!(found.requests, 256);
}

/// Lines made as they are read, with a signal now and then.
struct Endless {
    numbers: std::ops::Range<u64>,
    tenants: u64,
    rest: Vec<u8>,
    reads: u64,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(7) {
            return Err(ErrorKind::Interrupted.into());
        }
        if self.rest.is_empty() {
            let Some(number) = self.numbers.next() else { return Ok(0) };
            self.rest = (line(number, self.tenants) + "\n").into_bytes();
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

#[test]
fn a_log_larger_than_the_memory_gives_the_same_figures_from_a_part() {
    // 9,000 requests in 23 MB of text have 70,000 different blocks; 16 MiB follow 32,000 of them.
    let requests = 9_000;
    let read = |memory_bytes| {
        let mut analysis = Analysis::new(options(memory_bytes, &json!({"cache_tokens": [20_000, 50_000]})));
        let endless = Endless { numbers: 0..requests, tenants: 400, rest: Vec::new(), reads: 0 };
        analysis.read("-", endless, |_| ControlFlow::Continue(()));
        analysis.finish(|_| ControlFlow::Continue(())).unwrap()
    };
    let (small, large) = (read(16 << 20), read(256 << 20));
    assert_eq!((small.requests, large.requests), (requests, requests));
    assert_eq!(
        (large.coverage.reuse_rate, large.coverage.prefix_missed, large.coverage.sample_rate),
        (1.0, 0, 1.0)
    );
    let part = small.coverage;
    assert!(part.reuse_rate < 0.6 && part.prefix_missed > 0 && part.sample_rate < 0.2, "{part:?}");
    assert!((part.window_requests as u64) < requests);
    assert!(
        (small.ideal_hit_rate - large.ideal_hit_rate).abs() < 0.02,
        "{} {}",
        small.ideal_hit_rate,
        large.ideal_hit_rate
    );
    for (small, large) in small.sizes.iter().zip(&large.sizes) {
        assert!((small.hit_rate - large.hit_rate).abs() < 0.03, "{small:?} {large:?}");
    }
    assert!((small.prefixes[0].share / large.prefixes[0].share - 1.0).abs() < 0.1);
    assert!(small.advice.is_empty() && large.advice.is_empty());
}

#[test]
fn advice_names_what_differs() {
    let lines: String = (0..150u64)
        .map(|number| {
            let shared = words(&mut Rng::new(3, 1), 4000);
            let system = format!("Today is 2026-11-{:02}, {:02}:{:02}.\n{shared}", 1 + number / 40, number % 24, number % 60);
            json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": line(number, 1)}]}).to_string()
                + "\n"
        })
        .collect();
    let found = analyze(&[("log", lines.as_bytes())], &json!({})).unwrap();
    let first = &found.advice[0];
    assert_eq!(first.kind, Kind::Timestamp);
    assert!(first.share > 0.3 && first.shared_tokens > 900, "{first:?}");
}
