//! What an answer's last bytes say about tokens.
//!
//! Engines put `usage` at the end of an answer or in the last events of a stream. The last two kilobytes of the bytes
//! that pass are kept; when the answer ends they are searched once. Nothing else of an answer is looked at.

use memchr::memmem;
use trunkline_core::Usage;

use crate::json::{Malformed, Scanner};

/// Bytes that are searched.
const TAIL_BYTES: usize = 2048;

/// The keys of a usage: OpenAI's and Anthropic's, and that of SGLang's own `/generate`.
const KEYS: [&[u8]; 2] = [b"\"usage\":", b"\"meta_info\":"];

/// The last bytes of an answer.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    /// Notes the next bytes of the answer. Cost: a copy of at most the last 2 KiB.
    pub(crate) fn push(&mut self, data: &[u8]) {
        if data.len() >= TAIL_BYTES {
            self.bytes.clear();
            self.bytes.extend_from_slice(&data[data.len() - TAIL_BYTES..]);
            return;
        }
        if self.bytes.len() + data.len() > 2 * TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - TAIL_BYTES);
        }
        self.bytes.extend_from_slice(data);
    }

    /// Whether the answer so far ends with `end`.
    pub(crate) fn ends_with(&self, end: &[u8]) -> bool {
        self.bytes.ends_with(end)
    }

    /// The last usage in the answer so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        find(&self.bytes)
    }
}

/// The last usage in `bytes`. Cost: a search, and one pass over the object found.
pub(crate) fn find(bytes: &[u8]) -> Option<Usage> {
    let bytes = &bytes[bytes.len().saturating_sub(2 * TAIL_BYTES)..];
    // In a string the quotes of the key would be escaped, so this is a key.
    let at = KEYS.iter().find_map(|key| Some(memmem::rfind(bytes, key)? + key.len()))?;
    let mut reported = Reported::default();
    reported.read(&mut Scanner::new(&bytes[at..])).ok()?;
    Some(Usage {
        prompt_tokens: reported.prompt_tokens?,
        cached_tokens: reported.cached_tokens,
        completion_tokens: reported.completion_tokens.unwrap_or(0),
    })
}

#[derive(Debug, Default)]
struct Reported {
    prompt_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

impl Reported {
    /// Reads the words of OpenAI's chat and completions, of its responses, and of Anthropic's messages.
    fn read(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        scanner.object(|scanner, key| {
            let number = match key {
                b"prompt_tokens" | b"input_tokens" => &mut self.prompt_tokens,
                b"completion_tokens" | b"output_tokens" => &mut self.completion_tokens,
                b"cached_tokens" | b"cache_read_input_tokens" => &mut self.cached_tokens,
                b"prompt_tokens_details" | b"input_tokens_details" if scanner.peek()? == b'{' => {
                    return self.read(scanner);
                }
                _ => return scanner.skip().map(drop),
            };
            *number = scanner.u32()?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(prompt_tokens: u32, cached_tokens: Option<u32>, completion_tokens: u32) -> Option<Usage> {
        Some(Usage { prompt_tokens, cached_tokens, completion_tokens })
    }

    #[test]
    fn reads_every_engines_words() {
        let cases = [
            (
                r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}},"x":null}"#,
                usage(9, Some(8), 2),
            ),
            (
                r#"{"usage": {"prompt_tokens": 9, "total_tokens": 9, "prompt_tokens_details": null}}"#,
                usage(9, None, 0),
            ),
            (
                r#"{"usage":{"input_tokens":9,"output_tokens":1,"input_tokens_details":{"cached_tokens":0}}}"#,
                usage(9, Some(0), 1),
            ),
            (
                r#"{"usage":{"input_tokens":9,"cache_read_input_tokens":4,"output_tokens":1}}"#,
                usage(9, Some(4), 1),
            ),
            (
                "data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":2}}\n\ndata: [DONE]\n\n",
                usage(2, None, 0),
            ),
            (
                r#"{"text":"x","meta_info":{"id":"a","finish_reason":{"type":"length"},"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8}}"#,
                usage(9, Some(8), 2),
            ),
            (r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#, None),
            (r#"{"usage":null}"#, None),
            (r#"{"usage":{"prompt_tokens":-1}}"#, None),
            (r#"{"usage":{"prompt_tok"#, None),
            ("", None),
        ];
        for (answer, wanted) in cases {
            let mut tail = Tail::default();
            tail.push(answer.as_bytes());
            assert_eq!(tail.usage(), wanted, "{answer}");
        }
    }

    proptest! {
        #[test]
        fn keeps_the_end_however_the_answer_is_cut(sizes in proptest::collection::vec(0usize..5000, 1..20)) {
            let mut tail = Tail::default();
            let mut all = Vec::new();
            for (number, size) in sizes.into_iter().enumerate() {
                let data = vec![number as u8; size];
                tail.push(&data);
                all.extend(data);
            }
            prop_assert!(all.ends_with(&tail.bytes));
            prop_assert!(tail.bytes.len() >= all.len().min(TAIL_BYTES) && tail.bytes.len() <= 2 * TAIL_BYTES);
        }
    }
}
