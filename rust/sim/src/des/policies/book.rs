//! What a router of the peers' kind keeps of its own requests: how many are out, and their tokens.

use std::collections::HashMap;

/// Loads of one worker, as somebody believes them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Load {
    /// Requests sent and not finished.
    pub(super) in_flight: i64,
    /// Uncached prompt tokens sent that have produced no first token.
    pub(super) queued_tokens: i64,
    /// KV tokens of the requests in flight.
    pub(super) kv_tokens: f64,
}

impl Load {
    fn add(&mut self, other: Self, sign: i64) {
        self.in_flight += sign * other.in_flight;
        self.queued_tokens += sign * other.queued_tokens;
        self.kv_tokens += sign as f64 * other.kv_tokens;
    }
}

/// What one request booked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Booking {
    pub(super) router: usize,
    pub(super) worker: usize,
    pub(super) load: Load,
    /// Tokens queued on the worker when it was sent, its own included, and the time: to learn speeds.
    pub(super) queue_at_start: f64,
    pub(super) sent_s: f64,
}

/// The books of all routers. They hear of each other `gossip_s` late at most, or never.
#[derive(Debug)]
pub(super) struct Book {
    own: Vec<Vec<Load>>,
    /// Sum over the routers, and what each router last heard of the others.
    all: Vec<Load>,
    others: Vec<Vec<Load>>,
    gossip_s: Option<f64>,
    heard_s: f64,
    bookings: HashMap<u32, Booking>,
}

impl Book {
    pub(super) fn new(routers: usize, gossip_s: Option<f64>) -> Self {
        Self {
            own: vec![Vec::new(); routers.max(1)],
            all: Vec::new(),
            others: vec![Vec::new(); routers.max(1)],
            gossip_s: gossip_s.filter(|_| routers > 1),
            heard_s: f64::NEG_INFINITY,
            bookings: HashMap::new(),
        }
    }

    /// Makes room for so many workers.
    pub(super) fn scale(&mut self, workers: usize) {
        let longest = workers.max(self.all.len());
        for loads in self.own.iter_mut().chain(&mut self.others).chain([&mut self.all]) {
            loads.resize(longest, Load::default());
        }
    }

    /// The loads as the router believes them.
    pub(super) fn loads(&mut self, router: usize, now_s: f64, out: &mut Vec<Load>) {
        if self.gossip_s.is_some_and(|gossip_s| now_s - self.heard_s >= gossip_s) {
            self.heard_s = now_s;
            for (others, own) in self.others.iter_mut().zip(&self.own) {
                others.copy_from_slice(&self.all);
                others.iter_mut().zip(own).for_each(|(other, own)| other.add(*own, -1));
            }
        }
        out.clear();
        out.extend(self.own[router].iter().zip(&self.others[router]).map(|(own, other)| Load {
            in_flight: (own.in_flight + other.in_flight).max(0),
            queued_tokens: (own.queued_tokens + other.queued_tokens).max(0),
            kv_tokens: (own.kv_tokens + other.kv_tokens).max(0.0),
        }));
    }

    pub(super) fn open(&mut self, request: u32, booking: Booking) {
        self.own[booking.router][booking.worker].add(booking.load, 1);
        self.all[booking.worker].add(booking.load, 1);
        self.bookings.insert(request, booking);
    }

    /// The prompt has left its worker's queue. `None` if it had before.
    pub(super) fn first_token(&mut self, request: u32) -> Option<Booking> {
        let booking = self.bookings.get_mut(&request)?;
        let queued_tokens = std::mem::take(&mut booking.load.queued_tokens);
        let booking = *booking;
        let part = Load { queued_tokens, ..Load::default() };
        self.own[booking.router][booking.worker].add(part, -1);
        self.all[booking.worker].add(part, -1);
        (queued_tokens > 0).then_some(booking)
    }

    pub(super) fn close(&mut self, request: u32) {
        self.first_token(request);
        if let Some(booking) = self.bookings.remove(&request) {
            self.own[booking.router][booking.worker].add(booking.load, -1);
            self.all[booking.worker].add(booking.load, -1);
        }
    }
}
