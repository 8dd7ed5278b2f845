//! Bodies of any bytes and templates of any text: no panic, no rendering without end.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use trunkline_text::{Kind, Limits, Options, Renderer, Scratch};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/data/tokenizers/pieces_prepend");
const TEMPLATE: &str = include_str!("../../text/tests/data/recorded_template.jinja");

fn load(template: &str) -> trunkline_text::Result<Renderer> {
    let limits = Limits { steps: 100_000, prompt_bytes: 1 << 20 };
    let options = Options { chat_template: Some(template.into()), limits, ..Options::default() };
    Renderer::load(Path::new(MODEL), &options)
}

fuzz_target!(|input: (u8, &str, &[u8])| {
    static KNOWN: OnceLock<Renderer> = OnceLock::new();
    let (what, template, body) = input;
    let kind = if what & 1 == 0 { Kind::Chat } else { Kind::Completion };
    let mut scratch = Scratch::default();
    let known = KNOWN.get_or_init(|| load(TEMPLATE).expect("the model is one of our own"));
    known.render(kind, body, 0, &mut scratch);
    if what & 2 == 0
        && let Ok(renderer) = load(template)
    {
        renderer.render(Kind::Chat, br#"{"messages": [{"role": "user", "content": "x"}]}"#, 0, &mut scratch);
    }
});
