//! The index's plain model: a map of prefixes for each view, evicted block by block. For tests and fuzz targets.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::*;

/// A view as sets of whole prefixes, each with the tick of its last use and the pins on it.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) prefixes: HashMap<Vec<u64>, (u64, u32)>,
    pub(super) capacity: Option<usize>,
}

impl Model {
    pub(super) fn store(&mut self, prompt: &[u64], tick: u64) {
        for end in 1..=prompt.len() {
            self.prefixes.entry(prompt[..end].to_vec()).or_default().0 = tick;
        }
    }

    #[cfg(test)]
    pub(super) fn pin(&mut self, prompt: &[u64], by: i32) {
        for end in 1..=prompt.len() {
            let pins = &mut self.prefixes.get_mut(&prompt[..end]).expect("pinned prefixes stay").1;
            *pins = pins.checked_add_signed(by).expect("pins are not negative");
        }
    }

    /// The oldest use goes first, and of it the longest prefix.
    pub(super) fn evict(&mut self) {
        while self.capacity.is_some_and(|capacity| self.prefixes.len() > capacity) {
            let oldest =
                self.prefixes.iter().min_by_key(|(prefix, (tick, _))| (*tick, usize::MAX - prefix.len()));
            let oldest = oldest.expect("over its capacity").0.clone();
            self.prefixes.remove(&oldest);
        }
    }

    pub(super) fn depth(&self, prompt: &[u64]) -> u32 {
        (1..=prompt.len()).take_while(|&end| self.prefixes.contains_key(&prompt[..end])).count() as u32
    }
}

pub(super) fn blocks(prompt: &[u64]) -> Vec<BlockHash> {
    prompt.iter().copied().map(BlockHash).collect()
}

pub(super) fn depths(index: &Writer, prompt: &[u64], views: &[ViewId]) -> Vec<u32> {
    let mut matches = Matches::default();
    index.index.find(&blocks(prompt)[..], 0, &mut matches);
    let listed: BTreeMap<usize, u32> = matches.holders().collect();
    for view in views {
        assert_eq!(listed.get(&view.index()).copied().unwrap_or(0), matches.depth(*view));
    }
    views.iter().map(|&view| matches.depth(view)).collect()
}

/// Checks what the index promises of its own structure.
pub(super) fn check(index: &Writer) {
    let (mut runs, mut blocks, mut spilled) = (0, 0, 0);
    let mut children: HashMap<u32, u32> = HashMap::new();
    let mut held: HashMap<u16, u64> = HashMap::new();
    let tree = &index.index.tree;
    let all: Vec<RunId> = tree.all_runs(&index.space).collect();
    for &id in &all {
        let (run, shape) = (tree.run(id), tree.run(id).shape());
        runs += 1;
        blocks += shape.len;
        spilled += usize::from(run.is_spilled());
        assert!(shape.holders > 0 || tree.children(id) > 0, "nobody needs {id:?}");
        assert_eq!(tree.child(shape.parent, tree.hashes(id).next().expect("a block")), Some(id));
        if shape.parent != RunId::NONE {
            *children.entry(shape.parent.0).or_default() += 1;
        }
        let mut seen = HashSet::new();
        run.shares(&tree.words).each(|share| {
            let holder = share.holder();
            assert!(seen.insert(holder.view), "one share for each view");
            assert!(usize::from(holder.blocks) <= shape.len);
            *held.entry(holder.view).or_default() += u64::from(holder.blocks);
        });
        assert_eq!(seen.len(), shape.holders);
    }
    for &id in &all {
        assert_eq!(tree.children(id), children.get(&id.0).copied().unwrap_or(0));
    }
    assert_eq!((index.runs(), index.blocks()), (runs, blocks));
    assert_eq!(index.space.pages.live(), runs + spilled, "a slot is nobody's");
    for view in 0..index.views.len() as u16 {
        if index.views.get(view).live {
            assert_eq!(index.views.get(view).blocks, held.get(&view).copied().unwrap_or(0));
        }
    }
    assert!(index.bytes() <= index.budget, "{} of {}", index.bytes(), index.budget);
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Insert { view: usize, prompt: Vec<u64> },
    Find { prompt: Vec<u64> },
    Replace { view: usize },
    Capacity { view: usize, blocks: Option<u64> },
}

/// Takes an index and a plain model of each of its four views through the same steps. Panics where they differ.
pub(crate) fn equals_model(steps: Vec<Step>) {
    let (_, mut index) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let mut views: Vec<ViewId> = (0..4).map(|_| index.add_view(None).expect("free")).collect();
    let mut models: Vec<Model> = (0..4).map(|_| Model::default()).collect();
    for (tick, step) in steps.into_iter().enumerate() {
        match step {
            Step::Insert { view, prompt } => {
                index.insert(views[view], &blocks(&prompt), 0);
                models[view].store(&prompt, tick as u64);
                models[view].evict();
            }
            Step::Find { prompt } => {
                let expected: Vec<u32> = models.iter().map(|model| model.depth(&prompt)).collect();
                assert_eq!(depths(&index, &prompt, &views), expected);
            }
            Step::Replace { view } => {
                index.remove_view(views[view]);
                views[view] = index.add_view(None).expect("free");
                models[view] = Model::default();
            }
            Step::Capacity { view, blocks } => {
                index.set_capacity(views[view], blocks);
                models[view].capacity = blocks.map(|blocks| blocks as usize);
                models[view].evict();
            }
        }
        check(&index);
        for (view, model) in views.iter().zip(&models) {
            assert_eq!(index.view_blocks(*view), model.prefixes.len() as u64);
        }
    }
}
