//! The workers' KV events as the core takes them: blocks of 16 token ids under handles, so much late.
//!
//! Workers cache segments; engines tell of blocks. A block belongs to the segment in which it ends, so that one that reaches
//! over a border comes and goes with the later segment, of whose prefix there is only one. What a segment follows is known
//! from the prompts that were placed.

use std::collections::VecDeque;

use trunkline_core::{CacheEvent, Handle, Medium, Root, Stored};

use crate::des::profile::BLOCK_TOKENS;
use crate::des::workload::{Segment, spell};
use crate::des::{Arrival, CacheChange};

/// Where a segment stands in every prompt that has it.
#[derive(Debug, Clone, Copy)]
struct Origin {
    tokens: u32,
    /// Tokens of its prefix.
    before: u32,
    /// The segment that it follows.
    parent: Option<u32>,
}

impl Origin {
    fn first_block(self) -> u32 {
        self.before / BLOCK_TOKENS
    }

    fn end_block(self) -> u32 {
        (self.before + self.tokens) / BLOCK_TOKENS
    }
}

/// Changes of caches that are still to be told.
#[derive(Debug)]
pub(super) struct Feed {
    delay_s: f64,
    tells_host: bool,
    origins: Vec<Option<Origin>>,
    late: VecDeque<(f64, usize, CacheChange)>,
    handles: Vec<Handle>,
    tokens: Vec<u32>,
    run: Vec<Segment>,
}

fn handle(segment: u32, block: u32) -> Handle {
    Handle(u64::from(segment) << 32 | u64::from(block))
}

impl Feed {
    pub(super) fn new(delay_s: f64, tells_host: bool) -> Self {
        Self {
            delay_s,
            tells_host,
            origins: Vec::new(),
            late: VecDeque::new(),
            handles: Vec::new(),
            tokens: Vec::new(),
            run: Vec::new(),
        }
    }

    /// Age of what is told, in milliseconds.
    pub(super) fn delay_ms(&self) -> u64 {
        (self.delay_s * 1000.0) as u64
    }

    /// Learns what the segments of a prompt, and its answer, follow. Cost: O(segments).
    pub(super) fn learn(&mut self, arrival: &Arrival<'_>) {
        let answer = arrival.answer.map(|id| Segment { id, tokens: arrival.output_tokens });
        let (mut parent, mut before) = (None, 0);
        for &Segment { id, tokens } in arrival.prompt.iter().chain(&answer) {
            let at = id as usize;
            if at >= self.origins.len() {
                self.origins.resize(at + 1, None);
            }
            self.origins[at].get_or_insert(Origin { tokens, before, parent });
            (parent, before) = (Some(id), before + tokens);
        }
    }

    /// A worker's cache changed.
    pub(super) fn changed(&mut self, worker: usize, change: CacheChange, now_s: f64) {
        if self.tells_host || change.medium == Medium::Gpu {
            self.late.push_back((now_s + self.delay_s, worker, change));
        }
    }

    /// A worker died or left: what it has not told stays untold.
    pub(super) fn forget(&mut self, worker: usize) {
        self.late.retain(|&(_, other, _)| other != worker);
    }

    /// Tells what is due: the worker, the event, and when it came.
    pub(super) fn deliver(&mut self, now_s: f64, mut tell: impl FnMut(usize, CacheEvent<'_>, f64)) {
        while let Some((at_s, worker, change)) = self.late.pop_front_if(|(at_s, ..)| *at_s <= now_s) {
            if let Some(origin) = self.origins.get(change.segment as usize).copied().flatten() {
                let event = self.event(change, origin);
                tell(worker, event, at_s);
            }
        }
    }

    fn event(&mut self, change: CacheChange, origin: Origin) -> CacheEvent<'_> {
        let CacheChange { segment, medium, is_stored } = change;
        let blocks = origin.end_block() - origin.first_block();
        self.handles.clear();
        self.handles.extend((0..blocks).map(|block| handle(segment, block)));
        if !is_stored {
            return CacheEvent::Removed { handles: &self.handles, medium };
        }
        self.spell(segment, origin);
        self.tokens.truncate((blocks * BLOCK_TOKENS) as usize);
        CacheEvent::Stored(Stored {
            handles: &self.handles,
            parent: self.block_before(origin),
            tokens: &self.tokens,
            block_size: BLOCK_TOKENS,
            root: Root::default(),
            extras: &[],
            medium,
        })
    }

    /// Token ids from the segment's first block on, with those of its prefix that this block has.
    fn spell(&mut self, segment: u32, origin: Origin) {
        let lead = origin.before % BLOCK_TOKENS;
        let (mut have, mut parent) = (0, origin.parent);
        self.run.clear();
        self.run.push(Segment { id: segment, tokens: origin.tokens });
        while let Some((id, before)) = parent.filter(|_| have < lead).and_then(|id| self.known(id)) {
            self.run.push(Segment { id, tokens: before.tokens });
            (have, parent) = (have + before.tokens, before.parent);
        }
        self.run.reverse();
        spell(&self.run, &mut self.tokens);
        self.tokens.drain(..(have - lead) as usize);
    }

    /// The block that ends where the segment's first one begins.
    fn block_before(&self, origin: Origin) -> Option<Handle> {
        let wanted = origin.first_block().checked_sub(1)?;
        let mut parent = origin.parent;
        while let Some((id, before)) = parent.and_then(|id| self.known(id)) {
            if before.first_block() <= wanted {
                return Some(handle(id, wanted - before.first_block()));
            }
            parent = before.parent;
        }
        None
    }

    fn known(&self, segment: u32) -> Option<(u32, Origin)> {
        Some((segment, self.origins.get(segment as usize).copied().flatten()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::des::spelled;

    fn arrival(prompt: &[Segment]) -> Arrival<'_> {
        let prompt_tokens = prompt.iter().map(|segment| segment.tokens).sum();
        let (output_tokens, answer) = (1, None);
        Arrival { request: 0, prompt, prompt_tokens, output_tokens, answer, router: 0, now_s: 0.0 }
    }

    const fn stored(segment: u32) -> CacheChange {
        CacheChange { segment, medium: Medium::Gpu, is_stored: true }
    }

    proptest! {
        /// Chains told segment by segment are the prompt's whole blocks, in order.
        #[test]
        fn the_segments_of_a_prompt_tell_its_blocks(lengths in proptest::collection::vec(1u32..80, 1..12)) {
            let prompt: Vec<Segment> =
                lengths.iter().zip(0..).map(|(&tokens, id)| Segment { id, tokens }).collect();
            let mut feed = Feed::new(0.5, true);
            feed.learn(&arrival(&prompt));
            for segment in &prompt {
                feed.changed(0, stored(segment.id), 1.0);
            }
            let (mut told, mut last, mut depth) = (Vec::new(), None, HashMap::new());
            feed.deliver(1.4, |_, _, _| panic!("nothing is due"));
            feed.deliver(1.5, |_, event, at_s| {
                assert_eq!(at_s, 1.5);
                let CacheEvent::Stored(stored) = event else { panic!("{event:?}") };
                assert_eq!(stored.tokens.len(), 16 * stored.handles.len());
                if !stored.handles.is_empty() {
                    assert_eq!(stored.parent, last);
                }
                for &handle in stored.handles {
                    assert!(depth.insert(handle, depth.len()).is_none(), "a handle names one block");
                    last = Some(handle);
                }
                told.extend_from_slice(stored.tokens);
            });
            let whole = spelled(&prompt);
            prop_assert_eq!(&told[..], &whole[..whole.len() / 16 * 16]);
        }
    }

    #[test]
    fn a_worker_that_died_tells_nothing_more() {
        let mut feed = Feed::new(1.0, true);
        let prompt = [Segment { id: 7, tokens: 32 }];
        feed.learn(&arrival(&prompt));
        feed.changed(0, stored(7), 0.0);
        feed.changed(1, CacheChange { is_stored: false, ..stored(7) }, 0.0);
        feed.forget(0);
        let mut told = Vec::new();
        feed.deliver(2.0, |worker, event, _| {
            assert!(matches!(event, CacheEvent::Removed { handles: [_, _], medium: Medium::Gpu }));
            told.push(worker);
        });
        assert_eq!(told, [1]);
    }

    #[test]
    fn the_hosts_tier_may_stay_untold() {
        for tells_host in [true, false] {
            let mut feed = Feed::new(0.0, tells_host);
            feed.learn(&arrival(&[Segment { id: 0, tokens: 32 }]));
            feed.changed(0, CacheChange { medium: Medium::Cpu, ..stored(0) }, 0.0);
            let mut told = 0;
            feed.deliver(0.0, |_, event, _| {
                assert!(matches!(event, CacheEvent::Stored(Stored { medium: Medium::Cpu, .. })));
                told += 1;
            });
            assert_eq!(told, u32::from(tells_host));
        }
    }
}
