//! What a router of the peers' kind believes of caches: told by its own decisions, or by these and by KV events that come late.
//!
//! A set of workers is a bit mask, so these rules work for up to [`MAX_WORKERS`] workers.

use std::collections::{HashMap, VecDeque};

use trunkline_core::Medium;

use crate::des::cache::Tier;
use crate::des::{CacheChange, Segment};

/// Most workers that the rules with an index of this kind can tell apart.
pub(super) const MAX_WORKERS: usize = 128;

/// Time for which an own decision counts beside events. Source: policy study, section 2.
const FRESH_S: f64 = 5.0;

/// Where a router's belief comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// Its own decisions, in caches of this many tokens.
    Own { capacity_tokens: u64 },
    /// Events that come so much late, and the own decisions of the last seconds.
    Both { delay_s: f64 },
}

/// Beliefs of all routers.
#[derive(Debug)]
pub(super) struct Index {
    source: Source,
    /// By segment: the workers that hold it by their events, which all routers see.
    told: Vec<u128>,
    late: VecDeque<(f64, usize, CacheChange)>,
    own: Vec<Own>,
}

/// Beliefs of one router from its own decisions.
#[derive(Debug, Default)]
struct Own {
    held: Vec<u128>,
    /// Caches as sized lists, by worker.
    caches: Vec<Tier>,
    /// Decisions in order, and the last one of each segment and worker.
    recent: VecDeque<(f64, u32, usize)>,
    last: HashMap<(u32, usize), f64>,
}

impl Index {
    pub(super) fn new(source: Source, routers: usize, segments: u32) -> Self {
        let own = || Own { held: vec![0; segments as usize], ..Own::default() };
        Self {
            source,
            told: vec![0; if matches!(source, Source::Own { .. }) { 0 } else { segments as usize }],
            late: VecDeque::new(),
            own: (0..routers.max(1)).map(|_| own()).collect(),
        }
    }

    pub(super) fn wants_events(&self) -> bool {
        !matches!(self.source, Source::Own { .. })
    }

    pub(super) fn event(&mut self, worker: usize, change: CacheChange, now_s: f64) {
        if let Source::Both { delay_s } = self.source
            && change.medium == Medium::Gpu
        {
            self.late.push_back((now_s + delay_s, worker, change));
        }
    }

    /// Takes in what is known by now.
    fn sync(&mut self, router: usize, now_s: f64) {
        while let Some((_, worker, change)) = self.late.pop_front_if(|(at_s, ..)| *at_s <= now_s) {
            let (mask, bit) = (&mut self.told[change.segment as usize], 1u128 << worker);
            if change.is_stored { *mask |= bit } else { *mask &= !bit }
        }
        if matches!(self.source, Source::Both { .. }) {
            let Own { held, recent, last, .. } = &mut self.own[router];
            while let Some((at_s, segment, worker)) =
                recent.pop_front_if(|(at_s, ..)| now_s - *at_s > FRESH_S)
            {
                if last.get(&(segment, worker)) == Some(&at_s) {
                    last.remove(&(segment, worker));
                    held[segment as usize] &= !(1 << worker);
                }
            }
        }
    }

    /// The workers that hold the segment.
    pub(super) fn holders(&self, router: usize, segment: u32) -> u128 {
        self.own[router].held[segment as usize] | self.told.get(segment as usize).copied().unwrap_or(0)
    }

    /// Leading tokens of the prompt that each of the workers `0..live` holds.
    pub(super) fn hits(
        &mut self,
        router: usize,
        prompt: &[Segment],
        live: usize,
        now_s: f64,
        out: &mut Vec<u32>,
    ) {
        self.sync(router, now_s);
        depths(prompt, live, |segment| self.holders(router, segment), out);
    }

    /// A decision was made: the worker will hold the prompt, and the answer if it has a number.
    pub(super) fn placed(
        &mut self,
        router: usize,
        worker: usize,
        prompt: &[Segment],
        answer: Option<Segment>,
        now_s: f64,
    ) {
        let Own { held, caches, recent, last } = &mut self.own[router];
        let newest_first = answer.iter().chain(prompt.iter().rev());
        match self.source {
            Source::Both { .. } => {
                for segment in newest_first {
                    held[segment.id as usize] |= 1 << worker;
                    recent.push_back((now_s, segment.id, worker));
                    last.insert((segment.id, worker), now_s);
                }
            }
            Source::Own { capacity_tokens } => {
                while caches.len() <= worker {
                    caches.push(Tier::new(held.len() as u32));
                }
                let cache = &mut caches[worker];
                for segment in newest_first {
                    if cache.contains(segment.id) {
                        cache.touch(segment.id);
                    } else {
                        cache.insert_idle(segment.id, segment.tokens);
                        held[segment.id as usize] |= 1 << worker;
                    }
                }
                while cache.blocks() > capacity_tokens
                    && let Some((segment, _)) = cache.evict()
                {
                    held[segment as usize] &= !(1 << worker);
                }
            }
        }
    }

    /// Tokens that the router believes the worker to hold, from its own decisions.
    pub(super) fn size_tokens(&self, router: usize, worker: usize) -> u64 {
        self.own[router].caches.get(worker).map_or(0, Tier::blocks)
    }

    /// Forgets what a worker that left or died held.
    pub(super) fn forget(&mut self, worker: usize) {
        let keep = !(1u128 << worker);
        self.told.iter_mut().for_each(|mask| *mask &= keep);
        self.late.retain(|&(_, other, _)| other != worker);
        for own in &mut self.own {
            own.held.iter_mut().for_each(|mask| *mask &= keep);
            own.recent.retain(|&(_, _, other)| other != worker);
            own.last.retain(|&(_, other), _| other != worker);
            if let Some(cache) = own.caches.get_mut(worker) {
                cache.clear();
            }
        }
    }
}

/// Leading tokens of the prompt for each of the workers `0..live` that `holders` tells.
pub(super) fn depths(prompt: &[Segment], live: usize, holders: impl Fn(u32) -> u128, out: &mut Vec<u32>) {
    out.clear();
    out.resize(live, 0);
    let mut left = u128::MAX >> (MAX_WORKERS - live.min(MAX_WORKERS));
    let mut tokens = 0;
    for segment in prompt {
        let still = left & holders(segment.id);
        set(out, left & !still, tokens);
        left = still;
        if left == 0 {
            return;
        }
        tokens += segment.tokens;
    }
    set(out, left, tokens);
}

fn set(out: &mut [u32], mut workers: u128, tokens: u32) {
    while workers != 0 {
        out[workers.trailing_zeros() as usize] = tokens;
        workers &= workers - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: [Segment; 2] = [Segment { id: 0, tokens: 100 }, Segment { id: 1, tokens: 50 }];

    fn hits(index: &mut Index, now_s: f64) -> Vec<u32> {
        let mut out = Vec::new();
        index.hits(0, &PROMPT, 2, now_s, &mut out);
        out
    }

    #[test]
    fn events_come_late_and_own_decisions_fade() {
        let mut index = Index::new(Source::Both { delay_s: 1.0 }, 1, 2);
        index.placed(0, 0, &PROMPT, None, 0.0);
        index.event(1, CacheChange { segment: 0, medium: Medium::Gpu, is_stored: true }, 0.0);
        assert_eq!(hits(&mut index, 0.5), [150, 0]);
        assert_eq!(hits(&mut index, 1.0), [150, 100]);
        assert_eq!(hits(&mut index, 5.1), [0, 100]);
        index.event(1, CacheChange { segment: 0, medium: Medium::Gpu, is_stored: false }, 6.0);
        assert_eq!(hits(&mut index, 6.9), [0, 100]);
        assert_eq!(hits(&mut index, 7.0), [0, 0]);
    }

    #[test]
    fn own_caches_have_a_size_and_lose_tails_first() {
        let mut index = Index::new(Source::Own { capacity_tokens: 120 }, 1, 2);
        index.placed(0, 1, &PROMPT, None, 0.0);
        assert_eq!(hits(&mut index, 100.0), [0, 100]);
        index.forget(1);
        assert_eq!(hits(&mut index, 100.0), [0, 0]);
    }
}
