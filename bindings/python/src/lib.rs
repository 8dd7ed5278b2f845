//! `trunkline._core`: the core, the gateway and the mock worker as Python objects. Converts, calls, converts back.
//!
//! The module block below is the whole surface. What a method means is said in its docstring and, with types, in
//! `python/trunkline/_core.pyi`.

#![expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]

mod analyze;
mod batch;
mod buffer;
mod capi;
mod clock;
mod columns;
mod decision;
mod endpoints;
mod error;
mod events;
mod gateway;
mod index;
mod lease;
mod mock_worker;
mod names;
mod net;
mod prompt;
mod router;
mod running;
mod sidecar;
mod sidecar_client;
mod simulate;
mod size;
mod text;
mod trial;
mod views;
mod watch;

use pyo3::prelude::*;
use trunkline_core::{BlockHash, BlockHasher, BlockSource, Root, RouterConfig};

/// The decision core of trunkline; import its names from `trunkline`.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::analyze::analyze;
    #[pymodule_export]
    use crate::batch::{MatchBatch, RouteBatch};
    #[pymodule_export]
    use crate::decision::{Candidate, Decision, Explanation, Match, restore_decision};
    #[pymodule_export]
    use crate::events::{Applied, extra_hash};
    #[pymodule_export]
    use crate::gateway::Gateway;
    #[pymodule_export]
    use crate::index::PrefixIndex;
    #[pymodule_export]
    use crate::lease::Lease;
    #[pymodule_export]
    use crate::mock_worker::{MockStats, MockWorker};
    #[pymodule_export]
    use crate::router::Router;
    #[pymodule_export]
    use crate::sidecar::Sidecar;
    #[pymodule_export]
    use crate::sidecar_client::SidecarConnection;
    #[pymodule_export]
    use crate::simulate::{profiles, scenarios, simulate};
    #[pymodule_export]
    use crate::text::Renderer;
    #[pymodule_export]
    use crate::views::{Stats, WorkerView};
    #[pymodule_export]
    use crate::{hash_blocks, jump_hash};

    /// Version of the package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// How this module was built.
    #[pymodule_export]
    const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::capi::register(module)?;
        crate::error::register(module)
    }
}

/// Pick a slot for a key among `slots` with jump consistent hash.
///
/// Growing from n to n + 1 slots moves about 1 / (n + 1) of the keys, all of them to the new slot.  key: 0..2**64.
/// slots: 0..2**32; 0 and 1 give slot 0.  Source: Lamping and Veach, 2014.
#[pyfunction]
#[pyo3(signature = (key, slots))]
fn jump_hash(key: u64, slots: u32) -> u32 {
    trunkline_core::jump_hash(key, slots)
}

/// Hash every block of a prompt and nothing else: the floor of a look-up, for `trunkline bench core`.
#[pyfunction]
#[pyo3(name = "_hash_blocks", signature = (prompt))]
fn hash_blocks(prompt: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (hasher, block_size) = (BlockHasher::new(0), RouterConfig::default().block_size);
    prompt::with_prompt(prompt, |prompt| {
        let mut blocks = prompt.blocks(Root::default(), &hasher, block_size);
        let (mut some, mut sum) = ([BlockHash(0); 16], 0);
        while let count @ 1.. = blocks.fill(&mut some) {
            sum = some[..count].iter().fold(sum, |sum, block| sum ^ block.0);
        }
        Ok(sum)
    })
}
