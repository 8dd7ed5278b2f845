//! Lines of request logs, read one by one: OpenAI's requests as JSON, and what vLLM logs with `--enable-log-requests`.
//!
//! What a line says becomes a [`LoggedRequest`]: the prompt as bytes (text, or token ids of four bytes each), what parts the
//! engine's cache, and what is known of time and lengths. A prompt is cut into blocks of 64 bytes, which are 16 token ids or 16
//! tokens of text at four bytes each; the blocks are those of the router ([`trunkline_core::Prompt::blocks`]), and the text is laid out
//! as the gateway does it. Three things differ on purpose: tools are the beginning of the prompt, as engines render them,
//! while the gateway keeps requests with different tools apart altogether; tenant keys count for nothing, as in an engine; and parts
//! that are no text are told apart by their JSON, whatever its layout.

mod json;
mod text;
mod time;
mod vllm;

use std::ops::Range;

pub(crate) use time::Clock;
use trunkline_core::{BlockHash, BlockHasher, Prompt, Root};

use crate::des::mix;

/// Bytes of a block: those of the router's blocks of text.
pub(crate) const BLOCK_BYTES: usize = 64;
/// Token ids of a block.
const BLOCK_IDS: u32 = 16;

/// A request as its log tells it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LoggedRequest {
    /// Model, adapter and salt: equal prompts of different roots share nothing.
    pub(crate) root: Root,
    /// The prompt; never empty.
    pub(crate) prompt: Vec<u8>,
    /// Bytes at its beginning that are the tools and what frames them.
    pub(crate) tools_bytes: usize,
    /// The last answer that a chat holds, with the role before it: what precedes it was an earlier request's whole prompt, after
    /// which an engine has kept it.
    pub(crate) answer: Option<Range<usize>>,
    /// Whether the prompt is token ids, little-endian.
    pub(crate) is_tokens: bool,
    /// When it arrived, in seconds since some beginning.
    pub(crate) at_s: Option<f64>,
    /// Length of the prompt, as the engine counted it.
    pub(crate) prompt_tokens: Option<u64>,
    /// Length of the answer, or the most that was asked for.
    pub(crate) output_tokens: Option<u32>,
}

impl LoggedRequest {
    /// The blocks behind the first `known` ones that an engine has because it generated them: the answer to an earlier request whose
    /// prompt it knows.
    pub(crate) fn generated(&self, known: usize) -> Range<usize> {
        match &self.answer {
            Some(answer) if known >= answer.start / BLOCK_BYTES => known..known.max(answer.end / BLOCK_BYTES),
            _ => known..known,
        }
    }

    /// Writes the names of the whole blocks to `names`: each stands for all of the prompt up to its end.
    pub(crate) fn chain_into(&self, hasher: &BlockHasher, hashes: &mut Vec<BlockHash>, names: &mut Vec<u64>) {
        let text = [self.prompt.as_slice()];
        let ids: Vec<u32>;
        let prompt = if self.is_tokens {
            ids = (self.prompt.as_chunks().0.iter()).map(|id| u32::from_le_bytes(*id)).collect();
            Prompt::Tokens(&ids)
        } else {
            Prompt::Text(&text)
        };
        prompt.blocks(self.root, hasher, BLOCK_IDS).collect_into(hashes);
        let mut before = 0;
        names.clear();
        names.extend(hashes.iter().map(|hash| {
            before = mix(before ^ hash.0);
            before
        }));
    }
}

/// Why a line gives no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRequest {
    /// It is one that servers log beside their requests.
    Aside,
    /// It should have been one; what is wrong.
    Broken(String),
}

impl<T: Into<String>> From<T> for NoRequest {
    fn from(problem: T) -> Self {
        Self::Broken(problem.into())
    }
}

/// Reads lines in order. Not thread-safe.
///
/// vLLM tells a request's prompt and its parameters in two lines, so a request may come one line late.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// A prompt whose parameters may come in the next line.
    waiting: Option<vllm::Detail>,
}

impl Reader {
    /// Reads a line that is not empty; calls `found` with each request that is complete now, at most two.
    ///
    /// # Errors
    /// [`NoRequest`] for a line that gives nothing.
    pub(crate) fn line(
        &mut self,
        line: &str,
        found: &mut impl FnMut(LoggedRequest),
    ) -> Result<(), NoRequest> {
        let line = line.trim();
        if line.starts_with('{') {
            self.end(found);
            found(json::request(line)?);
            return Ok(());
        }
        match vllm::line(line)? {
            vllm::Line::Request(request) => {
                self.end(found);
                found(request);
            }
            vllm::Line::Detail(detail) => {
                self.end(found);
                self.waiting = Some(detail);
            }
            vllm::Line::Parameters(parameters) => match self.waiting.take() {
                Some(detail) if detail.id == parameters.id => found(detail.with(&parameters)),
                other => {
                    self.waiting = other;
                    self.end(found);
                    return Err(
                        "vLLM logged no prompt: it does at log level DEBUG (VLLM_LOGGING_LEVEL)".into()
                    );
                }
            },
        }
        Ok(())
    }

    /// Calls `found` with the request that waits for its parameters, if one does: there are no more lines.
    pub(crate) fn end(&mut self, found: &mut impl FnMut(LoggedRequest)) {
        if let Some(detail) = self.waiting.take() {
            found(detail.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lines: &[&str]) -> (Vec<LoggedRequest>, Vec<NoRequest>) {
        let (mut reader, mut requests, mut refused) = (Reader::default(), Vec::new(), Vec::new());
        for line in lines {
            let mut found = |request| requests.push(request);
            refused.extend(reader.line(line, &mut found).err());
        }
        reader.end(&mut |request| requests.push(request));
        (requests, refused)
    }

    #[test]
    fn prompt_and_parameters_of_vllm_are_one_request() {
        let detail = |id: &str| {
            format!(
                "(APIServer pid=7) DEBUG 11-30 12:00:01 [logger.py:40] Request {id} details: prompt: 'Say {id}', \
                 prompt_token_ids: [1, 2], prompt_embeds shape: None."
            )
        };
        let params = "INFO 11-30 12:00:01 [logger.py:50] Received request b: params: SamplingParams(n=1, max_tokens=9, \
                      min_tokens=0), lora_request: None.";
        let aside = "INFO 11-30 12:00:02 [loggers.py:118] Engine 000: Avg prompt throughput: 1.0 tokens/s";
        let (requests, refused) = read(&[&detail("a"), &detail("b"), params, aside, params]);
        let seen: Vec<_> =
            requests.iter().map(|request| (request.prompt.as_slice(), request.output_tokens)).collect();
        assert_eq!(seen, [(&b"Say a"[..], None), (b"Say b", Some(9))]);
        assert!(matches!(&refused[..], [NoRequest::Aside, NoRequest::Broken(why)] if why.contains("DEBUG")));
    }

    proptest! {
        /// Whatever stands in a line, wherever it is cut, it is read or refused.
        #[test]
        fn no_line_is_too_odd(
            which in 0usize..3, at in 0usize..200, odd in "[\\\\'\"{}\\[\\]:,0-9a-zé日\u{0}-\u{1f} ]{0,12}", cut in 0usize..400,
        ) {
            let lines = [
                r#"{"timestamp": "2026-11-30", "body": {"tools": [{"a": 1}], "messages": [{"role": "user", "content": [{"text": "é"}]}]}}"#,
                "INFO 11-30 12:00:01 [x.py:1] Received request a: prompt: 'é\\n\\x41\\u65e5', params: S(max_tokens=5), prompt_token_ids: [1]",
                "DEBUG 11-30 12:00:01 [x.py:1] Request a details: prompt: None, prompt_token_ids: [1, 2], prompt_embeds shape: None.",
            ];
            let line: Vec<char> = lines[which].chars().collect();
            let at = at.min(line.len());
            let changed: String = line[..at].iter().copied().chain(odd.chars()).chain(line[at..].iter().copied()).take(cut).collect();
            let (requests, refused) = read(&[&changed]);
            prop_assert!(requests.len() + refused.len() == 1 || changed.trim().is_empty());
            prop_assert!(requests.iter().all(|request| !request.prompt.is_empty()));
        }
    }

    #[test]
    fn names_stand_for_the_whole_prefix() {
        let hasher = BlockHasher::new(1);
        let names = |root: Root, text: &str| {
            let request = LoggedRequest { root, prompt: text.into(), ..LoggedRequest::default() };
            let (mut hashes, mut names) = (Vec::new(), Vec::new());
            request.chain_into(&hasher, &mut hashes, &mut names);
            names
        };
        let (head, tail) = ("h".repeat(64), "t".repeat(70));
        let one = names(Root::default(), &format!("{head}{tail}"));
        let other = names(Root::default(), &format!("{}{tail}", "x".repeat(64)));
        assert_eq!((one.len(), one[0]), (2, names(Root::default(), &head)[0]));
        assert_ne!(one[1], other[1]);
        assert_ne!(one[0], names(Root::default().with("model", b"m"), &head)[0]);
        assert_eq!(Prompt::Text(&[]).units_per_block(BLOCK_IDS), BLOCK_BYTES);
    }
}
