//! Turns what a body asks about into tokens: the messages of a chat, or the prompts of a completion.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use crate::tokens::{ChatTokens, text_tokens};

/// Tokens of a chat: tools first, then every message, then the opening of the answer.
pub(crate) fn chat_prompt(fields: &Fields) -> Result<Vec<u32>, ApiError> {
    let messages =
        fields.required("messages")?.as_array().ok_or_else(|| wrong_type("body.messages", "a list"))?;
    if messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(ApiError::BadValue { param: None, message: message.to_owned() });
    }
    let mut chat = ChatTokens::default();
    if let Some(tools) = fields.get("tools") {
        chat.begin("tools");
        chat.text(&tools.to_string());
        chat.end();
    }
    for (index, message) in messages.iter().enumerate() {
        let place = format!("body.messages.{index}");
        let role = message.get("role").and_then(Value::as_str);
        chat.begin(role.ok_or_else(|| wrong_type(&format!("{place}.role"), "a role"))?);
        push_content(&mut chat, message.get("content").unwrap_or(&Value::Null), &place)?;
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            chat.item(calls.to_string().as_bytes());
        }
        chat.end();
    }
    Ok(chat.into_prompt())
}

/// A message's content: text, nothing, or a list of parts. Neighbouring text parts are one text.
fn push_content(chat: &mut ChatTokens, content: &Value, place: &str) -> Result<(), ApiError> {
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
pub(crate) fn plain_prompts(fields: &Fields, name: &'static str) -> Result<Vec<Vec<u32>>, ApiError> {
    let empty = || {
        let message = format!("{name} must be provided and non-empty. (parameter={name})");
        ApiError::bad_value(name, message)
    };
    let value = fields.get(name).ok_or_else(empty)?;
    let prompts = match value {
        Value::String(text) => vec![text_tokens(text)],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![token_ids(items, name)?]
        }
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text_tokens(text)),
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

    fn chat(body: &Value) -> Result<Vec<u32>, ApiError> {
        chat_prompt(&Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn prompts(body: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
        plain_prompts(&Fields::parse(body.to_string().as_bytes()).unwrap(), "prompt")
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
}
