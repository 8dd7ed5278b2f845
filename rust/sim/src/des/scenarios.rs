//! The scenarios of the policy study: workload, workers and mishaps under a name such as `aws5@.95`.
//!
//! The number behind `@` is the load (offered rate / what random routing sustains) if it is below 2, else requests per second.
//! Source: policy study, section 3; the public traces that some of them need are not part of this package.

use super::options::{Loss, Options};
use super::traces::{AgenticOptions, MooncakeOptions, agentic, mooncake};
use super::workloads::{AgentLoops, Bursts, Chatbot, SharedPrefixes, Spike};
use super::{Profile, Workload};
use crate::error::Error;

/// A trace that a scenario replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Mooncake's conversation trace.
    Conversation,
    /// Mooncake's synthetic trace.
    Synthetic,
    /// Sessions of coding agents.
    Agentic,
}

impl Needs {
    /// The name under which the trace is looked for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Conversation => "mooncake_conversation",
            Self::Synthetic => "mooncake_synthetic",
            Self::Agentic => "agentic_coding_sessions",
        }
    }
}

/// All that a simulation needs but a policy.
#[derive(Debug)]
pub struct Scenario {
    /// What is asked.
    pub workload: Workload,
    /// Of whom.
    pub profile: Profile,
    /// The fleet and what befalls it.
    pub options: Options,
    /// Share of the first arrivals that does not count.
    pub skip: f64,
}

/// What random routing sustains on 7 workers in a closed loop, in requests per second. Source: policy study, `sim/scen.py`.
const CAPACITY: [(&str, f64); 6] = [
    ("aws5", 45.7),
    ("header", 46.9),
    ("agentic", 2.378),
    ("conv", 10.39),
    ("synth", 9.085),
    ("chat", 49.96),
];
const SPIKE_RPS: f64 = 45.7;
const SPIKE_SESSIONS: usize = 3500;

impl Scenario {
    /// The names that the study's table has.
    pub const ALL: [&'static str; 40] = [
        "aws5@.95",
        "aws5@1.2",
        "chat@.95",
        "header@.95",
        "conv@.7",
        "conv@.95",
        "conv@1.2",
        "synth@.95",
        "synth@1.2",
        "agentic@.95",
        "agentic@1.2",
        "spike",
        "long@20",
        "long@40",
        "long@44",
        "zipf@70",
        "zipf@100",
        "burst@40",
        "burst@50",
        "agent3@35",
        "agent3@45",
        "lost@30",
        "slow@25",
        "slowconv@.8",
        "longkv@20",
        "longhost@30",
        "synthkv@.8",
        "longout@8",
        "convkv@.4",
        "convkv@.6",
        "convkv@.8",
        "agent3kv@15",
        "agent3kv@25",
        "chatkv@.9",
        "synthkv2@.7",
        "mixconv@.6",
        "mixlong@20",
        "aws5@.3",
        "header@.3",
        "conv@.3",
    ];

    /// The trace that the scenario of this name replays, if any.
    #[must_use]
    pub fn needs(name: &str) -> Option<Needs> {
        match name.split('@').next().unwrap_or(name) {
            "conv" | "convkv" | "slowconv" | "mixconv" => Some(Needs::Conversation),
            "synth" | "synthkv" | "synthkv2" => Some(Needs::Synthetic),
            "agentic" => Some(Needs::Agentic),
            _ => None,
        }
    }

    /// When the rush of the scenario `spike` is, in seconds.
    #[must_use]
    pub fn spike() -> (f64, f64) {
        let whole_s = SPIKE_SESSIONS as f64 / SPIKE_RPS;
        (0.35 * whole_s, 0.7 * whole_s)
    }

    /// The scenario of this name. `trace` is the text of the trace that it [needs](Self::needs). `size` (1 = the study's)
    /// multiplies how long it lasts.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown name or a trace that is missing, [`Error::Trace`] for one that cannot be read.
    pub fn named(name: &str, seed: u64, trace: Option<&str>, size: f64) -> Result<Self, Error> {
        let unknown = || Error::Config {
            key: "scenario",
            value: name.to_owned(),
            allowed: "a name of the list, with @ and a load or a rate",
        };
        let (base, load) = name.split_once('@').unwrap_or((name, "1"));
        let load: f64 = load.parse().ok().filter(|load| *load > 0.0 && *load <= 1e6).ok_or_else(unknown)?;
        let size = size.clamp(0.01, 100.0);
        let study = Profile::named("study-30k").unwrap_or_default();
        let made = Made { base, load, seed, size, trace };
        let mut scenario = match base {
            "aws5" | "chat" | "header" | "longout" | "spike" => made.chatbot(),
            "conv" | "convkv" | "slowconv" | "mixconv" => made.conversation(),
            "synth" | "synthkv" | "synthkv2" => made.synthetic(),
            "agentic" => made.agentic(),
            "long" | "lost" | "longkv" | "longhost" | "mixlong" | "zipf" => Ok(made.shared(study)),
            "burst" => Ok(Self::of(
                Bursts { rate_rps: load, duration_s: 70.0 * size, seed, ..Bursts::default() }.build(),
                study,
                0.1,
            )),
            "agent3" | "slow" | "agent3kv" => Ok(made.agents(study)),
            "chatkv" => Made { base: "chat", ..made }.chatbot(),
            _ => Err(unknown()),
        }?;
        match base {
            "synthkv" => scenario.profile.kv_tokens = 400_000,
            "synthkv2" => scenario.profile.kv_tokens = 150_000,
            "convkv" => scenario.profile.kv_tokens = 120_000,
            "agent3kv" => scenario.profile.kv_tokens = 200_000,
            "chatkv" => scenario.profile.kv_tokens = 60_000,
            "slow" | "slowconv" => scenario.options.speeds = vec![0.5],
            "mixconv" | "mixlong" => scenario.options.speeds = vec![0.4, 1.0, 0.4, 1.0, 0.4],
            _ => {}
        }
        Ok(scenario)
    }

    fn of(workload: Workload, profile: Profile, skip: f64) -> Self {
        Self { workload, profile, options: Options::default(), skip }
    }
}

#[derive(Clone, Copy)]
struct Made<'a> {
    base: &'a str,
    load: f64,
    seed: u64,
    size: f64,
    trace: Option<&'a str>,
}

impl Made<'_> {
    fn rate_rps(&self, of: &str) -> f64 {
        let capacity = CAPACITY.iter().find(|(name, _)| *name == of).map_or(1.0, |(_, capacity)| *capacity);
        self.load * capacity
    }

    fn scaled(&self, count: usize) -> usize {
        ((count as f64 * self.size) as usize).max(10)
    }

    fn trace_text(&self, needs: Needs) -> Result<&str, Error> {
        self.trace.ok_or_else(|| Error::Config {
            key: "trace",
            value: String::new(),
            allowed: match needs {
                Needs::Conversation => "Mooncake's conversation trace",
                Needs::Synthetic => "Mooncake's synthetic trace",
                Needs::Agentic => "the sessions of coding agents",
            },
        })
    }

    fn chatbot(self) -> Result<Scenario, Error> {
        let (seed, sessions) = (self.seed, self.scaled(3000));
        let rate = self.rate_rps(self.base);
        let per_session =
            |chatbot: Chatbot| Chatbot { sessions: sessions / 3, sessions_per_s: rate / 3.0, ..chatbot };
        let plain = Chatbot { seed, ..Chatbot::default() };
        let chatbot = match self.base {
            "aws5" => {
                Chatbot { sessions, sessions_per_s: rate, uses_per_prompt: Some(5), turns: 1.0, ..plain }
            }
            "header" => per_session(Chatbot { tenants: 400, skew: 0.8, header_tokens: 1024, ..plain }),
            "longout" => Chatbot {
                sessions: self.scaled(500),
                sessions_per_s: self.load / 3.0,
                answer_tokens: (800, 1600),
                ..plain
            },
            "spike" => {
                let (from_s, to_s) = Scenario::spike();
                Chatbot {
                    sessions: self.scaled(SPIKE_SESSIONS),
                    sessions_per_s: SPIKE_RPS,
                    tenants: 1500,
                    skew: 0.3,
                    turns: 1.0,
                    spike: Some(Spike { from_s: from_s * self.size, to_s: to_s * self.size, share: 0.9 }),
                    ..plain
                }
            }
            _ => per_session(plain),
        };
        Ok(Scenario::of(chatbot.build(), Profile::default(), 0.0))
    }

    /// Part of a trace for this seed: seeds from 10 on, for tuning, see other parts than those below.
    fn part(&self, tuning: [usize; 3], validation: [usize; 3]) -> usize {
        let parts = if self.seed >= 10 { tuning } else { validation };
        parts[((self.seed % 10 + 2) % 3) as usize]
    }

    fn mooncake(self, needs: Needs, options: &MooncakeOptions) -> Result<Scenario, Error> {
        let options = MooncakeOptions { max_prompt_tokens: 65_536, seed: self.seed, ..options.clone() };
        let trace = mooncake(self.trace_text(needs)?, &options)?;
        Ok(Scenario::of(trace.workload, Profile::default(), 0.0))
    }

    fn conversation(self) -> Result<Scenario, Error> {
        let options = MooncakeOptions {
            skip: self.part([0, 700, 1400], [3380, 4000, 4700]),
            limit: Some(self.scaled(2000)),
            rate_rps: Some(self.rate_rps("conv")),
            group_at: 1,
            ..MooncakeOptions::default()
        };
        self.mooncake(Needs::Conversation, &options)
    }

    fn synthetic(self) -> Result<Scenario, Error> {
        let options = MooncakeOptions {
            skip: self.part([0, 300, 590], [1996, 2250, 2500]),
            limit: Some(self.scaled(1400)),
            rate_rps: Some(self.rate_rps("synth")),
            group_at: 0,
            ..MooncakeOptions::default()
        };
        self.mooncake(Needs::Synthetic, &options)
    }

    fn agentic(self) -> Result<Scenario, Error> {
        let options = AgenticOptions {
            sessions_per_s: self.rate_rps("agentic") / 20.0,
            sessions: Some(self.scaled(90)),
            max_think_s: 15.0,
            max_turns: 30,
            seed: self.seed,
            ..AgenticOptions::default()
        };
        let trace = agentic(self.trace_text(Needs::Agentic)?, &options)?;
        Ok(Scenario::of(trace.workload, Profile::default(), 0.0))
    }

    fn shared(self, study: Profile) -> Scenario {
        let long = SharedPrefixes {
            rate_rps: self.load,
            duration_s: 90.0 * self.size,
            seed: self.seed,
            ..SharedPrefixes::default()
        };
        let prefixes = match self.base {
            "longkv" | "longhost" => SharedPrefixes { skew: 0.6, ..long },
            "zipf" => SharedPrefixes {
                prefixes: 400,
                prefix_tokens: 4096,
                skew: 1.2,
                question: (400.0, 0.7, 4000),
                duration_s: 60.0 * self.size,
                ..long
            },
            _ => long,
        };
        let mut scenario = Scenario::of(prefixes.build(), study, 0.1);
        match self.base {
            "lost" => {
                scenario.options.losses = vec![Loss { down_s: 45.0 * self.size, up_s: 67.0 * self.size }]
            }
            "longkv" => scenario.profile.kv_tokens = 450_000,
            "longhost" => {
                (scenario.profile.kv_tokens, scenario.profile.host_tokens) = (450_000, 1_500_000);
            }
            "zipf" => scenario.profile.kv_tokens = 650_000,
            _ => {}
        }
        scenario
    }

    fn agents(self, study: Profile) -> Scenario {
        let loops = AgentLoops {
            rate_rps: self.load,
            duration_s: 70.0 * self.size,
            seed: self.seed,
            ..AgentLoops::default()
        };
        Scenario::of(loops.build(), study, 0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_without_a_trace_can_be_made() {
        for name in Scenario::ALL {
            match (Scenario::needs(name), Scenario::named(name, 1, None, 0.05)) {
                (None, Ok(scenario)) => assert!(!scenario.workload.requests().is_empty(), "{name}"),
                (Some(_), Err(Error::Config { key: "trace", .. })) => {}
                (_, other) => panic!("{name}: {other:?}"),
            }
        }
        for bad in ["nothing", "long@", "long@-1", "long@nan", ""] {
            assert!(
                matches!(Scenario::named(bad, 1, None, 1.0), Err(Error::Config { key: "scenario", .. })),
                "{bad}"
            );
        }
    }
}
