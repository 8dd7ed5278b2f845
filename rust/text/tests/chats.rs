//! Templates in the styles of well-known families, beside what Jinja2 makes of them.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use support::Directory;
use trunkline_text::{Kind, Options, Outcome, Renderer, Scratch};

#[derive(Deserialize)]
struct Rendered {
    now_us: i64,
    templates: BTreeMap<String, String>,
    requests: BTreeMap<String, Box<RawValue>>,
    rendered: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    template: String,
    request: String,
    /// What Python renders; if there is none, it raises.
    text: Option<String>,
}

#[test]
fn chats_are_rendered_as_python_renders_them() {
    let rendered: Rendered = serde_json::from_str(include_str!("data/rendered_chats.json")).unwrap();
    let renderer = |template: &String| {
        let directory = Directory::new(&[
            ("chat_template.jinja", template),
            ("tokenizer_config.json", r#"{"bos_token": "<s>", "eos_token": "</s>"}"#),
            ("tokenizer.json", include_str!("data/tokenizers/byte_level/tokenizer.json")),
        ]);
        Renderer::load(directory.path(), &Options::default()).unwrap()
    };
    let renderers: BTreeMap<_, _> =
        rendered.templates.iter().map(|(name, template)| (name, renderer(template))).collect();
    let (mut scratch, mut wrong) = (Scratch::default(), Vec::new());
    for Row { template, request, text } in &rendered.rendered {
        let body = rendered.requests[request].get();
        let outcome = renderers[template].render(Kind::Chat, body.as_bytes(), rendered.now_us, &mut scratch);
        let made = match outcome {
            Outcome::Whole(made) => Ok(String::from_utf8_lossy(made).into_owned()),
            Outcome::Unsupported(reason) => Err(reason),
            Outcome::Partial(_) => panic!("{template} {request}"),
        };
        if made.as_ref().ok() != text.as_ref() {
            wrong.push(format!("{template} {request}\n  {made:?}\n  {text:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), rendered.rendered.len(), wrong.join("\n"));
    assert_eq!(rendered.rendered.len(), 120);
}
