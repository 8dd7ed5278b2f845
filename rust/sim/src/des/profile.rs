//! What a worker is able to do: its speed, its memory, its limits, for engines on known hardware.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::step::StepModel;

/// Tokens per block of the engine's cache. Source: vLLM's default on GPUs.
pub(crate) const BLOCK_TOKENS: u32 = 16;

/// One worker. Times are in seconds of the modelled hardware.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Durations of steps.
    pub step: StepModel,
    /// Tokens computed per step, prefill and decode together.
    pub step_token_budget: u32,
    /// Sequences that run at once.
    pub max_sequences: u32,
    /// Tokens that fit the KV cache.
    pub kv_tokens: u64,
    /// Tokens that fit the tier in host memory; 0 for no such tier.
    pub host_tokens: u64,
    /// Time to load a token from host memory, as a share of the time to compute it: 0.06.
    /// Source: policy study, section 9 (320 kB per token over PCIe 5 beside 45 us of prefill).
    pub host_cost: f64,
    /// Whether room for an answer is taken as it grows, and a sequence that finds none is pre-empted and computed anew, as
    /// vLLM does. Without, room is reserved at admission.
    pub preemption: bool,
    /// GPUs of a worker, for the cost.
    pub gpus: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            step: StepModel::default(),
            step_token_budget: 8_192,
            max_sequences: 256,
            kv_tokens: 1_300_000,
            host_tokens: 0,
            host_cost: 0.06,
            preemption: false,
            gpus: 8,
        }
    }
}

impl Profile {
    /// The names that [`named`](Self::named) takes.
    pub const NAMES: [&'static str; 3] = ["llama-70b-8xh100", "llama-8b-h100", "study-30k"];

    /// The profile of this name; `None` if there is none.
    ///
    /// - `llama-70b-8xh100`: Llama 3.1 70B in BF16 on 8xH100, see [`StepModel`] for its sources. KV: (0.9 * 640 - 141) GB at
    ///   327,680 bytes per token.
    /// - `llama-8b-h100`: Llama 3.1 8B in BF16 on one H100, inferred by the same reasoning: 16 GB of weights read at 65 % of
    ///   3.35 TB/s (7.4 ms) and 2 ms of overhead; 16 GFLOP per token at the efficiency of the 70B profile
    ///   (22,000 tokens/s * 141 GFLOP / 8 GPUs = 388 TFLOP/s per GPU); KV 131,072 bytes per token in 0.9 * 80 - 16 GB.
    /// - `study-30k`: the second worker of the policy study: 30,000 tokens/s, no attention term, 128 sequences.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let base = Self::default();
        match name {
            "llama-70b-8xh100" => Some(base),
            "llama-8b-h100" => Some(Self {
                step: StepModel {
                    prefill_tokens_per_s: 24_000.0,
                    step_s: 0.0094,
                    weight_read_s: 0.0074,
                    per_sequence_s: 2e-5,
                    per_kv_token_s: 6e-8,
                    per_attention_pair_s: 1.4e-9,
                },
                kv_tokens: 427_000,
                gpus: 1,
                ..base
            }),
            "study-30k" => Some(Self {
                step: StepModel {
                    prefill_tokens_per_s: 30_000.0,
                    per_sequence_s: 5e-5,
                    per_kv_token_s: 1.2e-8,
                    per_attention_pair_s: 0.0,
                    ..base.step
                },
                max_sequences: 128,
                ..base
            }),
            _ => None,
        }
    }

    /// All named profiles as JSON, in the order of [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn all_json() -> Vec<(&'static str, String)> {
        let named = Self::NAMES.iter().filter_map(|&name| Some((name, Self::named(name)?)));
        named
            .map(|(name, profile)| (name, serde_json::to_string(&profile).expect("numbers are JSON")))
            .collect()
    }

    /// Blocks that fit the KV cache.
    #[must_use]
    pub fn kv_blocks(&self) -> u64 {
        self.kv_tokens / u64::from(BLOCK_TOKENS)
    }

    pub(crate) fn host_blocks(&self) -> u64 {
        self.host_tokens / u64::from(BLOCK_TOKENS)
    }

    /// # Errors
    /// [`Error::Config`] for a value out of range.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |key, value: String, allowed| Err(Error::Config { key, value, allowed });
        let step = self.step;
        for (key, value) in [("prefill_tokens_per_s", step.prefill_tokens_per_s), ("step_s", step.step_s)] {
            if !(value.is_finite() && value > 0.0) {
                return refuse(key, value.to_string(), "above 0");
            }
        }
        if !(0.0..=step.step_s).contains(&step.weight_read_s) {
            return refuse("weight_read_s", step.weight_read_s.to_string(), "from 0 to step_s");
        }
        for (key, value) in [
            ("per_sequence_s", step.per_sequence_s),
            ("per_kv_token_s", step.per_kv_token_s),
            ("per_attention_pair_s", step.per_attention_pair_s),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(key, value.to_string(), "0 or above");
            }
        }
        if !(1..=65_536).contains(&self.max_sequences) {
            return refuse("max_sequences", self.max_sequences.to_string(), "1 to 65536");
        }
        if self.step_token_budget <= self.max_sequences {
            return refuse(
                "step_token_budget",
                self.step_token_budget.to_string(),
                "more than max_sequences",
            );
        }
        if !(128..=1 << 31).contains(&self.kv_tokens) {
            return refuse("kv_tokens", self.kv_tokens.to_string(), "128 to 2^31");
        }
        if self.host_tokens > 1 << 34 {
            return refuse("host_tokens", self.host_tokens.to_string(), "0 to 2^34");
        }
        if !(0.0..=1.0).contains(&self.host_cost) {
            return refuse("host_cost", self.host_cost.to_string(), "0 to 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_profile_is_in_range() {
        for name in Profile::NAMES {
            Profile::named(name).expect("a name of the list").check().expect("in range");
        }
        assert_eq!(Profile::named("tpu"), None);
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        let refused = |profile: Profile| match profile.check() {
            Err(Error::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        let base = Profile::default();
        assert_eq!(refused(Profile { kv_tokens: 1, ..base }), "kv_tokens");
        assert_eq!(refused(Profile { step_token_budget: 256, ..base }), "step_token_budget");
        assert_eq!(refused(Profile { host_cost: f64::NAN, ..base }), "host_cost");
        let step = StepModel { prefill_tokens_per_s: 0.0, ..base.step };
        assert_eq!(refused(Profile { step, ..base }), "prefill_tokens_per_s");
    }
}
