//! The other end of a connection: asks, and waits for the answer, until it is due.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::buffer::Buffer;
use crate::wire::{MAGIC, MAX_ANSWER, Reader, VERSION, frame};

/// Bytes of one write: of a larger one each part has the whole time-out.
const PIECE: usize = 64 << 10;

/// A connection to a sidecar. One thread asks at a time.
pub struct Client {
    stream: UnixStream,
    timeout: Duration,
    /// That of each read and write, as the system has it.
    limit: Duration,
    /// When the answer must be whole.
    due: Instant,
    got: Buffer,
    out: Vec<u8>,
    /// Bytes of `out` that are on their way.
    sent: usize,
}

/// What a sidecar says to a client that it does not take: a status and its JSON.
pub type Unwelcome = Vec<u8>;

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Client {
    /// A connection that is to be made. What comes first is [`connect`](Self::connect), then [`hello`](Self::hello).
    ///
    /// `timeout` is that of connecting, which begins now, and of each question with its answer.
    ///
    /// # Errors
    /// Of the socket.
    pub fn new(timeout: Duration) -> io::Result<Self> {
        let due = Instant::now() + timeout;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        let stream = UnixStream::from(OwnedFd::from(socket));
        Ok(Self { stream, timeout, limit: timeout, due, got: Buffer::default(), out: Vec::new(), sent: 0 })
    }

    /// Connects.
    ///
    /// # Errors
    /// Of the socket; [`ErrorKind::TimedOut`]. But after [`ErrorKind::Interrupted`], when a signal came, this may be called again.
    pub fn connect(&mut self, path: &Path) -> io::Result<()> {
        let address = SockAddr::unix(path)?;
        self.in_time(|client| SockRef::from(&client.stream).connect(&address))
    }

    /// Makes the first question: `client` is a number that all connections of one process share.
    pub fn hello(&mut self, client: u64) {
        self.write(|out| {
            out.push(0);
            out.extend_from_slice(MAGIC);
            out.extend_from_slice(&VERSION.to_le_bytes());
            out.extend_from_slice(&client.to_le_bytes());
        });
    }

    /// Takes the answer to a hello: the sidecar's tag, or what it said instead.
    ///
    /// # Errors
    /// As for [`answer`](Self::answer).
    pub fn welcome(&mut self) -> io::Result<Result<u64, Unwelcome>> {
        let answer = self.answer()?.to_vec();
        let mut reader = Reader(&answer);
        match (reader.u8(), reader.u32(), reader.u64()) {
            (Ok(0), Ok(_), Ok(tag)) => Ok(Ok(tag)),
            (Ok(1..), ..) => Ok(Err(answer)),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Makes the next question; `fill` appends all of it but the length. Its time begins.
    pub fn write(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.out.clear();
        frame(&mut self.out, fill);
        self.sent = 0;
        self.due = Instant::now() + self.timeout;
    }

    /// Sends what was written and waits until the answer is whole.
    ///
    /// # Errors
    /// Of the socket, [`ErrorKind::TimedOut`] and [`ErrorKind::UnexpectedEof`]: the connection is of no use then, as the next answer
    /// could be that to another question. But after [`ErrorKind::Interrupted`], when a signal came, this may be called again.
    pub fn wait(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            let end = self.out.len().min(self.sent + PIECE);
            match self.in_time(|client| client.stream.write(&client.out[client.sent..end])) {
                Ok(count) => self.sent += count,
                // Who hangs up amid a question has said why.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    self.sent = self.out.len();
                }
                Err(error) => return Err(error),
            }
        }
        while !self.got.has_frame() {
            if self.in_time(|client| client.got.fill(&client.stream))? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Does something with the socket until it is due, however often the system wakes up for nothing.
    fn in_time<R>(&mut self, mut act: impl FnMut(&mut Self) -> io::Result<R>) -> io::Result<R> {
        loop {
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            // Most answers come at once: the system is only told where it would be out by a sixteenth.
            let slack = left / 16;
            if !(left - slack..=left + slack).contains(&self.limit) {
                self.stream.set_read_timeout(Some(left))?;
                self.stream.set_write_timeout(Some(left))?;
                self.limit = left;
            }
            match act(self) {
                // The system's word for a time-out.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
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
