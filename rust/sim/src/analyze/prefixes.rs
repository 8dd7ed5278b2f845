//! The tree of shared prefixes in bounded memory: how often each block was used behind its prefix, and what it begins with.
//!
//! Counts are those of *lossy counting*: when there are too many blocks, the rarest quarter is forgotten, and a block that comes (back)
//! later may have been used as often before as those that were forgotten. A prefix is used whenever what follows it is, so a block is
//! never kept without its prefix. Source: Manku and Motwani, VLDB 2002.

use super::ByName;
use crate::log::BLOCK_BYTES;

/// Texts that are kept, at most.
const MAX_PREVIEWS: usize = 1 << 16;

/// A block behind its prefix.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The block before it; 0 for the first one.
    parent: u64,
    count: u32,
    /// Uses that may have been forgotten, at most.
    missed: u32,
    /// Blocks before it.
    depth: u32,
}

/// A piece of the tree without a branch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    /// The piece that it follows, by its place in the list.
    pub(super) parent: Option<usize>,
    /// Blocks before it.
    pub(super) depth: u32,
    /// Its blocks.
    pub(super) blocks: u32,
    /// Prompts that have it.
    pub(super) count: u32,
    /// The text of its first block, if it is known.
    pub(super) text: Option<[u8; BLOCK_BYTES]>,
}

impl Piece {
    /// Blocks that need not be computed again because of it, on an endless cache.
    pub(super) fn saved_blocks(&self) -> u64 {
        u64::from(self.count - 1) * u64::from(self.blocks)
    }
}

/// The tree. Memory: about 50 bytes for each of `limit` blocks, and the texts.
#[derive(Debug)]
pub(super) struct PrefixTree {
    limit: usize,
    seen: ByName<Seen>,
    previews: ByName<[u8; BLOCK_BYTES]>,
    /// Uses that the tree may have forgotten of any block.
    missed: u32,
}

impl PrefixTree {
    /// A tree of at most `limit` blocks.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(16), seen: ByName::default(), previews: ByName::default(), missed: 0 }
    }

    /// Uses that any count may lack.
    pub(super) fn missed(&self) -> u32 {
        self.missed
    }

    /// Adds a prompt: the names of its blocks, and its bytes. Returns how many leading blocks were known.
    pub(super) fn request(&mut self, blocks: &[u64], prompt: &[u8]) -> usize {
        let (mut known, mut parent, mut parent_count) = (0, 0, u32::MAX);
        for (depth, (&block, text)) in blocks.iter().zip(prompt.as_chunks().0).enumerate() {
            let new = Seen { parent, count: 0, missed: self.missed, depth: depth as u32 };
            let seen = self.seen.entry(block).or_insert(new);
            known += usize::from(seen.count > 0 && known == depth);
            seen.count += 1;
            // Where a piece of the tree begins, its prefix has more uses.
            if seen.count > 1 && parent_count > seen.count && self.previews.len() < MAX_PREVIEWS {
                self.previews.entry(block).or_insert(*text);
            }
            (parent, parent_count) = (block, seen.count);
        }
        if self.seen.len() > self.limit {
            self.forget();
        }
        known
    }

    /// Forgets the rarest blocks, at least a quarter of all.
    fn forget(&mut self) {
        let mut uses: Vec<u32> = self.seen.values().map(|seen| seen.count + seen.missed).collect();
        let quarter = uses.len() / 4;
        let (_, &mut floor, _) = uses.select_nth_unstable(quarter);
        self.missed = self.missed.max(floor);
        self.seen.retain(|_, seen| seen.count + seen.missed > floor);
        self.previews.retain(|block, _| self.seen.contains_key(block));
    }

    /// The pieces that save most, at most `count` of them and those before them; a piece stands behind the one that it follows.
    pub(super) fn top(&self, count: usize) -> Vec<Piece> {
        let mut children: ByName<Vec<u64>> = ByName::default();
        for (&block, seen) in self.seen.iter().filter(|(_, seen)| seen.count > 1) {
            children.entry(seen.parent).or_default().push(block);
        }
        // Rare ones first: they are taken from the end.
        children
            .values_mut()
            .for_each(|blocks| blocks.sort_unstable_by_key(|block| (self.seen[block].count, *block)));
        let mut pieces: Vec<Piece> = Vec::new();
        let mut starts: Vec<(u64, Option<usize>)> =
            children.get(&0).into_iter().flatten().map(|&block| (block, None)).collect();
        while let Some((start, parent)) = starts.pop() {
            let first = self.seen[&start];
            let (mut end, mut blocks) = (start, 1);
            let below = loop {
                match children.get(&end).map(Vec::as_slice) {
                    Some(&[only]) if self.seen[&only].count == first.count => {
                        (end, blocks) = (only, blocks + 1)
                    }
                    other => break other.unwrap_or_default(),
                }
            };
            let at = pieces.len();
            let text = self.previews.get(&start).copied();
            pieces.push(Piece { parent, depth: first.depth, blocks, count: first.count, text });
            starts.extend(below.iter().map(|&block| (block, Some(at))));
        }
        pick(&pieces, count)
    }
}

/// The pieces that save most, with what they follow, each behind its parent.
fn pick(pieces: &[Piece], count: usize) -> Vec<Piece> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(pieces[at].saved_blocks()), pieces[at].depth));
    let mut wanted: Vec<usize> = Vec::new();
    for &best in order.iter().take(count) {
        let mut next = Some(best);
        while let Some(at) = next.filter(|at| !wanted.contains(at)) {
            wanted.push(at);
            next = pieces[at].parent;
        }
    }
    // Pieces were listed from the root on, each subtree in one run.
    wanted.sort_unstable();
    wanted
        .iter()
        .map(|&at| {
            let parent = pieces[at].parent.and_then(|parent| wanted.binary_search(&parent).ok());
            Piece { parent, ..pieces[at].clone() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::des::mix;

    /// Names and bytes of a prompt whose blocks are these letters.
    fn prompt(letters: &str) -> (Vec<u64>, Vec<u8>) {
        let mut name = 1;
        let names = letters.bytes().map(|letter| {
            name = mix(name ^ u64::from(letter));
            name
        });
        (names.collect(), letters.bytes().flat_map(|letter| [letter; BLOCK_BYTES]).collect())
    }

    #[test]
    fn pieces_say_who_shares_what() {
        let mut tree = PrefixTree::new(1000);
        let known: Vec<usize> = ["abx", "aby", "abcz", "abcw", "abcv"]
            .map(|letters| {
                let (names, text) = prompt(letters);
                tree.request(&names, &text)
            })
            .into();
        assert_eq!(known, [0, 2, 2, 3, 3]);
        let seen: Vec<_> = tree
            .top(9)
            .iter()
            .map(|piece| {
                (piece.parent, piece.depth, piece.blocks, piece.count, piece.text.map(|text| text[0]))
            })
            .collect();
        assert_eq!(seen, [(None, 0, 2, 5, Some(b'a')), (Some(0), 2, 1, 3, Some(b'c'))]);
        // The second piece alone is not shown without the first one.
        assert_eq!(tree.top(1).len(), 1);
    }

    #[test]
    fn what_is_used_often_outlives_the_bound() {
        let mut tree = PrefixTree::new(200);
        for number in 0..2000u32 {
            let (mut names, mut text) = prompt("shared");
            for at in 0..10 {
                names.push(mix(mix(u64::from(number) + 7) ^ at));
                text.extend([b'.'; BLOCK_BYTES]);
            }
            tree.request(&names, &text);
            assert!(tree.seen.len() <= 200 + 16);
            for (block, seen) in &tree.seen {
                assert!(
                    seen.parent == 0 || tree.seen.contains_key(&seen.parent),
                    "{block} has lost its prefix"
                );
            }
        }
        let top = tree.top(1);
        assert_eq!((top[0].blocks, top[0].count, top[0].text.map(|text| text[0])), (6, 2000, Some(b's')));
        assert!(tree.missed() >= 1);
    }
}
