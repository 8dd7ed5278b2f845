//! The window of a log, replayed by the simulator: the real router before a model of the workers, under several policies.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::AnalyzeProgress;
use crate::des::policies::{self, PolicyOptions};
use crate::des::{Options, Profile, Report, Simulation, Times, Workload};
use crate::error::Error;

/// Fleets and policies to replay for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastOptions {
    /// Sizes of the fleet; none for no forecast.
    pub workers: Vec<usize>,
    /// Policies that [`policies::named`] knows.
    pub policies: Vec<String>,
    /// One worker.
    pub profile: Profile,
    /// Requests per second, drawn anew; `None` for the times of the log, or 10 if it has none.
    #[serde(default)]
    pub rate_rps: Option<f64>,
    /// Most requests to replay, the first ones of the log.
    pub requests: usize,
    /// Runs of each, with different chance.
    pub seeds: u64,
}

impl ForecastOptions {
    pub(super) fn check(&self) -> Result<(), Error> {
        self.profile.check()?;
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        if let Some(rate) = self.rate_rps.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return refuse("rate_rps", rate.to_string(), "above 0");
        }
        if self.seeds == 0 {
            return refuse("seeds", "0".into(), "at least 1");
        }
        let told = PolicyOptions::one_router(&self.profile, &Workload::default(), 0);
        for &workers in &self.workers {
            Options { workers, ..Options::default() }.check()?;
            self.policies.iter().try_for_each(|name| policies::named(name, workers, &told).map(drop))?;
        }
        Ok(())
    }
}

/// What a fleet of one size would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Its size.
    pub workers: usize,
    /// Under each policy.
    pub policies: Vec<PolicyForecast>,
}

/// Means over the runs of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyForecast {
    /// Its name.
    pub policy: String,
    /// Runs that were finished.
    pub runs: u64,
    /// Prompt tokens that caches had / prompt tokens.
    pub hit_rate: f64,
    /// Time to first token in seconds.
    pub ttft_s: Times,
    /// Most requests of a worker / mean of them.
    pub busiest_over_mean: f64,
    /// Requests that are longer than a worker's cache.
    pub refused: usize,
    /// Hit rate over the time of the run: seconds since its start, hit rate; of the first run.
    pub timeline: Vec<(f64, f64)>,
}

/// Replays the window for each fleet and policy. The second value tells whether `watch` ended it early; runs that were not
/// finished do not count.
pub(super) fn forecast(
    workload: &Workload,
    options: &ForecastOptions,
    progress: AnalyzeProgress,
    mut watch: impl FnMut(AnalyzeProgress) -> ControlFlow<()>,
) -> Result<(Vec<Forecast>, bool), Error> {
    let runs = (options.workers.len() * options.policies.len()) as f64 * options.seeds as f64;
    let (mut done, mut ended, mut found) = (0.0, false, Vec::new());
    for &workers in &options.workers {
        let mut forecast = Forecast { workers, policies: Vec::new() };
        for policy in &options.policies {
            let mut reports = Vec::new();
            for seed in 0..options.seeds {
                let fleet = Options { workers, ..Options::default() };
                let rule = policies::named(
                    policy,
                    workers,
                    &PolicyOptions::one_router(&options.profile, workload, seed),
                )?;
                let mut simulation = Simulation::new(workload, options.profile, fleet, rule)?;
                simulation.run(|at| {
                    let part = at.answered as f64 / at.requests.max(1) as f64;
                    let flow = watch(AnalyzeProgress { forecast: (done + part) / runs, ..progress });
                    ended |= flow.is_break();
                    flow
                });
                if ended {
                    break;
                }
                done += 1.0;
                reports.push(Report::of(&simulation, 0.0));
            }
            forecast.policies.extend(mean(policy, &reports));
            if ended {
                break;
            }
        }
        if !forecast.policies.is_empty() {
            found.push(forecast);
        }
        if ended {
            break;
        }
    }
    Ok((found, ended))
}

fn mean(policy: &str, reports: &[Report]) -> Option<PolicyForecast> {
    let first = reports.first()?;
    let of = |figure: fn(&Report) -> f64| reports.iter().map(figure).sum::<f64>() / reports.len() as f64;
    Some(PolicyForecast {
        policy: policy.to_owned(),
        runs: reports.len() as u64,
        hit_rate: of(|report| report.hit_rate),
        ttft_s: Times {
            p50: of(|report| report.ttft_s.p50),
            p90: of(|report| report.ttft_s.p90),
            p99: of(|report| report.ttft_s.p99),
            mean: of(|report| report.ttft_s.mean),
        },
        busiest_over_mean: of(|report| report.busiest_over_mean),
        refused: first.refused,
        timeline: first.timeline.iter().map(|bin| (bin.at_s, bin.hit_rate)).collect(),
    })
}
