//! The byte streams under HTTP: TCP or a Unix socket, with TLS around it or not.
//!
//! One type for all of them, so that hyper's state machines exist once for clients and once for workers. The price is a
//! branch per read and write, always taken the same way on one connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// Silence on a connection after which the kernel asks whether anybody is there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A socket of either family.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Sends small writes at once; a Unix socket always does.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }

    /// Notices a machine that is gone: its connections end instead of waiting for ever.
    pub(crate) fn set_keepalive(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)
    }
}

/// What HTTP is spoken over.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// Reads and writes of an enum by those of its two variants.
macro_rules! delegate {
    ($kind:ident { $one:ident, $other:ident }) => {
        impl AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$one(stream) => Pin::new(stream).poll_read(context, buffer),
                    Self::$other(stream) => Pin::new(stream).poll_read(context, buffer),
                }
            }
        }

        impl AsyncWrite for $kind {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::$one(stream) => Pin::new(stream).poll_write(context, bytes),
                    Self::$other(stream) => Pin::new(stream).poll_write(context, bytes),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::$one(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                    Self::$other(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    Self::$one(stream) => stream.is_write_vectored(),
                    Self::$other(stream) => stream.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$one(stream) => Pin::new(stream).poll_flush(context),
                    Self::$other(stream) => Pin::new(stream).poll_flush(context),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::$one(stream) => Pin::new(stream).poll_shutdown(context),
                    Self::$other(stream) => Pin::new(stream).poll_shutdown(context),
                }
            }
        }
    };
}

delegate!(Socket { Tcp, Unix });
delegate!(Wire { Plain, Tls });
