//! From Rust's results to C's codes: errors become an integer and a text for people, panics an integer.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_core::Error;

use crate::handle::{self, Shared};
use crate::types::*;

/// A code, and what it means here.
pub(crate) struct Refused(pub(crate) i32, pub(crate) String);

impl Refused {
    pub(crate) fn argument(what: &str) -> Self {
        Self(TRUNKLINE_E_ARGUMENT, what.to_owned())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Config { .. } => TRUNKLINE_E_CONFIG,
            Error::UnknownWorker { .. } => TRUNKLINE_E_UNKNOWN_WORKER,
            Error::DuplicateWorker { .. } => TRUNKLINE_E_DUPLICATE_WORKER,
            Error::NoWorkerAvailable { .. } => TRUNKLINE_E_NO_WORKER,
            _ => TRUNKLINE_E_INTERNAL,
        };
        Self(code, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a call; what it refuses is kept for [`with_last`].
pub(crate) fn guard(call: impl FnOnce() -> Result<i32, Refused>) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(call));
    let Refused(code, text) = match done {
        Ok(Ok(code)) => return code,
        Ok(Err(refused)) => refused,
        Err(_) => Refused(TRUNKLINE_E_INTERNAL, "the library panicked; this is a bug".to_owned()),
    };
    // A thread that is about to end has no such place any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    code
}

/// The same for the router of a handle.
pub(crate) fn with_router(router: u64, call: impl FnOnce(&Shared) -> Result<i32, Refused>) -> i32 {
    guard(|| {
        let unknown = || Refused(TRUNKLINE_E_HANDLE, format!("{router:#x} is no router of this process"));
        handle::with(router, call).ok_or_else(unknown)?
    })
}

/// Lends the text of the last error of this thread.
pub(crate) fn with_last<R>(read: impl FnOnce(&str) -> R) -> Option<R> {
    LAST.try_with(|last| read(&last.borrow())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_code() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let code = guard(|| panic!("on purpose"));
        std::panic::set_hook(hook);
        assert_eq!(code, TRUNKLINE_E_INTERNAL);
        assert_eq!(with_last(|text| text.contains("bug")), Some(true));
    }
}
