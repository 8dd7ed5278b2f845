//! What it costs to make a prompt's text of a request: CPU time of the thread per request, median and least of many.
//!
//! `cargo run --release -p trunkline-text --example render_cost`

#![allow(clippy::unwrap_used, reason = "a measurement stops where its ground gives way")]

use std::fmt::Write;
use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use trunkline_core::events::Spelling;
use trunkline_text::{Kind, Options, Outcome, Renderer, Scratch, Vocabulary};

/// Turns between marks, thoughts of earlier turns cut away: in the manner of Qwen's.
const MARKS: &str = "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}
{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- else %}{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}{%- for message in messages[::-1] %}
{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.searching and message.role == 'user' and
message.content is string and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
{%- set ns.searching = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- if message.content is string %}{%- set content = message.content %}{%- else %}
{%- set content = '' %}{%- endif %}{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{%- elif message.role == 'assistant' %}
{%- set thoughts = '' %}{%- if message.reasoning_content is string %}{%- set thoughts = message.reasoning_content %}
{%- else %}{%- if '</think>' in content %}{%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{%- endif %}
{%- if loop.index0 > ns.last and thoughts %}
{{- '<|im_start|>' + message.role + '\\n<think>\\n' + thoughts + '\\n</think>\\n\\n' + content }}{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/// Trimmed turns under headers, with a date: in the manner of Llama 3.1's.
const HEADERS: &str =
    "{{- bos_token }}{%- if not date is defined %}{%- set date = strftime_now('%d %b %Y') %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|head|>system<|/head|>\\n\\nToday: ' + date + '\\n\\n' }}{{- system }}{{- '<|eot|>' }}
{%- for message in messages %}{%- if not (message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|head|>' + message['role'] + '<|/head|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}";

/// Prose and code of about so many bytes.
fn text(bytes: usize, seed: usize) -> String {
    const WORDS: [&str; 12] =
        ["the", "router", "sends", "every", "request", "to", "a", "worker", "that", "holds", "its", "prefix"];
    let (mut text, mut at) = (String::new(), seed);
    while text.len() < bytes {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (at >> 33) % 13 {
            12 => text.push_str("\n    return value\n"),
            word => {
                let _ = write!(text, "{} ", WORDS[word]);
            }
        }
    }
    text
}

/// A chat of so many messages and about so many bytes in all.
fn body(messages: usize, bytes: usize) -> Vec<u8> {
    let role = |at: usize| match at {
        0 => "system",
        at if at % 2 == 1 => "user",
        _ => "assistant",
    };
    let messages: Vec<_> = (0..messages)
        .map(|at| serde_json::json!({"role": role(at), "content": text(bytes / messages, at)}))
        .collect();
    serde_json::to_vec(&serde_json::json!({"model": "m", "messages": messages, "max_tokens": 16})).unwrap()
}

fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Median and least of the CPU time of `act`, in nanoseconds.
fn measure(times: usize, mut act: impl FnMut()) -> (i64, i64) {
    let mut taken: Vec<i64> = (0..times)
        .map(|_| {
            let start = cpu_ns();
            act();
            cpu_ns() - start
        })
        .collect();
    taken.sort_unstable();
    (taken[times / 2], taken[0])
}

fn main() {
    let tokenizer = include_str!("../tests/data/tokenizers/byte_level_nfc/tokenizer.json");
    println!(
        "{:>10} {:>8} {:>8} {:>10} {:>12} {:>12}",
        "template", "messages", "body kB", "prompt kB", "median us", "least us"
    );
    for (name, template) in [("marks", MARKS), ("headers", HEADERS)] {
        let directory = std::env::temp_dir().join(format!("trunkline-render-cost-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("tokenizer.json"), tokenizer).unwrap();
        std::fs::write(directory.join("tokenizer_config.json"), r#"{"bos_token": "<|bos|>"}"#).unwrap();
        std::fs::write(directory.join("chat_template.jinja"), template).unwrap();
        let renderer = Renderer::load(&directory, &Options::default());
        std::fs::remove_dir_all(&directory).unwrap();
        let (renderer, mut scratch) = (renderer.unwrap(), Scratch::default());
        for (messages, bytes) in [(3, 3_900), (15, 38_000), (61, 369_000)] {
            let body = body(messages, bytes);
            let mut prompt_bytes = 0;
            let (median, least) = measure(300, || {
                match renderer.render(Kind::Chat, black_box(&body), 1_800_000_000_000_000, &mut scratch) {
                    Outcome::Whole(prompt) => prompt_bytes = prompt.len(),
                    other => panic!("{other:?}"),
                }
            });
            println!(
                "{name:>10} {messages:>8} {:>8.1} {:>10.1} {:>12.1} {:>12.1}",
                body.len() as f64 / 1e3,
                prompt_bytes as f64 / 1e3,
                median as f64 / 1e3,
                least as f64 / 1e3,
            );
        }
    }
    let vocabulary =
        Vocabulary::new((0..128_000u32).map(|id| (id, vec![b'x'; 1 + (id as usize * 7) % 9]))).unwrap();
    let ids: Vec<u32> = (0..16_384u32).map(|at| at.wrapping_mul(2_654_435_761) % 128_000).collect();
    let mut bytes = Vec::new();
    let (median, least) = measure(200, || {
        bytes.clear();
        assert!(vocabulary.spell(black_box(&ids), &mut bytes));
    });
    let per_token = |ns: i64| ns as f64 / ids.len() as f64;
    println!("spelling: median {:.1} ns, least {:.1} ns per token", per_token(median), per_token(least));
}
