//! A request as a JSON line: a body in OpenAI's form, alone or under `body` or `request` (also as a string).
//!
//! Its time is under `timestamp`, `time`, `ts` or `created`: seconds, milliseconds if above 10^11, or ISO 8601. What the engine counted
//! is in `usage`, of the line, of `response` or of `response.body`. Of a repeated key the last one counts.

use std::collections::HashMap;

use memchr::memchr3_iter;
use serde_json::Value;
use serde_json::value::RawValue;

use super::time::seconds;
use super::{LoggedRequest, NoRequest, text};

/// Keys that hold a prompt where there are no messages.
const PROMPTS: [&str; 6] = ["prompt", "input", "inputs", "text", "input_ids", "token_ids"];
/// Keys that hold text before a conversation.
const LEADS: [&str; 2] = ["system", "instructions"];

/// Memory that the values of a line may take while it is read: a million token ids, which are longer than any context.
const MAX_VALUES_BYTES: usize = 160 << 20;
/// What an object takes at most, and what another value: a list that holds one, or a key with its value. Measured.
const OBJECT_BYTES: usize = 640;
const VALUE_BYTES: usize = 160;

/// The values of an object, unread.
type Fields<'a> = HashMap<String, &'a RawValue>;

fn fields(json: &str) -> Result<Fields<'_>, NoRequest> {
    if values_bytes(json.as_bytes()) > MAX_VALUES_BYTES {
        return Err(format!("values that may take more than {} MiB", MAX_VALUES_BYTES >> 20).into());
    }
    serde_json::from_str(json).map_err(|problem| unreadable(&problem))
}

/// Most that the values of `json` can take: each begins at the start, behind a comma or in something that opens. Text counts as well,
/// with less than it takes a model: a token for each comma or bracket.
fn values_bytes(json: &[u8]) -> usize {
    if json.len() < MAX_VALUES_BYTES / OBJECT_BYTES {
        return 0;
    }
    let bytes = |at: usize| if json[at] == b'{' { OBJECT_BYTES } else { VALUE_BYTES };
    memchr3_iter(b',', b'[', b'{', json).map(bytes).sum()
}

/// What is wrong, without a word of what was logged: of a value of another type the parser's own message quotes all of it.
fn unreadable(problem: &serde_json::Error) -> NoRequest {
    if problem.is_data() { "no JSON object".into() } else { problem.to_string().into() }
}

fn value(fields: &Fields<'_>, key: &str) -> Option<Value> {
    fields.get(key).and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// Reads a line.
pub(super) fn request(line: &str) -> Result<LoggedRequest, NoRequest> {
    let row = fields(line)?;
    let at_s = ["timestamp", "time", "ts", "created"].iter().find_map(|key| seconds(&value(&row, key)?));
    let usage = usage(&row).unwrap_or_default();
    let counted = |key: &str| usage.get(key).and_then(Value::as_u64);
    let body = ["body", "request"].iter().find_map(|key| row.get(*key));
    let mut request = match body.map(|body| body.get()) {
        Some(body) if body.starts_with('"') => {
            let body: String = serde_json::from_str(body).map_err(|problem| unreadable(&problem))?;
            read_body(&fields(&body)?)?
        }
        Some(body) if body.starts_with('{') => read_body(&fields(body)?)?,
        _ => read_body(&row)?,
    };
    request.at_s = at_s;
    request.prompt_tokens = counted("prompt_tokens").or_else(|| counted("input_tokens"));
    let answered = counted("completion_tokens").or_else(|| counted("output_tokens"));
    request.output_tokens = answered.map(bounded).or(request.output_tokens);
    Ok(request)
}

/// Lengths of answers are believed up to 2^20.
pub(super) fn bounded(tokens: u64) -> u32 {
    tokens.min(1 << 20) as u32
}

fn usage(row: &Fields<'_>) -> Option<Value> {
    let response = value(row, "response").unwrap_or_default();
    let places =
        [value(row, "usage"), response.get("usage").cloned(), response.pointer("/body/usage").cloned()];
    places.into_iter().flatten().find(Value::is_object)
}

fn read_body(body: &Fields<'_>) -> Result<LoggedRequest, NoRequest> {
    let mut request = LoggedRequest::default();
    for key in ["model", "cache_salt"] {
        if let Some(Value::String(name)) = value(body, key) {
            request.root = request.root.with(key, name.as_bytes());
        }
    }
    if let Some(tools) =
        body.get("tools").map(|tools| tools.get()).filter(|tools| !matches!(*tools, "null" | "[]"))
    {
        text::push_framed(&mut request.prompt, b"tools", tools.as_bytes());
        request.tools_bytes = request.prompt.len();
    }
    for lead in LEADS.iter().filter_map(|key| value(body, key)) {
        text::push_lead(&mut request.prompt, &lead);
    }
    if !push_prompt(&mut request, body) {
        return Err(why_no_prompt(body));
    }
    if request.prompt.is_empty() {
        return Err("an empty prompt".into());
    }
    let asked = value(body, "max_completion_tokens").or_else(|| value(body, "max_tokens"));
    request.output_tokens = asked.and_then(|asked| asked.as_u64()).map(bounded);
    Ok(request)
}

/// Half a surrogate pair, or lists within lists without end, are JSON that no text can be made of.
fn why_no_prompt(body: &Fields<'_>) -> NoRequest {
    let faulty = ["messages"].iter().chain(&PROMPTS).find_map(|key| {
        let problem = serde_json::from_str::<Value>(body.get(*key)?.get()).err()?;
        Some(format!("{key}: {problem}"))
    });
    faulty.unwrap_or_else(|| "no messages, prompt or input".to_owned()).into()
}

/// Appends what is asked. `false` if nothing is.
fn push_prompt(request: &mut LoggedRequest, body: &Fields<'_>) -> bool {
    if let Some(Value::Array(messages)) = value(body, "messages")
        && text::push_messages(request, &messages)
    {
        return true;
    }
    PROMPTS.iter().filter_map(|key| value(body, key)).any(|prompt| push_one(request, &prompt))
}

/// A text, the first of several, token ids, the first of several lists of them, or items of a conversation.
fn push_one(request: &mut LoggedRequest, prompt: &Value) -> bool {
    match prompt {
        Value::String(prompt) => {
            request.prompt.extend_from_slice(prompt.as_bytes());
            true
        }
        Value::Array(items) => match items.first() {
            Some(Value::Object(_)) => text::push_messages(request, items),
            Some(Value::Number(_)) => push_ids(request, items),
            Some(first) => push_one(request, first),
            None => false,
        },
        _ => false,
    }
}

fn push_ids(request: &mut LoggedRequest, ids: &[Value]) -> bool {
    let ids: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
    let Some(ids) = ids else { return false };
    request.set_ids(&ids);
    true
}

impl LoggedRequest {
    /// Makes these token ids the whole prompt.
    pub(super) fn set_ids(&mut self, ids: &[u32]) {
        self.prompt.clear();
        self.prompt.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        (self.tools_bytes, self.answer) = (0, None);
        self.is_tokens = true;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(body: &Value) -> Option<String> {
        request(&body.to_string()).ok().map(|request| String::from_utf8(request.prompt).unwrap())
    }

    #[test]
    fn text_is_laid_out_as_in_the_gateway() {
        let user = json!([{"role": "user", "content": "hi"}]);
        let hi = "user\x1fhi\x1e";
        for (body, wanted) in [
            (json!({"messages": user}), hi),
            (json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}), hi),
            (json!({"messages": [{"role": "user", "content": ["h", {"type": "text", "text": "i"}]}]}), hi),
            (json!({"messages": [{"role": "user", "content": null}]}), "user\x1f\x1e"),
            (json!({"messages": [user, []]}), hi),
            (json!({"prompt": "hi"}), "hi"),
            (json!({"prompt": ["hi", "there"]}), "hi"),
            (json!({"input": "hi", "instructions": "be"}), "system\x1fbe\x1ehi"),
            (json!({"input": "hi", "text": {"format": "x"}}), "hi"),
            (json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}), hi),
            (
                json!({"input": [{"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "1"}]}),
                "\x1f{}\x1e\x1f1\x1e",
            ),
            (json!({"messages": user, "system": "be"}), "system\x1fbe\x1euser\x1fhi\x1e"),
            (
                json!({"messages": user, "system": [{"type": "text", "text": "be"}]}),
                "system\x1fbe\x1euser\x1fhi\x1e",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "hi"}]}]}]}),
                hi,
            ),
            (json!({"body": {"messages": user, "prompt": "no"}}), hi),
            (json!({"request": "{\"inputs\": \"hi\"}"}), "hi"),
            (json!({"tools": [{"a": 1}], "messages": user}), "tools\x1f[{\"a\":1}]\x1euser\x1fhi\x1e"),
            (json!({"tools": [], "messages": user}), hi),
        ] {
            assert_eq!(prompt(&body).as_deref(), Some(wanted), "{body}");
        }
    }

    #[test]
    fn the_last_answer_within_a_chat_is_known() {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let (ask, say) = (message("user", "one"), message("assistant", "two"));
        let read = |messages: Value| request(&json!({ "messages": messages }).to_string()).unwrap();
        let first = read(json!([ask]));
        let next = read(json!([ask, say, message("user", "three")]));
        let answer = next.answer.clone().unwrap();
        assert_eq!(
            (&next.prompt[..answer.start], &next.prompt[answer]),
            (first.prompt.as_slice(), &b"assistant\x1ftwo"[..])
        );
        // Nobody asked before the first one, and the last one is still to be continued.
        assert_eq!([read(json!([say, ask])).answer, read(json!([ask, say])).answer], [None, None]);
    }

    #[test]
    fn what_is_no_request_says_why() {
        for (line, why) in [
            ("{}", "no messages"),
            (r#"{"prompt": ""}"#, "an empty prompt"),
            (r#"{"prompt": 5}"#, "no messages"),
            (r#"{"prompt": [1, -2]}"#, "no messages"),
            (r#"{"body": "{"}"#, "EOF"),
            (r#"{"broken"#, "EOF"),
            (r#"{"prompt": "\udfff x"}"#, "prompt: lone leading surrogate"),
            (
                &format!(r#"{{"messages": {}"#, "[".repeat(200) + &"]".repeat(200) + "}"),
                "messages: recursion limit",
            ),
        ] {
            match request(line) {
                Err(NoRequest::Broken(problem)) => assert!(problem.contains(why), "{line}: {problem}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_line_whose_values_may_take_too_much_is_refused_unread() {
        let most = MAX_VALUES_BYTES / VALUE_BYTES;
        let ids = |count: usize| format!(r#"{{"prompt":[1{}]}}"#, ",1".repeat(count - 1));
        let objects = "{}".repeat(MAX_VALUES_BYTES / OBJECT_BYTES);
        let commas = r#"\u002c\"\":0"#.repeat(most);
        assert!(request(&ids(most - 5)).is_ok());
        for line in [
            ids(most),
            format!(r#"{{"prompt":[{objects}]}}"#),
            format!(r#"{{"body":"{{\"prompt\":\"hi\"{commas}}}"}}"#),
        ] {
            let refused = NoRequest::Broken("values that may take more than 160 MiB".into());
            assert_eq!(request(&line), Err(refused), "{}", &line[..20]);
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_what_was_logged() {
        let body = |body: &str| json!({ "body": body }).to_string();
        for line in [
            body(r#""secret""#),
            body("271828"),
            body(r#"["secret"]"#),
            body(r#"{"prompt": secret}"#),
            r#"{"prompt": {"secret": 271828}}"#.to_owned(),
            r#"{"prompt": "secret"#.to_owned(),
        ] {
            match request(&line) {
                Err(NoRequest::Broken(problem)) => {
                    assert!(!problem.contains("secret") && !problem.contains("271828"), "{problem}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn token_ids_times_and_lengths_are_read() {
        let read =
            request(r#"{"request": "{\"prompt\": [7, 8], \"max_tokens\": 5}", "created": 12}"#).unwrap();
        assert_eq!(
            (read.is_tokens, read.prompt.len(), read.at_s, read.output_tokens),
            (true, 8, Some(12.0), Some(5))
        );
        let read = request(
            r#"{"prompt": "x", "max_tokens": 5, "timestamp": "2026-11-30T00:00:01Z",
                "response": {"body": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}}}"#,
        )
        .unwrap();
        assert_eq!(
            (read.at_s, read.prompt_tokens, read.output_tokens),
            (Some(1_795_996_801.0), Some(3), Some(2))
        );
    }

    #[test]
    fn an_image_is_another_prompt_and_models_are_apart() {
        let image = |url: &str| json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]});
        let read = |body: &Value| request(&body.to_string()).unwrap();
        assert_ne!(read(&image("a")).prompt, read(&image("b")).prompt);
        assert_eq!(read(&image("a")).prompt, read(&image("a")).prompt);
        assert_ne!(
            read(&json!({"prompt": "x", "model": "a"})).root,
            read(&json!({"prompt": "x", "model": "b"})).root
        );
    }
}
