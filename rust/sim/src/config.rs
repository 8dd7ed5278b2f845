//! Settings of a mock worker, with the ranges in which they make sense.

use std::net::{Ipv4Addr, SocketAddr};

use crate::dialect::Dialect;
use crate::engine::EngineConfig;
use crate::error::Error;
use crate::step::StepModel;

/// Settings of a [`MockWorker`](crate::MockWorker). Times are those of the modelled hardware, see [`StepModel`] for
/// their source; `time_scale` turns them into wall-clock time.
#[derive(Clone, Debug)]
pub struct MockWorkerConfig {
    /// Address to listen on. Default: a free port of 127.0.0.1.
    pub listen: SocketAddr,
    /// The one model that is served. Default: `mock`.
    pub model: String,
    /// Whose routes, metrics and native answers it has: vLLM's.
    pub dialect: Dialect,
    /// Tokens per block of the prefix cache: 16, vLLM's default on GPUs.
    pub block_size: u32,
    /// Tokens that fit the KV cache, prefixes and running requests together: 1.3 M, what 8 x 80 GB leave beside the
    /// weights.
    pub kv_tokens: u64,
    /// Uncached prompt tokens computed per second: 22,000.
    pub prefill_tokens_per_s: f64,
    /// A decode step at batch 1: 14 ms.
    pub step_s: f64,
    /// The part of `step_s` that a long prefill hides: 8 ms.
    pub weight_read_s: f64,
    /// Added to a step per decoding sequence: 40 us.
    pub per_sequence_s: f64,
    /// Added to a step per token of context of a decoding sequence: 18 ns.
    pub per_kv_token_s: f64,
    /// Added to a step per pair of a prefilled token and a token that it attends to: 0.7 ns.
    pub per_attention_pair_s: f64,
    /// Sequences that run at once: 256.
    pub max_sequences: usize,
    /// Tokens computed per step: 8,192.
    pub step_token_budget: u32,
    /// Length of an answer whose request has no limit: 64 tokens.
    pub default_output_tokens: u32,
    /// Multiplies all times: 1 is the modelled hardware, 0.1 ten times faster.
    pub time_scale: f64,
    /// How it publishes KV events; it publishes none by default. Its tokens are bytes then, see
    /// [`byte_tokens`](crate::byte_tokens).
    pub events: Option<EventsConfig>,
}

/// How a mock worker publishes KV events. Faults befall a share of the messages, the same ones in every run.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// Port of the messages, on the worker's address; 0 takes a free one.
    pub port: u16,
    /// Port of the replay, likewise.
    pub replay_port: u16,
    /// Newest messages that a replay can give: 10,000.
    pub buffer_steps: usize,
    /// Messages go out so much later; not scaled.
    pub delay_s: f64,
    /// Share of messages that are lost on the way, 0..1.
    pub drop_share: f64,
    /// Share of messages that are sent twice, 0..1.
    pub duplicate_share: f64,
    /// Share of messages that go out after the next one, 0..1.
    pub reorder_share: f64,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            port: 0,
            replay_port: 0,
            buffer_steps: 10_000,
            delay_s: 0.0,
            drop_share: 0.0,
            duplicate_share: 0.0,
            reorder_share: 0.0,
        }
    }
}

impl Default for MockWorkerConfig {
    fn default() -> Self {
        let step = StepModel::default();
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "mock".to_owned(),
            dialect: Dialect::Vllm,
            block_size: 16,
            kv_tokens: 1_300_000,
            prefill_tokens_per_s: step.prefill_tokens_per_s,
            step_s: step.step_s,
            weight_read_s: step.weight_read_s,
            per_sequence_s: step.per_sequence_s,
            per_kv_token_s: step.per_kv_token_s,
            per_attention_pair_s: step.per_attention_pair_s,
            max_sequences: 256,
            step_token_budget: 8_192,
            default_output_tokens: 64,
            time_scale: 1.0,
            events: None,
        }
    }
}

impl MockWorkerConfig {
    /// The engine's share of the settings.
    ///
    /// # Errors
    /// [`Error::Config`] if a value is out of range.
    pub(crate) fn engine(&self) -> Result<EngineConfig, Error> {
        self.check()?;
        Ok(EngineConfig {
            block_size: self.block_size,
            capacity_blocks: (self.kv_tokens / u64::from(self.block_size)) as u32,
            max_sequences: self.max_sequences,
            step_token_budget: self.step_token_budget,
            step_model: StepModel {
                prefill_tokens_per_s: self.prefill_tokens_per_s,
                step_s: self.step_s,
                weight_read_s: self.weight_read_s,
                per_sequence_s: self.per_sequence_s,
                per_kv_token_s: self.per_kv_token_s,
                per_attention_pair_s: self.per_attention_pair_s,
            },
        })
    }

    fn check(&self) -> Result<(), Error> {
        let budget = u64::from(self.step_token_budget);
        require(!self.model.is_empty(), "model", &self.model, "a name")?;
        require((1..=1_024).contains(&self.block_size), "block_size", &self.block_size, "1..=1024")?;
        require(
            (u64::from(self.block_size) * 8..=1 << 31).contains(&self.kv_tokens),
            "kv_tokens",
            &self.kv_tokens,
            "8 blocks..=2^31",
        )?;
        require(
            (1..=65_536).contains(&self.max_sequences),
            "max_sequences",
            &self.max_sequences,
            "1..=65536",
        )?;
        require(budget > self.max_sequences as u64, "step_token_budget", &budget, "more than max_sequences")?;
        require(
            self.default_output_tokens > 0,
            "default_output_tokens",
            &self.default_output_tokens,
            "at least 1",
        )?;
        require(
            positive(self.prefill_tokens_per_s),
            "prefill_tokens_per_s",
            &self.prefill_tokens_per_s,
            "above 0",
        )?;
        require(positive(self.step_s), "step_s", &self.step_s, "above 0")?;
        require(
            (0.0..=self.step_s).contains(&self.weight_read_s),
            "weight_read_s",
            &self.weight_read_s,
            "from 0 to step_s",
        )?;
        for (key, value) in [
            ("per_sequence_s", self.per_sequence_s),
            ("per_kv_token_s", self.per_kv_token_s),
            ("per_attention_pair_s", self.per_attention_pair_s),
        ] {
            require(value == 0.0 || positive(value), key, &value, "0 or above")?;
        }
        require((1e-6..=1e3).contains(&self.time_scale), "time_scale", &self.time_scale, "1e-6..=1000")?;
        self.events.as_ref().map_or(Ok(()), |events| self.check_events(events))
    }

    fn check_events(&self, events: &EventsConfig) -> Result<(), Error> {
        require(self.dialect == Dialect::Vllm, "dialect", &self.dialect, "vllm with kv_events")?;
        require(
            (1..=1_000_000).contains(&events.buffer_steps),
            "buffer_steps",
            &events.buffer_steps,
            "1..=1000000",
        )?;
        require((0.0..=3600.0).contains(&events.delay_s), "event_delay_s", &events.delay_s, "0..=3600")?;
        for (key, share) in [
            ("drop_events", events.drop_share),
            ("duplicate_events", events.duplicate_share),
            ("reorder_events", events.reorder_share),
        ] {
            require((0.0..=1.0).contains(&share), key, &share, "0..=1")?;
        }
        Ok(())
    }
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn require(holds: bool, key: &'static str, value: &dyn ToString, allowed: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Config { key, value: value.to_string(), allowed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &MockWorkerConfig) -> &'static str {
        match config.engine() {
            Err(Error::Config { key, .. }) => key,
            other => panic!("accepted or another error: {other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_in_range() {
        let engine = MockWorkerConfig::default().engine().unwrap();
        assert_eq!((engine.block_size, engine.capacity_blocks), (16, 81_250));
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        let default = MockWorkerConfig::default;
        assert_eq!(refused(&MockWorkerConfig { block_size: 0, ..default() }), "block_size");
        assert_eq!(refused(&MockWorkerConfig { kv_tokens: 100, ..default() }), "kv_tokens");
        assert_eq!(refused(&MockWorkerConfig { model: String::new(), ..default() }), "model");
        assert_eq!(refused(&MockWorkerConfig { step_token_budget: 256, ..default() }), "step_token_budget");
        assert_eq!(refused(&MockWorkerConfig { weight_read_s: 0.1, ..default() }), "weight_read_s");
        assert_eq!(refused(&MockWorkerConfig { per_kv_token_s: -1.0, ..default() }), "per_kv_token_s");
        assert_eq!(refused(&MockWorkerConfig { time_scale: f64::NAN, ..default() }), "time_scale");
    }
}
