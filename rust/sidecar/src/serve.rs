//! The life of the service: bind, accept, a thread for each connection, close.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use socket2::SockRef;
use trunkline_core::{Millis, Router};
use trunkline_events::Feeds;

use crate::answer::Shared;
use crate::clients::Clients;
use crate::connection;
use crate::wire::{Refused, Status};

/// Of a connection's thread: a decision needs little, and a thousand of them should not need much.
const STACK: usize = 512 << 10;

/// Bounds on what clients may do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections at once.
    pub max_connections: usize,
    /// Bytes of a frame.
    pub max_frame: usize,
    /// How long a frame may take to arrive, once begun, and an answer to be taken.
    pub frame_timeout: Duration,
    /// How long the bookings of a client without connections are kept.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_frame: 64 << 20,
            frame_timeout: Duration::from_secs(5),
            grace: Duration::from_secs(5),
        }
    }
}

/// Why a sidecar could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket cannot be listened on.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No thread could be made.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// Why not.
        source: io::Error,
    },
}

struct Open {
    /// `None` once it is closed.
    connections: Option<HashMap<u64, UnixStream>>,
    next: u64,
}

struct Service {
    shared: Shared,
    options: Options,
    open: Mutex<Open>,
    changed: Condvar,
}

/// A running decision service. It ends with [`close`](Self::close) or when it is dropped.
pub struct Sidecar {
    service: Arc<Service>,
    listener: Arc<UnixListener>,
    file: SocketFile,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Sidecar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sidecar").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Sidecar {
    /// Listens on `path`, readable for this user alone. A socket that nobody listens on is replaced. `clock` is the
    /// router's time.
    ///
    /// # Errors
    /// [`Error::Listen`], also if somebody listens there or the file is no socket; [`Error::Thread`].
    pub fn start(
        router: Arc<Router>,
        path: &Path,
        options: Options,
        clock: impl Fn() -> Millis + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (listener, file) =
            listen(path).map_err(|source| Error::Listen { path: path.to_owned(), source })?;
        let listener = Arc::new(listener);
        let shared = Shared {
            router,
            clock: Box::new(clock),
            clients: Clients::default(),
            feeds: Feeds::default(),
            tag: RandomState::new().hash_one(0u64),
        };
        let open = Mutex::new(Open { connections: Some(HashMap::new()), next: 0 });
        let service = Arc::new(Service { shared, options, open, changed: Condvar::new() });
        let (accepting, accepted) = (Arc::clone(&service), Arc::clone(&listener));
        let mut sidecar = Self { service: Arc::clone(&service), listener, file, threads: Vec::new() };
        let threads = [
            thread::Builder::new().name("sidecar-accept".into()).spawn(move || accept(&accepting, &accepted)),
            thread::Builder::new().name("sidecar-sweep".into()).spawn(move || sweep(&service)),
        ];
        for thread in threads {
            sidecar.threads.push(thread.map_err(|source| Error::Thread { source })?);
        }
        Ok(sidecar)
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Ends every connection and removes the socket. What is in flight stays booked in the router.
    pub fn close(&mut self) {
        let Some(connections) = self.service.open.lock().connections.take() else {
            return;
        };
        // The accepting thread looks up, whatever became of the file by which others reach it.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        self.file.remove();
        for stream in connections.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.service.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where a socket was bound.
struct SocketFile {
    path: PathBuf,
    /// Device and number.
    inode: [u64; 2],
}

impl SocketFile {
    /// Removes the file, unless somebody else's has taken its place.
    fn remove(&self) {
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<[u64; 2]> {
    fs::symlink_metadata(path).map(|found| [found.dev(), found.ino()])
}

/// A socket for this user alone, which appears under its name when it is ready.
fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(ErrorKind::AddrInUse.into()),
            // Its process ended without removing it.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        },
    }
    let mut unready = path.as_os_str().to_owned();
    unready.push(format!(".{}", std::process::id()));
    let unready = PathBuf::from(unready);
    let listener = UnixListener::bind(&unready)?;
    let named = fs::set_permissions(&unready, fs::Permissions::from_mode(0o600)).and_then(|()| {
        // Whoever changes the working directory later does not change where this is.
        let file = SocketFile { path: path::absolute(path)?, inode: inode(&unready)? };
        fs::rename(&unready, path).map(|()| file)
    });
    if named.is_err() {
        let _ = fs::remove_file(&unready);
    }
    named.map(|file| (listener, file))
}

fn accept(service: &Arc<Service>, listener: &UnixListener) {
    loop {
        let came = listener.accept();
        let mut open = service.open.lock();
        let Some(connections) = &open.connections else {
            return;
        };
        let stream = match came {
            Ok((stream, _)) if connections.len() < service.options.max_connections => stream,
            Ok((mut stream, _)) => {
                let mut out = Vec::new();
                Refused::new(Status::Full, "as many connections as are allowed").put(&mut out);
                // It fits the socket's buffer, so this does not wait.
                let _ = stream.write_all(&out);
                continue;
            }
            Err(_) => {
                // Too many open files, most likely: wait for a connection to end.
                service.changed.wait_for(&mut open, Duration::from_millis(100));
                continue;
            }
        };
        let Ok(kept) = stream.try_clone() else {
            continue;
        };
        let number = open.next;
        open.next += 1;
        open.connections.get_or_insert_default().insert(number, kept);
        let own = Arc::clone(service);
        let thread = thread::Builder::new().name("sidecar".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            connection::serve(&own.shared, &stream, &own.options);
            own.left(number);
        });
        if started.is_err() {
            open.connections.get_or_insert_default().remove(&number);
        }
    }
}

impl Service {
    fn left(&self, number: u64) {
        let mut open = self.open.lock();
        if let Some(stream) = open.connections.as_mut().and_then(|connections| connections.remove(&number)) {
            // To close it would not end it where a forked child has it, too.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(open);
        self.changed.notify_all();
    }
}

/// Completes what clients that are gone have left, until the service is closed.
fn sweep(service: &Service) {
    let mut open = service.open.lock();
    while open.connections.is_some() {
        parking_lot::MutexGuard::unlocked(&mut open, || {
            let shared = &service.shared;
            for id in shared.clients.abandoned(service.options.grace, Instant::now()) {
                shared.router.complete(id, None, (shared.clock)());
            }
        });
        let pause = (service.options.grace / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        if open.connections.is_some() {
            service.changed.wait_for(&mut open, pause);
        }
    }
}
