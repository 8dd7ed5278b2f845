//! The index in a snapshot: runs with their holders, parents first, and what each view used in which order.
//!
//! A run keeps its number, because its place in the table follows from its parent's: so the restored table is no fuller than
//! the old one. Only an index with far more numbers than runs is numbered anew.

use super::run::{Holder, MAX_HOLDERS, MAX_RUN, RunId};
use super::{ViewId, Writer};
use crate::error::Error;
use crate::snapshot::{Put, Reader};

/// Bytes of a run without holders and blocks, and of a use.
const RUN_BYTES: usize = 20;
const USE_BYTES: usize = 8;

/// Run numbers that an index of so many runs may reach.
fn numbers(runs: usize) -> usize {
    16 * runs + 4096
}

impl Writer {
    /// Appends the index. `views` are all live views, in the order of the places that the snapshot gives them.
    ///
    /// Sweeps what removed views hold. Cost: O(runs + blocks + holders).
    pub(crate) fn save(&mut self, views: &[ViewId], now_ms: u32, out: &mut Vec<u8>) {
        while !self.views.is_swept() {
            self.views.sweep(&self.index.tree, &mut self.space);
        }
        let tree = &self.index.tree;
        let mut places = vec![0u16; self.views.len()];
        for (place, view) in views.iter().enumerate() {
            places[view.index()] = place as u16;
        }
        let keep = tree.run_numbers(&self.space) <= numbers(self.runs());
        // Number in the snapshot by the run's own number.
        let mut number = vec![RunId::NONE.0; tree.run_numbers(&self.space)];
        let mut written = 0;
        out.reserve(self.runs() * (RUN_BYTES + 16) + self.blocks() * 8);
        out.put_u32(self.tick);
        out.put_u64(self.views.evicted_blocks);
        out.put_count(self.runs());
        let mut way = Vec::new();
        for run in tree.all_runs(&self.space) {
            let mut next = run;
            while next != RunId::NONE && number[next.0 as usize] == RunId::NONE.0 {
                way.push(next);
                next = tree.run(next).shape().parent;
            }
            while let Some(id) = way.pop() {
                number[id.0 as usize] = if keep { id.0 } else { written };
                written += 1;
                let (run, shape) = (tree.run(id), tree.run(id).shape());
                let (uses, used_ms) = run.uses();
                out.put_u32(number[id.0 as usize]);
                out.put_u32(number.get(shape.parent.0 as usize).copied().unwrap_or(RunId::NONE.0));
                out.put_f32(uses);
                out.put_u32(now_ms.wrapping_sub(used_ms));
                out.put_u16(shape.holders as u16);
                out.put_u16(shape.len as u16);
                run.shares(&tree.words).each(|share| {
                    let holder = share.holder();
                    out.put_u16(places[usize::from(holder.view)]);
                    out.put_u16(holder.blocks);
                    out.put_u32(holder.clock);
                });
                tree.hashes(id).for_each(|hash| out.put_u64(hash));
            }
        }
        for view in views {
            let uses = self.views.uses(tree, view.index);
            out.put_count(uses.len());
            for (run, clock) in uses {
                out.put_u32(number[run.0 as usize]);
                out.put_u32(clock);
            }
        }
    }

    /// Fills a new index with what [`save`](Self::save) wrote; `views` are new views in the order of their places.
    ///
    /// Refuses what would break an invariant of the index. What only a booking kept beyond a view's capacity goes, and what
    /// the budget no longer holds, should the memory be laid out less tightly than before.
    pub(crate) fn load(&mut self, views: &[ViewId], now_ms: u32, body: &mut Reader<'_>) -> Result<(), Error> {
        self.tick = body.u32()?;
        self.views.evicted_blocks = body.counter()?;
        let runs = body.count(RUN_BYTES)?;
        let mut shares = 0;
        for _ in 0..runs {
            shares += self.load_run(views, numbers(runs), now_ms, body)?;
        }
        let sound = self.index.tree.finish_load(&mut self.space);
        body.require(sound, "a run has neither holders nor children")?;
        for view in views {
            for _ in 0..body.count(USE_BYTES)? {
                let (run, clock) = (RunId(body.u32()?), body.u32()?);
                body.require(self.index.tree.is_run(&self.space, run), "a use names no run")?;
                let carried = self.views.load_use(&self.index.tree, view.index, run, clock);
                body.require(carried > 0, "a use has nothing left")?;
                body.require(carried <= shares, "two uses share a holder")?;
                shares -= carried;
            }
        }
        body.require(shares == 0, "a holder belongs to no use")?;
        for view in views {
            self.views.fit(&self.index.tree, &mut self.space, view.index);
        }
        while self.bytes() > self.budget && self.evict_oldest() {}
        Ok(())
    }

    /// Reads one run. Returns its number of holders.
    fn load_run(
        &mut self,
        views: &[ViewId],
        numbers: usize,
        now_ms: u32,
        body: &mut Reader<'_>,
    ) -> Result<usize, Error> {
        let (id, parent) = (RunId(body.u32()?), RunId(body.u32()?));
        let (uses, age_ms) = (body.f32()?, body.u32()?);
        let (holders, len) = (usize::from(body.u16()?), usize::from(body.u16()?));
        let spare = self.spare();
        let (tree, space) = (&self.index.tree, &mut self.space);
        body.require((id.0 as usize) < numbers && tree.open_number(space, id), "a run's number is too high")?;
        body.require(!tree.is_run(space, id), "two runs have one number")?;
        body.require(parent == RunId::NONE || tree.is_run(space, parent), "a run comes before its parent")?;
        body.require((1..=MAX_RUN).contains(&len), "a run's length is out of range")?;
        body.require(holders <= MAX_HOLDERS, "a run has too many holders")?;
        let mut listed = Vec::with_capacity(holders);
        for _ in 0..holders {
            let (place, blocks, clock) = (usize::from(body.u16()?), body.u16()?, body.u32()?);
            body.require(usize::from(blocks) <= len, "a holder holds more than its run")?;
            let view = views.get(place).ok_or_else(|| body.refuse("a holder is no worker"))?.index;
            listed.push(Holder { view, blocks, clock });
        }
        let hashes = body.take(8 * len)?.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes));
        let hashes: Vec<u64> = hashes.collect();
        body.require(tree.child(parent, hashes[0]).is_none(), "two runs begin alike")?;
        body.require(tree.load_run(space, id, parent, &hashes, spare), "the budget is too small")?;
        let run = tree.run(id);
        run.set_uses(uses, now_ms.wrapping_sub(age_ms));
        for holder in listed {
            body.require(run.share(&tree.words, holder.view).is_none(), "a holder is there twice")?;
            let room = run.share_growth(&tree.words, &space.pages).is_some();
            body.require(room, "the budget is too small")?;
            run.add_share(&tree.words, &mut space.pages, holder, 0);
            self.views.get_mut(holder.view).blocks += u64::from(holder.blocks);
        }
        Ok(holders)
    }
}
