//! The look-up: down the chains that spell the prompt, with the views that hold all of the way.

use smallvec::SmallVec;

use super::holders::Views;
use super::nodes::NodeId;
use super::{ExactIndex, ExactPrompt, Tree, root_key};

/// Nodes that one look-up visits at most: a prompt of 16 million tokens in one chain.
const MAX_VISITS: usize = 1 << 20;

/// Part of a prompt that equally many views hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExactSegment {
    /// Tokens up to its end.
    pub(crate) end_tokens: u32,
    /// Views that hold it and all before it.
    pub(crate) copies: u32,
}

/// What a look-up found; kept by the caller and filled again.
#[derive(Debug, Default)]
pub(crate) struct ExactMatches {
    round: u32,
    marks: Vec<Mark>,
    views: Vec<u16>,
    /// Along the deepest chain, from the start of the prompt.
    pub(crate) segments: Vec<ExactSegment>,
    /// Tokens and bytes of the deepest match.
    pub(crate) tokens: u32,
    pub(crate) bytes: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    round: u32,
    tokens: u32,
}

impl ExactMatches {
    pub(crate) fn clear(&mut self) {
        self.views.clear();
        self.segments.clear();
        (self.tokens, self.bytes) = (0, 0);
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.marks.fill(Mark::default());
            self.round = 1;
        }
    }

    /// Leading tokens of the prompt that the view holds.
    #[inline]
    pub(crate) fn tokens(&self, view: u16) -> u32 {
        match self.marks.get(usize::from(view)) {
            Some(mark) if mark.round == self.round => mark.tokens,
            _ => 0,
        }
    }

    /// The views that hold at least the first block, as their small numbers, each with its tokens.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.views.iter().map(|&view| (view, self.marks[usize::from(view)].tokens))
    }

    fn note(&mut self, view: u16, tokens: u32) {
        let at = usize::from(view);
        if at >= self.marks.len() {
            self.marks.resize(at + 1, Mark::default());
        }
        let mark = &mut self.marks[at];
        if mark.round != self.round {
            *mark = Mark { round: self.round, tokens };
            self.views.push(view);
        } else {
            mark.tokens = mark.tokens.max(tokens);
        }
    }
}

/// A way that is still to be walked.
#[derive(Debug, Clone)]
struct Branch {
    node: NodeId,
    at: usize,
    depth: u32,
    alive: Views,
    segments: SmallVec<[ExactSegment; 8]>,
}

impl ExactIndex {
    /// Walks the prompt and notes how many of its tokens each view holds.
    ///
    /// Cost: one hash per matched block; at a branch one hash and a cache miss for each class of lengths it has. Two children
    /// can spell one text: all such ways are walked.
    pub(crate) fn find(&self, prompt: &ExactPrompt<'_>, found: &mut ExactMatches) {
        found.clear();
        let tree = self.tree.read();
        let Some(&root) = tree.roots.get(&root_key(prompt.root, prompt.is_tokens)) else { return };
        let start =
            Branch { node: root, at: 0, depth: 0, alive: tree.live.clone(), segments: SmallVec::new() };
        let mut branches: SmallVec<[Branch; 1]> = SmallVec::from_iter([start]);
        let mut visits = 0;
        while let Some(branch) = branches.pop() {
            self.descend(&tree, prompt, branch, &mut branches, &mut visits, found);
        }
    }

    fn descend(
        &self,
        tree: &Tree,
        prompt: &ExactPrompt<'_>,
        mut way: Branch,
        branches: &mut SmallVec<[Branch; 1]>,
        visits: &mut usize,
        found: &mut ExactMatches,
    ) {
        let mut holders = None;
        // Block size of the views on the way; equal for those that share nodes, as blocks of other sizes have other bytes.
        let mut block_size = 0;
        loop {
            let chain = tree.nodes.chain(way.node, way.at, prompt.bytes.len());
            if !chain.is_empty() && *visits < MAX_VISITS {
                let depth = way.depth as usize;
                let extra = |number| prompt.extras.get(depth + number).copied().unwrap_or(0);
                let common = tree.nodes.common(&chain, &self.hasher, prompt.bytes, way.at, extra);
                *visits += chain.len();
                for &(child, end) in &chain[..common] {
                    let held = tree.nodes.get(child).holders;
                    if holders == Some(held) {
                        (way.node, way.at, way.depth) = (child, end, way.depth + 1);
                    } else {
                        tree.enter(&mut way, child, end, &mut block_size, found);
                        holders = Some(held);
                    }
                }
                if common < chain.len() {
                    break;
                }
                continue;
            }
            let extra = prompt.extras.get(way.depth as usize).copied().unwrap_or(0);
            let mut next: Option<(NodeId, usize)> = None;
            tree.nodes.matching(
                way.node,
                &self.hasher,
                prompt.bytes,
                way.at,
                extra,
                |child, end| match next {
                    None => next = Some((child, end)),
                    Some(_) => {
                        let mut other = way.clone();
                        tree.enter(&mut other, child, end, &mut block_size, found);
                        branches.push(other);
                    }
                },
            );
            *visits += 1;
            let Some((child, end)) = next.filter(|_| *visits < MAX_VISITS) else { break };
            tree.enter(&mut way, child, end, &mut block_size, found);
            holders = Some(tree.nodes.get(child).holders);
        }
        tree.finish(way, found);
    }
}

impl Tree {
    /// Takes a way to a child: views that do not hold it stay behind.
    fn enter(
        &self,
        way: &mut Branch,
        child: NodeId,
        end: usize,
        block_size: &mut u32,
        found: &mut ExactMatches,
    ) {
        let depth = way.depth;
        let before = way.alive.count();
        let left = self.sets.narrow(&mut way.alive, self.nodes.get(child).holders, |view| {
            if depth > 0 {
                found.note(view, depth.saturating_mul(self.block_size(view)));
            }
        });
        if depth > 0 && left != before {
            let end_tokens = depth.saturating_mul(*block_size);
            way.segments.push(ExactSegment { end_tokens, copies: before });
        }
        if *block_size == 0 {
            *block_size = way.alive.iter().next().map_or(0, |view| self.block_size(view));
        }
        (way.node, way.at, way.depth) = (child, end, depth + 1);
    }

    /// The end of a way.
    fn finish(&self, way: Branch, found: &mut ExactMatches) {
        let Branch { at, depth, alive, mut segments, .. } = way;
        if depth == 0 {
            return;
        }
        let mut tokens = 0;
        for view in alive.iter() {
            let held = depth.saturating_mul(self.block_size(view));
            found.note(view, held);
            tokens = tokens.max(held);
        }
        if tokens > found.tokens {
            segments.push(ExactSegment { end_tokens: tokens, copies: alive.count() });
            found.segments.clear();
            found.segments.extend(segments);
            (found.tokens, found.bytes) = (tokens, at);
        }
    }

    fn block_size(&self, view: u16) -> u32 {
        self.views[usize::from(view)].1.as_ref().map_or(0, |view| view.block_size)
    }
}
