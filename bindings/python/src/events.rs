//! `Router.apply_events` and what belongs to it: payloads of workers' feeds, and prompts as these have them.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use trunkline_core as core;
use trunkline_core::{ExactPrompt, Millis, Prompt, Root, Spelling, WorkerId};
use trunkline_events::{Extra, Feeds, Refused};

use crate::error;
use crate::text::Renderer;

/// What became of one payload of a worker's events.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct Applied {
    /// Blocks that the worker was not known to hold.
    stored: u64,
    /// Blocks that it was known to hold and lost.
    removed: u64,
    /// Blocks stored behind one that it is not known to hold; they wait for that one.
    orphans: u64,
    /// Blocks and events that could not be used: unknown or missing tokens, contradictions, no memory left.
    refused: u64,
    /// Whether its cache was cleared.
    cleared: bool,
}

#[pymethods]
impl Applied {
    fn __repr__(&self) -> String {
        let Self { stored, removed, orphans, refused, cleared } = self;
        let cleared = if *cleared { "True" } else { "False" };
        format!(
            "Applied(stored={stored}, removed={removed}, orphans={orphans}, refused={refused}, cleared={cleared})"
        )
    }
}

/// Decodes one payload and applies it, without the GIL.
pub(crate) fn apply(
    py: Python<'_>,
    core: &core::Router,
    feeds: &Feeds,
    id: WorkerId,
    payload: &[u8],
    renderer: Option<&Renderer>,
    now: Millis,
) -> PyResult<Applied> {
    let applied = py.detach(|| {
        let spelling = renderer.map(|renderer| renderer.inner.vocabulary() as &dyn Spelling);
        feeds.apply(core, id, payload, spelling, now)
    });
    match applied {
        Ok(core::Applied { stored, removed, orphans, refused, cleared }) => {
            Ok(Applied { stored, removed, orphans, refused, cleared })
        }
        Err(Refused::Payload(fault)) => Err(error::payload(py, fault)),
        Err(Refused::Core(refused)) => Err(error::core(py, refused)),
    }
}

/// Hash of what a block depends on besides its tokens, for `extras` of `Router.route`.
///
/// identifier: of an image or the like.  offset: where it begins, in tokens from the start of the block, negative before it.
/// Equal to what events say of such a block.  Raises TypeError.
#[pyfunction]
#[pyo3(signature = (identifier, offset))]
pub(crate) fn extra_hash(identifier: &str, offset: i64) -> u64 {
    trunkline_events::extra_hash([Extra::Item { id: identifier.as_bytes(), offset }])
}

/// The text that a worker's tokenizer gets.
#[derive(FromPyObject)]
pub(crate) enum Rendered {
    Bytes(PyBackedBytes),
    Text(PyBackedStr),
}

impl Rendered {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Text(text) => text.as_bytes(),
        }
    }
}

/// Calls `act` with a prompt as events have it; `None` if no worker told any, or it is text that was not rendered.
pub(crate) fn with_exact<R>(
    core: &core::Router,
    prompt: &Prompt<'_>,
    root: Root,
    rendered: Option<&Rendered>,
    extras: &[u64],
    act: impl FnOnce(Option<ExactPrompt<'_>>) -> R,
) -> R {
    if !core.has_events() {
        return act(None);
    }
    if let Some(rendered) = rendered {
        return act(Some(ExactPrompt { bytes: rendered.bytes(), root, is_tokens: false, extras: &[] }));
    }
    let narrowed: Vec<u32>;
    let ids = match prompt {
        Prompt::Text(_) => return act(None),
        Prompt::Tokens(ids) => ids,
        // Those that are out of range are refused by whoever gets the prompt.
        Prompt::WideTokens(ids) => {
            narrowed = ids.iter().map(|&id| id as u32).collect();
            &narrowed[..]
        }
    };
    act(Some(ExactPrompt { bytes: bytemuck::cast_slice(ids), root, is_tokens: true, extras }))
}
