//! The routes that run sequences: chat, completions, the engines' own ones, and embeddings.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Either;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::answer::{Answer, Kind, PromptTokensDetails, Usage};
use super::error::ApiError;
use super::fields::Fields;
use super::prompt::{chat_prompt, plain_prompts};
use super::stream::EventStream;
use super::{Api, Reply, json_reply};
use crate::cache::block_chain;
use crate::dialect::Dialect;
use crate::engine::SequenceSpec;
use crate::events::Told;
use crate::tokens::Tokenizer;

/// Sequences that one request may start.
const MAX_SEQUENCES: usize = 128;
/// Length of an embedding.
const EMBEDDING_DIMENSIONS: u64 = 16;

/// What parts one request's cache from another's.
struct Root {
    /// Of the model and the salt.
    hash: u64,
    salt: Option<String>,
}

/// What a request wants generated.
pub(crate) struct Ask {
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Longest answer in tokens.
    pub(crate) limit: Option<u32>,
    pub(crate) choices_per_prompt: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether the answer tells the ids of the prompt's tokens.
    pub(crate) return_token_ids: bool,
}

impl Ask {
    /// Reads the body of a chat or a completion.
    pub(crate) fn openai(fields: &Fields, kind: Kind, tokenizer: Tokenizer) -> Result<Self, ApiError> {
        let stream = fields.flag("stream")?;
        let include_usage = match fields.get("stream_options") {
            Some(_) if !stream => {
                let message =
                    "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
                return Err(ApiError::bad_value("stream_options", message));
            }
            Some(options) => options.get("include_usage").and_then(Value::as_bool).unwrap_or_default(),
            None => false,
        };
        let prompts = match kind {
            Kind::Chat => vec![chat_prompt(fields, tokenizer)?],
            _ => plain_prompts(fields, "prompt", tokenizer)?,
        };
        let limit = match fields.count("max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => fields.count("max_tokens")?,
        };
        let choices_per_prompt = fields.count("n")?.unwrap_or(1) as usize;
        let return_token_ids = fields.flag("return_token_ids")?;
        Ok(Self { prompts, limit, choices_per_prompt, stream, include_usage, return_token_ids })
    }
}

/// Answers a request that generates; `read` knows the shape of its body.
pub(crate) async fn generate(
    api: &Api,
    kind: Kind,
    body: &[u8],
    read: impl FnOnce(&Fields, Kind) -> Result<Ask, ApiError>,
) -> Result<Reply, ApiError> {
    let fields = Fields::parse(body)?;
    api.check_model(&fields)?;
    let Ask { prompts, limit, choices_per_prompt, stream, include_usage, return_token_ids } =
        read(&fields, kind)?;
    if prompts.len().saturating_mul(choices_per_prompt) > MAX_SEQUENCES {
        return Err(ApiError::bad_value("n", format!("prompts x n must be at most {MAX_SEQUENCES}")));
    }

    let root = api.cache_root(&fields)?;
    let prompt_token_ids = return_token_ids.then(|| prompts.clone());
    let mut choices = Vec::new();
    let mut specs = Vec::new();
    let mut prompt_tokens = 0;
    for prompt in prompts {
        let room = api.room_after(&prompt)?;
        prompt_tokens += prompt.len() as u64;
        for choice in 0..choices_per_prompt {
            let output_tokens = limit.unwrap_or(api.default_output_tokens).min(room);
            let answer = api.tokenizer.answer_tokens(&prompt, choice as u32, output_tokens);
            specs.push(api.sequence(&root, &prompt, &answer));
            choices.push(answer);
        }
    }
    let mut answer = Answer {
        kind,
        id: api.next_id(if kind == Kind::Chat { "chatcmpl" } else { "cmpl" }),
        created_s: now_s(),
        model: api.model.clone(),
        choices,
        choices_per_prompt,
        prompt_token_ids,
        finish_reason: if limit.is_some() { "length" } else { "stop" },
        usage: Usage { prompt_tokens, prompt_tokens_details: api.details(), ..Usage::default() },
    };
    let mut generation = api.driver.submit(specs);
    if stream {
        let mut reply = Response::new(Either::Right(EventStream::new(generation, answer, include_usage)));
        let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
        reply.headers_mut().insert(CONTENT_TYPE, event_stream);
        return Ok(reply);
    }
    while let Some(delivery) = generation.next().await {
        answer.count(delivery);
    }
    Ok(super::text_reply(StatusCode::OK, "application/json", answer.whole()))
}

/// Answers an embedding: the prompt is computed as for a completion; the vector is a hash of its tokens.
pub(crate) async fn embed(api: &Api, body: &[u8]) -> Result<Reply, ApiError> {
    let fields = Fields::parse(body)?;
    api.check_model(&fields)?;
    let prompts = plain_prompts(&fields, "input", api.tokenizer)?;
    if prompts.len() > MAX_SEQUENCES {
        return Err(ApiError::bad_value("input", format!("at most {MAX_SEQUENCES} inputs")));
    }
    let root = api.cache_root(&fields)?;
    let mut specs = Vec::new();
    let mut usage = Usage::default();
    for prompt in &prompts {
        api.room_after(prompt)?;
        usage.prompt_tokens += prompt.len() as u64;
        specs.push(api.sequence(&root, prompt, &[0]));
    }
    let mut generation = api.driver.submit(specs);
    let mut details = api.details();
    while let Some(delivery) = generation.next().await {
        details.iter_mut().for_each(|details| details.cached_tokens += u64::from(delivery.cached_tokens));
    }
    let usage = Usage { total_tokens: usage.prompt_tokens, prompt_tokens_details: details, ..usage };
    let data: Vec<Value> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| json!({"object": "embedding", "index": index, "embedding": embedding(prompt)}))
        .collect();
    let answer = json!({
        "id": api.next_id("embd"), "object": "list", "created": now_s(), "model": api.model, "data": data, "usage": usage,
    });
    Ok(json_reply(StatusCode::OK, &answer))
}

impl Api {
    /// Room for the count of cached tokens, if this engine tells it.
    fn details(&self) -> Option<PromptTokensDetails> {
        (self.dialect != Dialect::Tgi).then(PromptTokensDetails::default)
    }

    fn check_model(&self, fields: &Fields) -> Result<(), ApiError> {
        match fields.string("model")? {
            Some(model) if self.dialect.checks_model() && model != self.model => {
                Err(ApiError::UnknownModel { model: model.to_owned(), served: self.model.clone() })
            }
            _ => Ok(()),
        }
    }

    /// What parts one request's cache from another's.
    fn cache_root(&self, fields: &Fields) -> Result<Root, ApiError> {
        let salt = fields.string("cache_salt")?;
        if salt.is_some_and(str::is_empty) {
            let message =
                "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
            return Err(ApiError::bad_value("cache_salt", message));
        }
        let model = xxh3_64_with_seed(self.model.as_bytes(), 0);
        Ok(Root {
            hash: salt.map_or(model, |salt| xxh3_64_with_seed(salt.as_bytes(), model)),
            salt: salt.map(str::to_owned),
        })
    }

    /// Tokens that an answer to `prompt` may have; an error if there is no room for one.
    fn room_after(&self, prompt: &[u32]) -> Result<u32, ApiError> {
        let room = (self.max_model_tokens as usize).saturating_sub(prompt.len());
        if room == 0 {
            let message = format!(
                "This model's maximum context length is {} tokens. However, your prompt contains {} input tokens, which \
                 exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value={1})",
                self.max_model_tokens,
                prompt.len()
            );
            return Err(ApiError::bad_value("input_tokens", message));
        }
        Ok(room as u32)
    }

    /// A sequence to run, and what events say of it if there are any.
    fn sequence(&self, root: &Root, prompt: &[u32], answer: &[u32]) -> (SequenceSpec, Option<Told>) {
        let tokens = [prompt, &answer[..answer.len() - 1]].concat();
        let chain = block_chain(root.hash, &tokens, self.block_size);
        let told =
            self.driver.teller().map(|_| Told { chain: chain.clone(), tokens, salt: root.salt.clone() });
        let spec =
            SequenceSpec { prompt_tokens: prompt.len() as u32, output_tokens: answer.len() as u32, chain };
        (spec, told)
    }
}

fn embedding(prompt: &[u32]) -> Vec<f64> {
    let component = |seed| {
        let hash = xxh3_64_with_seed(bytemuck::cast_slice(prompt), seed);
        f64::from((hash >> 32) as u32) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..EMBEDDING_DIMENSIONS).map(component).collect()
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
