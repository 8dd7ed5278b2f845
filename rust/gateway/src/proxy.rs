//! One request's life: read, place, send, try elsewhere if that failed, pass the answer on.
//!
//! A request may be sent again only before its answer has begun to reach the client, and only if that cannot do harm:
//! any request that no worker can have acted upon, safe methods, and POSTs to paths that ask for an answer and change
//! nothing. It never goes twice to a worker that failed it. For such POSTs the answer counts as begun with its first
//! *body* byte: engines send the head of a stream at once and compute afterwards, so a worker that dies in between
//! costs nobody a thing.

mod attempt;
mod deliver;
mod verdict;

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use self::attempt::Begun;
use self::verdict::Verdict;
use crate::answer::{self, Refusal};
use crate::body::AnswerBody;
use crate::collect::{collect, forget};
use crate::endpoint::MAX_TARGET_BYTES;
use crate::exact::{self, Prompted};
use crate::fleet::{Ids, Worker};
use crate::headers;
use crate::intake;
use crate::keys::{Admitted, Key};
use crate::metrics::{CLIENT_CLOSED, Cause};
use crate::path::PathClass;
use crate::place::{Choice, Placing, may_retry};
use crate::prompt::Located;
use crate::sagemaker::{self, Invocation, RuntimePath};
use crate::server::Shard;
use crate::trial::Part;

/// Attempts that may end in a fault: the first and two further workers.
const MAX_FAULTS: u32 = 3;
/// Attempts that may end in "busy" before the request waits.
const MAX_BUSY: u32 = 4;

/// Answers one request. Never fails: faults become answers.
pub(crate) async fn serve(
    shard: Arc<Shard>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let since = Instant::now();
    let (mut parts, incoming) = request.into_parts();
    let target = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let runtime = RuntimePath::of(target.path());
    let path = runtime.map(|runtime| runtime.path.to_owned());
    // What is written in another way is the same path to a worker.
    let spelled = percent_decode_str(path.as_deref().unwrap_or(target.path())).decode_utf8_lossy();
    let class = PathClass::of(&spelled);
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
        forget(incoming, &parts.headers);
        return own(refused(&Refusal::LongTarget));
    }
    if class == PathClass::Health {
        return own(answer::health(shard.shared.is_ready()));
    }
    let admitted = match shard.shared.edge.keys.load().as_ref() {
        None => None,
        Some(keys) => match keys.admit(&parts.headers, shard.shared.now()) {
            Ok(admitted) => Some(admitted),
            Err(denied) => {
                forget(incoming, &parts.headers);
                return own(refused(&Refusal::Denied(denied)));
            }
        },
    };
    if class == PathClass::Models
        && parts.method == Method::GET
        && let Some(list) = shard.shared.fleet.snapshot().model_list.clone()
    {
        return own(answer::json(StatusCode::OK, list));
    }
    let body = tokio::select! {
        biased;
        body = collect(incoming, &parts.headers, shard.shared.config.max_body_bytes) => body,
        () = shard.shared.grace_is_over() => Err(Refusal::SlowBody),
    };
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
    /// Its prompt as workers' events have it, once somebody looked.
    exact: Option<Option<Prompted>>,
    /// Its part in what is tried, once somebody looked.
    part: Option<Option<Box<Part>>>,
    answered: bool,
}

/// Why a request is to be sent once more.
#[derive(Debug, Clone, Copy)]
struct Again {
    cause: Cause,
    /// The attempt before reached no worker, or one that is gone: this one adds nothing to anybody's load.
    is_free: bool,
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
            exact: None,
            part: None,
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
            let Choice { mut booking, kind, annotation, reason, is_crossed } = match placed {
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
            if let Some(part) = self.part() {
                part.placed(booking.decision(), reason, is_crossed);
            }
            let worker = Arc::clone(&booking.worker);
            match self.send(&booking, kind).await {
                Ok(begun) => {
                    let verdict = self.judge(&begun, &worker);
                    if verdict == Verdict::Final || !self.is_repeatable() {
                        booking.served();
                        self.sample(&begun, &worker);
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
                        self.fail_at(&worker);
                        Cause::Error
                    };
                    last = Some((begun, worker, annotation));
                    again = Some(Again { cause, is_free: false });
                }
                Err(fault) => {
                    drop(booking);
                    self.note(&fault, &worker);
                    faults += 1;
                    self.fail_at(&worker);
                    again = Some(Again {
                        cause: fault.kind.cause(),
                        is_free: fault.unsent || fault.kind.is_loss(),
                    });
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
                if let Some(part) = self.part() {
                    part.answered(answer.status().as_u16(), false);
                }
                answer
            }
        }
    }

    fn part(&mut self) -> Option<&mut Part> {
        self.part.as_mut()?.as_deref_mut()
    }

    /// A worker failed it, and is not asked again.
    fn fail_at(&mut self, worker: &Worker) {
        self.failed.push(worker.id);
        if let Some(part) = self.part() {
            part.failed();
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
        if let (None, Some(located)) = (&self.exact, &located) {
            let shared = &self.shard.shared;
            let fleet = &shared.fleet;
            let tells = fleet.router.has_events();
            let exact = tells.then(|| {
                fleet.exact.prompt(self.class, &self.body, located, &fleet.snapshot(), shared.now())
            });
            self.exact = Some(exact.flatten());
        }
        let mut placing = Placing {
            shared: &self.shard.shared,
            located,
            exact: self.exact.as_ref().and_then(Option::as_ref),
            tenant: invocation.and_then(|invocation| Some(invocation.tenant.as_ref()?.as_bytes())),
            scope: invocation.and_then(|invocation| invocation.scope.as_ref()),
            key: self.key.as_ref(),
            ticket: None,
            failed: &self.failed,
            refused: &self.refused,
            since: self.since,
            queued_since: &mut self.queued_since,
        };
        if self.part.is_none() {
            self.part = Some(placing.join(self.method == Method::POST && self.class.is_generation()));
        }
        placing.ticket = self.part.as_ref().and_then(|part| part.as_ref()?.ticket.as_ref());
        placing.place(must_wait).await
    }

    /// Has its prompt compared with the worker's own, if it is this one's turn.
    fn sample(&mut self, begun: &Begun, worker: &Arc<Worker>) {
        let shared = &self.shard.shared;
        let exact = &shared.fleet.exact;
        if begun.parts.status != StatusCode::OK
            || !self.exact.as_ref().is_some_and(Option::is_some)
            || !exact.is_sampled()
        {
            return;
        }
        if let Some(prompted) = self.exact.take().flatten() {
            let path = self.path.clone().unwrap_or_else(|| self.target.path().to_owned());
            let (fleet, worker, body) = (Arc::clone(&shared.fleet), Arc::clone(worker), self.body.clone());
            shared.spawn(exact::sample(fleet, worker, path, body, prompted));
        }
    }

    /// Whether errors are to be SageMaker's.
    fn is_invoke(&self) -> bool {
        self.invocation.as_deref().is_some_and(Invocation::is_invoke)
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
