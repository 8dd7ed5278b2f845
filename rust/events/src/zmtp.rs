//! As much of ZMTP 3.0 as a subscriber, a dealer and their peers need: greeting, the NULL mechanism, frames, heartbeats.
//!
//! Our own because a peer must not be able to end the process: the `zeromq` crate (0.7) reserves whatever length a frame
//! declares, so that nine bytes of a publisher abort the gateway (`memory allocation of 1125899906908169 bytes failed`), and
//! has no limit to set. Here memory grows with the bytes that have come, and a message that is too long ends the connection. It
//! also tells at once that a connection is gone, which the crate hides behind its own attempts to come back.
//!
//! Source: <https://rfc.zeromq.org/spec/23/>.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Frames of a message; publishers send three, replays four.
const MAX_FRAMES: usize = 8;
/// Bytes that are read at once, at most.
const READ_BYTES: usize = 64 << 10;
/// Longest READY and other commands.
const MAX_COMMAND_BYTES: usize = 4 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer does not speak ZMTP 3 without security")]
    Greeting,
    #[error("the peer is a socket of another type")]
    SocketType,
    #[error("the peer broke the protocol")]
    Protocol,
    #[error("a message is longer than is allowed")]
    TooLong,
}

/// What we are, and what the peer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Subscriber,
    Dealer,
    Publisher,
    Router,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Subscriber => "SUB",
            Self::Dealer => "DEALER",
            Self::Publisher => "PUB",
            Self::Router => "ROUTER",
        }
    }

    fn fits(self, peer: &[u8]) -> bool {
        match self {
            Self::Subscriber => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"REP" | b"DEALER"),
            Self::Publisher => matches!(peer, b"SUB" | b"XSUB"),
            Self::Router => matches!(peer, b"DEALER" | b"REQ"),
        }
    }
}

/// A connected peer.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    buffer: BytesMut,
    /// Frames of the message that is being received.
    frames: Vec<Vec<u8>>,
    frame_bytes: usize,
    max_message_bytes: usize,
}

/// What the buffer begins with.
enum Part {
    Frame { more: bool, body: Vec<u8> },
    Command(Vec<u8>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets the peer. No time limit of its own.
    pub(crate) async fn open(mut stream: S, role: Role, max_message_bytes: usize) -> Result<Self, Fault> {
        let mut greeting = [0u8; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await?;
        let mut theirs = [0u8; 64];
        stream.read_exact(&mut theirs[..11]).await.map_err(closed)?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(Fault::Greeting);
        }
        stream.read_exact(&mut theirs[11..]).await.map_err(closed)?;
        if theirs[12..32] != greeting[12..32] {
            return Err(Fault::Greeting);
        }
        let mut connection =
            Self { stream, buffer: BytesMut::new(), frames: Vec::new(), frame_bytes: 0, max_message_bytes };
        let mut ready = b"\x05READY".to_vec();
        property(&mut ready, "Socket-Type", role.name().as_bytes());
        if role == Role::Dealer {
            property(&mut ready, "Identity", b"");
        }
        connection.write(COMMAND, &ready).await?;
        let Part::Command(theirs) = connection.part().await? else { return Err(Fault::Protocol) };
        let properties = theirs.strip_prefix(b"\x05READY").ok_or(Fault::Protocol)?;
        let peer = socket_type(properties).ok_or(Fault::Protocol)?;
        if role.fits(peer) { Ok(connection) } else { Err(Fault::SocketType) }
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Fault> {
        for (at, frame) in frames.iter().enumerate() {
            self.write(if at + 1 < frames.len() { MORE } else { 0 }, frame).await?;
        }
        Ok(())
    }

    /// The frames of the next message; none for a heartbeat, which was answered. May be dropped and called again: nothing is lost.
    pub(crate) async fn receive(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            match self.part().await? {
                Part::Frame { more, body } => {
                    self.frame_bytes += body.len();
                    self.frames.push(body);
                    if !more {
                        self.frame_bytes = 0;
                        return Ok(std::mem::take(&mut self.frames));
                    }
                    if self.frames.len() == MAX_FRAMES {
                        return Err(Fault::TooLong);
                    }
                }
                Part::Command(command) => {
                    if let Some(context) = command.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
                        let pong = [b"\x04PONG", context].concat();
                        self.write(COMMAND, &pong).await?;
                    } else if command.starts_with(b"\x05ERROR") {
                        return Err(Fault::Protocol);
                    }
                    return Ok(Vec::new());
                }
            }
        }
    }

    /// The next frame or command, read as far as it has not come yet.
    async fn part(&mut self) -> Result<Part, Fault> {
        loop {
            if let Some(part) = self.buffered()? {
                return Ok(part);
            }
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(Fault::Closed);
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<Part>, Fault> {
        let Some(&flags) = self.buffer.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Fault::Protocol);
        }
        let (head, length) = if flags & LONG == 0 {
            let Some(&length) = self.buffer.get(1) else { return Ok(None) };
            (2, u64::from(length))
        } else {
            let Some(length) = self.buffer[1..].first_chunk::<8>() else { return Ok(None) };
            (9, u64::from_be_bytes(*length))
        };
        let most = match flags & COMMAND {
            0 => self.max_message_bytes - self.frame_bytes.min(self.max_message_bytes),
            _ => MAX_COMMAND_BYTES,
        };
        if length > most as u64 {
            return Err(Fault::TooLong);
        }
        let length = length as usize;
        if self.buffer.len() < head + length {
            return Ok(None);
        }
        self.buffer.advance(head);
        let body = self.buffer[..length].to_vec();
        self.buffer.advance(length);
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * READ_BYTES {
            self.buffer = BytesMut::new();
        }
        Ok(Some(match flags & COMMAND {
            0 => Part::Frame { more: flags & MORE != 0, body },
            _ => Part::Command(body),
        }))
    }

    async fn write(&mut self, flags: u8, body: &[u8]) -> Result<(), Fault> {
        let mut frame = Vec::with_capacity(body.len() + 9);
        match u8::try_from(body.len()) {
            Ok(length) => frame.extend([flags, length]),
            Err(_) => {
                frame.push(flags | LONG);
                frame.extend((body.len() as u64).to_be_bytes());
            }
        }
        frame.extend(body);
        Ok(self.stream.write_all(&frame).await?)
    }
}

fn closed(error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof { Fault::Closed } else { Fault::Io(error) }
}

fn property(command: &mut Vec<u8>, name: &str, value: &[u8]) {
    command.push(name.len() as u8);
    command.extend(name.as_bytes());
    command.extend((value.len() as u32).to_be_bytes());
    command.extend(value);
}

/// The value of `Socket-Type`, the name of which any case will do.
fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (&length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(length.into())?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// A connection whose peer greeted well and then sent `bytes`, and the peer's end.
    async fn opened(bytes: &[u8], pieces: usize) -> (Connection<DuplexStream>, DuplexStream) {
        let (ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(&hello(b"NULL", b"PUB")).await.unwrap();
        let connection = Connection::open(ours, Role::Subscriber, 1_000).await.unwrap();
        let mut heard = [0u8; 64 + 27];
        theirs.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard[64..], *b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB");
        for piece in bytes.chunks(pieces.max(1)) {
            theirs.write_all(piece).await.unwrap();
        }
        (connection, theirs)
    }

    fn hello(mechanism: &[u8], socket: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, 1);
        bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
        let mut ready = b"\x05READY".to_vec();
        property(&mut ready, "Identity", b"");
        property(&mut ready, "socket-type", socket);
        bytes.extend([COMMAND, ready.len() as u8]);
        bytes.extend(ready);
        bytes
    }

    async fn refused(bytes: &[u8]) -> Fault {
        let (ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(bytes).await.unwrap();
        theirs.shutdown().await.unwrap();
        Connection::open(ours, Role::Subscriber, 1_000).await.unwrap_err()
    }

    #[tokio::test]
    async fn peers_of_another_kind_are_refused() {
        assert!(matches!(refused(&hello(b"PLAIN", b"PUB")).await, Fault::Greeting));
        assert!(matches!(refused(&hello(b"NULL", b"ROUTER")).await, Fault::SocketType));
        assert!(matches!(refused(&hello(b"NULL", b"PUB")[..70]).await, Fault::Closed));
        assert!(matches!(refused(b"HTTP/1.1 400 Bad Request\r\n").await, Fault::Greeting));
        let mut old = hello(b"NULL", b"PUB");
        old[10] = 1;
        assert!(matches!(refused(&old).await, Fault::Greeting));
    }

    #[tokio::test]
    async fn lengths_are_bounded_before_they_are_believed() {
        let long = |length: u64| [&[LONG][..], &length.to_be_bytes()].concat();
        for bytes in [
            long(1 << 62),
            long(u64::MAX),
            long(1_001),
            [&[MORE, 200, 0][..], &[0; 199], &long(801)].concat(),
        ] {
            let (mut connection, _peer) = opened(&bytes, usize::MAX).await;
            assert!(matches!(connection.receive().await, Err(Fault::TooLong)));
        }
        let (mut connection, _peer) = opened(&[MORE, 0].repeat(9), usize::MAX).await;
        assert!(matches!(connection.receive().await, Err(Fault::TooLong)));
        let (mut connection, _peer) = opened(&[0xf0, 0], usize::MAX).await;
        assert!(matches!(connection.receive().await, Err(Fault::Protocol)));
        let (mut connection, peer) = opened(&[&[0, 3][..], b"abc"].concat(), usize::MAX).await;
        drop(peer);
        assert_eq!(connection.receive().await.unwrap(), [b"abc"]);
        assert!(matches!(connection.receive().await, Err(Fault::Closed)));
    }

    #[tokio::test]
    async fn heartbeats_are_answered() {
        let (mut connection, mut peer) = opened(b"\x04\x09\x04PING\x00\x01ab\x00\x01x", usize::MAX).await;
        assert_eq!(connection.receive().await.unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(connection.receive().await.unwrap(), [b"x"]);
        let mut pong = [0u8; 9];
        peer.read_exact(&mut pong).await.unwrap();
        assert_eq!(pong, *b"\x04\x07\x04PONGab");
    }

    #[tokio::test]
    async fn what_one_sends_the_other_receives() {
        let (ours, theirs) = duplex(1 << 20);
        let mut sender = Connection {
            stream: ours,
            buffer: BytesMut::new(),
            frames: vec![],
            frame_bytes: 0,
            max_message_bytes: 0,
        };
        let (short, long) = (vec![1u8; 255], vec![2u8; 70_000]);
        sender.send(&[b"", &short, &long]).await.unwrap();
        let mut receiver = Connection {
            stream: theirs,
            buffer: BytesMut::new(),
            frames: vec![],
            frame_bytes: 0,
            max_message_bytes: 1 << 20,
        };
        assert_eq!(receiver.receive().await.unwrap(), [vec![], short, long]);
    }

    proptest! {
        #[test]
        fn nothing_that_a_peer_sends_makes_it_panic(
            bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..300),
            pieces in 1usize..20,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let (mut connection, peer) = opened(&bytes, pieces).await;
                drop(peer);
                while let Ok(frames) = connection.receive().await {
                    assert!(frames.len() <= MAX_FRAMES && frames.iter().map(Vec::len).sum::<usize>() <= 1_000);
                }
            });
        }
    }
}
