//! Who booked what, so that a client that is gone for good has nothing in flight.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trunkline_core::DecisionId;

#[derive(Debug, Default)]
struct State {
    /// Connections of each client, and since when it has none.
    clients: HashMap<u64, (usize, Option<Instant>)>,
    /// The client of each booking.
    open: HashMap<u64, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    state: Mutex<State>,
}

impl Clients {
    /// A connection of a client began.
    pub(crate) fn enter(&self, client: u64) {
        let mut state = self.state.lock();
        let (connections, gone) = state.clients.entry(client).or_default();
        *connections += 1;
        *gone = None;
    }

    /// A connection of a client ended.
    pub(crate) fn leave(&self, client: u64, now: Instant) {
        if let Some((connections, gone)) = self.state.lock().clients.get_mut(&client) {
            *connections -= 1;
            if *connections == 0 {
                *gone = Some(now);
            }
        }
    }

    /// A client's bookings.
    pub(crate) fn booked(&self, client: u64, ids: impl IntoIterator<Item = DecisionId>) {
        let mut state = self.state.lock();
        state.open.extend(ids.into_iter().map(|id| (id.to_u64(), client)));
    }

    /// Bookings that were completed, by whomever.
    pub(crate) fn completed(&self, ids: impl IntoIterator<Item = DecisionId>) {
        let mut state = self.state.lock();
        for id in ids {
            state.open.remove(&id.to_u64());
        }
    }

    /// The bookings of clients that have been gone for `grace`; they are forgotten with them. Cost: O(bookings) if there is
    /// such a client, else O(clients).
    pub(crate) fn abandoned(&self, grace: Duration, now: Instant) -> Vec<DecisionId> {
        let mut state = self.state.lock();
        let State { clients, open } = &mut *state;
        let before = clients.len();
        clients.retain(|_, (_, gone)| gone.is_none_or(|since| now.saturating_duration_since(since) < grace));
        if clients.len() == before {
            return Vec::new();
        }
        open.extract_if(|_, client| !clients.contains_key(client))
            .map(|(id, _)| DecisionId::from_u64(id))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookings_outlive_connections_but_not_their_client() {
        let (clients, start, grace) = (Clients::default(), Instant::now(), Duration::from_secs(2));
        let id = DecisionId::from_u64;
        clients.enter(1);
        clients.enter(1);
        clients.enter(2);
        clients.booked(1, [id(10), id(11)]);
        clients.booked(2, [id(20)]);
        clients.completed([id(11)]);
        clients.leave(1, start);
        assert!(clients.abandoned(grace, start + 2 * grace).is_empty(), "it has another connection");
        clients.leave(1, start);
        assert!(clients.abandoned(grace, start + grace / 2).is_empty(), "it may come back");
        clients.enter(1);
        assert!(clients.abandoned(grace, start + 2 * grace).is_empty(), "it came back");
        clients.leave(1, start);
        assert_eq!(clients.abandoned(grace, start + grace), [id(10)]);
        assert!(clients.abandoned(grace, start + grace).is_empty());
    }
}
