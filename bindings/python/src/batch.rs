//! Many prompts in one call, without the GIL: `match_batch`, `route_batch` and what belongs to them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use trunkline_core::{Decision, DecisionId, Error, Millis, Prompt, Reason, Root, WorkerId};

use crate::buffer::{Items, with_array};
use crate::columns::column;
use crate::error;
use crate::prompt::with_tokens;
use crate::router::{Arguments, Shared};

/// Best worker and matched tokens of each prompt of a batch: numpy arrays where numpy is installed, else memoryviews.
#[pyclass(frozen, get_all, module = "trunkline")]
pub(crate) struct MatchBatch {
    /// Slot of the worker that holds most of the prompt, -1 if nobody holds any of it; int32, shape (N,).
    worker: Py<PyAny>,
    /// Leading tokens of the prompt held there; uint32, shape (N,).
    matched_tokens: Py<PyAny>,
}

/// One decision for each prompt of a batch: numpy arrays where numpy is installed, else memoryviews.
///
/// REASONS: what the numbers in `reason` mean.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct RouteBatch {
    shared: Arc<Shared>,
    chosen: Vec<WorkerId>,
    /// Slot of the worker; int32, shape (N,).
    #[pyo3(get)]
    worker: Py<PyAny>,
    /// Leading tokens believed cached there; uint32, shape (N,).
    #[pyo3(get)]
    matched_tokens: Py<PyAny>,
    /// Index into `REASONS`; uint8, shape (N,).
    #[pyo3(get)]
    reason: Py<PyAny>,
    /// Decision ids, for `first_token_batch` and `complete_batch`; uint64, shape (N,).
    #[pyo3(get)]
    decision: Py<PyAny>,
}

#[pymethods]
impl RouteBatch {
    /// What the numbers in `reason` mean.
    #[classattr]
    #[pyo3(name = "REASONS")]
    fn reasons(py: Python<'_>) -> PyResult<Py<PyTuple>> {
        Ok(PyTuple::new(py, Reason::ALL.map(Reason::as_str))?.unbind())
    }

    /// Ids of the chosen workers, one for each prompt. A new list each time.
    #[getter]
    fn worker_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let names: Vec<Py<PyString>> = self.chosen.iter().map(|&id| self.shared.named(py, id).name).collect();
        PyList::new(py, names)
    }

    fn __len__(&self) -> usize {
        self.chosen.len()
    }
}

/// `Router.match_batch`.
pub(crate) fn find(
    shared: &Shared,
    tokens: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    root: Root,
) -> PyResult<MatchBatch> {
    let py = tokens.py();
    let (workers, matched): (Vec<i32>, Vec<u32>) = with_prompts(tokens, offsets, |prompts| {
        let best = shared.core.match_batch(&prompts.collect::<Vec<_>>(), root)?;
        Ok(best
            .into_iter()
            .map(|best| best.map_or((-1, 0), |best| (slot(best.worker), best.matched_tokens)))
            .unzip())
    })?;
    Ok(MatchBatch { worker: column(py, &workers)?, matched_tokens: column(py, &matched)? })
}

/// `Router.route_batch`.
pub(crate) fn route(
    shared: &Arc<Shared>,
    tokens: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    arguments: &Arguments,
    now: Millis,
) -> PyResult<RouteBatch> {
    let py = tokens.py();
    let decisions: Vec<Decision> = with_prompts(tokens, offsets, |prompts| {
        let mut booked = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let routed =
                arguments.with_request(&shared.core, prompt, |request| shared.core.route(request, now));
            match routed {
                Ok(decision) => booked.push(decision),
                Err(refused) => {
                    booked.iter().for_each(|made: &Decision| _ = shared.core.complete(made.id, None, now));
                    return Err(refused);
                }
            }
        }
        Ok(booked)
    })?;
    let numbers = |of: fn(&Decision) -> u32| decisions.iter().map(of).collect::<Vec<_>>();
    let chosen: Vec<WorkerId> = decisions.iter().map(|decision| decision.worker).collect();
    let slots: Vec<i32> = chosen.iter().map(|&id| slot(id)).collect();
    let reasons: Vec<u8> = decisions.iter().map(|decision| decision.reason as u8).collect();
    let ids: Vec<u64> = decisions.iter().map(|decision| decision.id.to_u64()).collect();
    Ok(RouteBatch {
        shared: Arc::clone(shared),
        chosen,
        worker: column(py, &slots)?,
        matched_tokens: column(py, &numbers(|decision| decision.matched_tokens))?,
        reason: column(py, &reasons)?,
        decision: column(py, &ids)?,
    })
}

/// Calls `book` for each decision id of an array and counts how often it says true.
pub(crate) fn each(
    py: Python<'_>,
    decisions: &Bound<'_, PyAny>,
    book: impl Fn(DecisionId) -> bool + Sync + Send,
) -> PyResult<usize> {
    with_array(decisions, "decisions", |items| match items {
        Items::U64(ids) => Ok(py.detach(|| ids.iter().filter(|&&id| book(DecisionId::from_u64(id))).count())),
        _ => Err(error::array_type(decisions, "decisions", "uint64")),
    })
}

fn slot(id: WorkerId) -> i32 {
    i32::try_from(id.0).expect("the core numbers at most 65,536 workers")
}

/// The prompts of a batch, one after the other.
struct Prompts<'a> {
    tokens: Prompt<'a>,
    offsets: &'a [i64],
}

impl<'a> Iterator for Prompts<'a> {
    type Item = Prompt<'a>;

    fn next(&mut self) -> Option<Prompt<'a>> {
        let &[from, to, ..] = self.offsets else { return None };
        self.offsets = &self.offsets[1..];
        let range = from as usize..to as usize;
        Some(match self.tokens {
            Prompt::Tokens(ids) => Prompt::Tokens(&ids[range]),
            Prompt::WideTokens(ids) => Prompt::WideTokens(&ids[range]),
            Prompt::Text(pieces) => Prompt::Text(pieces),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.offsets.len() - 1;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Prompts<'_> {}

/// Checks `tokens` and `offsets` whole, then lends the prompts to `work`, which runs without the GIL.
fn with_prompts<R: Send>(
    tokens: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    work: impl FnOnce(Prompts<'_>) -> Result<R, Error> + Send,
) -> PyResult<R> {
    let py = tokens.py();
    with_tokens(tokens, |flat| {
        with_array(offsets, "offsets", |items| {
            let Items::I64(cuts) = items else { return Err(error::array_type(offsets, "offsets", "int64")) };
            check_offsets(cuts, flat.units())?;
            py.detach(|| {
                // Before the prompts are: an error names the position in the whole array.
                flat.check()?;
                let Prompt::WideTokens(ids) = flat else {
                    return work(Prompts { tokens: flat, offsets: cuts });
                };
                // They fit, and whoever gets the prompts need not look again.
                let narrow: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
                work(Prompts { tokens: Prompt::Tokens(&narrow), offsets: cuts })
            })
            .map_err(|refused| error::core(py, refused))
        })
    })
}

fn check_offsets(offsets: &[i64], tokens: usize) -> PyResult<()> {
    if offsets.is_empty() {
        return Err(error::no_offsets());
    }
    let mut low = 0;
    for (position, &offset) in offsets.iter().enumerate() {
        if offset < low || offset as usize > tokens {
            return Err(error::offsets(position, offset, tokens));
        }
        low = offset;
    }
    Ok(())
}
