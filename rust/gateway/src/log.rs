//! Lines on standard error about what changed: a worker left, a view cannot be used. Nothing is said of single requests;
//! metrics count them.

use std::fmt;
use std::io::{self, StderrLock, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where lines go: to standard error, or nowhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log(pub(crate) bool);

impl Log {
    /// Writes a line. Where nobody reads standard error, or not now, it is lost: whoever serves waits for no log.
    pub(crate) fn say(self, line: fmt::Arguments<'_>) {
        if !self.0 {
            return;
        }
        let mut line = format!("trunkline: {line}").into_bytes();
        line.truncate(MAX_BYTES - 1);
        line.push(b'\n');
        // Under one lock, so that no other thread of ours takes the room in between.
        let mut stderr = io::stderr().lock();
        if is_ready(&stderr) {
            // In one write, as this much goes through if poll says that anything does.
            let _ = stderr.write_all(&line);
        }
    }
}

/// Longest line: `PIPE_BUF`, as much as a pipe that is ready takes at once.
const MAX_BYTES: usize = 4096;

/// Whether standard error takes a line without waiting.
fn is_ready(stderr: &StderrLock<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(stderr, PollFlags::OUT)], Some(&now)).is_ok_and(|count| count > 0)
}
