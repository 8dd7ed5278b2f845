//! `Router`: each method extracts, calls the core once, converts back.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use trunkline_core as core;
use trunkline_core::{
    CacheView, Policy, Prompt, Root, RouteRequest, RouterConfig, Usage, WorkerId, WorkerSpec,
};
use trunkline_events::Feeds;

use crate::batch::{self, MatchBatch, RouteBatch};
use crate::clock::Clock;
use crate::decision::{Decision, Explanation, Match};
use crate::error;
use crate::events::{self, Applied, Rendered, with_exact};
use crate::lease::Lease;
use crate::names::{self, Named, Names};
use crate::prompt::{Extras, with_prompt};
use crate::size;
use crate::text::Renderer;
use crate::views::{Stats, WorkerView};

/// What a router, its leases and its answers share.
pub(crate) struct Shared {
    pub(crate) core: Arc<core::Router>,
    pub(crate) clock: Clock,
    /// Random; marks the decisions of this router.
    pub(crate) tag: u64,
    names: Names,
    feeds: Feeds,
    /// What C calls it, once somebody has asked.
    handle: OnceLock<Option<trunkline::Handle>>,
}

impl Shared {
    /// The name and endpoint of a worker.
    pub(crate) fn named(&self, py: Python<'_>, id: WorkerId) -> Named {
        self.names.get(py, &self.core, id)
    }

    /// Decides and books.
    #[inline]
    pub(crate) fn route(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        arguments: &Arguments,
    ) -> PyResult<Py<Decision>> {
        let now = self.clock.millis(arguments.now)?;
        with_prompt(prompt, |prompt| {
            match arguments.with_request(&self.core, prompt, |request| self.core.route(request, now)) {
                Ok(decision) => Py::new(py, Decision::new(py, self, decision)),
                Err(refused) => Err(error::core(py, refused)),
            }
        })
    }

    /// The number of a worker. Errors: `UnknownWorkerError`.
    fn number(&self, py: Python<'_>, name: &str) -> PyResult<WorkerId> {
        self.core.worker(name).ok_or_else(|| error::unknown_worker(py, name))
    }

    /// The core's decision, if it is one of ours. Errors: `ValueError`.
    fn own<'a>(&self, decision: &'a Bound<'_, Decision>) -> PyResult<&'a core::Decision> {
        let decision = decision.get();
        if decision.router == self.tag { Ok(&decision.core) } else { Err(error::foreign_decision()) }
    }
}

/// The keyword arguments of `route`, in the core's terms.
///
/// Moving a large struct about costs as much as looking a prompt up, so what few calls give is apart.
pub(crate) struct Arguments {
    root: Root,
    /// The same for what events tell.
    exact_root: Root,
    text_model: u64,
    now: Option<f64>,
    seldom: Option<Box<Seldom>>,
}

/// The arguments that few calls give.
#[derive(Default)]
struct Seldom {
    eligible: Option<Vec<WorkerId>>,
    exclude: Vec<WorkerId>,
    rendered: Option<Rendered>,
    extras: Vec<u64>,
}

impl Arguments {
    #[inline]
    fn new(
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        now: Option<f64>,
    ) -> PyResult<Self> {
        let salt = salt.map(salt_bytes).transpose()?;
        Ok(Self {
            root: root(model, salt),
            exact_root: Root::of_events(lora.map(str::as_bytes), salt),
            text_model: model.map_or(0, text_model),
            now,
            seldom: None,
        })
    }

    /// Takes who may have the request.
    #[inline]
    fn limit(
        &mut self,
        shared: &Shared,
        eligible: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if let Some(names) = eligible {
            self.seldom().eligible = Some(names::numbers(&shared.core, names, "eligible")?);
        }
        if let Some(names) = exclude {
            self.seldom().exclude = names::numbers(&shared.core, names, "exclude")?;
        }
        Ok(())
    }

    /// Takes what makes its prompt one that events know.
    #[inline]
    fn exactly(&mut self, rendered: Option<Rendered>, extras: Option<Extras>) {
        if rendered.is_some() {
            self.seldom().rendered = rendered;
        }
        if let Some(Extras(extras)) = extras {
            self.seldom().extras = extras;
        }
    }

    #[cold]
    fn seldom(&mut self) -> &mut Seldom {
        self.seldom.get_or_insert_default()
    }

    /// Calls `act` with the request for a prompt.
    #[inline]
    pub(crate) fn with_request<R>(
        &self,
        core: &core::Router,
        prompt: Prompt<'_>,
        act: impl FnOnce(&RouteRequest<'_>) -> R,
    ) -> R {
        let plain =
            RouteRequest { root: self.root, text_model: self.text_model, ..RouteRequest::new(prompt) };
        let seldom = self.seldom.as_deref();
        if seldom.is_none() && !core.has_events() {
            return act(&plain);
        }
        let (rendered, extras) =
            seldom.map_or((None, &[][..]), |rest| (rest.rendered.as_ref(), &rest.extras[..]));
        with_exact(core, &prompt, self.exact_root, rendered, extras, |exact| {
            act(&RouteRequest {
                exact,
                eligible: seldom.and_then(|rest| rest.eligible.as_deref()),
                exclude: seldom.map_or(&[], |rest| &rest.exclude),
                ..plain
            })
        })
    }
}

/// What parts the cache entries of a model and salt from those of others.
#[inline]
pub(crate) fn root(model: Option<&str>, salt: Option<&[u8]>) -> Root {
    let root = model.map_or(Root::default(), |model| Root::default().with("model", model.as_bytes()));
    salt.map_or(root, |salt| root.with("salt", salt))
}

pub(crate) fn salt_bytes<'a>(salt: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = salt.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    let text = salt.cast::<PyString>().map_err(|_| error::salt_type(salt))?;
    Ok(text.to_str()?.as_bytes())
}

/// The policy of this name with these parameters, where it has any.
pub(crate) fn parsed(
    name: &str,
    prefix_length: u32,
    concurrency_threshold: Option<u32>,
) -> Result<Policy, trunkline_core::Error> {
    Ok(match Policy::parse(name)? {
        Policy::PrefixAware { .. } => Policy::PrefixAware { prefix_length, concurrency_threshold },
        other => other,
    })
}

/// What an engine said of a request; `None` if that was nothing.
pub(crate) fn usage(
    decision: &core::Decision,
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    completion_tokens: Option<u32>,
) -> Option<Usage> {
    let known = prompt_tokens.or(cached_tokens).or(completion_tokens).is_some();
    known.then(|| Usage {
        prompt_tokens: prompt_tokens.unwrap_or(decision.prompt_tokens),
        cached_tokens,
        completion_tokens: completion_tokens.unwrap_or(0),
    })
}

fn text_model(model: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}

/// Chooses workers for prompts and keeps count of what they were given.
///
/// All methods may be called from any thread. A single decision keeps the GIL, batches release it.
///
/// A new one has no workers. policy: kv_aware, prefix_aware, least_outstanding, round_robin or random.  block_size: tokens
/// per block, 1..256; text is cut into blocks of 64 bytes.  memory_budget: bytes that the index may own, 1 MiB..16 GiB, or
/// text like "64MiB"; None is 256 MiB, which remember about 10 million blocks.  events_budget: bytes that what workers'
/// events tell may own, at least 1 MiB; None is 1 GiB.  seed: of the index's hashes and of what is left to chance,
/// 0..2**64; None takes a random one, so that nobody can aim at a collision and replicas do not all choose alike.
/// placement_seed: of homes, 0..2**64, equal on all replicas.  replicas: routers in front of the same workers, 1..1000.
///
/// Of policy prefix_aware: prefix_length: characters of text (four make a token id) that decide, 1024..65536.
/// concurrency_threshold: requests in flight from which a worker is left, 1..1024; None takes one relative to the fleet's
/// mean.
///
/// Raises ConfigError.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Router {
    pub(crate) shared: Arc<Shared>,
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (
        *,
        policy = "kv_aware",
        block_size = 16,
        memory_budget = None,
        events_budget = None,
        seed = None,
        placement_seed = 0,
        replicas = 1,
        prefix_length = 4096,
        concurrency_threshold = None,
    ))]
    fn new(
        py: Python<'_>,
        policy: &str,
        block_size: u32,
        memory_budget: Option<&Bound<'_, PyAny>>,
        events_budget: Option<&Bound<'_, PyAny>>,
        seed: Option<u64>,
        placement_seed: u64,
        replicas: u32,
        prefix_length: u32,
        concurrency_threshold: Option<u32>,
    ) -> PyResult<Self> {
        let refused = |error| error::core(py, error);
        let policy = parsed(policy, prefix_length, concurrency_threshold).map_err(refused)?;
        let defaults = RouterConfig::default();
        let memory_budget = match memory_budget {
            None => defaults.memory_budget,
            Some(size) => size::bytes("memory_budget", size)?,
        };
        let events_budget = match events_budget {
            None => defaults.events_budget,
            Some(size) => size::bytes("events_budget", size)?,
        };
        let config = RouterConfig {
            policy,
            block_size,
            memory_budget,
            events_budget,
            index_seed: seed.unwrap_or_else(random),
            placement_seed,
            replicas,
            ..defaults
        };
        Ok(Self::of(core::Router::new(config).map_err(refused)?, Clock::new(py)?))
    }

    /// Choose by another policy from now on; what is known of workers and caches stays.
    ///
    /// policy, prefix_length, concurrency_threshold: as for `Router`.  Cost: O(workers).  Raises ConfigError.
    #[pyo3(signature = (policy, *, prefix_length = 4096, concurrency_threshold = None))]
    fn set_policy(
        &self,
        py: Python<'_>,
        policy: &str,
        prefix_length: u32,
        concurrency_threshold: Option<u32>,
    ) -> PyResult<()> {
        let policy = parsed(policy, prefix_length, concurrency_threshold);
        policy
            .and_then(|policy| self.shared.core.set_policy(policy))
            .map_err(|refused| error::core(py, refused))
    }

    /// Add a worker, healthy and with an empty cache.
    ///
    /// id: its stable name, usually its URL; replicas that use equal ids agree on homes.  url: its endpoint, handed back
    /// in decisions.  weight: its share of the prompts that nobody holds, 1..64.  capacity_tokens: size of its KV cache; None
    /// leaves it to the memory budget.  Cost: O(workers), as for all changes of the fleet.
    ///
    /// Raises DuplicateWorkerError, ConfigError.
    #[pyo3(signature = (id, *, url = None, weight = 1, capacity_tokens = None))]
    fn add_worker(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyString>,
        url: Option<Py<PyString>>,
        weight: u32,
        capacity_tokens: Option<u64>,
    ) -> PyResult<()> {
        let endpoint = url.as_ref().map(|url| url.to_str(py).map(str::to_owned)).transpose()?;
        let spec = WorkerSpec { endpoint, weight, capacity_tokens, ..WorkerSpec::new(id.to_str()?) };
        let number = self.shared.core.add_worker(spec).map_err(|refused| error::core(py, refused))?;
        self.shared.names.set(number, Named { name: id.clone().unbind(), url });
        Ok(())
    }

    /// Remove a worker and forget its cache. What is in flight there may still be completed.
    ///
    /// Raises UnknownWorkerError.
    fn remove_worker(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        self.change(py, id, |router, number| {
            self.shared.feeds.forget(number);
            router.remove_worker(number)
        })
    }

    /// Send a worker nothing new; it finishes what it has. draining=False takes that back.
    ///
    /// Raises UnknownWorkerError.
    #[pyo3(signature = (id, *, draining = true))]
    fn drain_worker(&self, py: Python<'_>, id: &str, draining: bool) -> PyResult<()> {
        self.change(py, id, |router, number| router.drain_worker(number, draining))
    }

    /// Forget a worker's cache, because it restarted or cleared it. What is in flight stays booked.
    ///
    /// Cost: O(workers), whatever it held.  Raises UnknownWorkerError.
    fn reset_worker(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        self.change(py, id, core::Router::reset_worker)
    }

    /// Tell what is known of a worker; what is None stays as it is.
    ///
    /// capacity_tokens: size of its KV cache as the engine reports it.  healthy: whether it may take requests.
    ///
    /// Raises UnknownWorkerError.
    #[pyo3(signature = (id, *, capacity_tokens = None, healthy = None))]
    fn set_load(
        &self,
        py: Python<'_>,
        id: &str,
        capacity_tokens: Option<u64>,
        healthy: Option<bool>,
    ) -> PyResult<()> {
        self.change(py, id, |router, number| {
            capacity_tokens.map_or(Ok(()), |tokens| router.set_capacity(number, Some(tokens)))?;
            healthy.map_or(Ok(()), |healthy| router.set_healthy(number, healthy))
        })
    }

    /// Apply one message of a worker's feed of KV events: what its engine stored, evicted or cleared.
    ///
    /// payload: the last frame of a message of vLLM's, SGLang's or TensorRT-LLM's ZMQ publisher.  renderer: of its model, if
    /// prompts come as rendered text; without one, token ids are matched with token ids.  now: seconds of time.monotonic().
    ///
    /// Events count once `set_cache_view(id, "events")` says so. Messages must come in order, each once: after a gap call
    /// `forget_events` and replay. Without the GIL. Cost: about 0.3 us for each stored block.
    ///
    /// Raises UnknownWorkerError, PayloadError.
    #[pyo3(signature = (id, payload, *, renderer = None, now = None))]
    fn apply_events(
        &self,
        py: Python<'_>,
        id: &str,
        payload: &Bound<'_, PyBytes>,
        renderer: Option<&Bound<'_, Renderer>>,
        now: Option<f64>,
    ) -> PyResult<Applied> {
        let (number, now) = (self.shared.number(py, id)?, self.shared.clock.millis(now)?);
        events::apply(
            py,
            &self.shared.core,
            &self.shared.feeds,
            number,
            payload.as_bytes(),
            renderer.map(Bound::get),
            now,
        )
    }

    /// Say from where a worker's cache is known.
    ///
    /// view: "events" (what it told; nothing is cached before it tells any), "own" (the decisions of this router, kept up in
    /// any case) or "none".  Raises UnknownWorkerError, ConfigError.
    #[pyo3(signature = (id, view))]
    fn set_cache_view(&self, py: Python<'_>, id: &str, view: &str) -> PyResult<()> {
        let view = CacheView::parse(view).map_err(|refused| error::core(py, refused))?;
        self.change(py, id, |router, number| router.set_cache_view(number, view))
    }

    /// Forget what a worker's events told, before they are told anew. Raises UnknownWorkerError.
    fn forget_events(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        self.change(py, id, |router, number| {
            self.shared.feeds.forget(number);
            router.forget_events(number)
        })
    }

    /// Choose a worker for a prompt and book the request on it, in one step.
    ///
    /// prompt: str or bytes (text), a contiguous buffer of uint32, int32 or int64 token ids, or a sequence of int (slow).
    /// model, salt: what makes equal prompts different cache entries.  eligible: ids of the workers that may take it; None
    /// means all.  exclude: ids of workers that must not, such as one that failed it.  now: seconds of time.monotonic().
    ///
    /// Where workers tell of their caches (`apply_events`), prompts of token ids are matched with what they told. lora: name
    /// of the adapter, if the prompt is for one.  extras: for each block what it depends on besides its tokens, as
    /// `extra_hash` makes it; 0 for nothing.  rendered: the text that the worker's tokenizer gets, from `Renderer.render`,
    /// where events are applied with that renderer.
    ///
    /// Cost: one hash for each block, O(workers) below 64 workers and ten of them from there on; some microseconds in all,
    /// with the GIL. Waits for nothing, so there is no async twin.
    ///
    /// Raises NoWorkerAvailableError, TokenIdError, TypeError for what is no prompt; nothing is booked then. Names in eligible
    /// and exclude that are not in the fleet are passed over.
    #[pyo3(signature = (
        prompt, *, model = None, salt = None, eligible = None, exclude = None, lora = None, rendered = None, extras = None,
        now = None,
    ))]
    fn route(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        eligible: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        rendered: Option<Rendered>,
        extras: Option<Extras>,
        now: Option<f64>,
    ) -> PyResult<Py<Decision>> {
        let mut arguments = Arguments::new(model, salt, lora, now)?;
        arguments.limit(&self.shared, eligible, exclude)?;
        arguments.exactly(rendered, extras);
        self.shared.route(py, prompt, &arguments)
    }

    /// Route on entry, complete on exit: `with router.lease(prompt) as decision`, or `async with`.
    ///
    /// Arguments and errors are those of `route`. Complete it inside with `complete(decision, cached_tokens=...)` to report
    /// what the engine said; the exit is a no-op then.
    #[pyo3(signature = (
        prompt, *, model = None, salt = None, eligible = None, exclude = None, lora = None, rendered = None, extras = None,
        now = None,
    ))]
    fn lease(
        &self,
        prompt: Py<PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        eligible: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        rendered: Option<Rendered>,
        extras: Option<Extras>,
        now: Option<f64>,
    ) -> PyResult<Lease> {
        let mut arguments = Arguments::new(model, salt, lora, now)?;
        arguments.limit(&self.shared, eligible, exclude)?;
        arguments.exactly(rendered, extras);
        Ok(Lease::new(&self.shared, prompt, arguments))
    }

    /// What `route` would choose now and how every candidate scores. Books nothing.
    ///
    /// Arguments and errors are those of `route`. Cost: that of `route` and O(candidates) for the rows.
    #[pyo3(signature = (
        prompt, *, model = None, salt = None, eligible = None, exclude = None, lora = None, rendered = None, extras = None,
        now = None,
    ))]
    fn explain(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        eligible: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        rendered: Option<Rendered>,
        extras: Option<Extras>,
        now: Option<f64>,
    ) -> PyResult<Explanation> {
        let mut arguments = Arguments::new(model, salt, lora, now)?;
        arguments.limit(&self.shared, eligible, exclude)?;
        arguments.exactly(rendered, extras);
        let now = self.shared.clock.millis(arguments.now)?;
        let core = &self.shared.core;
        let explained = with_prompt(prompt, |prompt| {
            arguments
                .with_request(core, prompt, |request| core.explain(request, now))
                .map_err(|refused| error::core(py, refused))
        })?;
        Explanation::new(py, &self.shared, explained)
    }

    /// Who holds how much of a prompt. Books nothing and chooses nobody.
    ///
    /// Arguments are those of `route`. Takes no lock. Cost: one hash for each matched block, O(holders); about a microsecond
    /// for 512 tokens.  Raises TokenIdError, TypeError for what is no prompt.
    #[pyo3(signature = (prompt, *, model = None, salt = None, lora = None, rendered = None, extras = None))]
    fn peek(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        rendered: Option<Rendered>,
        extras: Option<Extras>,
    ) -> PyResult<Py<Match>> {
        let mut arguments = Arguments::new(model, salt, lora, None)?;
        arguments.exactly(rendered, extras);
        let core = &self.shared.core;
        with_prompt(prompt, |prompt| {
            match arguments.with_request(core, prompt, |request| core.peek(request)) {
                Ok(found) => Py::new(py, Match::new(&self.shared, found)),
                Err(refused) => Err(error::core(py, refused)),
            }
        })
    }

    /// `peek` for many prompts in one call, without the GIL.
    ///
    /// tokens: all prompts end to end; uint32, int32 or int64, shape (T,).  offsets: int64, shape (N + 1,); prompt i is
    /// tokens[offsets[i]:offsets[i + 1]].  Neither may be written to meanwhile.  model, salt: as for `route`, of all of them.
    /// Cost: that of N calls of `peek`, whose cache misses overlap.
    ///
    /// Raises ValueError if offsets do not ascend, TokenIdError, TypeError for arrays of another kind.
    #[pyo3(signature = (tokens, offsets, *, model = None, salt = None))]
    fn match_batch(
        &self,
        tokens: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MatchBatch> {
        batch::find(&self.shared, tokens, offsets, root(model, salt.map(salt_bytes).transpose()?))
    }

    /// `route` for many prompts in one call, without the GIL. Equal to as many calls of `route` in order.
    ///
    /// tokens, offsets: as in `match_batch`.  The other arguments are those of `route`, for all of them.  Raises what `route`
    /// raises and ValueError if offsets do not ascend; nothing stays booked then.
    #[pyo3(signature = (
        tokens, offsets, *, model = None, salt = None, eligible = None, exclude = None, lora = None, now = None,
    ))]
    fn route_batch(
        &self,
        tokens: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
        eligible: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        lora: Option<&str>,
        now: Option<f64>,
    ) -> PyResult<RouteBatch> {
        let mut arguments = Arguments::new(model, salt, lora, now)?;
        arguments.limit(&self.shared, eligible, exclude)?;
        let now = self.shared.clock.millis(arguments.now)?;
        batch::route(&self.shared, tokens, offsets, &arguments, now)
    }

    /// Say that the first token of the answer came; releases the prompt from the worker's queue.
    ///
    /// decision: of this router.  now: seconds of time.monotonic().  Returns whether this was the first time; False as well
    /// once it is completed. Cost: O(1).  Raises ValueError for the decision of another router.
    #[pyo3(signature = (decision, *, now = None))]
    fn first_token(&self, decision: &Bound<'_, Decision>, now: Option<f64>) -> PyResult<bool> {
        let decision = self.shared.own(decision)?;
        Ok(self.shared.core.first_token(decision.id, self.shared.clock.millis(now)?))
    }

    /// Say that the request is over, answered or not; releases all that was booked.
    ///
    /// decision: of this router.  prompt_tokens, cached_tokens, completion_tokens: what the engine's `usage` said; they correct
    /// the router's beliefs.  now: seconds of time.monotonic().  Returns whether this was the first time; a second call does
    /// nothing. Cost: O(1).  Raises ValueError for the decision of another router.
    #[pyo3(signature = (decision, *, prompt_tokens = None, cached_tokens = None, completion_tokens = None, now = None))]
    fn complete(
        &self,
        decision: &Bound<'_, Decision>,
        prompt_tokens: Option<u32>,
        cached_tokens: Option<u32>,
        completion_tokens: Option<u32>,
        now: Option<f64>,
    ) -> PyResult<bool> {
        let decision = self.shared.own(decision)?;
        let usage = usage(decision, prompt_tokens, cached_tokens, completion_tokens);
        Ok(self.shared.core.complete(decision.id, usage, self.shared.clock.millis(now)?))
    }

    /// `first_token` for many decisions, without the GIL.
    ///
    /// decisions: uint64, shape (N,), as `RouteBatch.decision`.  now: as for `first_token`.  Returns how many were new; ids
    /// that this router never gave are passed over.  Raises TypeError for arrays of another kind.
    #[pyo3(signature = (decisions, *, now = None))]
    fn first_token_batch(
        &self,
        py: Python<'_>,
        decisions: &Bound<'_, PyAny>,
        now: Option<f64>,
    ) -> PyResult<usize> {
        let now = self.shared.clock.millis(now)?;
        batch::each(py, decisions, |id| self.shared.core.first_token(id, now))
    }

    /// `complete` for many decisions, without the GIL.
    ///
    /// decisions: uint64, shape (N,), as `RouteBatch.decision`.  now: as for `complete`.  Returns how many were new; ids that
    /// this router never gave are passed over.  Raises TypeError for arrays of another kind.
    #[pyo3(signature = (decisions, *, now = None))]
    fn complete_batch(
        &self,
        py: Python<'_>,
        decisions: &Bound<'_, PyAny>,
        now: Option<f64>,
    ) -> PyResult<usize> {
        let now = self.shared.clock.millis(now)?;
        batch::each(py, decisions, |id| self.shared.core.complete(id, None, now))
    }

    /// This router as bytes for `restore`: settings, workers, counters and index, but nothing that is in flight.
    ///
    /// now: seconds of time.monotonic(). Without the GIL. Cost: about 15 ns for each block; decisions wait meanwhile.
    #[pyo3(signature = (*, now = None))]
    fn snapshot<'py>(&self, py: Python<'py>, now: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let now = self.shared.clock.millis(now)?;
        let bytes = py.detach(|| self.shared.core.snapshot(now));
        Ok(PyBytes::new(py, &bytes))
    }

    /// The router that `snapshot` saved, here or in another process, with nothing in flight.
    ///
    /// data: what `snapshot` returned. It answers as the saved one would; decisions of that one are not its own.  now: seconds of time.monotonic(), the
    /// moment from which its uses grow older. Without the GIL. Cost: about 30 ns for each block.
    ///
    /// Raises SnapshotError for anything but a whole snapshot of this version.
    #[staticmethod]
    #[pyo3(signature = (data, *, now = None))]
    fn restore(py: Python<'_>, data: &Bound<'_, PyBytes>, now: Option<f64>) -> PyResult<Self> {
        let clock = Clock::new(py)?;
        let (bytes, now) = (data.as_bytes(), clock.millis(now)?);
        let core =
            py.detach(|| core::Router::restore(bytes, now)).map_err(|refused| error::core(py, refused))?;
        Ok(Self::of(core, clock))
    }

    /// A pickled router is its snapshot.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<Self>().getattr("restore")?, (self.snapshot(py, None)?,)))
    }

    /// Counters and sizes, all of one moment. Cost: O(1).
    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        Stats::new(py, &self.shared.core.stats())
    }

    /// The fleet. Cost: O(workers).
    #[getter]
    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let mut views = Vec::new();
        for view in self.shared.core.workers() {
            views.push(Py::new(py, WorkerView::new(&view, self.shared.named(py, view.id)))?);
        }
        PyTuple::new(py, views)
    }

    /// The name of the policy in use.
    #[getter]
    fn policy(&self) -> &'static str {
        self.shared.core.policy().name()
    }

    /// The router's number in the C API (`trunkline.h`, `trunkline.pxd`), good for as long as this object lives.
    ///
    /// Raises RuntimeError if the process has lent 1,024 routers to C already.
    #[getter]
    fn c_handle(&self) -> PyResult<u64> {
        let shared = &self.shared;
        let handle = shared.handle.get_or_init(|| trunkline::Handle::new(&shared.core, shared.clock.of_c));
        handle.as_ref().map(trunkline::Handle::number).ok_or_else(error::no_handle)
    }

    fn __repr__(&self) -> String {
        let stats = self.shared.core.stats();
        format!(
            "Router(policy={:?}, workers={}, in_flight={})",
            self.policy(),
            stats.workers,
            stats.in_flight
        )
    }
}

impl Router {
    fn of(core: core::Router, clock: Clock) -> Self {
        let shared = Shared {
            core: Arc::new(core),
            clock,
            tag: random(),
            names: Names::default(),
            feeds: Feeds::default(),
            handle: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// One change of one worker, which is named.
    fn change(
        &self,
        py: Python<'_>,
        name: &str,
        change: impl FnOnce(&core::Router, WorkerId) -> Result<(), core::Error>,
    ) -> PyResult<()> {
        let number = self.shared.number(py, name)?;
        // It may go between the two calls; then it is as unknown as if it had gone before.
        change(&self.shared.core, number).map_err(|refused| match refused {
            core::Error::UnknownWorker { .. } => error::unknown_worker(py, name),
            other => error::core(py, other),
        })
    }
}

/// A number that no other process knows.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u64)
}
