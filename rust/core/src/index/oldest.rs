//! Whose oldest use is the oldest of all: a tournament, so that neither a use nor an eviction looks at every view.

/// Of each view the tick of its oldest use, `None` if it has none. Ticks wrap; those present span less than half of their range.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    ticks: Vec<Option<u32>>,
    /// `winners[1]` won against all; `winners[n]` is the better of the winners `2 n` and `2 n + 1`, the last half of these
    /// being the views themselves.
    winners: Vec<u16>,
}

impl Oldest {
    pub(super) fn bytes(&self) -> usize {
        self.ticks.capacity() * size_of::<Option<u32>>() + self.winners.capacity() * size_of::<u16>()
    }

    /// One more view, without uses.
    pub(super) fn push(&mut self) {
        self.ticks.push(None);
        if self.ticks.len() > self.winners.len() {
            self.winners = vec![0; self.ticks.len().next_power_of_two()];
            (1..self.winners.len()).rev().for_each(|node| self.winners[node] = self.winner(node));
        }
    }

    /// Cost: O(1) where nothing changes, else O(log views).
    pub(super) fn set(&mut self, view: u16, tick: Option<u32>) {
        let place = &mut self.ticks[usize::from(view)];
        if *place == tick {
            return;
        }
        *place = tick;
        let mut node = (self.winners.len() + usize::from(view)) / 2;
        while node > 0 {
            let winner = self.winner(node);
            let same = std::mem::replace(&mut self.winners[node], winner) == winner;
            if same && winner != view {
                return;
            }
            node /= 2;
        }
    }

    /// The view with the oldest use of all.
    pub(super) fn first(&self) -> Option<u16> {
        let &winner = self.winners.get(1).or(self.winners.first())?;
        self.ticks[usize::from(winner)].map(|_| winner)
    }

    /// All views that have uses, oldest first. Cost: O(views * log views).
    pub(super) fn all(&self) -> Vec<u16> {
        let mut views: Vec<u16> = (0..self.ticks.len())
            .filter(|&view| self.ticks[view].is_some())
            .map(|view| view as u16)
            .collect();
        views.sort_by(|&a, &b| self.age_difference(a, b).cmp(&0));
        views
    }

    /// Who won at this node.
    fn winner(&self, node: usize) -> u16 {
        let entrant = |at: usize| match at.checked_sub(self.winners.len()) {
            Some(view) => view as u16,
            None => self.winners[at],
        };
        let (a, b) = (entrant(2 * node), entrant(2 * node + 1));
        if self.age_difference(a, b) <= 0 { a } else { b }
    }

    /// Negative if `a` is older; views without uses are younger than all others.
    fn age_difference(&self, a: u16, b: u16) -> i32 {
        let tick = |view: u16| self.ticks.get(usize::from(view)).copied().flatten();
        match (tick(a), tick(b)) {
            (Some(a), Some(b)) => a.wrapping_sub(b) as i32,
            (Some(_), None) => -1,
            (None, Some(_)) => 1,
            (None, None) => 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_look_at_every_view(start in any::<u32>(), steps in proptest::collection::vec((0u16..40, proptest::option::of(0u32..5_000)), 1..300)) {
            let (mut oldest, mut model) = (Oldest::default(), Vec::new());
            prop_assert_eq!(oldest.first(), None);
            for (view, tick) in steps {
                // Views come one by one, as they are named.
                while model.len() <= usize::from(view) {
                    oldest.push();
                    model.push(None);
                }
                oldest.set(view, tick.map(|tick| start.wrapping_add(tick)));
                model[usize::from(view)] = tick;
                let lowest = model.iter().flatten().min();
                prop_assert_eq!(oldest.first().map(|view| model[usize::from(view)]), lowest.map(|&tick| Some(tick)));
                let ticks: Vec<u32> = oldest.all().into_iter().filter_map(|view| model[usize::from(view)]).collect();
                prop_assert!(ticks.is_sorted());
                prop_assert_eq!(ticks.len(), model.iter().flatten().count());
            }
        }
    }
}
