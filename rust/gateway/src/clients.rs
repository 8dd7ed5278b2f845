//! Counts the connections of each client address, if there is a limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Open connections by client. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Clients {
    limit: u32,
    open: Mutex<HashMap<IpAddr, u32>>,
}

/// A client's connection, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// At most `limit` connections for each.
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, open: Mutex::default() }
    }

    /// Counts one more connection of a client; `None` if it has as many as it may.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let client = owner(address);
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Seat { clients: Arc::clone(self), client })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.clients.open.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

/// Whom an address belongs to: a host of IPv6 has a whole /64 to choose from.
fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() >> 64 << 64)),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_seats_and_gets_them_back() {
        let clients = Arc::new(Clients::new(2));
        let admit = |address: &str| clients.admit(address.parse().unwrap());
        let first = admit("10.0.0.1").unwrap();
        let second = admit("::ffff:10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
        assert!(admit("10.0.0.2").is_some());
        drop(first);
        drop(admit("10.0.0.1").unwrap());
        drop(second);
        assert!(clients.open.lock().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let clients = Arc::new(Clients::new(1));
        let admit = |address: &str| clients.admit(address.parse().unwrap());
        let _seat = admit("2001:db8::1").unwrap();
        assert!(admit("2001:db8::ffff:2").is_none());
        assert!(admit("2001:db8:0:1::1").is_some());
    }
}
