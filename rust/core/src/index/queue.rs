//! A queue that grows and shrinks by small pieces, so that it never holds twice what it needs.

use std::collections::VecDeque;

const PIECE: usize = 64;

/// First in, first out.
#[derive(Debug)]
pub(super) struct Queue<T> {
    pieces: VecDeque<Box<[T; PIECE]>>,
    /// Items of the first piece that are gone.
    start: usize,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), start: 0, len: 0 }
    }
}

impl<T: Copy> Queue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.pieces.len() * (size_of::<[T; PIECE]>() + 16) + self.pieces.capacity() * size_of::<usize>()
    }

    pub(super) fn front(&self) -> Option<T> {
        (self.len > 0).then(|| self.pieces[0][self.start])
    }

    /// The items, from the front.
    pub(super) fn iter(&self) -> impl Iterator<Item = T> {
        (self.start..self.start + self.len).map(|at| self.pieces[at / PIECE][at % PIECE])
    }

    pub(super) fn set_front(&mut self, item: T) {
        if self.len > 0 {
            self.pieces[0][self.start] = item;
        }
    }

    pub(super) fn push_back(&mut self, item: T) {
        let at = self.start + self.len;
        if at == self.pieces.len() * PIECE {
            self.pieces.push_back(Box::new([item; PIECE]));
        } else {
            self.pieces[at / PIECE][at % PIECE] = item;
        }
        self.len += 1;
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        let item = self.front()?;
        self.start += 1;
        self.len -= 1;
        if self.start == PIECE || self.len == 0 {
            self.pieces.pop_front();
            self.start = 0;
            if self.pieces.len() * 4 < self.pieces.capacity() {
                self.pieces.shrink_to(2 * self.pieces.len());
            }
        }
        Some(item)
    }

    /// Keeps the items that `keep` accepts, in their order.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(T) -> bool) {
        for _ in 0..self.len {
            if let Some(item) = self.pop_front().filter(|&item| keep(item)) {
                self.push_back(item);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_the_standard_queue(steps in proptest::collection::vec((0u8..12, any::<u32>()), 1..800)) {
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            for (step, value) in steps {
                match step {
                    0..=6 => {
                        queue.push_back(value);
                        model.push_back(value);
                    }
                    7..=9 => prop_assert_eq!(queue.pop_front(), model.pop_front()),
                    10 => {
                        queue.set_front(value);
                        if let Some(front) = model.front_mut() {
                            *front = value;
                        }
                    }
                    _ => {
                        queue.retain(|item| item % 3 == value % 3);
                        model.retain(|item| item % 3 == value % 3);
                    }
                }
                prop_assert!(queue.iter().eq(model.iter().copied()));
                prop_assert_eq!((queue.len(), queue.front()), (model.len(), model.front().copied()));
                prop_assert!(queue.bytes() <= (queue.len() / PIECE + 2) * (PIECE * 4 + 16 + 64) + 64);
            }
        }
    }
}
