//! A version that lets readers see several words as one, without a lock.
//!
//! The words themselves are atomics that readers load relaxed; a writer makes the version odd, changes them, and makes it even
//! again. A reader keeps what it read only if the version was even and is unchanged. There is one writer at a time (the index
//! has one lock for writers), and the memory that a reader may touch is never freed, so a reader that comes too late reads
//! old or foreign words, never invalid ones, and throws them away.

use crate::sync::{AtomicU32, Ordering, fence, pause};

/// The version.
#[derive(Debug, Default)]
pub(super) struct Seq(AtomicU32);

impl Seq {
    /// Starts to read: the version, once no writer is at work.
    #[inline]
    pub(super) fn begin(&self) -> u32 {
        loop {
            let version = self.0.load(Ordering::Acquire);
            if version & 1 == 0 {
                return version;
            }
            pause();
        }
    }

    /// Whether all that was read since `begin` belongs together.
    #[inline]
    pub(super) fn holds(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// The version now; for the writer, which nobody races.
    pub(super) fn current(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs `change` between two versions. Writers only, one at a time.
    #[inline]
    pub(super) fn write<T>(&self, change: impl FnOnce() -> T) -> T {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change();
        self.0.store(version.wrapping_add(2), Ordering::Release);
        result
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn a_reader_never_keeps_words_of_two_versions() {
        loom::model(|| {
            let cell = Arc::new((Seq::default(), AtomicU64::new(0), AtomicU64::new(0)));
            let writer = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    for value in 1..=2 {
                        cell.0.write(|| {
                            cell.1.store(value, Ordering::Relaxed);
                            cell.2.store(value, Ordering::Relaxed);
                        });
                    }
                })
            };
            let version = cell.0.begin();
            let (a, b) = (cell.1.load(Ordering::Relaxed), cell.2.load(Ordering::Relaxed));
            if cell.0.holds(version) {
                assert_eq!(a, b);
            }
            writer.join().expect("the writer ends");
        });
    }
}
