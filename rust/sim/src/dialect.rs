//! The engines whose HTTP dialect a mock worker can speak.
//!
//! A dialect is what a router can tell engines apart by and has to cope with: routes, the shape of the native `generate`, names of
//! metrics, whether an unknown model is refused. The OpenAI routes, the engine model and its timing are the same in all.

use std::fmt;

/// An engine's dialect.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Dialect {
    /// vLLM 0.32, as recorded.
    #[default]
    Vllm,
    /// SGLang: `/generate` with `text` or `input_ids`, usage in `meta_info`; serves any model name.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`: OpenAI routes, metrics as JSON; serves any model name.
    TrtLlm,
    /// Text Generation Inference: `/generate` and `/generate_stream` with `inputs`; serves any model name and does not tell
    /// cached tokens.
    Tgi,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 4] = [Self::Vllm, Self::Sglang, Self::TrtLlm, Self::Tgi];

    /// The name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TrtLlm => "trtllm",
            Self::Tgi => "tgi",
        }
    }

    /// The dialect of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// `owned_by` in its list of models; TGI gives the model's own name.
    pub(crate) fn owner(self, model: &str) -> &str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TrtLlm => "tensorrt_llm",
            Self::Tgi => model,
        }
    }

    /// Whether it refuses models that it does not list.
    pub(crate) fn checks_model(self) -> bool {
        self == Self::Vllm
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
