//! What a request path means to us: which shape its body has, whether it may be sent twice, how metrics call it.
//!
//! Every path is forwarded; a path that is not listed here is [`PathClass::Other`], so that metrics never grow a
//! label per path that a client made up.

/// A group of paths that share a body shape and a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PathClass {
    Chat,
    Completions,
    Responses,
    Messages,
    Generate,
    Invocations,
    Embeddings,
    Rerank,
    Score,
    Tokenize,
    Models,
    Health,
    Other,
}

impl PathClass {
    /// All classes, in the order of their numbers.
    pub(crate) const ALL: [Self; 13] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Generate,
        Self::Invocations,
        Self::Embeddings,
        Self::Rerank,
        Self::Score,
        Self::Tokenize,
        Self::Models,
        Self::Health,
        Self::Other,
    ];

    /// The class of a path without its query.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            "/v1/chat/completions" | "/v1/chat/completions/batch" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/generate" | "/generate_stream" | "/inference/v1/generate" => Self::Generate,
            "/invocations" => Self::Invocations,
            "/v1/embeddings" | "/pooling" | "/classify" => Self::Embeddings,
            "/v1/rerank" | "/v2/rerank" | "/rerank" => Self::Rerank,
            "/v1/score" | "/score" => Self::Score,
            "/tokenize" | "/detokenize" | "/v1/messages/count_tokens" => Self::Tokenize,
            "/v1/models" => Self::Models,
            "/health" | "/ping" => Self::Health,
            _ => Self::Other,
        }
    }

    /// The metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Generate => "generate",
            Self::Invocations => "invocations",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Tokenize => "tokenize",
            Self::Models => "models",
            Self::Health => "health",
            Self::Other => "other",
        }
    }

    /// Whether a POST here asks for an answer and changes nothing, so that another worker may be asked again.
    pub(crate) fn is_repeatable(self) -> bool {
        !matches!(self, Self::Models | Self::Health | Self::Other)
    }

    /// Whether a POST here fills a KV cache, so that its prompt is worth placing.
    pub(crate) fn is_generation(self) -> bool {
        self.is_repeatable() && self != Self::Tokenize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_list() {
        for (number, class) in PathClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
    }

    #[test]
    fn unknown_paths_fold_into_other_and_are_sent_once() {
        for path in ["/", "/v1/nope", "/v1/chat/completions/", "/V1/models", "*"] {
            assert_eq!(PathClass::of(path), PathClass::Other, "{path}");
        }
        assert!(!PathClass::Other.is_repeatable());
        assert!(PathClass::Tokenize.is_repeatable() && !PathClass::Tokenize.is_generation());
    }
}
