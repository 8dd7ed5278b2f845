//! A customer-support chatbot: tenants with a long system prompt each, short questions, several turns.

use serde::Deserialize;

use crate::des::profile::BLOCK_TOKENS;
use crate::des::rng::{Rng, Zipf};
use crate::des::{Segment, Turn, Workload, WorkloadBuilder};
use crate::error::Error;

/// Longest session.
const MAX_TURNS: u32 = 20;

/// A time in which many new sessions belong to one tenant that had none before.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spike {
    /// When it begins.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// Share of the new sessions that belong to it.
    pub share: f64,
}

/// The chatbot.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chatbot {
    /// Sessions.
    pub sessions: usize,
    /// Tenants, each with a system prompt.
    pub tenants: usize,
    /// Exponent of the tenants' popularity (Zipf); 0 for equals.
    pub skew: f64,
    /// Mean length of a system prompt; each is up to 20 % longer or shorter.
    pub system_tokens: u32,
    /// Tokens at the head of every prompt, whatever its tenant: a chat template, a company's policy.
    pub header_tokens: u32,
    /// Mean number of turns.
    pub turns: f64,
    /// Shortest and longest question.
    pub question_tokens: (u32, u32),
    /// Shortest and longest answer.
    pub answer_tokens: (u32, u32),
    /// New sessions per second.
    pub sessions_per_s: f64,
    /// Mean time between an answer and the next question.
    pub think_s: f64,
    /// If set, every system prompt is used by exactly so many sessions, close to each other in time; instead of `tenants`.
    pub uses_per_prompt: Option<usize>,
    /// A sudden rush.
    pub spike: Option<Spike>,
    /// Of chance.
    pub seed: u64,
}

impl Default for Chatbot {
    fn default() -> Self {
        Self {
            sessions: 1000,
            tenants: 200,
            skew: 1.0,
            system_tokens: 3008,
            header_tokens: 0,
            turns: 3.0,
            question_tokens: (32, 96),
            answer_tokens: (64, 256),
            sessions_per_s: 10.0,
            think_s: 8.0,
            uses_per_prompt: None,
            spike: None,
            seed: 1,
        }
    }
}

/// Whole blocks, at least one.
fn whole(tokens: u32) -> u32 {
    (tokens / BLOCK_TOKENS).max(1) * BLOCK_TOKENS
}

impl Chatbot {
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        Error::unless_within("sessions", self.sessions, 1..=2_000_000, "1 to 2000000")?;
        Error::unless_within("tenants", self.tenants, 1..=1_000_000, "1 to 1000000")?;
        let uses = self.uses_per_prompt.unwrap_or(1);
        Error::unless_within("uses_per_prompt", uses, 1..=1_000_000, "1 to 1000000")?;
        super::check_skew(self.skew)?;
        Error::unless_within("turns", self.turns, 1.0..=1000.0, "1 to 1000")?;
        super::check_rate("sessions_per_s", self.sessions_per_s)?;
        Error::unless_within("think_s", self.think_s, 0.0..=1e6, "0 to 1000000")?;
        let spike = self.spike.map_or(0.0, |spike| spike.share);
        Error::unless_within("spike", spike, 0.0..=1.0, "a share from 0 to 1")?;
        let ((shortest, longest), (least, most)) = (self.question_tokens, self.answer_tokens);
        for (key, tokens) in [
            ("system_tokens", self.system_tokens),
            ("header_tokens", self.header_tokens),
            ("question_tokens", shortest),
            ("question_tokens", longest),
            ("answer_tokens", least),
            ("answer_tokens", most),
        ] {
            super::check_tokens(key, tokens)?;
        }
        Ok(())
    }

    /// The workload.
    #[must_use]
    pub fn build(&self) -> Workload {
        let (mut rng, mut builder) = (Rng::new(self.seed, 1), WorkloadBuilder::new());
        let tenants = match self.uses_per_prompt {
            Some(uses) => (self.sessions / uses.max(1)).max(1),
            None => self.tenants.max(1),
        };
        let mut header = Vec::new();
        builder.extend(&mut header, self.header_tokens);
        // One more than there are tenants: that of the spike.
        let systems: Vec<Vec<Segment>> = (0..=tenants)
            .map(|_| {
                let length = f64::from(self.system_tokens) * (1.0 + 0.2 * (2.0 * rng.unit() - 1.0));
                let mut prompt = header.clone();
                builder.extend(&mut prompt, whole(length as u32));
                prompt
            })
            .collect();
        let turns = self.pool(tenants, &mut rng);
        let popularity = Zipf::new(tenants, self.skew);
        let sessions = turns.as_ref().map_or(self.sessions, Vec::len);
        let mut at_s = 0.0;
        for session in 0..sessions {
            at_s += rng.exponential(1.0 / self.sessions_per_s);
            let mut tenant = match &turns {
                Some(turns) => turns[session],
                None => popularity.draw(&mut rng),
            };
            if let Some(spike) = self.spike
                && (spike.from_s..spike.to_s).contains(&at_s)
                && rng.unit() < spike.share
            {
                tenant = tenants;
            }
            self.session(at_s, &systems[tenant], &mut rng, &mut builder);
        }
        builder.build()
    }

    /// Whose turn it is when every prompt is used equally often, within a short life.
    fn pool(&self, tenants: usize, rng: &mut Rng) -> Option<Vec<usize>> {
        let uses = self.uses_per_prompt?;
        let mut pool: Vec<(f64, usize)> = (0..tenants)
            .flat_map(|tenant| std::iter::repeat_n(tenant, uses))
            .map(|tenant| (tenant as f64 + rng.unit() * 12.0, tenant))
            .collect();
        pool.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(pool.into_iter().map(|(_, tenant)| tenant).collect())
    }

    fn session(&self, at_s: f64, system: &[Segment], rng: &mut Rng, builder: &mut WorkloadBuilder) {
        let mut turns = 1;
        while rng.unit() > 1.0 / self.turns && turns < MAX_TURNS {
            turns += 1;
        }
        let (mut history, mut last) = (system.to_vec(), None);
        for _ in 0..turns {
            let question = whole(rng.between(self.question_tokens.0, self.question_tokens.1));
            history.push(Segment { id: builder.fresh(), tokens: question });
            let answer = Segment {
                id: builder.fresh(),
                tokens: whole(rng.between(self.answer_tokens.0, self.answer_tokens.1)),
            };
            let turn = Turn {
                prompt: &history,
                output_tokens: answer.tokens,
                answer: Some(answer.id),
                group: system[system.len() - 1].id,
            };
            last = Some(match last {
                None => builder.begin(at_s, &turn),
                Some(previous) => builder.follow(previous, rng.exponential(self.think_s), &turn),
            });
            history.push(answer);
        }
    }
}
