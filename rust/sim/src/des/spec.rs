//! A simulation described by one JSON document, and its figures as another: what the Python package talks in.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::placement::{Moves, Window, Windowed, moves, windowed};
use super::policies::{self, PolicyOptions};
use super::traces::{
    AgenticOptions, LogOptions, MooncakeOptions, Skipped, Trace, agentic, mooncake, request_log,
};
use super::workloads::{AgentLoops, Bursts, Chatbot, SharedPrefixes};
use super::{Options, Profile, Progress, Report, Scenario, Simulation, Workload};
use crate::error::Error;

/// What is asked of the fleet.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A scenario of the policy study, with its fleet; `size` multiplies how long it lasts.
    Scenario {
        /// Its name, such as `aws5@.95`.
        name: String,
        /// 1 is the study's.
        #[serde(default = "one")]
        size: f64,
        /// Of chance.
        #[serde(default)]
        seed: u64,
    },
    /// A chatbot with tenants.
    Chatbot(Chatbot),
    /// Requests over shared prefixes.
    Shared(SharedPrefixes),
    /// Bursts of equal new prompts.
    Bursts(Bursts),
    /// Agent loops.
    Agents(AgentLoops),
    /// The trace, in Mooncake's format.
    Mooncake(MooncakeOptions),
    /// The trace, as sessions of agents.
    Agentic(AgenticOptions),
    /// The trace, as a log of requests.
    Log(LogOptions),
}

fn one() -> f64 {
    1.0
}

/// Figures of two times, to see what a change between them did.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// Before.
    pub before: Window,
    /// After.
    pub after: Window,
    /// Workers `0..alive` were there after it.
    pub alive: usize,
}

/// One simulation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What is asked.
    pub source: Source,
    /// Multiplies the rate at which sessions begin.
    #[serde(default = "one")]
    pub load: f64,
    /// A policy that [`policies::named`] knows.
    pub policy: String,
    /// The workers; without it those of the scenario, or 70B on 8xH100.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// The fleet; without it that of the scenario, or 7 workers.
    #[serde(default)]
    pub options: Option<Options>,
    /// Routers, if they are not those of `options`.
    #[serde(default)]
    pub routers: Option<usize>,
    /// How late routers hear of each other; without it they share nothing.
    #[serde(default)]
    pub gossip_s: Option<f64>,
    /// Whether `kv_aware` gets KV events; without them it knows the caches from its own decisions. Peers that use events
    /// always have them.
    #[serde(default)]
    pub events: bool,
    /// Whether events tell of the host's tier too.
    #[serde(default = "yes")]
    pub host_events: bool,
    /// How late KV events are, for the rules that use them: 20 ms.
    #[serde(default = "event_delay_s")]
    pub event_delay_s: f64,
    /// Age of polled metrics at most, for the rules that poll: 50 ms.
    #[serde(default = "poll_s")]
    pub poll_s: f64,
    /// For `prefix_aware`: characters of a prompt that it hashes, 4 for a token.
    #[serde(default)]
    pub prefix_length: Option<u32>,
    /// For `prefix_aware`: requests on a worker at which it spills; without it 1.5 times the mean.
    #[serde(default)]
    pub concurrency_threshold: Option<u32>,
    /// Share of the first arrivals that does not count; without it that of the scenario, or 0.
    #[serde(default)]
    pub skip: Option<f64>,
    /// Of the router's chance.
    #[serde(default)]
    pub seed: u64,
    /// Times of which figures are wanted.
    #[serde(default)]
    pub windows: Vec<Window>,
    /// Times to be compared.
    #[serde(default)]
    pub compare: Vec<Compare>,
}

fn yes() -> bool {
    true
}

fn event_delay_s() -> f64 {
    0.02
}

fn poll_s() -> f64 {
    0.05
}

/// What a simulation found.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// Its figures.
    pub report: Report,
    /// Those of the windows.
    pub windows: Vec<Windowed>,
    /// What moved between the times compared.
    pub moves: Vec<Moves>,
    /// Lines of the trace that were left out.
    pub skipped_lines: usize,
    /// The first of them, with what is wrong.
    pub skipped: Vec<(usize, String)>,
}

impl Found {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names are always JSON")
    }
}

impl Spec {
    /// The specification that `json` holds.
    ///
    /// # Errors
    /// [`Error::Spec`] names what is wrong and where.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).map_err(|problem| Error::Spec(problem.to_string()))
    }

    fn scenario(&self, trace: Option<&str>) -> Result<(Scenario, Skipped), Error> {
        let text = || {
            trace.ok_or_else(|| Error::Config {
                key: "trace",
                value: String::new(),
                allowed: "the text of a file",
            })
        };
        let read = |trace: Result<Trace, Error>| trace.map(|trace| (trace.workload, trace.skipped));
        let made = |workload: Workload| Ok((workload, Skipped::default()));
        let (workload, skipped) = match &self.source {
            Source::Scenario { name, size, seed } => {
                return Ok((Scenario::named(name, *seed, trace, *size)?, Skipped::default()));
            }
            Source::Chatbot(chatbot) => chatbot.check().and_then(|()| made(chatbot.build())),
            Source::Shared(shared) => shared.check().and_then(|()| made(shared.build())),
            Source::Bursts(bursts) => bursts.check().and_then(|()| made(bursts.build())),
            Source::Agents(agents) => agents.check().and_then(|()| made(agents.build())),
            Source::Mooncake(options) => read(mooncake(text()?, options)),
            Source::Agentic(options) => read(agentic(text()?, options)),
            Source::Log(options) => read(request_log(text()?, options)),
        }?;
        let (profile, options) = (Profile::default(), Options::default());
        Ok((Scenario { workload, profile, options, skip: 0.0 }, skipped))
    }

    /// Runs it; `watch` is asked every few milliseconds whether to go on, and what was answered until then counts.
    ///
    /// # Errors
    /// [`Error`] for a value out of range or a trace that cannot be read.
    pub fn run(
        &self,
        trace: Option<&str>,
        watch: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Found, Error> {
        Error::unless_within("load", self.load, 1e-6..=1e6, "0.000001 to 1000000")?;
        let (mut scenario, skipped) = self.scenario(trace)?;
        scenario.workload.stretch(1.0 / self.load);
        let profile = self.profile.unwrap_or(scenario.profile);
        let mut options = self.options.clone().unwrap_or(scenario.options);
        options.routers = self.routers.unwrap_or(options.routers);
        options.check()?;
        let most = options.scale.iter().map(|&(_, workers)| workers).fold(options.workers, usize::max);
        let told = PolicyOptions {
            routers: options.routers,
            gossip_s: self.gossip_s,
            events: self.events,
            host_events: self.host_events,
            event_delay_s: self.event_delay_s,
            poll_s: self.poll_s,
            kv_tokens: profile.kv_tokens,
            segments: scenario.workload.segment_count(),
            prefix_length: self.prefix_length,
            concurrency_threshold: self.concurrency_threshold,
            seed: self.seed,
        };
        let policy = policies::named(&self.policy, most, &told)?;
        let mut simulation = Simulation::new(&scenario.workload, profile, options, policy)?;
        simulation.run(watch);
        let answers = simulation.answers();
        let windows = self.windows.iter().map(|window| windowed(answers, &scenario.workload, *window));
        let compared = self.compare.iter();
        let moved = compared.map(|Compare { before, after, alive }| {
            moves(answers, &scenario.workload, *before, *after, *alive)
        });
        Ok(Found {
            windows: windows.collect(),
            moves: moved.collect(),
            report: Report::of(&simulation, self.skip.unwrap_or(scenario.skip)),
            skipped_lines: skipped.lines,
            skipped: skipped.named,
        })
    }
}
