//! What has threads belongs to the process that started it: a forked child has none of them, so it neither calls nor ends it.

use parking_lot::RwLock;
use pyo3::PyResult;

use crate::error;

/// Something that runs until it is taken.
pub(crate) struct Running<T> {
    /// `None` once it was taken.
    value: RwLock<Option<T>>,
    /// The process whose threads it has.
    process: u32,
    what: &'static str,
}

impl<T> Running<T> {
    /// `what` it is called in errors.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { value: RwLock::new(Some(value)), process: std::process::id(), what }
    }

    /// Uses it; who takes it waits meanwhile. Errors: `RuntimeError` once it was taken, or in a forked child.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&T) -> R) -> PyResult<R> {
        // A lock that another thread held is held for ever in a forked child.
        let found = if self.is_here() { self.value.read().as_ref().map(call) } else { None };
        found.ok_or_else(|| error::closed(self.what))
    }

    /// Takes it to be ended: nothing the second time, and in a forked child.
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_here() { self.value.write().take() } else { None }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.get_mut().take());
        }
    }
}
