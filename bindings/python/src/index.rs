//! `PrefixIndex`: the router's index alone, for those who make their own choice.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use pyo3::prelude::*;
use trunkline_core as core;
use trunkline_core::index::{MIN_BUDGET, Matches, ViewId};
use trunkline_core::key::MAX_BLOCK_SIZE;
use trunkline_core::{BlockHash, BlockHasher, RouterConfig};

use crate::error;
use crate::prompt::with_prompt;
use crate::router::{random, root, salt_bytes};
use crate::size;

/// Which worker holds how much of which prompt. Workers are numbers of the caller's choice.
///
/// All methods may be called from any thread; they take turns.
///
/// A new one is empty. block_size: tokens per block, 1..256; text is cut into blocks of 64 bytes.  memory_budget: bytes that it may own, at
/// least 1 MiB, or text like "64MiB"; None is 256 MiB.  seed: of the hashes; None takes a random one.
///
/// Raises ConfigError.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct PrefixIndex {
    index: Arc<core::PrefixIndex>,
    state: Mutex<State>,
    block_size: u32,
    hasher: BlockHasher,
    started: Instant,
}

struct State {
    writer: core::Writer,
    views: HashMap<u32, ViewId>,
    /// Worker by the small number of its view.
    owners: Vec<Option<u32>>,
    matches: Matches,
    hashes: Vec<BlockHash>,
}

impl State {
    /// The worker's view, opened if need be. Errors: `ConfigError` when 65,536 workers are in use.
    fn view(&mut self, py: Python<'_>, worker: u32) -> PyResult<ViewId> {
        if let Some(&view) = self.views.get(&worker) {
            return Ok(view);
        }
        let view = self
            .writer
            .add_view(None)
            .ok_or_else(|| error::config(py, "worker", &worker, "one of at most 65536 different workers"))?;
        if self.owners.len() <= view.index() {
            self.owners.resize(view.index() + 1, None);
        }
        self.owners[view.index()] = Some(worker);
        self.views.insert(worker, view);
        Ok(view)
    }
}

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(signature = (*, block_size = 16, memory_budget = None, seed = None))]
    fn new(
        py: Python<'_>,
        block_size: u32,
        memory_budget: Option<&Bound<'_, PyAny>>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let budget = memory_budget
            .map_or(Ok(RouterConfig::default().memory_budget), |size| size::bytes("memory_budget", size))?;
        if !(1..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(error::config(py, "block_size", &block_size, "1 to 256 tokens"));
        }
        if budget < MIN_BUDGET {
            return Err(error::config(py, "memory_budget", &budget, "1 MiB or more"));
        }
        let (index, writer) = core::PrefixIndex::new(budget).map_err(|refused| error::core(py, refused))?;
        let state = State {
            writer,
            views: HashMap::new(),
            owners: Vec::new(),
            matches: Matches::default(),
            hashes: Vec::new(),
        };
        let hasher = BlockHasher::new(seed.unwrap_or_else(random));
        Ok(Self { index, state: Mutex::new(state), block_size, hasher, started: Instant::now() })
    }

    /// Note that a worker holds a prompt: all its whole blocks. May evict what was used longest ago.
    ///
    /// worker: 0..2**32, at most 65,536 different ones.  prompt, model, salt: as for `Router.route`.  Cost: one hash for each
    /// block, O(blocks) for what is new.
    ///
    /// Raises TokenIdError, TypeError for what is no prompt, ConfigError for one worker too many.
    #[pyo3(signature = (worker, prompt, *, model = None, salt = None))]
    fn insert(
        &self,
        py: Python<'_>,
        worker: u32,
        prompt: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let root = root(model, salt.map(salt_bytes).transpose()?);
        with_prompt(prompt, |prompt| {
            prompt.check().map_err(|refused| error::core(py, refused))?;
            let mut state = self.state.lock();
            let view = state.view(py, worker)?;
            let State { writer, hashes, .. } = &mut *state;
            prompt.blocks(root, &self.hasher, self.block_size).collect_into(hashes);
            writer.insert(view, hashes, self.now_ms());
            Ok(())
        })
    }

    /// Tell who holds how much of a prompt: (worker, matched_tokens), deepest first; of text, bytes instead of tokens.
    ///
    /// prompt, model, salt: as for `Router.route`.  Workers that hold nothing of it are left out. Cost: one hash for each
    /// matched block, O(holders).  Raises TokenIdError, TypeError for what is no prompt.
    #[pyo3(name = "match", signature = (prompt, *, model = None, salt = None))]
    fn find(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<(u32, usize)>> {
        let root = root(model, salt.map(salt_bytes).transpose()?);
        let mut found = with_prompt(prompt, |prompt| {
            prompt.check().map_err(|refused| error::core(py, refused))?;
            let per_block = prompt.units_per_block(self.block_size);
            let mut state = self.state.lock();
            let State { owners, matches, .. } = &mut *state;
            let blocks = prompt.blocks(root, &self.hasher, self.block_size);
            self.index.find(blocks, self.now_ms(), matches);
            let holders = matches
                .holders()
                .filter_map(|(view, depth)| Some((owners[view]?, depth as usize * per_block)));
            Ok(holders.collect::<Vec<_>>())
        })?;
        found.sort_unstable_by_key(|&(worker, matched)| (Reverse(matched), worker));
        Ok(found)
    }

    /// Set the size of a worker's cache; a smaller one evicts at once.
    ///
    /// worker: as for `insert`.  capacity_tokens: its size in tokens; None bounds it by the budget alone.  Raises ConfigError
    /// for one worker too many.
    #[pyo3(signature = (worker, capacity_tokens))]
    fn set_capacity(&self, py: Python<'_>, worker: u32, capacity_tokens: Option<u64>) -> PyResult<()> {
        let mut state = self.state.lock();
        let view = state.view(py, worker)?;
        state.writer.set_capacity(view, capacity_tokens.map(|tokens| tokens / u64::from(self.block_size)));
        Ok(())
    }

    /// Forget all that a worker holds; nothing happens for one that holds nothing. Cost: O(1) now, a share of later calls.
    ///
    /// worker: as for `insert`.
    fn remove_worker(&self, worker: u32) {
        let mut state = self.state.lock();
        if let Some(view) = state.views.remove(&worker) {
            state.owners[view.index()] = None;
            state.writer.remove_view(view);
        }
    }

    /// Distinct blocks in the index.
    #[getter]
    fn blocks(&self) -> usize {
        self.state.lock().writer.blocks()
    }

    /// Bytes that the index owns; never more than the memory budget.
    #[getter]
    fn bytes(&self) -> usize {
        self.state.lock().writer.bytes()
    }

    fn __repr__(&self) -> String {
        let state = self.state.lock();
        format!(
            "PrefixIndex(workers={}, blocks={}, bytes={})",
            state.views.len(),
            state.writer.blocks(),
            state.writer.bytes()
        )
    }
}

impl PrefixIndex {
    /// The index only compares times: a number that wraps after 49 days serves.
    fn now_ms(&self) -> u32 {
        self.started.elapsed().as_millis() as u32
    }
}
