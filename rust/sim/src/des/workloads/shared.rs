//! Long prefixes that many single requests share, and bursts of requests with one new prefix.

use serde::Deserialize;

use crate::des::rng::{Rng, Zipf};
use crate::des::{Segment, Turn, Workload, WorkloadBuilder};
use crate::error::Error;

const SHORTEST_QUESTION: u32 = 16;

/// Single requests over a set of long prefixes, as with documents that many users ask about.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedPrefixes {
    /// Prefixes.
    pub prefixes: usize,
    /// Length of each.
    pub prefix_tokens: u32,
    /// Exponent of their popularity (Zipf); 0 for equals.
    pub skew: f64,
    /// Median, sigma and longest of the questions (log-normal).
    pub question: (f64, f64, u32),
    /// Requests per second.
    pub rate_rps: f64,
    /// Time in which they arrive.
    pub duration_s: f64,
    /// Of chance.
    pub seed: u64,
}

impl Default for SharedPrefixes {
    fn default() -> Self {
        Self {
            prefixes: 600,
            prefix_tokens: 8192,
            skew: 0.0,
            question: (300.0, 0.6, 3000),
            rate_rps: 20.0,
            duration_s: 90.0,
            seed: 1,
        }
    }
}

impl SharedPrefixes {
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        super::check_amount(self.rate_rps, self.duration_s)?;
        Error::unless_within("prefixes", self.prefixes, 1..=1_000_000, "1 to 1000000")?;
        super::check_tokens("prefix_tokens", self.prefix_tokens)?;
        super::check_skew(self.skew)?;
        let (median, sigma, most) = self.question;
        Error::unless_within("question", median, 1.0..=1e6, "a median from 1 to 1000000")?;
        Error::unless_within("question", sigma, 0.0..=10.0, "a sigma from 0 to 10")?;
        let allowed = "16 to 1000000 tokens at most";
        Error::unless_within("question", most, SHORTEST_QUESTION..=super::MAX_TOKENS, allowed)
    }

    /// The workload.
    #[must_use]
    pub fn build(&self) -> Workload {
        let (mut rng, mut builder) = (Rng::new(self.seed, 2), WorkloadBuilder::new());
        let popularity = Zipf::new(self.prefixes.max(1), self.skew);
        let mut prefixes = vec![Vec::new(); self.prefixes.max(1)];
        let mut at_s = 0.0;
        while at_s < self.duration_s {
            at_s += rng.exponential(1.0 / self.rate_rps);
            let prefix = &mut prefixes[popularity.draw(&mut rng)];
            if prefix.is_empty() {
                builder.extend(prefix, self.prefix_tokens.max(1));
            }
            let group = prefix[prefix.len() - 1].id;
            let (median, sigma, most) = self.question;
            let mut prompt = prefix.clone();
            prompt.push(Segment {
                id: builder.fresh(),
                tokens: rng.log_normal(median, sigma, SHORTEST_QUESTION, most),
            });
            let output_tokens = rng.log_normal(150.0, 0.7, 8, 1000);
            builder.begin(at_s, &Turn { prompt: &prompt, output_tokens, answer: None, group });
        }
        builder.build()
    }
}

/// Bursts of requests that share a prefix which is new, as when an agent fans out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bursts {
    /// Requests of a burst.
    pub siblings: usize,
    /// Time from one of them to the next.
    pub gap_s: f64,
    /// Length of what they share.
    pub prefix_tokens: u32,
    /// Requests per second, on average.
    pub rate_rps: f64,
    /// Time in which they arrive.
    pub duration_s: f64,
    /// Of chance.
    pub seed: u64,
}

impl Default for Bursts {
    fn default() -> Self {
        Self { siblings: 8, gap_s: 0.002, prefix_tokens: 6144, rate_rps: 40.0, duration_s: 70.0, seed: 1 }
    }
}

impl Bursts {
    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        super::check_amount(self.rate_rps, self.duration_s)?;
        Error::unless_within("siblings", self.siblings, 1..=10_000, "1 to 10000")?;
        Error::unless_within("gap_s", self.gap_s, 0.0..=1e6, "0 to 1000000")?;
        super::check_tokens("prefix_tokens", self.prefix_tokens)
    }

    /// The workload.
    #[must_use]
    pub fn build(&self) -> Workload {
        let (mut rng, mut builder) = (Rng::new(self.seed, 3), WorkloadBuilder::new());
        let siblings = self.siblings.max(1);
        let mut at_s = 0.0;
        while at_s < self.duration_s {
            at_s += rng.exponential(siblings as f64 / self.rate_rps);
            let mut prefix = Vec::new();
            builder.extend(&mut prefix, self.prefix_tokens.max(1));
            let group = prefix[prefix.len() - 1].id;
            let question = rng.log_normal(200.0, 0.5, 16, 3000);
            let answer = 200.0 * (0.5 * rng.normal()).exp();
            for sibling in 0..siblings {
                let mut prompt = prefix.clone();
                builder.extend(&mut prompt, question);
                let output_tokens = (answer * (0.7 + 0.6 * rng.unit())).clamp(8.0, 1000.0) as u32;
                let turn = Turn { prompt: &prompt, output_tokens, answer: None, group };
                builder.begin(at_s + self.gap_s * sibling as f64, &turn);
            }
        }
        builder.build()
    }
}
