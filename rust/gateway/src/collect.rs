//! Reads a request's body, whole and within its limit.
//!
//! A body over the limit is refused at once, as is one that comes without a valid key, but what the client still sends is
//! read and thrown away for a moment: a connection that is closed with unread bytes is reset, and the reset may overtake
//! the refusal.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::answer::Refusal;

/// Longest pause between two pieces of a request's body.
pub(crate) const BODY_PAUSE: Duration = Duration::from_secs(60);
/// Room made for a body before its bytes arrive; larger ones grow.
const ROOM: usize = 1 << 20;
/// How long the rest of a refused body is read.
const LINGER: Duration = Duration::from_secs(5);

/// Reads a whole body of at most `max_bytes`. One that arrives in one piece is not copied.
pub(crate) async fn collect(
    mut incoming: Incoming,
    headers: &HeaderMap,
    max_bytes: usize,
) -> Result<Bytes, Refusal> {
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    if declared > max_bytes {
        forget(incoming, headers);
        return Err(Refusal::LargeBody { max_bytes });
    }
    let (mut only, mut all) = (Bytes::new(), BytesMut::new());
    while !incoming.is_end_stream() {
        let frame = timeout(BODY_PAUSE, incoming.frame()).await.map_err(|_| Refusal::SlowBody)?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_| Refusal::BrokenBody)?.into_data() else { continue };
        if only.len() + all.len() + data.len() > max_bytes {
            linger(incoming);
            return Err(Refusal::LargeBody { max_bytes });
        }
        if all.is_empty() {
            if only.is_empty() {
                only = data;
                continue;
            }
            all.reserve(declared.min(ROOM).max(only.len() + data.len()));
            all.extend_from_slice(&std::mem::take(&mut only));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { only } else { all.freeze() })
}

/// Forgets the body of a request that is refused unread. Who waits for leave to send it has not sent it, and must not be told
/// to.
pub(crate) fn forget(incoming: Incoming, headers: &HeaderMap) {
    if !incoming.is_end_stream() && !headers.contains_key(header::EXPECT) {
        linger(incoming);
    }
}

/// Reads on and forgets, until the body ends or the time is over.
fn linger(mut incoming: Incoming) {
    tokio::spawn(timeout(LINGER, async move { while let Some(Ok(_)) = incoming.frame().await {} }));
}
