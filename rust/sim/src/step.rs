//! How long one step of the engine takes: the calibrated part of the worker model, pure arithmetic.

use serde::{Deserialize, Serialize};

/// Cost model of one engine step, in seconds of the modelled hardware (before any time scale).
///
/// A step that prefills `p` tokens beside `B` decoding sequences, whose contexts sum to `K` tokens, takes
///
/// ```text
/// max(p / prefill_tokens_per_s, weight_read_s) + (step_s - weight_read_s)
///     + per_attention_pair_s * (prefilled token, context token) pairs + per_sequence_s * B + per_kv_token_s * K
/// ```
///
/// and a pure decode step is the same with `p = 0`: `step_s + per_sequence_s * B + per_kv_token_s * K`.
///
/// The defaults are Llama 3.1 70B in BF16 on 8xH100 with tensor parallelism. `step_s` comes from NVIDIA's published
/// inter-token latency of 13.2 ms at concurrency 1 (NIM benchmark pages), the prefill rate from its 407 ms for 5,000
/// tokens on 2xH100 in FP8 (four times the GPUs, twice the arithmetic, 10 % lost to tensor parallelism); the rest is
/// inferred from the FLOPs and KV bytes of the architecture and agrees with the page's figures at 50 to 200 clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepModel {
    /// Uncached prompt tokens computed per second: 22,000.
    pub prefill_tokens_per_s: f64,
    /// A decode step at batch 1 with an empty context: 14 ms.
    pub step_s: f64,
    /// The part of `step_s` that reads the weights, and hides behind the arithmetic of a long prefill: 8 ms.
    pub weight_read_s: f64,
    /// Added per decoding sequence: 40 us.
    pub per_sequence_s: f64,
    /// Added per token of context of a decoding sequence: 18 ns.
    pub per_kv_token_s: f64,
    /// Added per pair of a prefilled token and a token that it attends to: 0.7 ns.
    pub per_attention_pair_s: f64,
}

impl Default for StepModel {
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 22_000.0,
            step_s: 0.014,
            weight_read_s: 0.008,
            per_sequence_s: 4e-5,
            per_kv_token_s: 1.8e-8,
            per_attention_pair_s: 7e-10,
        }
    }
}

/// The work of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepWork {
    /// Prompt tokens computed.
    pub(crate) prefill_tokens: u32,
    /// Pairs of a prefilled token and a token that it attends to.
    pub(crate) attention_pairs: f64,
    /// Sequences that decode one token.
    pub(crate) decoding: u32,
    /// Sum of the contexts of those sequences, in tokens.
    pub(crate) context_tokens: u64,
}

impl StepModel {
    /// Duration of a step with this work, in seconds.
    pub(crate) fn duration_s(&self, work: &StepWork) -> f64 {
        let arithmetic_s = f64::from(work.prefill_tokens) / self.prefill_tokens_per_s;
        arithmetic_s.max(self.weight_read_s)
            + (self.step_s - self.weight_read_s)
            + self.per_attention_pair_s * work.attention_pairs
            + self.per_sequence_s * f64::from(work.decoding)
            + self.per_kv_token_s * work.context_tokens as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_step_at_batch_1_takes_step_s_and_little_more() {
        let work = StepWork { decoding: 1, context_tokens: 1_000, ..StepWork::default() };
        let expected_s = 0.014 + 4e-5 + 1.8e-5;
        assert!((StepModel::default().duration_s(&work) - expected_s).abs() < 1e-12);
    }

    #[test]
    fn a_long_prefill_hides_the_reading_of_the_weights() {
        let work = StepWork { prefill_tokens: 2_200, ..StepWork::default() };
        assert!((StepModel::default().duration_s(&work) - (0.1 + 0.006)).abs() < 1e-12);
    }

    #[test]
    fn a_short_prefill_costs_no_more_than_a_decode_step() {
        let work = StepWork { prefill_tokens: 16, ..StepWork::default() };
        assert!((StepModel::default().duration_s(&work) - 0.014).abs() < 1e-12);
    }
}
