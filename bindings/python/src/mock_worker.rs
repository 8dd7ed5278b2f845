//! `MockWorker`: a simulated inference worker over HTTP, for demos and tests without a GPU.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use trunkline_sim as sim;
use trunkline_sim::{Dialect, EventsConfig, MockWorkerConfig};

use crate::error;
use crate::net::address;
use crate::running::Running;

/// What a mock worker has done since it was started or reset.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct MockStats {
    /// Sequences received; a request with several prompts or choices is several.
    requests: u64,
    /// Prompt tokens of admitted sequences.
    prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    cached_tokens: u64,
    /// Sequences whose client left before their end.
    cancelled: u64,
    /// Sequences that prefill or decode now.
    running: u64,
    /// Sequences that wait for room now.
    waiting: u64,
    /// Blocks evicted from the prefix cache.
    evicted_blocks: u64,
    /// Messages of KV events since it was started, lost ones included.
    event_messages: u64,
}

#[pymethods]
impl MockStats {
    fn __repr__(&self) -> String {
        format!(
            "MockStats(requests={}, prompt_tokens={}, cached_tokens={}, running={}, waiting={})",
            self.requests, self.prompt_tokens, self.cached_tokens, self.running, self.waiting
        )
    }
}

/// A simulated worker: OpenAI endpoints, a block-LRU prefix cache, vLLM's metrics. Its thread runs until `close`.
///
/// It accepts connections when the constructor returns. Use it as a context manager, or close it. All methods may be called
/// from any thread. DEFAULTS: the values of the arguments that are None, those of one worker of 8 GPUs.
///
/// host, port: where it listens; port 0 takes a free one.  model: the one that it serves.  dialect: the engine that it
/// speaks like: vllm, sglang, trtllm or tgi.  block_size: tokens per block of its cache.  kv_tokens: size of its cache.
/// prefill_tokens_per_s, step_s, per_sequence_s, per_kv_token_s: speed of the modelled hardware.  max_sequences: that run
/// at once.  step_token_budget: tokens per step.  default_output_tokens: length of an answer without a limit.  time_scale: multiplies all times, 0.1 is ten times
/// faster.
///
/// kv_events: whether it publishes KV events as vLLM does; its tokens are bytes then, see
/// `trunkline.testing.write_mock_tokenizer`.  events_port, replay_port: where; port 0 takes a free one.  buffer_steps:
/// messages that a replay can give.  event_delay_s: messages go out so much later.  drop_events, duplicate_events,
/// reorder_events: shares of messages, 0..1, that are lost on the way, sent twice, or sent after the next one.
///
/// Raises ConfigError, OSError if the address cannot be listened on.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct MockWorker {
    running: Running<sim::MockWorker>,
    url: String,
    port: u16,
}

#[pymethods]
impl MockWorker {
    /// What the arguments are that nobody gives: the model of one worker of 8 GPUs.
    #[classattr]
    #[pyo3(name = "DEFAULTS")]
    fn defaults(py: Python<'_>) -> PyResult<Py<PyDict>> {
        let config = MockWorkerConfig::default();
        let defaults = PyDict::new(py);
        defaults.set_item("model", config.model)?;
        defaults.set_item("dialect", config.dialect.name())?;
        defaults.set_item("block_size", config.block_size)?;
        defaults.set_item("kv_tokens", config.kv_tokens)?;
        defaults.set_item("prefill_tokens_per_s", config.prefill_tokens_per_s)?;
        defaults.set_item("step_s", config.step_s)?;
        defaults.set_item("per_sequence_s", config.per_sequence_s)?;
        defaults.set_item("per_kv_token_s", config.per_kv_token_s)?;
        defaults.set_item("max_sequences", config.max_sequences)?;
        defaults.set_item("step_token_budget", config.step_token_budget)?;
        defaults.set_item("default_output_tokens", config.default_output_tokens)?;
        defaults.set_item("time_scale", config.time_scale)?;
        let events = EventsConfig::default();
        defaults.set_item("kv_events", config.events.is_some())?;
        defaults.set_item("events_port", events.port)?;
        defaults.set_item("replay_port", events.replay_port)?;
        defaults.set_item("buffer_steps", events.buffer_steps)?;
        defaults.set_item("event_delay_s", events.delay_s)?;
        Ok(defaults.unbind())
    }

    #[new]
    #[pyo3(signature = (
        *,
        host = "127.0.0.1",
        port = 0,
        model = None,
        dialect = None,
        block_size = None,
        kv_tokens = None,
        prefill_tokens_per_s = None,
        step_s = None,
        per_sequence_s = None,
        per_kv_token_s = None,
        max_sequences = None,
        step_token_budget = None,
        default_output_tokens = None,
        time_scale = None,
        kv_events = false,
        events_port = 0,
        replay_port = 0,
        buffer_steps = None,
        event_delay_s = 0.0,
        drop_events = 0.0,
        duplicate_events = 0.0,
        reorder_events = 0.0,
    ))]
    fn new(
        py: Python<'_>,
        host: &str,
        port: u16,
        model: Option<String>,
        dialect: Option<&str>,
        block_size: Option<u32>,
        kv_tokens: Option<u64>,
        prefill_tokens_per_s: Option<f64>,
        step_s: Option<f64>,
        per_sequence_s: Option<f64>,
        per_kv_token_s: Option<f64>,
        max_sequences: Option<usize>,
        step_token_budget: Option<u32>,
        default_output_tokens: Option<u32>,
        time_scale: Option<f64>,
        kv_events: bool,
        events_port: u16,
        replay_port: u16,
        buffer_steps: Option<usize>,
        event_delay_s: f64,
        drop_events: f64,
        duplicate_events: f64,
        reorder_events: f64,
    ) -> PyResult<Self> {
        let defaults = MockWorkerConfig::default();
        let config = MockWorkerConfig {
            listen: address(py, host, port)?,
            model: model.unwrap_or(defaults.model),
            dialect: dialect.map_or(Ok(defaults.dialect), |name| {
                let allowed = "vllm, sglang, trtllm or tgi";
                Dialect::named(name).ok_or_else(|| error::config(py, "dialect", &name, allowed))
            })?,
            block_size: block_size.unwrap_or(defaults.block_size),
            kv_tokens: kv_tokens.unwrap_or(defaults.kv_tokens),
            prefill_tokens_per_s: prefill_tokens_per_s.unwrap_or(defaults.prefill_tokens_per_s),
            step_s: step_s.unwrap_or(defaults.step_s),
            per_sequence_s: per_sequence_s.unwrap_or(defaults.per_sequence_s),
            per_kv_token_s: per_kv_token_s.unwrap_or(defaults.per_kv_token_s),
            max_sequences: max_sequences.unwrap_or(defaults.max_sequences),
            step_token_budget: step_token_budget.unwrap_or(defaults.step_token_budget),
            default_output_tokens: default_output_tokens.unwrap_or(defaults.default_output_tokens),
            time_scale: time_scale.unwrap_or(defaults.time_scale),
            events: kv_events.then(|| EventsConfig {
                port: events_port,
                replay_port,
                buffer_steps: buffer_steps.unwrap_or(EventsConfig::default().buffer_steps),
                delay_s: event_delay_s,
                drop_share: drop_events,
                duplicate_share: duplicate_events,
                reorder_share: reorder_events,
            }),
            ..defaults
        };
        let running =
            py.detach(|| sim::MockWorker::start(config)).map_err(|refused| error::simulation(py, refused))?;
        Ok(Self {
            url: running.url(),
            port: running.local_addr().port(),
            running: Running::new("mock worker", running),
        })
    }

    /// Its endpoint, `http://host:port`.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// The port that it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// What it has done and does now. Raises RuntimeError once it is closed.
    fn stats(&self, py: Python<'_>) -> PyResult<MockStats> {
        let stats = self.with(py, sim::MockWorker::stats)?;
        Ok(MockStats {
            requests: stats.requests,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            cancelled: stats.cancelled,
            running: stats.running,
            waiting: stats.waiting,
            evicted_blocks: stats.evicted_blocks,
            event_messages: stats.event_messages,
        })
    }

    /// Empty the prefix cache and set all counters to 0. Raises RuntimeError once it is closed.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, sim::MockWorker::reset)
    }

    /// The ports of its events and of their replay, None if it publishes none. Raises RuntimeError once it is closed.
    fn event_ports(&self, py: Python<'_>) -> PyResult<Option<(u16, u16)>> {
        self.with(py, |worker| worker.event_ports().map(|[port, replay_port]| (port, replay_port)))
    }

    /// Empty the prefix cache of what no running request holds; return whether nothing is left.
    ///
    /// silent: whether events never tell of it; else they do with the next step, as vLLM's do. Raises RuntimeError once it is
    /// closed.
    #[pyo3(signature = (*, silent = false))]
    fn clear_cache(&self, py: Python<'_>, silent: bool) -> PyResult<bool> {
        self.with(py, |worker| worker.clear_cache(silent))
    }

    /// End the connections of whoever follows its events and refuse new ones, until it is called with paused=False.
    ///
    /// Messages are numbered and kept for a replay meanwhile. Raises RuntimeError once it is closed.
    #[pyo3(signature = (*, paused = true))]
    fn pause_events(&self, py: Python<'_>, paused: bool) -> PyResult<()> {
        self.with(py, |worker| worker.pause_events(paused))
    }

    /// Stop at once, as a killed process would: open connections are cut. The second time is a no-op, and so is a call in a
    /// forked child.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.running.take().map(sim::MockWorker::close));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exc_type, exc, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (exc_type, exc, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("MockWorker(url={:?})", self.url)
    }
}

impl MockWorker {
    /// One call of the running worker, without the GIL. Errors: `RuntimeError` once it is closed, or in a forked child.
    fn with<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&sim::MockWorker) -> R + Send) -> PyResult<R> {
        py.detach(|| self.running.with(call))
    }
}
