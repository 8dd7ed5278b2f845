//! What an answer or a fault means: for its request, which may be tried elsewhere, and for its worker.

use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap};

use super::Call;
use super::attempt::Begun;
use crate::fleet::Worker;
use crate::probe::Failure;
use crate::upstream::{Fault, FaultKind};

/// What an answer means for its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the answer.
    Final,
    /// Another worker may have room.
    Busy,
    /// Another worker may do better.
    Failed,
}

impl Call {
    /// What an answer means, and what it tells about its worker.
    pub(super) fn judge(&self, begun: &Begun, worker: &Worker) -> Verdict {
        let engine = worker.engine.get();
        let verdict = match begun.parts.status {
            status if engine.is_busy(status) => Verdict::Busy,
            status if engine.is_failed(status) => Verdict::Failed,
            // An engine that fails after the head says so in its first event.
            StatusCode::OK if begun.first.as_deref().is_some_and(is_error_event) => Verdict::Failed,
            _ => Verdict::Final,
        };
        let (fleet, now) = (&self.shard.shared.fleet, self.shard.shared.now());
        match verdict {
            Verdict::Final => worker.answered(),
            // What its other pages answer says little about how it generates.
            _ if !self.is_generation() => {}
            Verdict::Busy => fleet.busy(worker, now, retry_after(&begun.parts.headers)),
            Verdict::Failed if begun.first.as_deref().is_some_and(|first| engine.says_draining(first)) => {
                fleet.leaves(worker, now);
            }
            Verdict::Failed => fleet.failed(worker, now),
        }
        verdict
    }

    /// Keeps what a fault tells about its worker.
    pub(super) fn note(&self, fault: &Fault, worker: &Worker) {
        let fleet = &self.shard.shared.fleet;
        let source = match &fault.kind {
            FaultKind::Connect(error) => Some(error),
            FaultKind::ConnectTimeout => None,
            FaultKind::Closed | FaultKind::Malformed | FaultKind::FirstByteTimeout => {
                fleet.failed(worker, self.shard.shared.now());
                return worker.health.suspect();
            }
            FaultKind::Gone => return,
        };
        if worker.health.connect_failed(source) {
            fleet.take_out(worker, if source.is_some() { Failure::Refused } else { Failure::Timeout });
        }
    }
}

/// Whether a stream begins with an error.
fn is_error_event(first: &[u8]) -> bool {
    first.strip_prefix(b"data:").is_some_and(|data| data.trim_ascii_start().starts_with(b"{\"error\""))
}

/// `Retry-After` in seconds; a date is not looked at.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
