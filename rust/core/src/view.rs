//! Which view of a worker's cache counts, and for how long a decision counts as cached before events say so.
//!
//! With events a worker's cache is what it tells. It tells late: a prompt that was just sent is not in its events yet, and a
//! burst of equal prompts must see itself. So a decision counts at once, as in the own view (there its use is *fresh*), until
//! the worker has answered it and had time to tell; from then on only the events count. What the events say sooner counts
//! sooner; what they never confirm is forgotten with that.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::book::Booking;
use crate::error::Error;
use crate::events::Medium;
use crate::exact::ExactView;
use crate::router::Millis;
use crate::state::State;
use crate::worker::{Standing, WorkerId};

/// Longest time that a worker is given to tell of a prompt that it answered, and the shortest.
const MAX_SETTLE_MS: u64 = 5000;
const MIN_SETTLE_MS: u64 = 50;
/// The feed's usual delay counts so many times.
const DELAYS: u64 = 4;

/// From where the router knows what a worker has in its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CacheView {
    /// From its events, and for a moment from decisions that they cannot have told yet.
    Events,
    /// From the decisions of this router, as a cache of the worker's size would keep them.
    #[default]
    Own,
    /// Nothing is known: it keeps no prefixes.
    None,
}

impl CacheView {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Events, Self::Own, Self::None];

    /// The name used in metrics, the admin API and Python.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Own => "own",
            Self::None => "none",
        }
    }

    /// The view of this name.
    ///
    /// # Errors
    /// [`Error::Config`] names the allowed ones.
    pub fn parse(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|view| view.as_str() == name).ok_or_else(|| Error::Config {
            key: "view",
            value: name.into(),
            allowed: "events, own, none".into(),
        })
    }
}

/// [`CacheView`] as a choice reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Known {
    /// The exact views of what is in the accelerator's memory, and of what is there or in a slower one.
    Events {
        near: ExactView,
        far: Option<ExactView>,
    },
    #[default]
    Own,
    Nothing,
}

/// The exact views of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExactViews {
    pub(crate) near: ExactView,
    pub(crate) far: Option<ExactView>,
}

/// What the router knows of a worker's cache besides its own view.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(crate) view: CacheView,
    /// Blocks in the accelerator's memory, once events came.
    pub(crate) near: Option<ExactView>,
    /// Blocks anywhere, once an event named a slower medium.
    pub(crate) far: Option<ExactView>,
    /// Delay of the feed: age of a batch when it was applied, smoothed.
    delay_ms: Option<u64>,
    /// Decisions that events may not have told yet, oldest first.
    unsettled: VecDeque<Unsettled>,
}

#[derive(Debug, Clone, Copy)]
struct Unsettled {
    tick: u32,
    answered: Option<Millis>,
}

impl Cache {
    pub(crate) fn known(&self) -> Known {
        match (self.view, self.near) {
            (CacheView::Events, Some(near)) => Known::Events { near, far: self.far },
            (CacheView::Events | CacheView::Own, _) => Known::Own,
            (CacheView::None, _) => Known::Nothing,
        }
    }

    /// How long an answered prompt still counts unconfirmed.
    fn settle_ms(&self) -> u64 {
        self.delay_ms.map_or(MAX_SETTLE_MS, |delay| (DELAYS * delay).clamp(MIN_SETTLE_MS, MAX_SETTLE_MS))
    }

    /// A decision of this tick went to the worker.
    pub(crate) fn sent(&mut self, tick: u32) {
        if self.view == CacheView::Events {
            self.unsettled.push_back(Unsettled { tick, answered: None });
        }
    }

    /// The worker answered the decision of this tick.
    pub(crate) fn answered(&mut self, tick: u32, now: Millis) {
        let at = self.unsettled.partition_point(|sent| (sent.tick.wrapping_sub(tick) as i32) < 0);
        if let Some(sent) = self.unsettled.get_mut(at).filter(|sent| sent.tick == tick) {
            sent.answered.get_or_insert(now);
        }
    }

    /// Lets go what had time to be told. Tells when there may be more.
    fn settle(&mut self, now: Millis) -> Option<Millis> {
        let settle = self.settle_ms();
        loop {
            let end = Millis(self.unsettled.front()?.answered?.0 + settle);
            if end.0 > now.0 {
                return Some(end);
            }
            self.unsettled.pop_front();
        }
    }

    fn fresh_from(&self, last_tick: u32) -> u32 {
        self.unsettled.front().map_or(last_tick.wrapping_add(1), |sent| sent.tick)
    }
}

impl State {
    /// Sets which view of a worker's cache counts. A worker whose events count and that told none has an empty cache.
    pub(crate) fn set_cache_view(&mut self, id: WorkerId, view: CacheView) -> Result<(), Error> {
        if view == CacheView::Events {
            self.exact_views(id, Medium::Gpu)?;
        }
        let cache = &mut self.worker_mut(id)?.cache;
        if cache.view != view {
            cache.view = view;
            cache.unsettled.clear();
            self.show_cache(id);
        }
        Ok(())
    }

    /// Makes known what is known of a worker's cache, after a change of that.
    pub(crate) fn show_cache(&mut self, id: WorkerId) {
        let Ok(worker) = self.worker_mut(id) else { return };
        let known = worker.cache.known();
        self.standing_mut(id).known = known;
        let fresh = matches!(known, Known::Events { .. });
        let tick = self.index.tick();
        let from = fresh
            .then(|| self.workers[id.0 as usize].as_ref().map_or(0, |worker| worker.cache.fresh_from(tick)));
        let view = self.standing(id).view;
        self.index.set_fresh_from(view, from);
        self.show_fleet();
    }

    /// Takes what had time to be told off a worker's fresh uses. Notes when there may be more.
    pub(crate) fn settle(&mut self, id: WorkerId, now: Millis) {
        let (tick, view) = (self.index.tick(), self.standing(id).view);
        let Some(cache) = self.workers[id.0 as usize].as_mut().map(|worker| &mut worker.cache) else {
            return;
        };
        if cache.view != CacheView::Events {
            return;
        }
        let next = cache.settle(now);
        let from = cache.fresh_from(tick);
        if let Some(next) = next {
            self.shared.settle_by(next);
        }
        self.index.set_fresh_from(view, Some(from));
    }

    /// [`settle`](Self::settle) for all workers.
    pub(crate) fn settle_all(&mut self, now: Millis) {
        self.shared.settled();
        for id in (0..self.workers.len() as u32).map(WorkerId) {
            self.age_other_load(id, now);
            self.settle(id, now);
        }
    }

    /// The worker's exact views, made if there are none; that of slower media once one of them is named.
    pub(crate) fn exact_views(&mut self, id: WorkerId, medium: Medium) -> Result<ExactViews, Error> {
        let shared = Arc::clone(&self.shared);
        let cache = &mut self.worker_mut(id)?.cache;
        let add = || {
            let view = shared.exact.add_view().ok_or_else(|| Error::Config {
                key: "workers",
                value: "their events".into(),
                allowed: "up to 32767 views, those that were reset recently included".into(),
            })?;
            shared.set_exact_owner(view, Some(id));
            Ok::<ExactView, Error>(view)
        };
        let before = (cache.near, cache.far);
        let near = match cache.near {
            Some(near) => near,
            None => *cache.near.insert(add()?),
        };
        if medium != Medium::Gpu && cache.far.is_none() {
            let far = add()?;
            shared.exact.copy_view(near, far);
            cache.far = Some(far);
        }
        let views = ExactViews { near, far: cache.far };
        if before != (cache.near, cache.far) {
            self.show_cache(id);
        }
        Ok(views)
    }

    /// A worker's events were applied.
    pub(crate) fn told(&mut self, id: WorkerId, delay_ms: Option<u64>, now: Millis) {
        let Ok(worker) = self.worker_mut(id) else { return };
        if let Some(delay) = delay_ms {
            let smoothed = worker.cache.delay_ms.map_or(delay, |old| (7 * old + delay).div_ceil(8));
            worker.cache.delay_ms = Some(smoothed);
        }
        self.settle(id, now);
    }

    /// A worker answered what was booked.
    pub(crate) fn answered(&mut self, booking: &Booking, now: Millis) {
        let Some(worker) = self.workers[booking.worker.0 as usize].as_mut() else { return };
        if worker.cache.view == CacheView::Events {
            worker.cache.answered(booking.tick, now);
            self.settle(booking.worker, now);
        }
    }

    /// Blocks that a worker is believed to hold, by the view that counts.
    pub(crate) fn cached_blocks(&self, standing: &Standing) -> u64 {
        match standing.known {
            Known::Own => self.index.view_blocks(standing.view),
            Known::Events { near, .. } => self.shared.exact.view_blocks(near),
            Known::Nothing => 0,
        }
    }

    /// Forgets what a worker's events told.
    pub(crate) fn forget_events(&mut self, id: WorkerId) {
        let shared = Arc::clone(&self.shared);
        let Some(cache) = self.workers[id.0 as usize].as_mut().map(|worker| &mut worker.cache) else {
            return;
        };
        for view in [cache.near.take(), cache.far.take()].into_iter().flatten() {
            shared.set_exact_owner(view, None);
            shared.exact.remove_view(view);
        }
        cache.unsettled.clear();
    }
}
