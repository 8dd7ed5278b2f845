//! The shapes of an answer: whole, or as the chunks of a stream; chat or plain completion.

use serde::Serialize;

use super::error::ApiError;
use super::fields::Fields;
use super::native;
use crate::driver::Delivery;
use crate::tokens::token_text;

/// Which generation route is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Chat,
    Completion,
    /// SGLang's `/generate`.
    Sglang,
    /// TGI's `/generate` and `/generate_stream`.
    Tgi,
}

impl Kind {
    /// Whether it is an engine's own route, whose shapes are no OpenAI's.
    pub(crate) fn is_native(self) -> bool {
        matches!(self, Self::Sglang | Self::Tgi)
    }

    /// What a body that came to `/invocations` asks for: a chat if it has messages, else a completion.
    pub(crate) fn of_shape(body: &[u8]) -> Result<Self, ApiError> {
        let is_chat = Fields::parse(body)?.get("messages").is_some();
        Ok(if is_chat { Self::Chat } else { Self::Completion })
    }
}

/// Tokens of a request, counted as OpenAI's API does.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// `None` if the engine does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Where the prompt's tokens came from.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PromptTokensDetails {
    pub(crate) cached_tokens: u64,
}

/// An answer that is being generated: what is known from the start, and what has been delivered so far.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) created_s: u64,
    pub(crate) model: String,
    /// The tokens of each choice, in order of their index.
    pub(crate) choices: Vec<Vec<u32>>,
    /// Choices that answer the same prompt, which is counted once.
    pub(crate) choices_per_prompt: usize,
    /// Ids of each prompt's tokens, if they were asked for; a stream does not tell them.
    pub(crate) prompt_token_ids: Option<Vec<Vec<u32>>>,
    pub(crate) finish_reason: &'static str,
    pub(crate) usage: Usage,
}

#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(flatten)]
    content: Content,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    Message { role: &'static str, content: String },
    Delta(Delta),
    Text(String),
}

#[derive(Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: String,
}

impl Answer {
    /// Counts a delivered token.
    pub(crate) fn count(&mut self, delivery: Delivery) {
        self.usage.completion_tokens += 1;
        self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
        if delivery.index == 0 && delivery.sequence.is_multiple_of(self.choices_per_prompt) {
            let details = self.usage.prompt_tokens_details.iter_mut();
            details.for_each(|details| details.cached_tokens += u64::from(delivery.cached_tokens));
        }
    }

    /// The whole answer as JSON.
    pub(crate) fn whole(&self) -> String {
        let object = match self.kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
            Kind::Sglang | Kind::Tgi => return native::whole(self).to_string(),
        };
        let choices = self.choices.iter().enumerate().map(|(index, tokens)| {
            let text = tokens.iter().map(|&token| text_of(token)).collect();
            let content = match self.kind {
                Kind::Chat => Content::Message { role: "assistant", content: text },
                _ => Content::Text(text),
            };
            // A chat has one prompt and tells its ids beside the choices; a completion tells them in each.
            let ids = self.ids_of(index / self.choices_per_prompt).filter(|_| self.kind == Kind::Completion);
            let finish_reason = Some(self.finish_reason);
            Choice { index, prompt_token_ids: ids, content, logprobs: (), finish_reason }
        });
        let ids = self.ids_of(0).filter(|_| self.kind == Kind::Chat);
        self.envelope(object, choices.collect(), ids, Some(self.usage))
    }

    /// The chunk that opens a choice of a chat, with its role and no text.
    pub(crate) fn role_chunk(&self, index: usize) -> String {
        let content = Content::Delta(Delta { role: Some("assistant"), content: String::new() });
        self.chunk(
            vec![Choice { index, prompt_token_ids: None, content, logprobs: (), finish_reason: None }],
            None,
        )
    }

    /// The chunk of one token.
    pub(crate) fn token_chunk(&self, delivery: Delivery) -> String {
        if self.kind.is_native() {
            return native::event(self, delivery).to_string();
        }
        let text = text_of(self.choices[delivery.sequence][delivery.index as usize]);
        let content = match self.kind {
            Kind::Chat => Content::Delta(Delta { role: None, content: text }),
            _ => Content::Text(text),
        };
        let finish_reason = delivery.last.then_some(self.finish_reason);
        let index = delivery.sequence;
        self.chunk(vec![Choice { index, prompt_token_ids: None, content, logprobs: (), finish_reason }], None)
    }

    /// The chunk with the usage and no choice.
    pub(crate) fn usage_chunk(&self) -> String {
        self.chunk(Vec::new(), Some(self.usage))
    }

    fn ids_of(&self, prompt: usize) -> Option<&[u32]> {
        Some(self.prompt_token_ids.as_ref()?.get(prompt)?)
    }

    fn chunk(&self, choices: Vec<Choice<'_>>, usage: Option<Usage>) -> String {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        self.envelope(object, choices, None, usage)
    }

    fn envelope(
        &self,
        object: &'static str,
        choices: Vec<Choice<'_>>,
        prompt_token_ids: Option<&[u32]>,
        usage: Option<Usage>,
    ) -> String {
        let (created, model) = (self.created_s, &self.model);
        let envelope = Envelope { id: &self.id, object, created, model, choices, prompt_token_ids, usage };
        serde_json::to_string(&envelope).expect("strings and numbers serialise")
    }
}

pub(super) fn text_of(token: u32) -> String {
    token_text(token).expect("answers are made of words")
}
