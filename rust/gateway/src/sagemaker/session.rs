//! Which worker keeps which stateful session.
//!
//! A model opens a session by answering `NEW_SESSION` with an id in `X-Amzn-SageMaker-New-Session-Id`; what the session holds
//! is in that worker's memory, so requests that carry the id have to go there. Sessions that nobody uses are forgotten, the
//! longest unused first: at most [`MAX_SESSIONS`] are kept.

use std::collections::HashMap;

use http::header::HeaderValue;
use parking_lot::Mutex;
use trunkline_core::{Millis, WorkerId};

/// Sessions that are remembered: about 20 MB of ids.
const MAX_SESSIONS: usize = 100_000;
/// Time without a request after which a session may be forgotten to make room: SageMaker keeps one for at most a day.
const IDLE_MS: u64 = 24 * 3600 * 1000;

/// Sessions and their workers. All methods may be called from any thread.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<Box<[u8]>, Session>>);

#[derive(Debug, Clone, Copy)]
struct Session {
    worker: WorkerId,
    used: Millis,
}

impl Sessions {
    /// The worker of the session with this id. Counts as a use.
    pub(crate) fn worker(&self, id: &HeaderValue, now: Millis) -> Option<WorkerId> {
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(id.as_bytes())?;
        session.used = now;
        Some(session.worker)
    }

    /// Notes that `worker` opened a session; `opened` is its header, an id and perhaps `; Expires=...`.
    ///
    /// Cost: O(1), but O(sessions) for one in 1,000 once the table is full.
    pub(crate) fn open(&self, opened: &HeaderValue, worker: WorkerId, now: Millis) {
        let id = id_of(opened);
        if id.is_empty() {
            return;
        }
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_SESSIONS {
            make_room(&mut sessions, now);
        }
        sessions.insert(id.into(), Session { worker, used: now });
    }

    /// Notes that a session was closed.
    pub(crate) fn close(&self, closed: &HeaderValue) {
        self.0.lock().remove(id_of(closed));
    }
}

/// Forgets what is too old, and at least a thousandth: the longest unused.
fn make_room(sessions: &mut HashMap<Box<[u8]>, Session>, now: Millis) {
    sessions.retain(|_, session| now.0.saturating_sub(session.used.0) < IDLE_MS);
    let kept = MAX_SESSIONS - MAX_SESSIONS / 1000;
    if sessions.len() > kept {
        let mut uses: Vec<Millis> = sessions.values().map(|session| session.used).collect();
        let surplus = sessions.len() - kept;
        let (_, &mut last, _) = uses.select_nth_unstable(surplus - 1);
        let mut surplus = surplus;
        sessions.retain(|_, session| {
            let goes = session.used <= last && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

fn id_of(header: &HeaderValue) -> &[u8] {
    header.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap()
    }

    #[test]
    fn a_session_stays_until_it_is_closed() {
        let sessions = Sessions::default();
        let worker = |id| sessions.worker(&value(id), Millis(1));
        sessions.open(&value("a; Expires=2026-12-01T00:00:00Z"), WorkerId(3), Millis(0));
        sessions.open(&value(""), WorkerId(4), Millis(0));
        assert_eq!((worker("a"), worker("b"), worker("")), (Some(WorkerId(3)), None, None));
        sessions.close(&value("a"));
        assert_eq!(worker("a"), None);
    }

    #[test]
    fn the_longest_unused_make_room() {
        let sessions = Sessions::default();
        for number in 0..MAX_SESSIONS {
            sessions.open(&value(&number.to_string()), WorkerId(0), Millis(number as u64));
        }
        sessions.worker(&value("0"), Millis(MAX_SESSIONS as u64)).expect("it was opened");
        sessions.open(&value("new"), WorkerId(1), Millis(MAX_SESSIONS as u64));
        let knows = |id: &str| sessions.0.lock().contains_key(id.as_bytes());
        assert!(knows("0") && knows("new") && !knows("1"));
        assert!(sessions.0.lock().len() <= MAX_SESSIONS);
    }
}
