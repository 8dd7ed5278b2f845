//! Requests that wait because every worker that could take them is busy.
//!
//! One lane for each model (and for retries), first come first served: only the first of a lane tries to be placed, and whoever leaves a
//! lane, placed or not, wakes the next one. A worker that frees a place wakes the first of every lane, the one that
//! waited longest before the others. Nobody polls; a request that leaves (its client gone, its time over) is out of
//! the lane at once. The queue is bounded, and costs one load as long as nobody waits.
//!
//! A request joins by the time of its arrival, so one that was placed and found its worker busy after all takes up its
//! old position.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A request's position: when it arrived, and a number that no other one has.
type Ticket = (Instant, u64);

/// What the requests of a lane have in common: their model, and whether workers have failed them. The latter may go to
/// fewer workers, and must not hold up the others.
type Key = (Option<Box<str>>, bool);

#[derive(Debug)]
struct Lane {
    key: Key,
    waiters: VecDeque<(Ticket, Arc<Notify>)>,
}

#[derive(Debug, Default)]
struct Lanes {
    lanes: Vec<Lane>,
    next_number: u64,
}

/// All that wait. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    waiting: AtomicUsize,
    max_waiting: usize,
}

impl Queue {
    /// An empty queue for so many requests.
    pub(crate) fn new(max_waiting: usize) -> Self {
        Self { lanes: Mutex::default(), waiting: AtomicUsize::new(0), max_waiting }
    }

    /// Requests that wait now.
    pub(crate) fn len(&self) -> usize {
        // Sequentially consistent with a worker's count of requests in flight: whoever frees a place sees who waits,
        // or who joins sees the place.
        self.waiting.load(Ordering::SeqCst)
    }

    /// Whether anybody may wait at all.
    pub(crate) fn is_on(&self) -> bool {
        self.max_waiting > 0
    }

    /// Waits from now on; `None` if the queue is full.
    pub(crate) fn join(&self, model: Option<&str>, is_retry: bool, since: Instant) -> Option<Seat<'_>> {
        let key: Key = (model.map(Into::into), is_retry);
        let mut all = self.lanes.lock();
        if self.len() >= self.max_waiting {
            return None;
        }
        let ticket = (since, all.next_number);
        all.next_number += 1;
        let notify = Arc::new(Notify::new());
        let waiter = (ticket, Arc::clone(&notify));
        match all.lanes.iter_mut().find(|lane| lane.key == key) {
            Some(lane) => {
                // Nearly always at the end.
                let place =
                    lane.waiters.iter().rposition(|(other, _)| *other < ticket).map_or(0, |at| at + 1);
                lane.waiters.insert(place, waiter);
            }
            None => all.lanes.push(Lane { key: key.clone(), waiters: VecDeque::from([waiter]) }),
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Some(Seat { queue: self, key, ticket, notify })
    }

    /// A worker has room, or something else changed: those who are first look again. Cost: one load if nobody waits.
    pub(crate) fn wake(&self) {
        if self.len() == 0 {
            return;
        }
        let all = self.lanes.lock();
        let mut firsts: Vec<_> = all.lanes.iter().filter_map(|lane| lane.waiters.front()).collect();
        firsts.sort_unstable_by_key(|(ticket, _)| *ticket);
        for (_, notify) in firsts {
            notify.notify_one();
        }
    }
}

/// A request's place in the queue. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    queue: &'a Queue,
    key: Key,
    ticket: Ticket,
    notify: Arc<Notify>,
}

impl Seat<'_> {
    /// Whether nobody of its lane came earlier.
    pub(crate) fn is_first(&self) -> bool {
        let all = self.queue.lanes.lock();
        let lane = all.lanes.iter().find(|lane| lane.key == self.key);
        lane.and_then(|lane| lane.waiters.front()).is_some_and(|(ticket, _)| *ticket == self.ticket)
    }

    /// Ends when it is worth another look, at the latest at `until`. A change between two calls is not missed.
    pub(crate) async fn changed(&self, until: Instant) {
        // An error means that the time is over.
        let _ = tokio::time::timeout_at(until.into(), self.notify.notified()).await;
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut all = self.queue.lanes.lock();
        let at = all.lanes.iter().position(|lane| lane.key == self.key);
        let at = at.expect("a lane exists while somebody waits in it");
        let waiters = &mut all.lanes[at].waiters;
        waiters.retain(|(ticket, _)| *ticket != self.ticket);
        match waiters.front() {
            Some((_, first)) => first.notify_one(),
            None => {
                all.lanes.swap_remove(at);
            }
        }
        self.queue.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whether this seat was woken and not yet asked.
    fn is_woken(seat: &Seat<'_>) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::ZERO, seat.notify.notified()).await.is_ok() })
    }

    #[test]
    fn first_come_first_served_within_a_lane() {
        let (queue, start) = (Queue::new(8), Instant::now());
        let first = queue.join(Some("m"), false, start).unwrap();
        let second = queue.join(Some("m"), false, start + Duration::from_millis(1)).unwrap();
        let other = queue.join(None, false, start + Duration::from_millis(2)).unwrap();
        assert_eq!([&first, &second, &other].map(Seat::is_first), [true, false, true]);
        queue.wake();
        assert_eq!([&first, &second, &other].map(is_woken), [true, false, true]);
        drop(first);
        assert!(second.is_first() && is_woken(&second), "who leaves wakes the next one");
        let retry = queue.join(Some("m"), true, start).unwrap();
        assert!(retry.is_first() && second.is_first(), "a lane of its own");
        drop(retry);
        let earlier = queue.join(Some("m"), false, start).unwrap();
        assert!(earlier.is_first() && !second.is_first(), "the time of arrival counts");
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn is_bounded_and_forgets_who_left() {
        let (queue, now) = (Queue::new(2), Instant::now());
        let seats: Vec<_> = (0..2).map(|_| queue.join(None, false, now).unwrap()).collect();
        assert!(queue.join(Some("m"), false, now).is_none());
        drop(seats);
        assert_eq!(queue.len(), 0);
        assert!(queue.lanes.lock().lanes.is_empty());
        assert!(queue.join(Some("m"), false, now).is_some());
        assert!(!Queue::new(0).is_on());
    }
}
