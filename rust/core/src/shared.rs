//! What callers of a router read without its lock: the index, the fleet, whose view is whose, and how long a token is.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::exact::{ExactIndex, ExactMatches, ExactPrompt, ExactView};
use crate::fleet::Fleet;
use crate::index::{PrefixIndex, ViewId};
use crate::key::{Prompt, combine};
use crate::router::{Millis, RouteRequest, RouterConfig};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::worker::WorkerId;

/// Bytes per token of text: start, bounds, weight of a new answer; prompts too short to teach; models remembered.
const TEXT_START: f64 = 4.0;
const TEXT_BOUNDS: (f64, f64) = (1.5, 6.0);
const TEXT_WEIGHT: f64 = 0.05;
const TEXT_MIN_TOKENS: u32 = 64;
const TEXT_MODELS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) index: Arc<PrefixIndex>,
    pub(crate) fleet: ArcSwap<Fleet>,
    /// Worker of each view, by the view's small number; 0 for none, else its id and 1.
    owners: Box<[AtomicU32]>,
    pub(crate) exact: ExactIndex,
    /// Worker of each exact view, likewise.
    exact_owners: RwLock<Vec<Option<WorkerId>>>,
    /// When fresh uses may have had their time, in milliseconds.
    settle_at: AtomicU64,
    bytes_per_token: RwLock<HashMap<u64, f64>>,
}

/// A request's lengths in the units of the policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) tokens: u32,
    pub(crate) blocks: u32,
    pub(crate) tokens_per_block: f64,
}

impl Length {
    pub(crate) fn of_blocks(&self, blocks: u32) -> u32 {
        (f64::from(blocks) * self.tokens_per_block) as u32
    }

    /// Blocks of which so many tokens are all or part; the inverse of [`of_blocks`](Self::of_blocks).
    pub(crate) fn blocks_of(&self, tokens: u32) -> u32 {
        let blocks = (f64::from(tokens) / self.tokens_per_block) as u32;
        if self.of_blocks(blocks + 1) <= tokens { blocks + 1 } else { blocks }
    }
}

/// Length of a text prompt and the model whose bytes per token it shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextLength {
    pub(crate) bytes: u64,
    pub(crate) model: u64,
}

impl TextLength {
    /// Of a request that is text.
    pub(crate) fn of(request: &RouteRequest<'_>) -> Option<Self> {
        let exact = request.exact.filter(|exact| !exact.is_tokens);
        let (bytes, model) = match exact {
            Some(exact) => (exact.bytes.len(), rendered(request.text_model)),
            None => (request.prompt.units(), request.text_model),
        };
        request.prompt.is_text().then_some(Self { bytes: bytes as u64, model })
    }
}

/// Names a model's rendered text, which has more bytes than the messages in it.
fn rendered(text_model: u64) -> u64 {
    combine(text_model, 1)
}

impl Shared {
    pub(crate) fn new(index: Arc<PrefixIndex>, exact: ExactIndex) -> Self {
        let owners = (0..ViewId::COUNT).map(|_| AtomicU32::new(0)).collect();
        Self {
            index,
            fleet: ArcSwap::default(),
            owners,
            exact,
            exact_owners: RwLock::default(),
            settle_at: AtomicU64::new(u64::MAX),
            bytes_per_token: RwLock::default(),
        }
    }

    /// The worker of a view that counts.
    #[inline]
    pub(crate) fn owner(&self, view: usize) -> Option<WorkerId> {
        self.owners[view].load(Ordering::Relaxed).checked_sub(1).map(WorkerId)
    }

    pub(crate) fn set_owner(&self, view: ViewId, owner: Option<WorkerId>) {
        self.owners[view.index()].store(owner.map_or(0, |id| id.0 + 1), Ordering::Relaxed);
    }

    /// The workers of exact views, by the views' numbers; `None` for a view that does not count.
    pub(crate) fn exact_owners(&self) -> RwLockReadGuard<'_, Vec<Option<WorkerId>>> {
        self.exact_owners.read()
    }

    pub(crate) fn set_exact_owner(&self, view: ExactView, owner: Option<WorkerId>) {
        let mut owners = self.exact_owners.write();
        let at = usize::from(view.index);
        if at >= owners.len() {
            owners.resize(at + 1, None);
        }
        owners[at] = owner;
    }

    /// Whether fresh uses are to be looked at.
    #[inline]
    pub(crate) fn must_settle(&self, now: Millis) -> bool {
        self.settle_at.load(Ordering::Relaxed) <= now.0
    }

    /// Fresh uses are to be looked at then, at the latest.
    pub(crate) fn settle_by(&self, at: Millis) {
        self.settle_at.fetch_min(at.0, Ordering::Relaxed);
    }

    /// They are looked at now.
    pub(crate) fn settled(&self) {
        self.settle_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// The lengths of a prompt; those of text are estimates. Where an exact prompt was looked up, only what it did not match
    /// is estimated.
    pub(crate) fn length(
        &self,
        prompt: &Prompt<'_>,
        text_model: u64,
        exact: Option<(&ExactPrompt<'_>, &ExactMatches)>,
        config: &RouterConfig,
    ) -> Length {
        let units = prompt.units();
        let block = prompt.units_per_block(config.block_size);
        let rate = |model| self.bytes_per_token.read().get(&model).copied().unwrap_or(TEXT_START);
        let units_per_token = match exact {
            _ if !prompt.is_text() => 1.0,
            Some((exact, found)) if !exact.is_tokens && !exact.bytes.is_empty() && units > 0 => {
                let rest = exact.bytes.len().saturating_sub(found.bytes) as f64;
                units as f64 / (f64::from(found.tokens) + rest / rate(rendered(text_model))).max(1.0)
            }
            _ => rate(text_model),
        };
        Length {
            tokens: ((units as f64 / units_per_token) as u32).max(1),
            blocks: (units / block) as u32,
            tokens_per_block: block as f64 / units_per_token,
        }
    }

    /// Learnt bytes per token, ascending by model.
    pub(crate) fn rates(&self) -> Vec<(u64, f64)> {
        let mut rates: Vec<_> =
            self.bytes_per_token.read().iter().map(|(&model, &rate)| (model, rate)).collect();
        rates.sort_unstable_by_key(|&(model, _)| model);
        rates
    }

    /// Sets what was learnt of a model. `false` if the rate is out of bounds, or known already, or one too many.
    pub(crate) fn set_rate(&self, model: u64, rate: f64) -> bool {
        let mut rates = self.bytes_per_token.write();
        (TEXT_BOUNDS.0..=TEXT_BOUNDS.1).contains(&rate)
            && rates.len() < TEXT_MODELS
            && rates.insert(model, rate).is_none()
    }

    /// Learns from a prompt whose length in tokens its answer told.
    pub(crate) fn learn(&self, text: TextLength, prompt_tokens: u32) {
        if prompt_tokens < TEXT_MIN_TOKENS {
            return;
        }
        let mut rates = self.bytes_per_token.write();
        if rates.len() >= TEXT_MODELS && !rates.contains_key(&text.model) {
            return;
        }
        let rate = rates.entry(text.model).or_insert(TEXT_START);
        *rate += TEXT_WEIGHT * (text.bytes as f64 / f64::from(prompt_tokens) - *rate);
        *rate = rate.clamp(TEXT_BOUNDS.0, TEXT_BOUNDS.1);
    }
}
