//! Lines on standard error about what changed: a worker left, a view cannot be used. Nothing is said of single requests;
//! metrics count them.

use std::fmt;
use std::io::{self, Write};

/// Writes a line. Where nobody reads standard error any more, nothing happens: `eprintln!` would panic.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "trunkline: {line}");
}
