//! One attempt: a request is sent to the worker where it is booked, and its answer is awaited until it has begun.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::Call;
use crate::booking::Booking;
use crate::fleet::Worker;
use crate::metrics::Cause;
use crate::pulse::Kind;
use crate::upstream::{self, Fault, FaultKind, Lease};

/// The beginning of a worker's answer.
pub(super) struct Begun {
    pub(super) parts: http::response::Parts,
    pub(super) incoming: Incoming,
    pub(super) first: Option<Bytes>,
    pub(super) lease: Lease,
}

impl Call {
    /// Sends it to where it is booked and waits until its answer has begun; `kind` if that is a generation's.
    pub(super) async fn send(&self, booking: &Booking, kind: Option<Kind>) -> Result<Begun, Fault> {
        let (worker, shared) = (&booking.worker, &self.shard.shared);
        let wait = kind.map(|kind| {
            worker.pulse.wait(&shared.fleet.expectation, kind, booking.uncached_tokens(), shared.now())
        });
        // A pooled connection may be dying just now. Requests that must not be sent twice do not take that risk.
        let mut begun = self.attempt(worker, self.is_repeatable()).await;
        if matches!(&begun, Err(fault) if fault.is_stale) {
            shared.metrics.retried(Cause::Stale);
            begun = self.attempt(worker, false).await;
        }
        if let (Some(wait), Ok(begun)) = (wait, &begun) {
            wait.answered(begun.parts.status == StatusCode::OK);
        }
        begun
    }

    async fn attempt(&self, worker: &Arc<Worker>, may_reuse: bool) -> Result<Begun, Fault> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() =
            worker.endpoint.target(&self.target, self.path.as_deref().unwrap_or(self.target.path()));
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(header::HOST, worker.endpoint.host_header.clone());
        if let Some(token) = worker.endpoint.outbound.token() {
            request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::clone(&token));
        }
        if let Some(rank) = worker.told.rank {
            request.headers_mut().insert("x-data-parallel-rank", rank.into());
        }
        let asked = self.shard.shared.fleet.signals.ask(request.headers_mut());
        let config = &self.shard.shared.config;
        let mut begun = pin!(async {
            let exchange =
                upstream::exchange(worker, self.shard.number, request, config.connect_timeout, may_reuse)
                    .await?;
            let mut begun = self.begin(exchange, worker).await?;
            let fleet = &self.shard.shared.fleet;
            fleet.signals.read(fleet, worker, &mut begun.parts.headers, asked);
            Ok(begun)
        });
        let is_late = async {
            match config.first_byte_timeout {
                None => std::future::pending().await,
                Some(limit) => tokio::time::sleep(limit).await,
            }
        };
        tokio::select! {
            biased;
            begun = &mut begun => begun,
            () = worker.health.gone() => Err(Fault::after_sending(FaultKind::Gone)),
            () = is_late => Err(Fault::after_sending(FaultKind::FirstByteTimeout)),
        }
    }

    /// Waits for the first byte of an answer that could still be fetched elsewhere, or that may say why there is none.
    async fn begin(&self, exchange: upstream::Exchange, worker: &Worker) -> Result<Begun, Fault> {
        let upstream::Exchange { answer, lease } = exchange;
        let (parts, mut incoming) = answer.into_parts();
        // Nobody asked to switch to another protocol.
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Fault::after_sending(FaultKind::Malformed));
        }
        let mut first = None;
        let tells = parts.status == StatusCode::OK || worker.engine.get().may_say_draining(parts.status);
        if self.is_generation() && tells {
            while first.is_none() {
                match incoming.frame().await {
                    Some(Ok(frame)) => first = frame.into_data().ok().filter(|data| !data.is_empty()),
                    Some(Err(_)) => return Err(Fault::after_sending(FaultKind::Closed)),
                    None => break,
                }
            }
        }
        Ok(Begun { parts, incoming, first, lease })
    }
}
