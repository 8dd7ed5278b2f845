//! A worker's memory: who gets blocks, who loses them, and what is done when there are none.

use std::cmp::Reverse;

use trunkline_core::Medium;

use super::{Scene, Worker};
use crate::des::Segment;
use crate::des::policy::CacheChange;
use crate::des::profile::{BLOCK_TOKENS, Profile};
use crate::des::run::Run;

impl Worker {
    pub(super) fn note(&mut self, segment: u32, medium: Medium, is_stored: bool) {
        if let Some(changes) = &mut self.changes {
            changes.push(CacheChange { segment, medium, is_stored });
        }
    }

    /// Frees at least `blocks` blocks, if so many may be evicted.
    pub(super) fn evict(&mut self, blocks: u64, profile: &Profile) {
        let mut freed = 0;
        while freed < blocks {
            let Some((segment, size)) = self.cache.evict() else { return };
            freed += u64::from(size);
            self.evicted_blocks += u64::from(size);
            self.keep_in_host(segment, size, profile);
            self.note(segment, Medium::Gpu, false);
        }
    }

    /// Gives the host's tier, if there is one, what leaves the accelerator's memory.
    fn keep_in_host(&mut self, segment: u32, size: u32, profile: &Profile) {
        let Some(mut host) = self.host.take() else { return };
        if host.contains(segment) {
            host.touch(segment);
        } else {
            host.insert_idle(segment, size);
            self.note(segment, Medium::Cpu, true);
            while host.blocks() > profile.host_blocks()
                && let Some((oldest, _)) = host.evict()
            {
                self.note(oldest, Medium::Cpu, false);
            }
        }
        self.host = Some(host);
    }

    /// Blocks for the answers of the sequences that decode, `steps` steps from now; only if room is taken as they grow.
    pub(super) fn growing_blocks(&self, steps: u64) -> u64 {
        let decoding = self.decoding.len() as u64;
        (self.answer_tokens + decoding * steps) / u64::from(BLOCK_TOKENS) + decoding
    }

    /// Takes the request into the batch if it fits.
    pub(super) fn admit(&mut self, request: u32, scene: &mut Scene<'_>) -> bool {
        let (asked, run) = (&scene.workload.requests()[request as usize], &mut scene.runs[request as usize]);
        let prompt = scene.workload.prompt(asked);
        let hits = prompt.iter().take_while(|segment| self.cache.contains(segment.id)).count();
        let hit_tokens: u32 = prompt[..hits].iter().map(|segment| segment.tokens).sum();
        let idle: u64 = prompt.iter().map(|segment| u64::from(self.cache.idle_blocks_of(segment.id))).sum();
        let missing = prompt[hits..].iter().filter(|segment| !self.cache.contains(segment.id));
        let missing: u64 = missing.map(|segment| u64::from(segment.blocks())).sum();
        let answer = if scene.profile.preemption { run.generated + 1 } else { asked.output_tokens };
        let answer = u64::from(answer.div_ceil(BLOCK_TOKENS));
        let free = |worker: &Self| scene.profile.kv_blocks().saturating_sub(worker.used_blocks());
        let wanted = missing + answer;
        let lacking = wanted.saturating_sub(free(self));
        let is_alone =
            self.decoding.is_empty() && self.prefilling.is_empty() && self.cache.pinned_blocks() == 0;
        if lacking > self.cache.idle_blocks() - idle && !is_alone {
            return false;
        }
        // Hits are pinned first, so that nothing takes them.
        let mut added = 0;
        for segment in prompt {
            added += usize::from(!self.cache.pin(segment.id));
        }
        let lacking = wanted.saturating_sub(free(self));
        self.evict(lacking, scene.profile);
        if added > 0 {
            for segment in &prompt[hits..] {
                if !self.cache.contains(segment.id) {
                    self.cache.insert_pinned(segment.id, segment.blocks());
                    self.note(segment.id, Medium::Gpu, true);
                }
            }
        }
        run.reserved_blocks = answer as u32;
        self.reserved_blocks += answer;
        let hit = match hit_tokens {
            // The last token of a prompt is always computed: it yields the first one of the answer.
            hit if hit >= asked.prompt_tokens => asked.prompt_tokens.saturating_sub(BLOCK_TOKENS),
            hit => hit,
        };
        run.position = hit;
        run.remaining = asked.prompt_tokens + run.generated - hit;
        if run.generated == 0 {
            run.cached_tokens = hit;
        }
        self.load_from_host(prompt, hits, run, scene.profile);
        self.order += 1;
        run.order = self.order;
        true
    }

    /// Goes on with the prompt in the host's tier, from where the cache ended.
    fn load_from_host(&mut self, prompt: &[Segment], hits: usize, run: &mut Run, profile: &Profile) {
        let Some(host) = &mut self.host else { return };
        let mut tokens = 0;
        for segment in &prompt[hits..] {
            if !host.contains(segment.id) {
                break;
            }
            host.touch(segment.id);
            tokens += segment.tokens;
        }
        if tokens > 0 {
            let tokens = tokens.min(run.remaining.saturating_sub(BLOCK_TOKENS));
            let saved = (f64::from(tokens) * (1.0 - profile.host_cost)) as u32;
            // What is computed anew after a pre-emption was counted before.
            run.cached_tokens += if run.generated == 0 { tokens } else { 0 };
            run.remaining -= saved;
            run.position += saved;
        }
    }

    /// Gives back what the request holds; what it has computed stays cached.
    pub(super) fn release(&mut self, request: u32, scene: &Scene<'_>, with_answer: bool) {
        let asked = &scene.workload.requests()[request as usize];
        self.reserved_blocks -= u64::from(scene.runs[request as usize].reserved_blocks);
        let blocks = asked.output_tokens / BLOCK_TOKENS;
        if let Some(answer) = asked.answer.filter(|_| with_answer && blocks > 0)
            && !self.cache.contains(answer)
        {
            self.cache.insert_idle(answer, blocks);
            self.note(answer, Medium::Gpu, true);
        }
        for segment in scene.workload.prompt(asked).iter().rev() {
            self.cache.unpin(segment.id);
        }
    }

    /// Keeps the blocks that answers need `steps` steps from now.
    pub(super) fn reserve(&mut self, steps: u64, scene: &Scene<'_>) {
        let prefilling = self.prefilling.iter().map(|&request| scene.runs[request as usize].reserved_blocks);
        self.reserved_blocks = prefilling.map(u64::from).sum::<u64>() + self.growing_blocks(steps);
    }

    /// Makes room for the next token of every sequence: evicts, and pre-empts the last admitted ones if that is not enough.
    pub(super) fn make_room(&mut self, scene: &mut Scene<'_>) {
        let capacity = scene.profile.kv_blocks();
        loop {
            self.reserve(1, scene);
            let over = self.used_blocks().saturating_sub(capacity);
            if over == 0 {
                return;
            }
            if over <= self.cache.idle_blocks() {
                self.evict(over, scene.profile);
                return;
            }
            if self.decoding.len() + self.prefilling.len() <= 1 || !self.preempt(scene) {
                return;
            }
        }
    }

    /// Sends the sequence that was admitted last back to the front of the queue; its answer so far is computed anew.
    fn preempt(&mut self, scene: &mut Scene<'_>) -> bool {
        let request = match self.prefilling.pop_back() {
            Some(request) => request,
            None => {
                let all = self.decoding.iter().map(|&Reverse((last, _, request))| (last, request));
                let Some((last, request)) =
                    all.max_by_key(|&(_, request)| scene.runs[request as usize].order)
                else {
                    return false;
                };
                self.decoding.retain(|&Reverse((_, _, other))| other != request);
                let asked = &scene.workload.requests()[request as usize];
                let generated = asked.output_tokens - (last - self.step) as u32;
                scene.runs[request as usize].generated = generated;
                self.context_tokens -= u64::from(asked.prompt_tokens) + u64::from(generated);
                self.answer_tokens -= u64::from(generated);
                request
            }
        };
        self.release(request, scene, false);
        scene.runs[request as usize].reserved_blocks = 0;
        self.waiting.push_front(request);
        self.preemptions += 1;
        true
    }
}
