//! The locator against a plain model on `serde_json::Value`, and the odd bodies that clients send.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The joined text, or the token ids, that `read` finds.
#[derive(Debug, PartialEq)]
enum Seen {
    Unreadable,
    Nothing,
    Text(String),
    Tokens(Vec<u32>),
}

fn see(class: PathClass, body: &[u8]) -> Seen {
    let Some(located) = Located::read(class, body) else { return Seen::Unreadable };
    let seen = located.with_prompt(|prompt| match prompt {
        Prompt::Tokens(ids) => Seen::Tokens(ids.to_vec()),
        Prompt::Text(pieces) => Seen::Text(String::from_utf8_lossy(&pieces.concat()).into_owned()),
        Prompt::WideTokens(_) => unreachable!("the locator has no wide tokens"),
    });
    seen.unwrap_or(Seen::Nothing)
}

fn text(text: &str) -> Seen {
    Seen::Text(text.into())
}

fn root(class: PathClass, body: &Value) -> Root {
    Located::read(class, body.to_string().as_bytes()).unwrap().root(None)
}

#[test]
fn turns_of_a_conversation_have_one_hash() {
    use PathClass as C;
    let of =
        |class, body: Value| Located::read(class, body.to_string().as_bytes()).unwrap().conversation_hash(7);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let (system, first) = (message("system", &"Be kind. ".repeat(1000)), message("user", "Who?"));
    let begun = of(C::Chat, json!({"messages": [system, first]}));
    assert!(begun.is_some());
    let later = json!({"messages": [system, first, message("assistant", "Me."), message("user", "Why?")]});
    assert_eq!(of(C::Chat, later), begun);
    assert_ne!(of(C::Chat, json!({"messages": [system, message("user", "What?")]})), begun);
    assert_ne!(of(C::Chat, json!({"messages": [first]})), begun, "of another system prompt");
    let input = of(C::Responses, json!({"input": [first]}));
    assert_eq!(of(C::Responses, json!({"input": [first, message("assistant", "Me.")]})), input);
    let long = "word ".repeat(1000);
    let of_prompt = |tail: &str| of(C::Completions, json!({"prompt": format!("{long}{tail}")}));
    assert_eq!(of_prompt("a"), of_prompt("b"), "4,096 characters stand for the whole");
    let of_tokens = |last: u32| of(C::Completions, json!({"prompt": vec![last; 8]}));
    assert_ne!(of_tokens(1), of_tokens(2));
    assert_eq!(of(C::Chat, json!({"messages": []})), None);
}

#[test]
fn finds_the_prompt_of_every_shape() {
    use PathClass as C;
    let hi = "user\x1fhi\x1e";
    let user = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        (C::Chat, json!({"messages": user}), text(hi)),
        (
            C::Chat,
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
            text(hi),
        ),
        (
            C::Chat,
            json!({"messages": [{"role": "user", "content": ["h", {"type": "text", "text": "i"}]}]}),
            text(hi),
        ),
        (C::Chat, json!({"messages": [{"role": "user", "content": null}]}), text("user\x1f\x1e")),
        (C::Chat, json!({"messages": []}), Seen::Nothing),
        (C::Chat, json!({"messages": 7}), Seen::Nothing),
        (C::Chat, json!({"prompt": "hi"}), Seen::Nothing),
        (C::Completions, json!({"prompt": "hi"}), text("hi")),
        (C::Completions, json!({"prompt": ""}), Seen::Nothing),
        (C::Completions, json!({"prompt": ["hi", "there"]}), text("hi")),
        (C::Completions, json!({"prompt": [1, 2, 4294967295u32]}), Seen::Tokens(vec![1, 2, u32::MAX])),
        (C::Completions, json!({"prompt": [[1, 2], [3]]}), Seen::Tokens(vec![1, 2])),
        (C::Completions, json!({"prompt": [1, -2]}), Seen::Nothing),
        (C::Completions, json!({"prompt": [1, 2.5, "x"]}), Seen::Nothing),
        (C::Completions, json!({"prompt": [4294967296u64]}), Seen::Nothing),
        (C::Completions, json!({"prompt": []}), Seen::Nothing),
        (C::Completions, json!({"prompt": {"a": 1}}), Seen::Nothing),
        (C::Embeddings, json!({"input": ["a", "b"]}), text("a")),
        (C::Embeddings, json!({"input": [[1, 2], [3]]}), Seen::Tokens(vec![1, 2])),
        (C::Responses, json!({"input": "hi", "instructions": "be"}), text("system\x1fbe\x1ehi")),
        (
            C::Responses,
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}),
            text(hi),
        ),
        (
            C::Responses,
            json!({"input": [{"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "1"}]}),
            text("\x1f{}\x1e\x1f1\x1e"),
        ),
        (C::Responses, json!({"input": "hi", "text": {"format": "x"}}), text("hi")),
        (C::Messages, json!({"messages": user, "system": "be"}), text("system\x1fbe\x1euser\x1fhi\x1e")),
        (
            C::Messages,
            json!({"messages": user, "system": [{"type": "text", "text": "be"}]}),
            text("system\x1fbe\x1euser\x1fhi\x1e"),
        ),
        (
            C::Messages,
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "hi"}]}]}]}),
            text(hi),
        ),
        (C::Generate, json!({"text": "hi"}), text("hi")),
        (C::Generate, json!({"inputs": "hi"}), text("hi")),
        (C::Generate, json!({"input_ids": [5, 6]}), Seen::Tokens(vec![5, 6])),
        (C::Rerank, json!({"query": "q", "documents": ["a"]}), text("q")),
        (C::Score, json!({"text_1": "q", "text_2": ["a"]}), text("q")),
        (C::Score, json!({"query": "q", "items": ["a"]}), text("q")),
        (C::Chat, json!({"messages": [user, [{"role": "user", "content": "other"}]]}), text(hi)),
        (C::Tokenize, json!({"prompt": "hi"}), text("hi")),
        (C::Invocations, json!({"messages": user, "prompt": "no"}), text(hi)),
        (C::Invocations, json!({"prompt": "hi"}), text("hi")),
        (C::Invocations, json!({"inputs": "hi"}), text("hi")),
        (C::Other, json!({"prompt": "hi"}), Seen::Nothing),
    ];
    for (class, body, wanted) in cases {
        assert_eq!(see(class, body.to_string().as_bytes()), wanted, "{class:?} {body}");
    }
}

#[test]
fn escapes_and_raw_characters_are_one_prompt() {
    let raw = "{\"prompt\":\"日本 \u{1f600}/\"}";
    let escaped = r#"{"prompt":"\u65e5\u672c \ud83d\ude00\/"}"#;
    assert_eq!(see(PathClass::Completions, raw.as_bytes()), see(PathClass::Completions, escaped.as_bytes()));
}

#[test]
fn order_of_keys_does_not_matter_and_the_last_of_a_repeated_key_wins() {
    let bodies = [
        r#"{"messages":[{"role":"user","content":"x","content":"hi"}]}"#,
        r#"{"messages":[{"content":"hi","role":"user"}]}"#,
        r#"{"messages":[{"role":"a","content":"b"}],"messages":[{"role":"tool","role":"user","content":[{"text":"no"}],"content":[{"text":"x","text":"hi"}]}]}"#,
    ];
    for body in bodies {
        assert_eq!(see(PathClass::Chat, body.as_bytes()), text("user\x1fhi\x1e"), "{body}");
    }
    let located =
        Located::read(PathClass::Chat, br#"{"model":"a","tools":[1],"model":"b","tools":[]}"#).unwrap();
    assert_eq!(located.model.as_deref(), Some("b"));
    assert_eq!(located.root(None), Root::default().with("model", b"b"));
}

#[test]
fn media_parts_stand_in_their_place() {
    let of = |url: &str| {
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        let body = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]}]});
        see(PathClass::Chat, body.to_string().as_bytes())
    };
    assert_eq!(of("data:1"), of("data:1"));
    assert_ne!(of("data:1"), of("data:2"));
    let Seen::Text(text) = of("data:1") else { panic!("no text") };
    assert!(text.starts_with("user\x1fa\x1d") && text.ends_with("b\x1e"), "{text:?}");
}

#[test]
fn what_parts_the_engines_cache_parts_the_root() {
    let plain = json!({"model": "m", "messages": []});
    let with = |key: &str, value: Value| {
        let mut body = plain.clone();
        body[key] = value;
        root(PathClass::Chat, &body)
    };
    let base = root(PathClass::Chat, &plain);
    for (key, value) in [
        ("model", json!("n")),
        ("cache_salt", json!("s")),
        ("prompt_cache_key", json!("t")),
        ("tools", json!([{"f": 1}])),
    ] {
        assert_ne!(with(key, value), base, "{key}");
    }
    for (key, value) in [
        ("tools", json!(null)),
        ("tools", json!([])),
        ("cache_salt", json!(null)),
        ("user", json!("u")),
        ("temperature", json!(1)),
    ] {
        assert_eq!(with(key, value), base, "{key}");
    }
    let located = Located::read(PathClass::Chat, b"{}").unwrap();
    assert_ne!(located.root(Some(b"tenant")), located.root(None));
}

#[test]
fn odd_bodies_are_unreadable_or_empty_but_never_a_panic() {
    let deep = |inner: &str, levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],"{inner}":{open}{close}}}"#)
    };
    // Deep where we do not look: read; deep where we do: not read, not overflowed.
    assert_eq!(see(PathClass::Chat, deep("metadata", 100_000).as_bytes()), text("user\x1fhi\x1e"));
    assert_eq!(see(PathClass::Chat, deep("tools", 100_000).as_bytes()), text("user\x1fhi\x1e"));
    let nested = format!(
        r#"{{"messages":[{{"content":{}1{}}}]}}"#,
        r#"[{"content":"#.repeat(50_000),
        "}]".repeat(50_000)
    );
    assert_eq!(see(PathClass::Chat, nested.as_bytes()), text("\x1f\x1e"));
    let unreadable: [&[u8]; 8] = [
        br#"{"model":"mock","messages":[{"role":"#,
        b"hello",
        b"",
        b"\xff",
        br#"{"messages":[{"content":"\ud800"}]}"#,
        br#"{"messages":[{"content":"x"}]}}"#,
        br#"{"messages":[{"content":"\ud800\u0041"}]}"#,
        b"\xef\xbb\xbf{}",
    ];
    for body in unreadable {
        assert_eq!(see(PathClass::Chat, body), Seen::Unreadable, "{}", String::from_utf8_lossy(body));
    }
    // What the worker will refuse may be read as well, as long as it does no harm.
    assert_eq!(see(PathClass::Chat, br#"{"messages":[{"content":1e999}]}"#), text("\x1f\x1e"));
    assert_eq!(see(PathClass::Chat, b"{\"messages\":[{\"content\":\"\xff\"}]}"), text("\x1f\u{fffd}\x1e"));
    for body in ["[1,2]", "null", "7", "\"x\"", "true", "{}", r#"{"messages":{"a":[1]}}"#, r#"{"model":7}"#] {
        assert_eq!(see(PathClass::Chat, body.as_bytes()), Seen::Nothing, "{body}");
    }
}

/// The plain model: what `see` must find in the messages of a body.
fn rendered(messages: &Value) -> Seen {
    fn content(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().map(part).collect(),
            _ => String::new(),
        }
    }
    fn part(part: &Value) -> String {
        match part {
            Value::String(text) => text.clone(),
            Value::Object(fields) => {
                if let Some(text) = fields.get("text") {
                    return text.as_str().unwrap_or_default().to_owned();
                }
                String::new()
            }
            _ => String::new(),
        }
    }
    let Value::Array(messages) = messages else { return Seen::Nothing };
    let mut out = String::new();
    for message in messages {
        match message {
            Value::String(text) => out += text,
            Value::Object(fields) => {
                let of = |key: &str| fields.get(key).map(content).unwrap_or_default();
                out += &format!("{}\x1f{}{}{}", of("role"), of("content"), of("output"), of("arguments"));
                match fields.get("tool_calls") {
                    None | Some(Value::Null) => {}
                    Some(Value::Array(calls)) if calls.is_empty() => {}
                    Some(calls) => out += &calls.to_string(),
                }
                out.push('\x1e');
            }
            _ => {}
        }
    }
    if out.is_empty() { Seen::Nothing } else { Seen::Text(out) }
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\\\\\"\n/ é日😀]{0,20}".prop_map(Value::from),
    ]
}

fn conversation() -> impl Strategy<Value = Value> {
    let part = prop_oneof![
        leaf(),
        leaf().prop_map(|text| json!({"type": "text", "text": text})),
        Just(json!({"type": "text"}))
    ];
    let content = prop_oneof![leaf(), proptest::collection::vec(part, 0..4).prop_map(Value::from)];
    let calls = prop_oneof![leaf(), proptest::collection::vec(leaf(), 0..3).prop_map(Value::from)];
    let message = prop_oneof![
        8 => (leaf(), content.clone(), proptest::option::of(calls), proptest::option::of(content), leaf()).prop_map(
            |(role, content, calls, output, other)| {
                let mut message = json!({"content": content, "role": role, "name": other});
                if let Some(calls) = calls {
                    message["tool_calls"] = calls;
                }
                if let Some(output) = output {
                    message["output"] = output;
                }
                message
            }
        ),
        1 => leaf(),
    ];
    prop_oneof![1 => leaf(), 12 => proptest::collection::vec(message, 0..6).prop_map(Value::from)]
}

/// The same JSON with every character of every string escaped.
fn escape_all(json: &str) -> String {
    let value: Value = serde_json::from_str(json).unwrap();
    fn write(value: &Value, out: &mut String) {
        let string = |text: &str, out: &mut String| {
            out.push('"');
            for unit in text.encode_utf16() {
                out.push_str(&format!("\\u{unit:04x}"));
            }
            out.push('"');
        };
        match value {
            Value::String(text) => string(text, out),
            Value::Array(items) => {
                out.push('[');
                for (number, item) in items.iter().enumerate() {
                    if number > 0 {
                        out.push_str(" ,\n");
                    }
                    write(item, out);
                }
                out.push(']');
            }
            Value::Object(fields) => {
                out.push_str("{ ");
                for (number, (key, item)) in fields.iter().enumerate() {
                    if number > 0 {
                        out.push(',');
                    }
                    string(key, out);
                    out.push_str("\t:");
                    // Tool calls are taken as raw JSON, so their bytes stay.
                    if key == "tool_calls" { out.push_str(&item.to_string()) } else { write(item, out) }
                }
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
    }
    let mut out = String::new();
    write(&value, &mut out);
    out
}

proptest! {
    #[test]
    fn equals_the_plain_model(messages in conversation(), model in leaf(), extra in leaf()) {
        let body = json!({"model": model, "messages": messages, "zzz": [extra]}).to_string();
        let wanted = rendered(&messages);
        prop_assert_eq!(see(PathClass::Chat, body.as_bytes()), rendered(&messages));
        prop_assert_eq!(see(PathClass::Chat, escape_all(&body).as_bytes()), wanted);
    }

    #[test]
    fn never_panics_on_bytes(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        for class in PathClass::ALL {
            see(class, &body);
        }
    }

    #[test]
    fn never_panics_on_broken_bodies(messages in conversation(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut body = json!({"model": "m", "messages": messages, "prompt": messages, "input": messages}).to_string().into_bytes();
        let at = at.index(body.len());
        if cut { body.truncate(at) } else { body[at] = byte }
        for class in PathClass::ALL {
            see(class, &body);
        }
    }

    #[test]
    fn token_ids_arrive_as_they_are(ids in proptest::collection::vec(any::<u32>(), 1..300)) {
        prop_assert_eq!(see(PathClass::Completions, json!({"prompt": ids}).to_string().as_bytes()), Seen::Tokens(ids));
    }
}
