//! SageMaker's runtime: the paths and headers that its clients use, in front of workers that know `/invocations`.
//!
//! | path | becomes | errors |
//! | --- | --- | --- |
//! | `POST /endpoints/{name}/invocations` | `/invocations` | SageMaker's |
//! | `POST /endpoints/{name}/invocations-response-stream` | `/invocations`, the answer framed as an AWS event stream | SageMaker's |
//! | `/endpoints/{name}/openai/v1/...` | `/v1/...` | OpenAI's |
//! | `/invocations`, `/ping` | themselves, as a container serves them | OpenAI's |
//!
//! A request on one of these paths is [admitted](Invocation::admit) once: its headers are checked, and endpoint, variant and
//! component become a [`Scope`] for the choice of its worker. With no endpoint configured any name stands for the whole
//! fleet. Requests on other paths pay nothing for any of this.
//!
//! Where SageMaker's `PREFIX_AWARE` hashes the first bytes of an Invoke body, we hash the first characters of the prompt in
//! it, so that the order of keys, white space and escapes do not part equal prompts. A body in which no prompt is found is
//! hashed as it is.

mod config;
mod event_stream;
pub(crate) mod frame;
mod layout;
mod refusal;
mod session;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use trunkline_core::{Millis, Policy, WorkerId};

pub(crate) use self::config::check;
pub use self::config::{EndpointConfig, VariantConfig, VariantWorker};
pub(crate) use self::event_stream::EventStream;
pub(crate) use self::layout::{Layout, Pool, Pools, Scope};
pub(crate) use self::refusal::{Invalid, MAX_ORIGINAL_BYTES, answer, of_worker};
pub(crate) use self::session::Sessions;
use crate::path::PathClass;

/// Tenant key: requests with different keys share no prefix.
const PREFIX_AWARE_ID: HeaderName = HeaderName::from_static("x-amzn-sagemaker-prefix-aware-id");
/// Adapter: overrides the body's `model`, as vLLM does it.
const ADAPTER: HeaderName = HeaderName::from_static("x-amzn-sagemaker-adapter-identifier");
/// Model of a multi-model endpoint; parts the prefixes like an adapter.
const TARGET_MODEL: HeaderName = HeaderName::from_static("x-amzn-sagemaker-target-model");
const TARGET_VARIANT: HeaderName = HeaderName::from_static("x-amzn-sagemaker-target-variant");
const COMPONENT: HeaderName = HeaderName::from_static("x-amzn-sagemaker-inference-component");
const SESSION_ID: HeaderName = HeaderName::from_static("x-amzn-sagemaker-session-id");
const NEW_SESSION_ID: HeaderName = HeaderName::from_static("x-amzn-sagemaker-new-session-id");
const CLOSED_SESSION_ID: HeaderName = HeaderName::from_static("x-amzn-sagemaker-closed-session-id");
const CUSTOM_ATTRIBUTES: HeaderName = HeaderName::from_static("x-amzn-sagemaker-custom-attributes");
const INFERENCE_ID: HeaderName = HeaderName::from_static("x-amzn-sagemaker-inference-id");
/// What the client accepts, where `Accept` itself means the event stream.
const STREAM_ACCEPT: HeaderName = HeaderName::from_static("x-amzn-sagemaker-accept");
/// What the frames of an event stream hold.
const STREAM_CONTENT_TYPE: HeaderName = HeaderName::from_static("x-amzn-sagemaker-content-type");
/// Names the variant that answered.
const INVOKED_VARIANT: HeaderName = HeaderName::from_static("x-amzn-invoked-production-variant");
/// The variant of a fleet without configured endpoints: the name that SageMaker's own tools give to an only variant.
const ONLY_VARIANT: HeaderValue = HeaderValue::from_static("AllTraffic");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("application/vnd.amazon.eventstream");

/// Which of the runtime's calls a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// `InvokeEndpoint`.
    Invoke,
    /// `InvokeEndpointWithResponseStream`.
    InvokeStream,
    /// The OpenAI-compatible path of an endpoint.
    OpenAi,
}

impl Call {
    fn is_invoke(self) -> bool {
        matches!(self, Self::Invoke | Self::InvokeStream)
    }
}

/// A path below `/endpoints/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuntimePath<'p> {
    endpoint: &'p str,
    call: Call,
    /// What a worker serves in its place.
    pub(crate) path: &'p str,
}

impl<'p> RuntimePath<'p> {
    /// Takes a path without its query apart; `None` for any other path, which stays as it is.
    pub(crate) fn of(path: &'p str) -> Option<Self> {
        let (endpoint, rest) = path.strip_prefix("/endpoints/")?.split_once('/')?;
        let (call, path) = match rest {
            "invocations" => (Call::Invoke, "/invocations"),
            "invocations-response-stream" => (Call::InvokeStream, "/invocations"),
            _ => (Call::OpenAi, rest.strip_prefix("openai").filter(|openai| openai.starts_with("/v1/"))?),
        };
        Some(Self { endpoint, call, path })
    }

    /// Whether errors are SageMaker's.
    pub(crate) fn is_invoke(&self) -> bool {
        self.call.is_invoke()
    }
}

/// What a request says in SageMaker's words, checked.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    /// `None` on the container's own `/invocations`.
    call: Option<Call>,
    /// The workers and the rule of its variant; `None` means the whole fleet and the router's rule.
    pub(crate) scope: Option<Scope>,
    /// Name of its variant.
    variant: HeaderValue,
    /// A tenant key.
    pub(crate) tenant: Option<HeaderValue>,
    /// The model that counts in place of the body's.
    pub(crate) model: Option<HeaderValue>,
}

impl Invocation {
    /// Checks what a request to `path` (or, without one, to a path of this class) says, and finds where it may go; `None` if
    /// it is none of SageMaker's.
    pub(crate) fn admit(
        layout: &Layout,
        sessions: &Sessions,
        path: Option<RuntimePath<'_>>,
        class: PathClass,
        headers: &HeaderMap,
        now: impl FnOnce() -> Millis,
    ) -> Result<Option<Box<Self>>, Invalid> {
        if path.is_none() && class != PathClass::Invocations {
            return Ok(None);
        }
        check_headers(headers)?;
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let found = match path {
            Some(path) => layout.find(path.endpoint, text(TARGET_VARIANT), text(COMPONENT))?,
            None => None,
        };
        let (scope, variant) = found.map_or((None, ONLY_VARIANT), |(scope, name)| (Some(scope), name));
        let session = headers.get(SESSION_ID).and_then(|id| sessions.worker(id, now()));
        Ok(Some(Box::new(Self {
            call: path.map(|path| path.call),
            scope: match session {
                Some(worker) => Some(Scope::of_session(scope, worker)),
                None => scope,
            },
            variant,
            tenant: headers.get(PREFIX_AWARE_ID).cloned(),
            model: headers.get(ADAPTER).or_else(|| headers.get(TARGET_MODEL)).cloned(),
        })))
    }

    /// Whether errors are SageMaker's.
    pub(crate) fn is_invoke(&self) -> bool {
        self.call.is_some_and(Call::is_invoke)
    }

    /// Whether the answer is framed.
    pub(crate) fn is_framed(&self) -> bool {
        self.call == Some(Call::InvokeStream)
    }

    /// Whether a body without a prompt is hashed as it is.
    pub(crate) fn hashes_any_body(&self) -> bool {
        self.is_invoke()
            && self.scope.is_some_and(|scope| matches!(scope.policy, Some(Policy::PrefixAware { .. })))
    }

    /// Makes the headers of a request fit a worker: what signs it for AWS stops here, and a stream's accepted type is what
    /// the worker is asked for.
    pub(crate) fn prepare_request(&self, headers: &mut HeaderMap) {
        if !self.is_invoke() {
            return;
        }
        if headers.get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(b"AWS4-")) {
            headers.remove(AUTHORIZATION);
            for name in ["x-amz-date", "x-amz-security-token", "x-amz-content-sha256"] {
                headers.remove(name);
            }
        }
        if self.is_framed()
            && let Some(accept) = headers.get(STREAM_ACCEPT).cloned()
        {
            headers.insert(ACCEPT, accept);
        }
    }

    /// Says in an answer which variant made it, and notes what it says of sessions.
    pub(crate) fn prepare_answer(
        &self,
        headers: &mut HeaderMap,
        sessions: &Sessions,
        worker: WorkerId,
        now: Millis,
    ) {
        if let Some(opened) = headers.get(NEW_SESSION_ID) {
            sessions.open(opened, worker, now);
        }
        if let Some(closed) = headers.get(CLOSED_SESSION_ID) {
            sessions.close(closed);
        }
        if self.call.is_some() {
            headers.insert(INVOKED_VARIANT, self.variant.clone());
        }
    }

    /// Says in an answer that its body is framed.
    pub(crate) fn announce_frames(headers: &mut HeaderMap) {
        headers.remove(CONTENT_LENGTH);
        if let Some(content_type) = headers.insert(CONTENT_TYPE, EVENT_STREAM) {
            headers.insert(STREAM_CONTENT_TYPE, content_type);
        }
    }
}

/// A header whose value has a range: as we know it, as people write it, what it may be in words and in code.
type Range = (HeaderName, &'static str, &'static str, fn(&[u8]) -> bool);

/// The ranges of SageMaker's service model.
const RANGES: [Range; 7] = {
    const NAME: &str = "1 to 63 letters, digits and hyphens, a letter or digit first";
    const KEY: &str = "1 to 64 visible ASCII characters or spaces, no space first";
    [
        (PREFIX_AWARE_ID, "X-Amzn-SageMaker-Prefix-Aware-Id", KEY, is_key::<64>),
        (INFERENCE_ID, "X-Amzn-SageMaker-Inference-Id", KEY, is_key::<64>),
        (TARGET_VARIANT, "X-Amzn-SageMaker-Target-Variant", NAME, is_name),
        (COMPONENT, "X-Amzn-SageMaker-Inference-Component", NAME, is_name),
        (TARGET_MODEL, "X-Amzn-SageMaker-Target-Model", "1 to 1024 ASCII characters", is_key::<1024>),
        (SESSION_ID, "X-Amzn-SageMaker-Session-Id", "1 to 256 ASCII characters", is_key::<256>),
        (
            CUSTOM_ATTRIBUTES,
            "X-Amzn-SageMaker-Custom-Attributes",
            "up to 1024 ASCII characters",
            is_short_ascii,
        ),
    ]
};

fn check_headers(headers: &HeaderMap) -> Result<(), Invalid> {
    for (header, name, allowed, fits) in RANGES {
        if headers.get(header).is_some_and(|value| !fits(value.as_bytes())) {
            return Err(Invalid::Header { name, allowed });
        }
    }
    Ok(())
}

fn is_short_ascii(value: &[u8]) -> bool {
    value.len() <= 1024 && value.is_ascii()
}

fn is_key<const MAX: usize>(value: &[u8]) -> bool {
    (1..=MAX).contains(&value.len())
        && value[0] != b' '
        && value.iter().all(|byte| (b' '..=b'~').contains(byte))
}

fn is_name(value: &[u8]) -> bool {
    (1..=63).contains(&value.len())
        && value[0] != b'-'
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sagemaker_paths_reach_what_the_worker_serves() {
        let cases = [
            ("/endpoints/llama-70b/invocations", Some((Call::Invoke, "/invocations"))),
            ("/endpoints/e/invocations-response-stream", Some((Call::InvokeStream, "/invocations"))),
            ("/endpoints/e/openai/v1/chat/completions", Some((Call::OpenAi, "/v1/chat/completions"))),
            ("/invocations", None),
            ("/endpoints/e", None),
            ("/endpoints/e/invocations/", None),
            ("/endpoints/e/openai/v2/x", None),
            ("/endpoints/e/openaiv1/", None),
        ];
        for (path, wanted) in cases {
            assert_eq!(RuntimePath::of(path).map(|found| (found.call, found.path)), wanted, "{path}");
        }
    }

    #[test]
    fn headers_keep_their_ranges() {
        let check = |name: &HeaderName, value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            check_headers(&HeaderMap::from_iter([(name.clone(), value)])).is_ok()
        };
        let of = |length| vec![b'x'; length];
        for (name, max) in [
            (PREFIX_AWARE_ID, 64),
            (INFERENCE_ID, 64),
            (TARGET_VARIANT, 63),
            (COMPONENT, 63),
            (TARGET_MODEL, 1024),
        ] {
            assert!(check(&name, &of(1)) && check(&name, &of(max)), "{name}");
            for bad in [of(0), of(max + 1), b"caf\xe9".to_vec()] {
                assert!(!check(&name, &bad), "{name} {bad:?}");
            }
        }
        assert!(
            check(&PREFIX_AWARE_ID, b"a b") && !check(&PREFIX_AWARE_ID, b" a") && !check(&COMPONENT, b"a b")
        );
        assert!(check(&CUSTOM_ATTRIBUTES, b"") && check(&CUSTOM_ATTRIBUTES, &of(1024)));
        assert!(!check(&CUSTOM_ATTRIBUTES, &of(1025)));
    }

    fn invocation(call: Option<Call>) -> Invocation {
        Invocation { call, scope: None, variant: ONLY_VARIANT, tenant: None, model: None }
    }

    #[test]
    fn what_signs_a_request_stops_here_and_an_api_key_does_not() {
        let prepared = |call, authorization: &'static str| {
            let lines = [
                ("authorization", authorization),
                ("x-amz-security-token", "secret"),
                ("x-amzn-sagemaker-accept", "text/csv"),
                ("accept", "*/*"),
            ];
            let pairs =
                lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let mut headers = HeaderMap::from_iter(pairs);
            invocation(Some(call)).prepare_request(&mut headers);
            headers
        };
        let signed = prepared(Call::Invoke, "AWS4-HMAC-SHA256 Credential=x");
        assert_eq!((signed.len(), signed["accept"].to_str().unwrap()), (2, "*/*"));
        let keyed = prepared(Call::InvokeStream, "Bearer key");
        assert_eq!(
            (keyed["authorization"].to_str().unwrap(), keyed["accept"].to_str().unwrap()),
            ("Bearer key", "text/csv")
        );
        assert_eq!(prepared(Call::OpenAi, "AWS4-HMAC-SHA256 x").len(), 4);
    }
}
