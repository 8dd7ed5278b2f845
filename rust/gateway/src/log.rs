//! Lines on standard error about what changed: a worker left, a view cannot be used. Nothing is said of single requests;
//! metrics count them.

use std::fmt;
use std::io::{self, Write};

/// Where lines go: to standard error, or nowhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log(pub(crate) bool);

impl Log {
    /// Writes a line. Where nobody reads standard error any more, nothing happens: `eprintln!` would panic.
    pub(crate) fn say(self, line: fmt::Arguments<'_>) {
        if self.0 {
            let _ = writeln!(io::stderr().lock(), "trunkline: {line}");
        }
    }
}
