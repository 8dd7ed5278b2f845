//! Which views hold a node: up to two in a word, more as a bitset in a slab.

/// Views that can be told apart; two must fit into a word with room for "none" and a flag.
pub(super) const MAX_VIEWS: usize = (1 << BITS) - 1;

const BITS: u32 = 15;
const MASK: u32 = (1 << BITS) - 1;
const SPILLED: u32 = 1 << 31;

/// The holders of one node: two numbers of views, each plus one, or the number of a bitset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holders(u32);

impl Holders {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn is_empty(self) -> bool {
        self == Self::NONE
    }

    fn spilled(self) -> Option<usize> {
        (self.0 & SPILLED != 0).then_some((self.0 & !SPILLED) as usize)
    }

    /// The one or two views in the word.
    fn inline(self) -> impl Iterator<Item = u16> {
        [self.0 & MASK, self.0 >> BITS & MASK]
            .into_iter()
            .filter_map(|view| Some(view.checked_sub(1)? as u16))
    }

    fn of(views: impl Iterator<Item = u16>) -> Self {
        Self(views.enumerate().fold(0, |word, (at, view)| word | (u32::from(view) + 1) << (at as u32 * BITS)))
    }
}

/// A set of views.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Views(smallvec::SmallVec<[u64; 2]>);

impl Views {
    pub(super) fn insert(&mut self, view: u16) {
        let at = usize::from(view) / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (view % 64);
    }

    pub(super) fn remove(&mut self, view: u16) {
        if let Some(word) = self.0.get_mut(usize::from(view) / 64) {
            *word &= !(1 << (view % 64));
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        ones(&self.0)
    }
}

fn ones(words: &[u64]) -> impl Iterator<Item = u16> {
    words.iter().enumerate().flat_map(|(at, &word)| {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|&bits| bits != 0);
        let bits = std::iter::successors(Some(word).filter(|&bits| bits != 0), next);
        bits.map(move |bits| (at * 64) as u16 + bits.trailing_zeros() as u16)
    })
}

/// The bitsets of nodes with more than two holders.
#[derive(Debug, Default)]
pub(super) struct Sets {
    words: Vec<u64>,
    /// Words of each set.
    stride: usize,
    free: Vec<u32>,
}

impl Sets {
    pub(super) fn bytes(&self) -> usize {
        8 * self.words.capacity() + 4 * self.free.capacity()
    }

    /// Bytes of the sets that nodes have.
    pub(super) fn used_bytes(&self) -> usize {
        8 * (self.words.len() - self.free.len() * self.stride)
    }

    fn set(&self, number: usize) -> &[u64] {
        &self.words[number * self.stride..][..self.stride]
    }

    pub(super) fn contains(&self, holders: Holders, view: u16) -> bool {
        match holders.spilled() {
            None => holders.inline().any(|other| other == view),
            Some(number) => {
                self.set(number).get(usize::from(view) / 64).is_some_and(|word| word >> (view % 64) & 1 == 1)
            }
        }
    }

    /// Adds a view. Cost: O(1), but for the first view of a new multiple of 64, which lays out all sets anew.
    pub(super) fn add(&mut self, holders: &mut Holders, view: u16) {
        if let Some(number) = holders.spilled() {
            self.widen(view);
            self.words[number * self.stride + usize::from(view) / 64] |= 1 << (view % 64);
            return;
        }
        if holders.inline().any(|other| other == view) {
            return;
        }
        if holders.inline().count() < 2 {
            *holders = Holders::of(holders.inline().chain([view]));
            return;
        }
        let members: smallvec::SmallVec<[u16; 3]> = holders.inline().chain([view]).collect();
        members.iter().for_each(|&member| self.widen(member));
        let number = self.free.pop().map_or_else(
            || {
                self.words.resize(self.words.len() + self.stride, 0);
                self.words.len() / self.stride - 1
            },
            |number| number as usize,
        );
        for member in members {
            self.words[number * self.stride + usize::from(member) / 64] |= 1 << (member % 64);
        }
        *holders = Holders(SPILLED | number as u32);
    }

    /// Takes a view away. `false` if it was none of them.
    pub(super) fn remove(&mut self, holders: &mut Holders, view: u16) -> bool {
        let was = self.contains(*holders, view);
        match holders.spilled() {
            _ if !was => {}
            None => *holders = Holders::of(holders.inline().filter(|&other| other != view)),
            Some(number) => {
                let set = &mut self.words[number * self.stride..][..self.stride];
                set[usize::from(view) / 64] &= !(1 << (view % 64));
                if set.iter().map(|word| word.count_ones()).sum::<u32>() <= 2 {
                    *holders = Holders::of(ones(set));
                    set.fill(0);
                    self.free.push(number as u32);
                }
            }
        }
        was
    }

    /// Makes room for a view in every set.
    fn widen(&mut self, view: u16) {
        let needed = usize::from(view) / 64 + 1;
        if needed <= self.stride {
            return;
        }
        let stride = needed.next_power_of_two();
        let sets = self.words.len().checked_div(self.stride).unwrap_or(0);
        let mut words = vec![0; sets * stride];
        for number in 0..sets {
            words[number * stride..][..self.stride].copy_from_slice(self.set(number));
        }
        (self.words, self.stride) = (words, stride);
    }

    /// Splits `alive` in those that hold the node, left in it, and those that do not, handed to `lost`. Returns how many are
    /// left.
    pub(super) fn narrow(&self, alive: &mut Views, holders: Holders, mut lost: impl FnMut(u16)) -> u32 {
        let set = holders.spilled().map(|number| self.set(number));
        let word_at = |at: usize| match set {
            Some(set) => set.get(at).copied().unwrap_or(0),
            None => (holders.inline().filter(|view| usize::from(view / 64) == at))
                .fold(0, |word, view| word | 1 << (view % 64)),
        };
        let mut left = 0;
        for (at, word) in alive.0.iter_mut().enumerate() {
            let held = *word & word_at(at);
            if held != *word {
                ones(&[*word & !held]).for_each(|view| lost((at * 64) as u16 + view));
                *word = held;
            }
            left += held.count_ones();
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_are_sets(steps in proptest::collection::vec((any::<bool>(), 0usize..3, 0u16..200), 1..200)) {
            let mut sets = Sets::default();
            let mut nodes = [Holders::NONE; 3];
            let mut model: [BTreeSet<u16>; 3] = Default::default();
            for (adds, node, view) in steps {
                if adds {
                    sets.add(&mut nodes[node], view);
                    model[node].insert(view);
                } else {
                    prop_assert_eq!(sets.remove(&mut nodes[node], view), model[node].remove(&view));
                }
                for (holders, model) in nodes.iter().zip(&model) {
                    prop_assert_eq!(holders.is_empty(), model.is_empty());
                    let mut alive = Views::default();
                    (0..200).filter(|view| view % 3 > 0).for_each(|view| alive.insert(view));
                    let mut lost = BTreeSet::new();
                    let left = sets.narrow(&mut alive, *holders, |view| _ = lost.insert(view));
                    prop_assert_eq!(left, alive.count());
                    let (held, others): (BTreeSet<u16>, BTreeSet<u16>) =
                        (0..200).filter(|view| view % 3 > 0).partition(|view| model.contains(view));
                    prop_assert_eq!(alive.iter().collect::<BTreeSet<_>>(), held);
                    prop_assert_eq!(lost, others);
                }
            }
        }
    }
}
