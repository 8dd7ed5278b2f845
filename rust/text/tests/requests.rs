//! What becomes of a request: prompts, parts of prompts, and reasons why there is none.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::Directory;
use trunkline_text::{ContentFormat, Error, Kind, Limits, Options, Outcome, Renderer, Scratch};

const BYTE_LEVEL: &str = include_str!("data/tokenizers/byte_level/tokenizer.json");
const PIECES: &str = include_str!("data/tokenizers/pieces_prepend/tokenizer.json");
const TURNS: &str = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}\
                     {{ '[image]' if c.type == 'image' else c.text }},{% endfor %}{% endfor %}";

fn load(tokenizer: &str, template: Option<&str>, options: &Options) -> Result<Renderer, Error> {
    let config = json!({"bos_token": "<s>", "chat_template": template}).to_string();
    let directory = Directory::new(&[("tokenizer.json", tokenizer), ("tokenizer_config.json", &config)]);
    Renderer::load(directory.path(), options)
}

fn model(template: &str) -> Renderer {
    load(BYTE_LEVEL, Some(template), &Options::default()).unwrap()
}

/// The whole prompt, the part of one in brackets, or a reason behind a dash.
fn render(renderer: &Renderer, kind: Kind, body: &Value) -> String {
    let mut scratch = Scratch::default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match renderer.render(kind, body.to_string().as_bytes(), 0, &mut scratch) {
        Outcome::Whole(bytes) => text(bytes),
        Outcome::Partial(bytes) => format!("({})", text(bytes)),
        Outcome::Unsupported(reason) => format!("- {reason}"),
    }
}

fn chat(renderer: &Renderer, body: &Value) -> String {
    render(renderer, Kind::Chat, body)
}

#[test]
fn a_prompt_with_images_is_known_up_to_the_first() {
    let body = json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [
            {"type": "text", "text": "b"},
            {"type": "image_url", "image_url": {"url": "data:"}},
            {"type": "text", "text": "c"},
            {"type": "image_url", "image_url": {"url": "data:"}},
        ]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
    ]});
    // Where a message is one text, what stands for its images is put in front of it.
    assert_eq!(chat(&model(TURNS), &body), "(<s><user>a<user>)");
    assert_eq!(chat(&model(PARTS), &body), "(<user>a,<user>b,)");
    assert_eq!(chat(&model("{{ messages|length }}"), &body), "- the template left out an item");
}

#[test]
fn options_that_change_tokens_are_followed_or_refused() {
    let renderer = model(TURNS);
    let with = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        body[name] = value;
        chat(&renderer, &body)
    };
    let known = "<s><user>a";
    let followed = [
        ("truncate_prompt_tokens", Value::Null),
        ("tool_choice", json!("none")),
        ("chat_template", Value::Null),
        ("temperature", json!(0.5)),
        ("add_special_tokens", json!(true)),
        ("chat_template_kwargs", json!({"any": 1})),
        ("chat_template_kwargs", Value::Null),
        ("kv_transfer_params", json!({"do_remote_decode": true})),
    ];
    for (name, value) in followed {
        assert_eq!(with(name, value.clone()), known, "{name} {value}");
    }
    let refused = [
        ("truncate_prompt_tokens", json!(10)),
        ("chat_template", json!("x")),
        ("prompt_embeds", json!("x")),
        ("kv_transfer_params", json!({"prompt_token_ids": [1]})),
        ("chat_template_kwargs", json!({"tools": []})),
        ("chat_template_kwargs", json!({"chat_template": "x"})),
        ("chat_template_kwargs", json!([])),
        ("continue_final_message", json!(true)),
        ("add_special_tokens", json!("yes")),
        ("tools", json!({})),
        ("tools", json!([{"type": "function"}])),
        ("messages", json!([{"role": "user", "content": [{"type": "prompt_embeds", "data": "x"}]}])),
        ("messages", json!([{"role": "user", "content": [{"type": "smell"}]}])),
        ("messages", json!([{"role": "assistant", "tool_calls": [{"id": "x"}]}])),
        ("messages", json!([{"content": "a"}])),
        ("messages", json!("a")),
        ("messages", Value::Null),
    ];
    for (name, value) in refused {
        assert!(with(name, value.clone()).starts_with("- "), "{name} {value}: {}", with(name, value.clone()));
    }
    for body in
        [&b"\xff"[..], b"{", b"[]", b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}"]
    {
        let mut scratch = Scratch::default();
        assert!(matches!(renderer.render(Kind::Chat, body, 0, &mut scratch), Outcome::Unsupported(_)));
    }
}

#[test]
fn a_request_may_set_variables_of_its_template() {
    let template =
        "{{ a }}|{{ b }}|{{ bos_token }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ documents }}";
    let options = Options { template_kwargs: Some(r#"{"a": 1, "b": 2}"#.into()), ..Options::default() };
    let renderer = load(BYTE_LEVEL, Some(template), &options).unwrap();
    let with = |mut body: Value| {
        body["messages"] = json!([]);
        chat(&renderer, &body)
    };
    assert_eq!(with(json!({})), "1|2|<s>|||None");
    assert_eq!(with(json!({"chat_template_kwargs": {"b": "x", "a": null, "bos_token": ""}})), "1|x||||None");
    assert_eq!(with(json!({"reasoning_effort": "low"})), "1|2|<s>|True|low|None");
    assert_eq!(with(json!({"reasoning_effort": "none"})), "1|2|<s>|False|none|None");
    let own = json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": 7}});
    assert_eq!(with(own), "1|2|<s>|7|none|None");
    assert_eq!(with(json!({"documents": [{"text": "t"}]})), "1|2|<s>|||[{'text': 't'}]");
    let bad = Options { template_kwargs: Some("[]".into()), ..Options::default() };
    assert!(matches!(load(BYTE_LEVEL, Some(template), &bad), Err(Error::Malformed { .. })));
}

#[test]
fn completions_get_what_the_post_processor_adds() {
    let pieces = load(PIECES, None, &Options::default()).unwrap();
    let complete = |body: Value| render(&pieces, Kind::Completion, &body);
    assert_eq!(complete(json!({"prompt": "the way"})), "<s> the way");
    assert_eq!(complete(json!({"prompt": ["the way"]})), "<s> the way");
    assert_eq!(complete(json!({"prompt": "the way", "add_special_tokens": false})), " the way");
    assert_eq!(complete(json!({"prompt": [1, 3 + 0x41, 3 + 0xc3]})), "<s>A\u{fffd}");
    assert_eq!(complete(json!({"prompt": [[3 + 0x41]]})), "A");
    for prompt in [
        json!([]),
        json!([99_999]),
        json!([-1]),
        json!([1, "a"]),
        json!(["a", "b"]),
        json!([[1], [2]]),
        json!(1),
    ] {
        assert!(complete(json!({"prompt": prompt})).starts_with("- "), "{prompt}");
    }
    assert!(complete(json!({"prompt": "a", "suffix": "b"})).starts_with("- "));
    assert_eq!(chat(&pieces, &json!({"messages": []})), "- no chat template");
    assert_eq!(pieces.chats_unsupported(), Some("no chat template"));
    assert_eq!(render(&pieces, Kind::Other, &json!({"input": "a"})), "- no prompt of a known kind");

    let mut file: Value = serde_json::from_str(PIECES).unwrap();
    file["post_processor"] = json!({"type": "RobertaProcessing"});
    let other = load(&file.to_string(), None, &Options::default()).unwrap();
    assert!(render(&other, Kind::Completion, &json!({"prompt": "a"})).starts_with("- which special tokens"));
    assert_eq!(render(&other, Kind::Completion, &json!({"prompt": "a", "add_special_tokens": false})), " a");
}

#[test]
fn dates_are_told_in_the_engine_s_zone() {
    let template = "{{ strftime_now('%d %b %Y %H:%M %A') }}";
    let told = |zone: &str| {
        let options = Options { time_zone: zone.into(), ..Options::default() };
        let renderer = load(BYTE_LEVEL, Some(template), &options)?;
        let mut scratch = Scratch::default();
        match renderer.render(Kind::Chat, br#"{"messages": []}"#, 1_767_225_600_000_000, &mut scratch) {
            Outcome::Whole(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told("UTC").unwrap(), "01 Jan 2026 00:00 Thursday");
    assert!(matches!(told("Atlantis/Poseidonis"), Err(Error::TimeZone { .. })));
    // Not every machine has the zones' files.
    if let Ok(text) = told("America/Los_Angeles") {
        assert_eq!(text, "31 Dec 2025 16:00 Wednesday");
    }
}

#[test]
fn nothing_runs_away() {
    let limits = Limits { steps: 20_000, prompt_bytes: 1_000 };
    let options = Options { limits, ..Options::default() };
    let templates = [
        "{% for a in range(1000000) %}{% for b in range(1000000) %}x{% endfor %}{% endfor %}",
        "{% for a in range(1001) %}x{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%1000000000s' | format('x') }}",
        "{{ 'x'.join(range(1000000)) }}",
        "{{ range(1000000) | join('x') }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x={}) %}{% for i in range(40) %}{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x|tojson }}",
    ];
    for template in templates {
        let renderer = load(BYTE_LEVEL, Some(template), &options).unwrap();
        assert_eq!(chat(&renderer, &json!({"messages": []})), "- the template failed", "{template}");
    }
    let renderer = load(BYTE_LEVEL, Some(TURNS), &options).unwrap();
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(2_000)}]});
    assert_eq!(chat(&renderer, &long), "- the template failed");
}

#[test]
fn templates_that_cannot_be_followed_are_told_at_the_start() {
    let options = Options::default();
    assert!(matches!(load(BYTE_LEVEL, Some("{% for %}"), &options), Err(Error::Template { .. })));
    assert!(matches!(load(BYTE_LEVEL, Some("{% do messages %}"), &options), Err(Error::Template { .. })));
    assert!(matches!(load(BYTE_LEVEL, Some(r"{{ '\N{DASH}' }}"), &options), Err(Error::Template { .. })));
    let files =
        |config| [("tokenizer.json", BYTE_LEVEL), ("chat_template.jinja", TURNS), ("config.json", config)];
    let directory = Directory::new(&files(r#"{"model_type": "gpt_oss"}"#));
    let renderer = Renderer::load(directory.path(), &options).unwrap();
    assert!(renderer.chats_unsupported().is_some());
    let directory = Directory::new(&files(r#"{"model_type": "llama"}"#));
    let renderer = Renderer::load(directory.path(), &options).unwrap();
    assert_eq!(renderer.chats_unsupported(), None);
    assert_eq!(
        chat(&model("{{ raise_exception('no') }}"), &json!({"messages": []})),
        "- the template raised an exception"
    );
}

#[test]
fn tools_choose_among_named_templates() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools|tojson }}"},
    ]});
    let files = [("tokenizer.json", BYTE_LEVEL), ("tokenizer_config.json", &config.to_string())];
    let directory = Directory::new(&files);
    let renderer = Renderer::load(directory.path(), &Options::default()).unwrap();
    let with = |tools: Value| chat(&renderer, &json!({"messages": [], "tools": tools}));
    assert_eq!(with(Value::Null), "plain");
    assert_eq!(with(json!([])), "[]");
    // Fields come in the engine's order, those that are missing as null, those that it does not know not at all.
    let tool =
        json!({"function": {"strict": true, "parameters": {"b": 1, "a": 2}, "x": 1, "name": "f"}, "y": 1});
    assert_eq!(
        with(json!([tool])),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"a": 2, "b": 1}, "strict": true}}]"#
    );
}

#[test]
fn the_server_s_flags_are_followed() {
    let template = "{{ 'tools' if tools else 'none' }}{{ messages[0].content }}";
    let body = json!({
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
    });
    assert_eq!(chat(&model(template), &body), "toolsa");
    let options = Options { excludes_unused_tools: true, ..Options::default() };
    assert_eq!(chat(&load(BYTE_LEVEL, Some(template), &options).unwrap(), &body), "nonea");
    let options = Options { content_format: Some(ContentFormat::Parts), ..Options::default() };
    let parts = load(BYTE_LEVEL, Some(template), &options).unwrap();
    assert_eq!(chat(&parts, &body), "tools[{'type': 'text', 'text': 'a'}]");
    let options = Options { chat_template: Some("own".into()), ..Options::default() };
    assert_eq!(chat(&load(BYTE_LEVEL, Some(template), &options).unwrap(), &body), "own");
}

#[test]
fn the_table_and_the_rule_can_be_tested_from_outside() {
    let renderer = load(PIECES, None, &Options::default()).unwrap();
    assert_eq!(renderer.spells(&[1, 3 + 0x41]), Some(b"<s>A".to_vec()));
    assert_eq!(renderer.spells(&[99_999]), None);
    assert_eq!(renderer.canonical("a\u{2581}b"), b" a b");
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(body in "[\\[\\]{}\",:\\\\u0-9a-z ]{0,80}", is_chat in any::<bool>()) {
        let renderer = model(TURNS);
        let kind = if is_chat { Kind::Chat } else { Kind::Completion };
        renderer.render(kind, body.as_bytes(), 0, &mut Scratch::default());
    }

    #[test]
    fn no_template_makes_it_panic(
        pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                "{{", "}}", "{%", "%}", "-", " if ", " for x in ", "messages", "endfor", "else", "endif", "'", "\"", "[", "]",
                "(", ")", ".items", ".x", "|tojson", "|int", "[::-1]", "+", "~", "é", "\\", "1", "1e9", " set x = ", "\n",
                "{#", "#}", " macro m() ", "endmacro", " generation ", "endgeneration", ":", ",", "|join", ".split",
                "|", "raw", "endraw", " is sequence", "x", " in ", "**", "%", "strftime_now('%Q')", "namespace(a=1)",
            ]),
            0..14,
        ),
    ) {
        let limits = Limits { steps: 10_000, prompt_bytes: 10_000 };
        let options = Options { limits, ..Options::default() };
        if let Ok(renderer) = load(BYTE_LEVEL, Some(&pieces.concat()), &options) {
            chat(&renderer, &json!({"messages": [{"role": "user", "content": "a"}]}));
        }
    }

    #[test]
    fn a_scratch_may_be_used_again(texts in proptest::collection::vec("\\PC{0,40}", 1..4)) {
        let (renderer, mut scratch) = (model(TURNS), Scratch::default());
        for text in texts {
            let body = json!({"messages": [{"role": "user", "content": text}]});
            let outcome = renderer.render(Kind::Chat, body.to_string().as_bytes(), 0, &mut scratch);
            let wanted = format!("<s><user>{text}");
            prop_assert_eq!(outcome, Outcome::Whole(wanted.as_bytes()));
        }
    }
}
