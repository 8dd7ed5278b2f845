//! One connection: read what came, answer all whole frames of it with one write, read on.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use trunkline_core::DecisionId;

use crate::answer::{Shared, hello};
use crate::buffer::Buffer;
use crate::serve::Options;
use crate::wire::{Refused, Status};

/// Answers that are held back to be written with others.
const HELD: usize = 64 << 10;

/// Serves a connection to its end, whatever that is.
pub(crate) fn serve(shared: &Shared, stream: &UnixStream, options: &Options) {
    let mut connection = Connection {
        shared,
        stream,
        options,
        client: None,
        buffer: Buffer::default(),
        out: Vec::new(),
        unread: Vec::new(),
    };
    // Otherwise only what the client sees of it counts, and it sees that the connection ends.
    if let Err(error) = connection.run()
        && matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
    {
        shared.give_back(&connection.unread);
    }
    if let Some(client) = connection.client {
        shared.clients.leave(client, Instant::now());
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    stream: &'a UnixStream,
    options: &'a Options,
    client: Option<u64>,
    buffer: Buffer,
    out: Vec<u8>,
    /// What the answers have booked that the client may not have read: nothing came from it since. If it hangs up before it
    /// has, the system tells so, and nobody knows what to complete.
    unread: Vec<DecisionId>,
}

impl Connection<'_> {
    fn run(&mut self) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.options.frame_timeout))?;
        // A client that says nothing at all is not heard for ever either.
        let mut deadline = Some(Instant::now() + self.options.frame_timeout);
        self.limit(deadline)?;
        loop {
            match self.buffer.fill(self.stream) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
                Ok(_) => self.unread.clear(),
            }
            let goes_on = self.answer_all()?;
            self.flush()?;
            if !goes_on {
                return Ok(());
            }
            let waits = self.client.is_none() || self.buffer.is_partial();
            match (waits, deadline) {
                (true, None) => deadline = Some(Instant::now() + self.options.frame_timeout),
                (false, Some(_)) => {
                    deadline = None;
                    self.stream.set_read_timeout(None)?;
                }
                _ => {}
            }
            self.limit(deadline)?;
        }
    }

    /// Lets the next read take no longer than until `deadline`.
    fn limit(&self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else {
            return Ok(());
        };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => self.stream.set_read_timeout(Some(left)),
        }
    }

    /// Answers the whole frames that came; false if that was the last that can be understood.
    fn answer_all(&mut self) -> io::Result<bool> {
        loop {
            let held = self.out.len();
            let done = match self.buffer.frame(self.options.max_frame) {
                Ok(None) => return Ok(true),
                Ok(Some(body)) => match self.client {
                    Some(client) => answer(self.shared, client, body, &mut self.out, &mut self.unread),
                    None => hello(body, self.shared.tag, &mut self.out).map(|client| {
                        self.shared.clients.enter(client);
                        self.client = Some(client);
                    }),
                },
                Err(refused) => Err(refused),
            };
            if let Err(refused) = done {
                self.out.truncate(held);
                refused.put(&mut self.out);
                if refused.is_final() {
                    return Ok(false);
                }
            }
            if self.out.len() > HELD {
                self.flush()?;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(&self.out)?;
        self.out.clear();
        if self.out.capacity() > 4 * HELD {
            self.out = Vec::new();
        }
        Ok(())
    }
}

/// Answers a frame; a panic ends this connection and nothing else.
fn answer(
    shared: &Shared,
    client: u64,
    body: &[u8],
    out: &mut Vec<u8>,
    booked: &mut Vec<DecisionId>,
) -> Result<(), Refused> {
    catch_unwind(AssertUnwindSafe(|| shared.answer(client, body, out, booked)))
        .unwrap_or_else(|_| Err(Refused::new(Status::Internal, "the sidecar panicked; this is a bug")))
}
