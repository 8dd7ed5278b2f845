//! One request's life: read, place, send, try elsewhere if that failed, pass the answer on.
//!
//! A request may be sent again only before its answer has begun to reach the client, and only if that cannot do harm:
//! any request that no worker can have acted upon, safe methods, and POSTs to paths that ask for an answer and change
//! nothing. It never goes twice to a worker that failed it. For such POSTs the answer counts as begun with its first
//! *body* byte: engines send the head of a stream at once and compute afterwards, so a worker that dies in between
//! costs nobody a thing.

mod deliver;

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::answer::{self, RETRY_AFTER_S, Refusal};
use crate::body::{AnswerBody, Relay, RelayParts};
use crate::booking::Booking;
use crate::collect::collect;
use crate::endpoint::MAX_TARGET_BYTES;
use crate::fleet::{Ids, Worker};
use crate::headers;
use crate::intake;
use crate::keys::{Admitted, Key};
use crate::metrics::{CLIENT_CLOSED, Cause};
use crate::path::PathClass;
use crate::place::{Choice, Placing, may_retry};
use crate::prompt::Located;
use crate::pulse::Kind;
use crate::sagemaker::{self, EventStream, Invocation, RuntimePath};
use crate::server::Shard;
use crate::upstream::{self, Fault, FaultKind, Lease};

/// Attempts that may end in a fault: the first and two further workers.
const MAX_FAULTS: u32 = 3;
/// Attempts that may end in "busy" before the request waits.
const MAX_BUSY: u32 = 4;

/// Answers one request. Never fails: faults become answers. `is_reading` is set while its body has yet to arrive.
pub(crate) async fn serve(
    shard: Arc<Shard>,
    request: Request<Incoming>,
    is_reading: Arc<AtomicBool>,
) -> Result<Response<AnswerBody>, Infallible> {
    let since = Instant::now();
    let (mut parts, incoming) = request.into_parts();
    let target = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let runtime = RuntimePath::of(target.path());
    let path = runtime.map(|runtime| runtime.path.to_owned());
    let class = PathClass::of(path.as_deref().unwrap_or(target.path()));
    let refused = |refusal: &Refusal| match runtime {
        Some(runtime) if runtime.is_invoke() => sagemaker::answer(refusal),
        _ => refusal.answer(),
    };
    let own = |answer: Response<AnswerBody>| {
        shard.shared.metrics.own_answers.count(class, answer.status().as_u16());
        Ok(answer)
    };
    if let Err(refusal) = intake::check(&mut parts, shard.shared.config.max_headers) {
        return own(refused(&refusal));
    }
    if target.as_str().len() > MAX_TARGET_BYTES {
        return own(refused(&Refusal::LongTarget));
    }
    if class == PathClass::Health {
        return own(answer::health(shard.shared.is_ready()));
    }
    let admitted = match shard.shared.edge.keys.load().as_ref() {
        None => None,
        Some(keys) => match keys.admit(&parts.headers, shard.shared.now()) {
            Ok(admitted) => Some(admitted),
            Err(denied) => return own(Refusal::Denied(denied).answer()),
        },
    };
    if class == PathClass::Models
        && parts.method == Method::GET
        && let Some(list) = shard.shared.fleet.snapshot().model_list.clone()
    {
        return own(answer::json(StatusCode::OK, list));
    }
    is_reading.store(true, Ordering::Relaxed);
    let body = collect(incoming, &parts.headers, shard.shared.config.max_body_bytes).await;
    // What is refused unread is owed no more than the refusal.
    is_reading.store(body.is_err(), Ordering::Relaxed);
    let body = match body {
        Ok(body) => body,
        Err(refusal) => return own(refused(&refusal)),
    };
    let (layout, sessions) = (&shard.shared.fleet.layout, &shard.shared.sessions);
    let now = || shard.shared.now();
    let invocation = match Invocation::admit(layout, sessions, runtime, class, &parts.headers, now) {
        Ok(invocation) => invocation,
        Err(invalid) => return own(refused(&Refusal::Invalid(invalid))),
    };
    let call =
        Call::new(shard, parts.method, target, path, class, parts.headers, body, since, invocation, admitted);
    Ok(call.answer().await)
}

/// A request that was read, and what has become of it.
struct Call {
    shard: Arc<Shard>,
    method: Method,
    target: PathAndQuery,
    /// What the worker is asked for, if that is not the target's path.
    path: Option<String>,
    class: PathClass,
    /// End-to-end headers.
    headers: HeaderMap,
    body: Bytes,
    since: Instant,
    /// What it says in SageMaker's words, on a path of theirs.
    invocation: Option<Box<Invocation>>,
    /// The API key that it came with.
    key: Option<Arc<Key>>,
    /// Workers that failed it, and must not be asked again.
    failed: Ids,
    /// Workers that said they are busy.
    refused: Ids,
    queued_since: Option<Instant>,
    answered: bool,
}

/// Why a request is to be sent once more.
#[derive(Debug, Clone, Copy)]
struct Again {
    cause: Cause,
    /// The attempt before reached no worker, so this one is no work done twice.
    is_free: bool,
}

/// The beginning of a worker's answer.
struct Begun {
    parts: http::response::Parts,
    incoming: Incoming,
    first: Option<Bytes>,
    lease: Lease,
}

/// What an answer means for its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is the answer.
    Final,
    /// Another worker may have room.
    Busy,
    /// Another worker may do better.
    Failed,
}

impl Call {
    #[expect(
        clippy::too_many_arguments,
        reason = "a request has these parts, and this is the one place that joins them"
    )]
    fn new(
        shard: Arc<Shard>,
        method: Method,
        target: PathAndQuery,
        path: Option<String>,
        class: PathClass,
        mut headers: HeaderMap,
        body: Bytes,
        since: Instant,
        invocation: Option<Box<Invocation>>,
        admitted: Option<Admitted>,
    ) -> Self {
        let is_chunked = headers.keys().any(|name| *name == header::TRANSFER_ENCODING);
        headers::strip_request(&mut headers, |name| {
            admitted.as_ref().is_some_and(|admitted| admitted.ends_here(name))
        });
        if let Some(invocation) = &invocation {
            invocation.prepare_request(&mut headers);
        }
        // A body that came in chunks is sent in one piece.
        if is_chunked {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        Self {
            shard,
            method,
            target,
            path,
            class,
            headers,
            body,
            since,
            invocation,
            key: admitted.map(|admitted| admitted.key),
            failed: Ids::new(),
            refused: Ids::new(),
            queued_since: None,
            answered: false,
        }
    }

    /// Whether it may be sent again although a worker may have acted upon it.
    fn is_repeatable(&self) -> bool {
        self.method.is_safe() || (self.method == Method::POST && self.class.is_repeatable())
    }

    /// Whether the prompt in its body places it.
    fn is_generation(&self) -> bool {
        self.method == Method::POST && self.class.is_generation()
    }

    /// Sends it until a worker's answer is to be passed on, or nobody is left.
    async fn answer(mut self) -> Response<AnswerBody> {
        let shared = Arc::clone(&self.shard.shared);
        shared.retries.request(shared.now());
        let (mut faults, mut busy) = (0, 0);
        let mut last: Option<(Begun, Arc<Worker>, Option<HeaderValue>)> = None;
        let mut refusal = Refusal::NoWorker;
        let mut again: Option<Again> = None;
        while faults < MAX_FAULTS {
            let mut must_wait = false;
            if let Some(Again { cause, is_free }) = again {
                let is_busy = cause == Cause::Busy;
                let is_enough = (is_busy && busy >= MAX_BUSY) || !(is_free || may_retry(&shared));
                // Who was refused for want of room may wait for it, at nobody's expense.
                must_wait = is_enough && is_busy && shared.fleet.queue.is_on();
                if is_enough && !must_wait {
                    break;
                }
            }
            let placed = self.place(must_wait).await;
            let Choice { mut booking, kind, annotation } = match placed {
                Ok(choice) => choice,
                // What went wrong before says more than that nobody else is there.
                Err(Refusal::NoWorker) => break,
                Err(why) => {
                    refusal = why;
                    break;
                }
            };
            if let Some(Again { cause, .. }) = again {
                shared.metrics.retried(cause);
            }
            let worker = Arc::clone(&booking.worker);
            match self.send(&booking, kind).await {
                Ok(begun) => {
                    let verdict = self.judge(&begun, &worker);
                    if verdict == Verdict::Final || !self.is_repeatable() {
                        booking.served();
                        return self.deliver(begun, &worker, annotation, Some(booking)).await;
                    }
                    // Its books are closed here; its answer is kept in case that nobody does better.
                    drop(booking);
                    let cause = if verdict == Verdict::Busy {
                        busy += 1;
                        self.refused.push(worker.id);
                        Cause::Busy
                    } else {
                        faults += 1;
                        self.failed.push(worker.id);
                        Cause::Error
                    };
                    last = Some((begun, worker, annotation));
                    again = Some(Again { cause, is_free: false });
                }
                Err(fault) => {
                    drop(booking);
                    self.note(&fault, &worker);
                    faults += 1;
                    self.failed.push(worker.id);
                    again = Some(Again { cause: fault.kind.cause(), is_free: fault.unsent });
                    refusal = Refusal::Failed(fault.kind);
                    if !fault.unsent && !self.is_repeatable() {
                        break;
                    }
                }
            }
        }
        match last {
            Some((begun, worker, annotation)) => self.deliver(begun, &worker, annotation, None).await,
            None => {
                self.answered = true;
                let answer = if self.is_invoke() { sagemaker::answer(&refusal) } else { refusal.answer() };
                shared.metrics.own_answers.count(self.class, answer.status().as_u16());
                answer
            }
        }
    }

    /// Chooses a worker that has not failed it and books the request there, when one has room.
    async fn place(&mut self, must_wait: bool) -> Result<Choice, Refusal> {
        let mut located = if self.is_generation() { Located::read(self.class, &self.body) } else { None };
        let invocation = self.invocation.as_deref();
        if invocation.is_some_and(Invocation::hashes_any_body)
            && !located.as_ref().is_some_and(Located::has_prompt)
        {
            located = Some(Located::whole(&self.body));
        }
        let model = invocation.and_then(|invocation| invocation.model.as_ref()?.to_str().ok());
        if let (Some(located), Some(model)) = (&mut located, model) {
            located.model = Some(Cow::Borrowed(model));
        }
        let mut placing = Placing {
            shared: &self.shard.shared,
            located,
            tenant: invocation.and_then(|invocation| Some(invocation.tenant.as_ref()?.as_bytes())),
            scope: invocation.and_then(|invocation| invocation.scope.as_ref()),
            key: self.key.as_ref(),
            failed: &self.failed,
            refused: &self.refused,
            since: self.since,
            queued_since: &mut self.queued_since,
        };
        placing.place(must_wait).await
    }

    /// Whether errors are to be SageMaker's.
    fn is_invoke(&self) -> bool {
        self.invocation.as_deref().is_some_and(Invocation::is_invoke)
    }

    /// Sends it to where it is booked and waits until its answer has begun; `kind` if that is a generation's.
    async fn send(&self, booking: &Booking, kind: Option<Kind>) -> Result<Begun, Fault> {
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
        let config = &self.shard.shared.config;
        let mut begun = pin!(async {
            let exchange =
                upstream::exchange(worker, self.shard.number, request, config.connect_timeout, may_reuse)
                    .await?;
            self.begin(exchange, worker).await
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

    /// What an answer means, and what it tells about its worker.
    fn judge(&self, begun: &Begun, worker: &Worker) -> Verdict {
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
    fn note(&self, fault: &Fault, worker: &Worker) {
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
            fleet.take_out(worker);
        }
    }

    /// Passes an answer on to the client.
    fn pass_on(
        mut self,
        begun: Begun,
        worker: &Worker,
        annotation: Option<HeaderValue>,
        booking: Option<Booking>,
    ) -> Response<AnswerBody> {
        self.answered = true;
        let shared = &self.shard.shared;
        let Begun { mut parts, incoming, first, lease } = begun;
        worker.requests.count(self.class, parts.status.as_u16());
        // Whatever the worker speaks, the client is answered in its own protocol.
        parts.version = Version::HTTP_11;
        headers::strip_answer(&mut parts.headers);
        let is_busy = matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if is_busy && !parts.headers.contains_key(header::RETRY_AFTER) {
            parts.headers.insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        }
        let content_type =
            parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_event_stream = content_type.starts_with(b"text/event-stream");
        let since = (self.is_generation() && parts.status == StatusCode::OK).then_some(self.since);
        let is_framed = self.invocation.as_deref().is_some_and(Invocation::is_framed);
        self.annotate(&mut parts, worker, annotation);
        let parts_of_relay =
            RelayParts { incoming, first, lease, booking, is_event_stream, is_framed, since };
        let relay = Relay::new(Arc::clone(shared), parts_of_relay);
        if is_framed {
            Invocation::announce_frames(&mut parts.headers);
            return Response::from_parts(parts, AnswerBody::Framed(Box::new(EventStream::new(relay))));
        }
        Response::from_parts(parts, AnswerBody::Relay(Box::new(relay)))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            let metrics = &self.shard.shared.metrics;
            metrics.client_disconnects.inc();
            metrics.own_answers.count(self.class, CLIENT_CLOSED);
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
