//! The other end of a connection: asks, and waits for the answer.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::buffer::Buffer;
use crate::wire::{MAGIC, Reader, VERSION, frame};

/// Largest answer: a snapshot.
const MAX_ANSWER: usize = u32::MAX as usize;

/// A connection to a sidecar, past its hello. One thread asks at a time.
pub struct Client {
    stream: UnixStream,
    got: Buffer,
    out: Vec<u8>,
}

/// What a sidecar says to a client that it does not take: a status and its JSON.
pub type Unwelcome = Vec<u8>;

impl Client {
    /// Connects and says hello as `client`, a number that all connections of one process share.
    ///
    /// `timeout` is that of connecting and of each read or write. Returns the sidecar's tag too, or what it said instead.
    ///
    /// # Errors
    /// Of the socket; [`ErrorKind::TimedOut`] after `timeout`, [`ErrorKind::UnexpectedEof`] if it hangs up.
    pub fn connect(
        path: &Path,
        timeout: Duration,
        client: u64,
    ) -> io::Result<Result<(Self, u64), Unwelcome>> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        socket.connect(&SockAddr::unix(path)?).map_err(in_time)?;
        let stream = UnixStream::from(std::os::fd::OwnedFd::from(socket));
        let mut connected = Self { stream, got: Buffer::default(), out: Vec::new() };
        connected.write(|out| {
            out.push(0);
            out.extend_from_slice(MAGIC);
            out.extend_from_slice(&VERSION.to_le_bytes());
            out.extend_from_slice(&client.to_le_bytes());
        });
        connected.send()?;
        while let Err(error) = connected.wait() {
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let answer = connected.answer()?.to_vec();
        let mut reader = Reader(&answer);
        let tag = match (reader.u8(), reader.u32(), reader.u64()) {
            (Ok(0), Ok(_), Ok(tag)) => tag,
            (Ok(1..), ..) => return Ok(Err(answer)),
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        Ok(Ok((connected, tag)))
    }

    /// Makes the next question; `fill` appends all of it but the length.
    pub fn write(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.out.clear();
        frame(&mut self.out, fill);
    }

    /// Sends what was written.
    ///
    /// # Errors
    /// As for `connect`. The connection is of no use then: the next answer could be that to another question.
    pub fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out).map_err(in_time)
    }

    /// Waits until the answer is whole.
    ///
    /// # Errors
    /// As for `send`, but for [`ErrorKind::Interrupted`], after which this may be called again: a signal came.
    pub fn wait(&mut self) -> io::Result<()> {
        while !self.got.has_frame() {
            if self.got.fill(&self.stream).map_err(in_time)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Takes the answer that `wait` waited for: its status, then what it says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is none that a sidecar gives.
    pub fn answer(&mut self) -> io::Result<&[u8]> {
        match self.got.frame(MAX_ANSWER) {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// A socket's time-out is called "would block" by the system.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}
