//! Analyses the log on standard input and prints its findings as JSON; what it cost goes to standard error.
//!
//! ```console
//! cargo run --release -p trunkline-sim --example analyze -- 256 < requests.jsonl > findings.json
//! ```
//!
//! The argument is the memory in MiB.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use trunkline_sim::analyze::{Analysis, AnalyzeOptions, ForecastOptions};
use trunkline_sim::des::Profile;

fn main() -> Result<(), Box<dyn Error>> {
    let memory_mib: usize = std::env::args().nth(1).as_deref().unwrap_or("256").parse()?;
    let forecast = ForecastOptions {
        workers: vec![8],
        policies: vec!["random".into(), "kv_aware".into()],
        profile: Profile::default(),
        rate_rps: None,
        requests: 50_000,
        seeds: 1,
    };
    let options = AnalyzeOptions {
        memory_bytes: memory_mib << 20,
        cache_tokens: vec![1_000_000],
        top: 20,
        text: true,
        bytes_per_token: None,
        advice_from: 0.005,
        forecast,
    };
    let started = Instant::now();
    let (mut read_bytes, mut requests) = (0, 0);
    let mut analysis = Analysis::new(options);
    analysis.read("-", std::io::stdin(), |at| {
        (read_bytes, requests) = (at.read_bytes, at.requests);
        ControlFlow::Continue(())
    });
    let read_s = started.elapsed().as_secs_f64();
    let found = analysis.finish(|_| ControlFlow::Continue(()))?;
    let megabytes = read_bytes as f64 / 1e6;
    eprintln!("{requests} requests, {megabytes:.0} MB in {read_s:.1} s: {:.0} MB/s", megabytes / read_s);
    eprintln!("advice and forecast in {:.1} s", started.elapsed().as_secs_f64() - read_s);
    println!("{}", String::from_utf8(found.to_json())?);
    Ok(())
}
