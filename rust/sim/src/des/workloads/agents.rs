//! Agent loops: few tool prompts, sessions of about nine steps, a history that grows with every step.

use serde::Deserialize;

use crate::des::rng::Rng;
use crate::des::{Segment, Turn, Workload, WorkloadBuilder};
use crate::error::Error;

/// The agents.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentLoops {
    /// Tool prompts: share of the sessions and length.
    pub tools: Vec<(f64, u32)>,
    /// Requests per second, on average.
    pub rate_rps: f64,
    /// Time in which sessions begin.
    pub duration_s: f64,
    /// Of chance.
    pub seed: u64,
}

impl Default for AgentLoops {
    fn default() -> Self {
        Self {
            tools: vec![(0.46, 12_288), (0.39, 6_144), (0.15, 3_072)],
            rate_rps: 35.0,
            duration_s: 70.0,
            seed: 1,
        }
    }
}

impl AgentLoops {
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        super::check_amount(self.rate_rps, self.duration_s)?;
        Error::unless_within("tools", self.tools.len(), 1..=1000, "1 to 1000 of them")?;
        self.tools.iter().try_for_each(|&(share, tokens)| {
            Error::unless_within("tools", share, 0.0..=1.0, "shares from 0 to 1")?;
            super::check_tokens("tools", tokens)
        })
    }

    /// The workload.
    #[must_use]
    pub fn build(&self) -> Workload {
        let (mut rng, mut builder) = (Rng::new(self.seed, 4), WorkloadBuilder::new());
        let tools: Vec<Vec<Segment>> = (self.tools.iter())
            .map(|&(_, tokens)| {
                let mut prompt = Vec::new();
                builder.extend(&mut prompt, tokens.max(1));
                prompt
            })
            .collect();
        let mut at_s = 0.0;
        while at_s < self.duration_s {
            // A session has 9 steps on average.
            at_s += rng.exponential(9.0 / self.rate_rps);
            let mut luck = rng.unit();
            let chosen = self.tools.iter().position(|&(share, _)| {
                luck -= share;
                luck < 0.0
            });
            let mut history = tools[chosen.unwrap_or(tools.len() - 1)].clone();
            let group = history[history.len() - 1].id;
            let mut last = None;
            for _ in 0..4 + rng.below(11) {
                builder.extend(&mut history, rng.log_normal(900.0, 0.9, 50, 16_000));
                let answer = Segment { id: builder.fresh(), tokens: rng.log_normal(120.0, 0.7, 8, 800) };
                let turn =
                    Turn { prompt: &history, output_tokens: answer.tokens, answer: Some(answer.id), group };
                last = Some(match last {
                    None => builder.begin(at_s, &turn),
                    Some(previous) => builder.follow(previous, 1.5 + rng.exponential(3.0), &turn),
                });
                history.push(answer);
            }
        }
        builder.build()
    }
}
