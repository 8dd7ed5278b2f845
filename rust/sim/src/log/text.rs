//! The text of a chat, laid out as the gateway lays it out (`rust/gateway/src/prompt/text.rs`): role, unit separator, text, record
//! separator for each message.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::LoggedRequest;

const UNIT_SEPARATOR: u8 = 0x1f;
const RECORD_SEPARATOR: u8 = 0x1e;
/// Before the hash that stands for a part that is no text.
const GROUP_SEPARATOR: u8 = 0x1d;
/// Contents within contents that are looked into.
const MAX_DEPTH: u32 = 8;

/// Appends a message of this role.
pub(super) fn push_framed(text: &mut Vec<u8>, role: &[u8], content: &[u8]) {
    text.extend_from_slice(role);
    text.push(UNIT_SEPARATOR);
    text.extend_from_slice(content);
    text.push(RECORD_SEPARATOR);
}

/// Appends what an engine puts before a conversation as the system's message, if it has text.
pub(super) fn push_lead(text: &mut Vec<u8>, lead: &Value) {
    let mut content = Vec::new();
    push_content(&mut content, lead, 0);
    if !content.is_empty() {
        push_framed(text, b"system", &content);
    }
}

/// Appends the messages of a chat, or the items of a Responses conversation, to the prompt. `false` if there are none.
pub(super) fn push_messages(request: &mut LoggedRequest, messages: &[Value]) -> bool {
    // Of several conversations the first one counts.
    let messages = match messages.first() {
        Some(Value::Array(first)) => first,
        _ => messages,
    };
    for (number, message) in messages.iter().enumerate() {
        let text = &mut request.prompt;
        let Value::Object(fields) = message else {
            text.extend(message.as_str().unwrap_or_default().bytes());
            continue;
        };
        let mut content = Vec::new();
        for key in ["content", "output", "arguments"] {
            push_content(&mut content, fields.get(key).unwrap_or(&Value::Null), 0);
        }
        let calls = fields.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
        if let Some(calls) = calls {
            let calls = serde_json::to_string(calls).expect("values are always JSON");
            content.extend_from_slice(calls.as_bytes());
        }
        let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
        let start = text.len();
        push_framed(text, role.as_bytes(), &content);
        if role == "assistant" && number > 0 && number + 1 < messages.len() {
            request.answer = Some(start..text.len() - 1);
        }
    }
    !messages.is_empty()
}

/// A string, or a list of parts without anything between them.
fn push_content(text: &mut Vec<u8>, content: &Value, depth: u32) {
    match content {
        Value::String(piece) => text.extend_from_slice(piece.as_bytes()),
        Value::Array(parts) if depth < MAX_DEPTH => {
            parts.iter().for_each(|part| push_part(text, part, depth));
        }
        _ => {}
    }
}

fn push_part(text: &mut Vec<u8>, part: &Value, depth: u32) {
    let Value::Object(fields) = part else {
        text.extend(part.as_str().unwrap_or_default().bytes());
        return;
    };
    if let Some(inner) = fields.get("text").or_else(|| fields.get("content")) {
        return push_content(text, inner, depth + 1);
    }
    let others: Vec<_> =
        fields.iter().filter(|(key, _)| !matches!(key.as_str(), "type" | "cache_control")).collect();
    if !others.is_empty() {
        let others = serde_json::to_vec(&others).expect("values are always JSON");
        text.push(GROUP_SEPARATOR);
        text.extend_from_slice(&xxh3_64(&others).to_le_bytes());
    }
}
