//! What an engine does to a request before its chat template sees it.
//!
//! All of it is bound to a version of the engine and stands in one table, [`EngineRules`], so that the next version is
//! a row and not a search.

mod message;
mod options;
mod tools;

pub(crate) use self::message::{Chat, MARK, read_messages};
pub use self::options::Field;
pub(crate) use self::options::{refusal, template_kwargs};
pub(crate) use self::tools::read_tools;

/// How one version of an engine makes a prompt of a request.
#[derive(Debug)]
#[non_exhaustive]
pub struct EngineRules {
    /// The engine.
    pub engine: &'static str,
    /// Its version. Those near it are likely the same.
    pub version: &'static str,
    /// Between the texts of a message's parts, where they become one.
    pub part_separator: &'static str,
    /// Between system messages that become one.
    pub system_separator: &'static str,
    /// A system text that begins so loses its first line.
    pub dropped_system_line: &'static str,
    /// Fields of a tool's function that every template gets, null where the request has none.
    pub function_fields: &'static [&'static str],
    /// Fields of a tool's function that a template gets if the request has them.
    pub optional_function_fields: &'static [&'static str],
    /// Fields of a tool call, and of its function, in their order.
    pub call_fields: [&'static [&'static str]; 2],
    /// Values of a template's variables that stand for "not given".
    pub unset_words: &'static [&'static str],
    /// Options of a request that change its tokens in a way that is not followed.
    pub refused: &'static [Field],
    /// Variables that a request may not set for its template.
    pub refused_kwargs: &'static [&'static str],
    /// Types of models (`config.json`) whose prompts are not made by a chat template.
    pub models_without_template: &'static [&'static str],
}

/// vLLM 0.32.0. Source: its renderer and its request models; the parts that recorded requests exercise are equal byte
/// for byte.
pub static VLLM: EngineRules = EngineRules {
    engine: "vllm",
    version: "0.32.0",
    part_separator: "\n",
    system_separator: "\n\n",
    dropped_system_line: "x-anthropic-billing-header",
    function_fields: &["name", "description", "parameters"],
    optional_function_fields: &["strict"],
    call_fields: [&["id", "function", "type"], &["arguments", "name"]],
    unset_words: &["auto"],
    refused: &[
        Field::set("truncate_prompt_tokens"),
        Field::set("chat_template"),
        Field::set("prompt_embeds"),
        Field::within("kv_transfer_params", "prompt_token_ids"),
    ],
    refused_kwargs: &[
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    ],
    models_without_template: &[
        "cohere",
        "cohere2",
        "cohere2_vision",
        "cohere_asr",
        "deepseek_v32",
        "deepseek_v4",
        "gpt_oss",
        "inkling",
        "kimi_k3",
    ],
};
