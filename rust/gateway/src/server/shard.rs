//! A data thread and its share of the clients' connections: accepted by one task, counted while they live, carried by the
//! thread that had the fewest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::shared::{Phase, Shared, reached};
use crate::clients::Seat;
use crate::front;
use crate::listen::{Accepted, Listener};

/// Pause after the system had no room for one more connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks for connections to workers that were idle for too long.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// One data thread.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) number: usize,
    pub(crate) shared: Arc<Shared>,
    connections: AtomicUsize,
    inbox: mpsc::UnboundedSender<(Counted, Accepted)>,
}

/// Connections that are handed to a data thread.
pub(super) type Arrivals = mpsc::UnboundedReceiver<(Counted, Accepted)>;

impl Shard {
    /// A thread that has no connections yet, and where those that it is given arrive.
    pub(super) fn new(number: usize, shared: &Arc<Shared>) -> (Arc<Self>, Arrivals) {
        let (inbox, arrivals) = mpsc::unbounded_channel();
        let shared = Arc::clone(shared);
        (Arc::new(Self { number, shared, connections: AtomicUsize::new(0), inbox }), arrivals)
    }
}

/// A client's connection, counted while it lives.
#[derive(Debug)]
pub(crate) struct Counted {
    shard: Arc<Shard>,
    /// Its place among those of its client, if these are limited.
    _seat: Option<Seat>,
}

impl Counted {
    fn new(shard: &Arc<Shard>, seat: Option<Seat>) -> Self {
        shard.connections.fetch_add(1, Ordering::Relaxed);
        shard.shared.gate.change(|state| state.connections += 1);
        Self { shard: Arc::clone(shard), _seat: seat }
    }

    /// The thread that serves it.
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shard.connections.fetch_sub(1, Ordering::Relaxed);
        self.shard.shared.gate.change(|state| state.connections -= 1);
    }
}

/// Accepts connections until the gateway drains.
pub(super) async fn accept(listener: Listener, shards: Vec<Arc<Shard>>) {
    let shared = Arc::clone(&shards[0].shared);
    let mut phase = shared.phase.subscribe();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reached(Phase::Draining, &mut phase) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let seat = match (&shared.clients, address) {
                    (Some(clients), Some(address)) => match clients.admit(address) {
                        Some(seat) => Some(seat),
                        None => {
                            shared.metrics.edge.refused_connections.inc();
                            continue;
                        }
                    },
                    _ => None,
                };
                let lightest = shards.iter().min_by_key(|shard| shard.connections.load(Ordering::Relaxed));
                let shard = lightest.expect("a gateway has at least one thread");
                // An error means that the thread has ended; the connection is closed with it.
                let _ = shard.inbox.send((Counted::new(shard, seat), stream));
            }
            // The client left again, or the system has no room. The first passes at once, the second may last.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    shared.gate.change(|state| state.is_listening = false);
}

/// A data thread's main task.
pub(super) async fn carry(shard: Arc<Shard>, mut arrivals: Arrivals) {
    let mut phase = shard.shared.phase.subscribe();
    let mut reap = tokio::time::interval(REAP_INTERVAL);
    loop {
        tokio::select! {
            Some((client, accepted)) = arrivals.recv() => {
                tokio::spawn(front::converse(client, accepted));
            }
            _ = reap.tick() => {
                let now = Instant::now();
                shard.shared.fleet.snapshot().workers.iter().for_each(|worker| worker.pool.reap(shard.number, now));
            }
            () = reached(Phase::Closed, &mut phase) => return,
        }
    }
}
