//! The engines' own `generate` routes: SGLang's, and TGI's.
//!
//! SGLang streams the whole text so far with each token and its usage; TGI streams the token alone, and the text with the last.

use serde_json::{Value, json};

use super::answer::{Answer, Kind, text_of};
use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::generate::Ask;
use super::prompt::plain_prompts;
use crate::driver::Delivery;
use crate::tokens::Tokenizer;

/// What a body for SGLang's `/generate` asks for: `text` or `input_ids`, and `sampling_params`.
pub(super) fn sglang_ask(fields: &Fields) -> Result<Ask, ApiError> {
    let name = if fields.get("input_ids").is_some() { "input_ids" } else { "text" };
    Ok(Ask {
        prompts: plain_prompts(fields, name, Tokenizer::Pieces)?,
        limit: nested_count(fields, "sampling_params", "max_new_tokens")?,
        choices_per_prompt: 1,
        stream: fields.flag("stream")?,
        include_usage: false,
        return_token_ids: false,
    })
}

/// What a body for TGI's `/generate` or `/generate_stream` asks for: `inputs`, and `parameters`.
pub(super) fn tgi_ask(fields: &Fields, stream: bool) -> Result<Ask, ApiError> {
    Ok(Ask {
        prompts: plain_prompts(fields, "inputs", Tokenizer::Pieces)?,
        limit: nested_count(fields, "parameters", "max_new_tokens")?,
        choices_per_prompt: 1,
        stream,
        include_usage: false,
        return_token_ids: false,
    })
}

/// A whole number of at least 1 in an object that may be left out.
fn nested_count(fields: &Fields, object: &str, name: &str) -> Result<Option<u32>, ApiError> {
    let Some(value) = fields.get(object).and_then(|object| object.get(name)).filter(|value| !value.is_null())
    else {
        return Ok(None);
    };
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|&count| count > 0);
    count.map(Some).ok_or_else(|| wrong_type(&format!("body.{object}.{name}"), "a whole number above 0"))
}

/// The whole answer; SGLang answers several prompts with a list.
pub(super) fn whole(answer: &Answer) -> Value {
    let mut answers: Vec<Value> = (0..answer.choices.len())
        .map(|choice| match answer.kind {
            Kind::Tgi => json!({"generated_text": text(answer, choice, usize::MAX)}),
            _ => sglang_answer(answer, choice, answer.choices[choice].len()),
        })
        .collect();
    if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) }
}

/// The event of one token.
pub(super) fn event(answer: &Answer, delivery: Delivery) -> Value {
    let (choice, tokens) = (delivery.sequence, delivery.index as usize + 1);
    if answer.kind != Kind::Tgi {
        return sglang_answer(answer, choice, tokens);
    }
    let token = answer.choices[choice][tokens - 1];
    let last = delivery.last.then(|| text(answer, choice, tokens));
    let details = delivery
        .last
        .then(|| json!({"finish_reason": answer.finish_reason, "generated_tokens": tokens, "seed": null}));
    json!({
        "index": tokens,
        "token": {"id": token, "text": text_of(token), "logprob": 0.0, "special": false},
        "generated_text": last,
        "details": details,
    })
}

fn sglang_answer(answer: &Answer, choice: usize, tokens: usize) -> Value {
    let is_last = tokens == answer.choices[choice].len();
    let reason = is_last.then(|| json!({"type": answer.finish_reason, "length": tokens}));
    json!({
        "text": text(answer, choice, tokens),
        "output_ids": answer.choices[choice][..tokens],
        "meta_info": {
            "id": answer.id,
            "finish_reason": reason,
            "prompt_tokens": answer.usage.prompt_tokens,
            "completion_tokens": tokens,
            "cached_tokens": answer.usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens),
        },
    })
}

/// The text of the first so many tokens of a choice.
fn text(answer: &Answer, choice: usize, tokens: usize) -> String {
    answer.choices[choice].iter().take(tokens).map(|&token| text_of(token)).collect()
}
