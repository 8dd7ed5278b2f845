//! The HTTP routes of a worker: those that all dialects have, then those of its own. Paths, shapes of answers and errors are
//! those of a recorded vLLM 0.32 server; in the other dialects what their engines do differently, see [`Dialect`].

mod answer;
mod error;
mod fields;
mod generate;
mod metrics;
mod native;
mod prompt;
mod stream;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use self::answer::Kind;
use self::error::ApiError;
use self::generate::{Ask, embed, generate, now_s};
use self::stream::EventStream;
use crate::config::MockWorkerConfig;
use crate::dialect::Dialect;
use crate::driver::Driver;
use crate::tokens::Tokenizer;

/// What a route answers.
pub(crate) type Reply = Response<Either<Full<Bytes>, EventStream>>;

/// Largest body that is read.
const MAX_BODY_BYTES: usize = 256 << 20;
/// Context of the modelled model, unless the cache is smaller.
const MAX_MODEL_TOKENS: u32 = 131_072;

/// What the routes need to know.
pub(crate) struct Api {
    driver: Arc<Driver>,
    model: String,
    dialect: Dialect,
    block_size: u32,
    tokenizer: Tokenizer,
    max_model_tokens: u32,
    default_output_tokens: u32,
    created_s: u64,
    last_id: AtomicU64,
}

impl Api {
    pub(crate) fn new(driver: Arc<Driver>, config: &MockWorkerConfig) -> Self {
        Self {
            model: config.model.clone(),
            dialect: config.dialect,
            block_size: config.block_size,
            tokenizer: if config.events.is_some() { Tokenizer::Bytes } else { Tokenizer::Pieces },
            max_model_tokens: driver.inspect(|engine, _| engine.max_sequence_tokens()).min(MAX_MODEL_TOKENS),
            default_output_tokens: config.default_output_tokens,
            created_s: now_s(),
            last_id: AtomicU64::new(0),
            driver,
        }
    }

    /// Answers one request; every fault is an answer.
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Reply, Infallible> {
        Ok(self.route(request).await.unwrap_or_else(ApiError::into_reply))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Reply, ApiError> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let get = |reply: Reply| {
            if method == Method::GET { Ok(reply) } else { Err(ApiError::WrongMethod { allowed: "GET" }) }
        };
        let post = || {
            if method == Method::POST { Ok(()) } else { Err(ApiError::WrongMethod { allowed: "POST" }) }
        };
        match (path.as_str(), self.dialect) {
            ("/v1/chat/completions", _) => {
                post()?;
                self.openai(Kind::Chat, &json_body(request).await?).await
            }
            ("/v1/completions", _) => {
                post()?;
                self.openai(Kind::Completion, &json_body(request).await?).await
            }
            ("/invocations", Dialect::Vllm | Dialect::Sglang) => {
                post()?;
                let body = json_body(request).await?;
                self.openai(Kind::of_shape(&body)?, &body).await
            }
            ("/v1/embeddings", _) => {
                post()?;
                embed(self, &json_body(request).await?).await
            }
            ("/generate", Dialect::Sglang) => {
                post()?;
                let body = json_body(request).await?;
                generate(self, Kind::Sglang, &body, |fields, _| native::sglang_ask(fields)).await
            }
            ("/generate" | "/generate_stream", Dialect::Tgi) => {
                post()?;
                let stream = path == "/generate_stream";
                let body = json_body(request).await?;
                generate(self, Kind::Tgi, &body, |fields, _| native::tgi_ask(fields, stream)).await
            }
            ("/reset_prefix_cache", Dialect::Vllm) | ("/flush_cache", Dialect::Sglang) => {
                post()?;
                Ok(json_reply(StatusCode::OK, &json!({"success": self.driver.clear_cache(false)})))
            }
            ("/ping", Dialect::Vllm) if method == Method::POST => Ok(empty_reply()),
            ("/health", _) | ("/ping", Dialect::Vllm | Dialect::Sglang | Dialect::Tgi) => get(empty_reply()),
            ("/version", Dialect::Vllm | Dialect::TrtLlm) => {
                get(json_reply(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")})))
            }
            ("/load", Dialect::Vllm) => {
                get(json_reply(StatusCode::OK, &json!({"server_load": self.driver.open_requests()})))
            }
            ("/kv_event_sources", Dialect::Vllm) => {
                let off = || json!({"0": {"enable_kv_cache_events": false, "publisher": "null"}});
                get(json_reply(
                    StatusCode::OK,
                    &self.driver.teller().map_or_else(off, |teller| teller.sources()),
                ))
            }
            ("/info", Dialect::Tgi) => get(json_reply(StatusCode::OK, &self.info())),
            ("/v1/models", _) => get(json_reply(StatusCode::OK, &self.models())),
            // Statistics of iterations, which it hands out once: there are none.
            ("/metrics", Dialect::TrtLlm) => get(json_reply(StatusCode::OK, &json!([]))),
            ("/metrics", _) | ("/prometheus/metrics", Dialect::TrtLlm) => {
                let text = metrics::render(self);
                get(text_reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
            }
            _ => Err(ApiError::UnknownPath),
        }
    }

    async fn openai(&self, kind: Kind, body: &[u8]) -> Result<Reply, ApiError> {
        generate(self, kind, body, |fields, kind| Ask::openai(fields, kind, self.tokenizer)).await
    }

    /// TGI's description of itself.
    fn info(&self) -> Value {
        let cache_tokens = self.cache_tokens();
        json!({
            "model_id": self.model, "router": "text-generation-router", "version": env!("CARGO_PKG_VERSION"),
            "max_total_tokens": self.max_model_tokens, "max_batch_total_tokens": cache_tokens,
        })
    }

    /// Tokens that fit the KV cache.
    fn cache_tokens(&self) -> u32 {
        self.driver.inspect(|engine, _| engine.cache().capacity_blocks()) * self.block_size
    }

    fn models(&self) -> Value {
        let model = json!({
            "id": self.model, "object": "model", "created": self.created_s, "owned_by": self.dialect.owner(&self.model),
            "root": self.model, "parent": null, "max_model_len": self.max_model_tokens, "permission": [],
        });
        json!({"object": "list", "data": [model]})
    }

    fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}", self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Reads a body that must be declared as JSON. It is read whole first: a refusal beside unread bytes may be lost in a reset.
async fn json_body(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    {
        let message = "1 validation error: Unsupported Media Type: Only 'application/json' is allowed";
        return Err(ApiError::Malformed { param: None, message: message.to_owned() });
    }
    body.map(http_body_util::Collected::to_bytes).map_err(|fault| ApiError::Malformed {
        param: None,
        message: format!("cannot read the body: {fault}"),
    })
}

fn empty_reply() -> Reply {
    Response::new(Either::Left(Full::default()))
}

fn json_reply(status: StatusCode, value: &Value) -> Reply {
    text_reply(status, "application/json", value.to_string())
}

fn text_reply(status: StatusCode, content_type: &'static str, text: String) -> Reply {
    let mut reply = Response::new(Either::Left(Full::from(text)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}
