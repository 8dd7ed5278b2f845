//! Turns what a body asks about into tokens: the messages of a chat, or the prompts of a completion.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use crate::tokens::{ChatTokens, Tokenizer};

/// Tokens of a chat: tools first, then every message, then the opening of the answer.
pub(crate) fn chat_prompt(fields: &Fields, tokenizer: Tokenizer) -> Result<Vec<u32>, ApiError> {
    let messages =
        fields.required("messages")?.as_array().ok_or_else(|| wrong_type("body.messages", "a list"))?;
    if messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(ApiError::BadValue { param: None, message: message.to_owned() });
    }
    let mut chat = ChatTokens::new(tokenizer);
    if let Some(tools) = fields.get("tools") {
        chat.begin("tools");
        match tokenizer {
            Tokenizer::Pieces => chat.text(&tools.to_string()),
            Tokenizer::Bytes => {
                tools.as_array().into_iter().flatten().for_each(|tool| push_tool(&mut chat, tool))
            }
        }
        chat.end();
    }
    for (index, message) in messages.iter().enumerate() {
        let place = format!("body.messages.{index}");
        let role = message.get("role").and_then(Value::as_str);
        chat.begin(role.ok_or_else(|| wrong_type(&format!("{place}.role"), "a role"))?);
        push_content(
            &mut chat,
            message.get("content").unwrap_or(&Value::Null),
            &place,
            // As vLLM joins the texts of one message.
            if tokenizer == Tokenizer::Bytes { "\n" } else { "" },
        )?;
        match message.get("tool_calls").filter(|calls| !calls.is_null()) {
            None => {}
            Some(calls) if tokenizer == Tokenizer::Pieces => chat.item(calls.to_string().as_bytes()),
            Some(calls) => {
                calls
                    .as_array()
                    .into_iter()
                    .flatten()
                    .for_each(|call| chat.call(text_at(call, "/function/name")));
            }
        }
        chat.end();
    }
    Ok(chat.into_prompt())
}

/// A tool in a form that a template can write as well: name, description, an empty line.
fn push_tool(chat: &mut ChatTokens, tool: &Value) {
    for part in ["/function/name", "/function/description"] {
        chat.text(text_at(tool, part));
        chat.text("\n");
    }
}

fn text_at<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A message's content: text, nothing, or a list of parts. Neighbouring text parts are one text.
fn push_content(chat: &mut ChatTokens, content: &Value, place: &str, joint: &str) -> Result<(), ApiError> {
    let parts = match content {
        Value::Null => return Ok(()),
        Value::String(text) => {
            chat.text(text);
            return Ok(());
        }
        Value::Array(parts) => parts,
        _ => {
            return Err(wrong_type(&format!("{place}.content"), "a string or a list of parts"));
        }
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        if let Some(piece) = part.as_str().or_else(|| part.get("text").and_then(Value::as_str)) {
            if !text.is_empty() {
                text.push_str(joint);
            }
            text.push_str(piece);
        } else if part.get("type").is_some_and(Value::is_string) {
            chat.text(&std::mem::take(&mut text));
            chat.item(part.to_string().as_bytes());
        } else {
            return Err(wrong_type(&format!("{place}.content.{index}"), "a content part"));
        }
    }
    chat.text(&text);
    Ok(())
}

/// Tokens of each prompt in `name`: a text, a list of texts, a list of token ids, or a list of such lists.
pub(crate) fn plain_prompts(
    fields: &Fields,
    name: &'static str,
    tokenizer: Tokenizer,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let empty = || {
        let message = format!("{name} must be provided and non-empty. (parameter={name})");
        ApiError::bad_value(name, message)
    };
    let value = fields.get(name).ok_or_else(empty)?;
    let prompts = match value {
        Value::String(text) => vec![tokenizer.text_tokens(text)],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![token_ids(items, name)?]
        }
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(tokenizer.text_tokens(text)),
                Value::Array(ids) => token_ids(ids, name),
                _ => Err(wrong_type(&format!("body.{name}"), "a text or a list of token ids")),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong_type(&format!("body.{name}"), "texts or token ids")),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(empty());
    }
    Ok(prompts)
}

fn token_ids(items: &[Value], name: &str) -> Result<Vec<u32>, ApiError> {
    items
        .iter()
        .map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| wrong_type(&format!("body.{name}"), "token ids from 0 to 2^32 - 1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tokens::text_tokens;

    fn chat(body: &Value) -> Result<Vec<u32>, ApiError> {
        chat_prompt(&Fields::parse(body.to_string().as_bytes()).unwrap(), Tokenizer::Pieces)
    }

    fn prompts(body: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
        plain_prompts(&Fields::parse(body.to_string().as_bytes()).unwrap(), "prompt", Tokenizer::Pieces)
    }

    #[test]
    fn equal_leading_messages_are_equal_leading_tokens() {
        let system = json!({"role": "system", "content": "Be brief, please."});
        let short = chat(&json!({"messages": [system]})).unwrap();
        let long = chat(&json!({"messages": [system, {"role": "user", "content": "x"}]})).unwrap();
        let opening = chat(&json!({"messages": [{"role": "a"}]})).unwrap().len() - 4;
        assert!(long.starts_with(&short[..short.len() - opening]));
    }

    #[test]
    fn text_parts_are_one_text_and_other_parts_count() {
        let joined = chat(&json!({"messages": [{"role": "user", "content": "one two"}]})).unwrap();
        let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]);
        assert_eq!(chat(&json!({"messages": [{"role": "user", "content": parts}]})).unwrap(), joined);
        let image = json!([{"type": "text", "text": "one two"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]);
        assert_eq!(
            chat(&json!({"messages": [{"role": "user", "content": image}]})).unwrap().len(),
            joined.len() + 3
        );
    }

    #[test]
    fn tools_come_before_the_messages() {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let plain = chat(&json!({"messages": messages})).unwrap();
        let tooled = chat(&json!({"messages": messages, "tools": [{"type": "function"}]})).unwrap();
        assert!(tooled.ends_with(&plain) && tooled.len() > plain.len());
    }

    #[test]
    fn prompts_come_in_four_shapes() {
        assert_eq!(prompts(&json!({"prompt": "abcd"})).unwrap(), [text_tokens("abcd")]);
        assert_eq!(
            prompts(&json!({"prompt": ["ab", "cd"]})).unwrap(),
            [text_tokens("ab"), text_tokens("cd")]
        );
        assert_eq!(prompts(&json!({"prompt": [1, 2]})).unwrap(), [vec![1, 2]]);
        assert_eq!(prompts(&json!({"prompt": [[1, 2], [3]]})).unwrap(), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn what_is_no_prompt_is_refused() {
        for body in [
            json!({}),
            json!({"prompt": ""}),
            json!({"prompt": []}),
            json!({"prompt": [-1]}),
            json!({"prompt": 5}),
        ] {
            assert!(prompts(&body).is_err(), "{body}");
        }
        let bad_messages = [
            json!(null),
            json!("x"),
            json!([]),
            json!(["x"]),
            json!([{"content": "no role"}]),
            json!([{"role": 5}]),
            json!([{"role": "user", "content": 5}]),
            json!([{"role": "user", "content": [5]}]),
        ];
        for messages in bad_messages {
            assert!(chat(&json!({ "messages": messages })).is_err(), "{messages}");
        }
    }

    #[test]
    fn a_worker_that_tells_of_its_cache_writes_a_chat_as_its_template_does() {
        let body = json!({
            "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]},
            ],
        });
        let tokens =
            chat_prompt(&Fields::parse(body.to_string().as_bytes()).unwrap(), Tokenizer::Bytes).unwrap();
        let text: String = tokens
            .into_iter()
            .map(|token| match u8::try_from(token) {
                Ok(byte) => char::from(byte).to_string(),
                Err(_) => crate::byte_tokens::MARKERS[token as usize - 256].to_owned(),
            })
            .collect();
        assert_eq!(
            text,
            "<|message|>tools<|content|>f\nd\n<|end|><|message|>user<|content|>a\nb<|end|>\
             <|message|>assistant<|content|><|item|>f<|end|><|message|>assistant<|content|>"
        );
    }
}
