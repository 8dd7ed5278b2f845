//! Handles: numbers for routers, so that a stale one is refused instead of followed.
//!
//! A handle is a generation and a slot of a table that is as old as the process. Freeing a router empties its slot, and
//! the next one there has another generation. A call holds its slot for reading as long as it runs.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::RwLock;
use trunkline_core::{Millis, Router};

use crate::clock::Clock;

/// Routers that a process can have at once.
const SLOTS: usize = 1024;

#[derive(Debug)]
struct Slot {
    router: Option<Shared>,
    generation: u32,
}

/// Each on cache lines of its own: two routers have nothing to do with each other.
#[derive(Debug)]
#[repr(align(128))]
struct Place(RwLock<Slot>);

impl Deref for Place {
    type Target = RwLock<Slot>;

    fn deref(&self) -> &RwLock<Slot> {
        &self.0
    }
}

static TABLE: [Place; SLOTS] = [const { Place(RwLock::new(Slot { router: None, generation: 0 })) }; SLOTS];

/// What a handle stands for.
#[derive(Debug)]
pub(crate) struct Shared {
    handle: u64,
    pub(crate) core: Arc<Router>,
    clock: Clock,
}

impl Shared {
    /// The moment that a caller gives; 0 is the present.
    pub(crate) fn now(&self, now_ms: u64) -> Millis {
        if now_ms == 0 { self.clock.now() } else { Millis(now_ms) }
    }
}

/// A router that C can call, until this is dropped.
#[derive(Debug)]
pub struct Handle(u64);

impl Handle {
    /// Lends a router of Rust to C. `None` if the process has 1,024 already.
    #[must_use]
    pub fn new(core: &Arc<Router>, clock: Clock) -> Option<Self> {
        insert(core, clock).map(Self)
    }

    /// What C calls it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Gives a router a number, never 0 and never given before.
pub(crate) fn insert(core: &Arc<Router>, clock: Clock) -> Option<u64> {
    for (number, slot) in TABLE.iter().enumerate() {
        // A slot that is in use, by a router or by another call of this function, is passed over.
        let Some(mut slot) = slot.try_write() else {
            continue;
        };
        if slot.router.is_some() {
            continue;
        }
        let Some(generation) = slot.generation.checked_add(1) else {
            continue;
        };
        slot.generation = generation;
        let handle = (u64::from(generation) << 32) | number as u64;
        slot.router = Some(Shared { handle, core: Arc::clone(core), clock });
        return Some(handle);
    }
    None
}

/// Calls `act` with the router of a number, if it is one.
pub(crate) fn with<R>(handle: u64, act: impl FnOnce(&Shared) -> R) -> Option<R> {
    let slot = TABLE.get(handle as u32 as usize)?.read();
    slot.router.as_ref().filter(|shared| shared.handle == handle).map(act)
}

/// Takes a number back, after the calls that use it have ended; false if it is none.
pub(crate) fn remove(handle: u64) -> bool {
    let Some(slot) = TABLE.get(handle as u32 as usize) else {
        return false;
    };
    let mut slot = slot.write();
    if slot.router.as_ref().is_none_or(|shared| shared.handle != handle) {
        return false;
    }
    let router = slot.router.take();
    drop(slot);
    drop(router);
    true
}

#[cfg(test)]
mod tests {
    use trunkline_core::RouterConfig;

    use super::*;

    fn new() -> u64 {
        let config = RouterConfig { memory_budget: 1 << 20, ..RouterConfig::default() };
        insert(&Arc::new(Router::new(config).expect("defaults are allowed")), Clock::showing(Millis(1)))
            .expect("there is room")
    }

    fn is_one(handle: u64) -> bool {
        with(handle, |_| ()).is_some()
    }

    #[test]
    fn a_freed_number_is_never_given_again() {
        let first = new();
        assert!(is_one(first));
        assert!(remove(first) && !remove(first));
        let second = new();
        assert_ne!(first, second);
        assert!(!is_one(first) && is_one(second));
        assert!(remove(second));
    }

    #[test]
    fn made_up_numbers_name_nothing() {
        for handle in [0, 1, u64::MAX, 5000, u64::MAX << 32] {
            assert!(!is_one(handle) && !remove(handle), "{handle}");
        }
    }

    #[test]
    fn threads_get_numbers_of_their_own() {
        let all: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| [new(), new(), new(), new()])).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.into_iter().all(remove));
    }
}
