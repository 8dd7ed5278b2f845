//! Where clients connect: a TCP address or a Unix socket.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{self, Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::runtime::Runtime;

use crate::error::Error;
use crate::wire::Socket;

/// Connections that the kernel accepts ahead of us.
const BACKLOG: u32 = 4096;

/// Where a gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; port 0 takes a free port.
    Tcp(SocketAddr),
    /// A Unix socket of this path. The file is made at the start, where a socket that nobody listens on any more is
    /// replaced, and removed at the end. Who may connect is decided by the directory's permissions.
    Unix(PathBuf),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// A socket as it was accepted, on its way to the thread that serves it.
#[derive(Debug)]
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Accepted {
    /// Joins the event loop of the thread that calls.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        let socket = match self {
            Self::Tcp(stream) => Socket::Tcp(tokio::net::TcpStream::from_std(stream)?),
            Self::Unix(stream) => Socket::Unix(UnixStream::from_std(stream)?),
        };
        socket.set_nodelay()?;
        Ok(socket)
    }
}

/// An open port or socket. Dropping it closes it.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes its file when it is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number.
    inode: [u64; 2],
}

impl SocketFile {
    /// The socket that was just bound here.
    fn new(path: &Path) -> io::Result<Self> {
        // Whoever changes the working directory later does not change where this is.
        Ok(Self { path: path::absolute(path)?, inode: inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already, and put another one in its place.
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<[u64; 2]> {
    std::fs::symlink_metadata(path).map(|found| [found.dev(), found.ino()])
}

impl Listener {
    /// Listens within `runtime`. Never shares a port or a socket: a second listener fails.
    pub(crate) fn bind(runtime: &Runtime, listen: &Listen) -> Result<Self, Error> {
        let _context = runtime.enter();
        let bound = match listen {
            Listen::Tcp(address) => bind_tcp(*address).map(Self::Tcp),
            Listen::Unix(path) => bind_unix(path),
        };
        bound.map_err(|source| Error::Listen { address: listen.clone(), source })
    }

    /// Where it listens, the port that was taken included.
    pub(crate) fn local(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, file) => Ok(Listen::Unix(file.path.clone())),
        }
    }

    /// The next connection, and its client's address if it has one.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Accepted::Tcp(stream.into_std()?), Some(peer.ip())))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream.into_std()?), None))
            }
        }
    }
}

/// Listens at `address` within the runtime that was entered.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // On Unix this only lets us follow a gateway that has just ended.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && is_deserted(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    Ok(Listener::Unix(listener, SocketFile::new(path)?))
}

/// Whether nobody listens on the socket at `path`: its process ended without removing it.
fn is_deserted(path: &Path) -> bool {
    let refused = std::os::unix::net::UnixStream::connect(path).err();
    refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deserted_socket_is_replaced_and_a_used_one_is_not() {
        let directory = std::env::temp_dir().join(format!("trunkline-listen-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("gateway.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listen = Listen::Unix(path.clone());
        let first = Listener::bind(&runtime, &listen).unwrap();
        assert_eq!(first.local().unwrap(), listen);
        assert!(matches!(Listener::bind(&runtime, &listen), Err(Error::Listen { .. })));
        drop(first);
        assert!(!path.exists());

        let old = Listener::bind(&runtime, &listen).unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = Listener::bind(&runtime, &listen).unwrap();
        drop(old);
        assert!(path.exists(), "it is the new one's");
        drop(new);

        std::fs::write(&path, "not a socket").unwrap();
        assert!(Listener::bind(&runtime, &listen).is_err());
        assert!(path.exists(), "what is no socket is not ours to remove");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
