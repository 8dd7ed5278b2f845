//! The HTTP routes of a worker, in vLLM's dialect: paths, shapes of answers and errors are those of a recorded vLLM
//! 0.32 server.

mod answer;
mod error;
mod fields;
mod generate;
mod metrics;
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
use self::generate::{embed, generate, now_s};
use self::stream::EventStream;
use crate::config::MockWorkerConfig;
use crate::driver::Driver;

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
    block_size: u32,
    max_model_tokens: u32,
    default_output_tokens: u32,
    created_s: u64,
    last_id: AtomicU64,
}

impl Api {
    pub(crate) fn new(driver: Arc<Driver>, config: &MockWorkerConfig) -> Self {
        Self {
            model: config.model.clone(),
            block_size: config.block_size,
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
        match path.as_str() {
            "/v1/chat/completions" => {
                post()?;
                generate(self, Kind::Chat, &json_body(request).await?).await
            }
            "/v1/completions" => {
                post()?;
                generate(self, Kind::Completion, &json_body(request).await?).await
            }
            "/invocations" => {
                post()?;
                let body = json_body(request).await?;
                generate(self, Kind::of_shape(&body)?, &body).await
            }
            "/v1/embeddings" => {
                post()?;
                embed(self, &json_body(request).await?).await
            }
            "/reset_prefix_cache" => {
                post()?;
                Ok(json_reply(StatusCode::OK, &json!({"success": self.driver.clear_cache()})))
            }
            "/ping" if method == Method::POST => Ok(empty_reply()),
            "/health" | "/ping" => get(empty_reply()),
            "/version" => get(json_reply(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))),
            "/load" => get(json_reply(StatusCode::OK, &json!({"server_load": self.driver.open_requests()}))),
            "/v1/models" => get(json_reply(StatusCode::OK, &self.models())),
            "/metrics" => {
                let text = metrics::render(self);
                get(text_reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
            }
            _ => Err(ApiError::UnknownPath),
        }
    }

    fn models(&self) -> Value {
        let model = json!({
            "id": self.model, "object": "model", "created": self.created_s, "owned_by": "trunkline",
            "root": self.model, "parent": null, "max_model_len": self.max_model_tokens, "permission": [],
        });
        json!({"object": "list", "data": [model]})
    }

    fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}", self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Reads a body that must be declared as JSON.
async fn json_body(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let media_type =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    {
        let message = "1 validation error: Unsupported Media Type: Only 'application/json' is allowed";
        return Err(ApiError::Malformed { param: None, message: message.to_owned() });
    }
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
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
