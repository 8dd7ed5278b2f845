//! What vLLM logs of a request with `--enable-log-requests`.
//!
//! Up to 0.11 one line has it all; later versions write the prompt at level DEBUG and the parameters at level INFO, each in a line of
//! its own. Prompts are Python's `repr` of the text. Source: `RequestLogger.log_inputs` of vllm.entrypoints.

use trunkline_core::Root;

use super::json::bounded;
use super::time::of_year;
use super::{LoggedRequest, NoRequest};

/// Bytes of a line in which its level stands.
const LEVEL_WITHIN: usize = 96;

/// What a line tells.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// All of a request.
    Request(LoggedRequest),
    /// A prompt without parameters.
    Detail(Detail),
    /// Parameters without a prompt.
    Parameters(Parameters),
}

/// A prompt, and whose it is.
#[derive(Debug, PartialEq)]
pub(super) struct Detail {
    pub(super) id: String,
    pub(super) request: LoggedRequest,
}

impl Detail {
    /// The request, now that its parameters are known.
    pub(super) fn with(self, parameters: &Parameters) -> LoggedRequest {
        let Parameters { output_tokens, root, .. } = *parameters;
        LoggedRequest { output_tokens, root, ..self.request }
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct Parameters {
    pub(super) id: String,
    output_tokens: Option<u32>,
    root: Root,
}

/// Reads a line.
pub(super) fn line(line: &str) -> Result<Line, NoRequest> {
    let start = line.get(..LEVEL_WITHIN).unwrap_or(line);
    let has_level = ["DEBUG", "INFO", "WARNING", "ERROR"].iter().any(|level| start.contains(level));
    if let Some((head, rest)) = line.split_once(" Received request ") {
        let (id, rest) = rest.split_once(": ").ok_or("a cut line")?;
        return match rest.strip_prefix("prompt: ") {
            Some(rest) => whole(head, rest).map(Line::Request),
            None => Ok(Line::Parameters(Parameters {
                id: id.to_owned(),
                output_tokens: max_tokens(rest),
                root: root(rest),
            })),
        };
    }
    if let Some((head, rest)) = line.split_once(" Request ")
        && let Some((id, rest)) = rest.split_once(" details: prompt: ")
    {
        return Ok(Line::Detail(Detail { id: id.to_owned(), request: whole(head, rest)? }));
    }
    Err(if has_level { NoRequest::Aside } else { "neither JSON nor a request that vLLM logged".into() })
}

/// `'text', params: SamplingParams(..., max_tokens=16, ...), prompt_token_ids: [1, 2], ...` or a part of it.
fn whole(head: &str, rest: &str) -> Result<LoggedRequest, NoRequest> {
    let (text, rest) = match rest.strip_prefix("None") {
        Some(rest) => (None, rest),
        None => repr(rest).map(|(text, rest)| (Some(text), rest)).ok_or("a cut line")?,
    };
    let words: Vec<&str> = head.split_whitespace().collect();
    let mut request = LoggedRequest {
        root: root(rest),
        at_s: words.windows(2).find_map(|pair| of_year(pair[0], pair[1])),
        output_tokens: max_tokens(rest),
        ..LoggedRequest::default()
    };
    match text {
        Some(text) => request.prompt = text.into_bytes(),
        None => request.set_ids(&token_ids(rest).ok_or("vLLM logged no prompt")?),
    }
    if request.prompt.is_empty() {
        return Err("an empty prompt".into());
    }
    Ok(request)
}

fn max_tokens(params: &str) -> Option<u32> {
    let (_, rest) = params.split_once("max_tokens=")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok().map(bounded)
}

fn token_ids(rest: &str) -> Option<Vec<u32>> {
    let (_, rest) = rest.split_once("prompt_token_ids: [")?;
    let (ids, _) = rest.split_once(']')?;
    ids.split(", ").map(|id| id.parse().ok()).collect()
}

/// The adapter's name, which parts the cache.
fn root(rest: &str) -> Root {
    let name = rest.split_once("lora_name='").and_then(|(_, rest)| rest.split_once('\''));
    name.map_or(Root::default(), |(name, _)| Root::default().with("lora", name.as_bytes()))
}

/// The text of a string as Python's `repr` writes it, and what follows; `None` if it has no end.
fn repr(written: &str) -> Option<(String, &str)> {
    let quote = written.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let mut text = String::new();
    let mut rest = &written[1..];
    loop {
        let at = rest.find([quote, '\\'])?;
        text.push_str(&rest[..at]);
        if rest[at..].starts_with(quote) {
            return Some((text, &rest[at + 1..]));
        }
        let letter = rest[at + 1..].chars().next()?;
        rest = &rest[at + 1 + letter.len_utf8()..];
        let digits = match letter {
            'n' => "\n",
            't' => "\t",
            'r' => "\r",
            'x' | 'u' | 'U' => {
                let count = if letter == 'x' {
                    2
                } else if letter == 'u' {
                    4
                } else {
                    8
                };
                let code = u32::from_str_radix(rest.get(..count)?, 16).ok()?;
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = &rest[count..];
                continue;
            }
            other => {
                text.push(other);
                continue;
            }
        };
        text.push_str(digits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_older_versions_has_it_all() {
        let read = line(
            "INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: 'Say \\'hi\\', params: \\n\\xe9\\u65e5', params: \
             SamplingParams(n=1, max_tokens=16, min_tokens=0), prompt_token_ids: None, lora_request: \
             LoRARequest(lora_name='law', lora_int_id=1).",
        );
        let Ok(Line::Request(request)) = read else { panic!("{read:?}") };
        assert_eq!(String::from_utf8(request.prompt).unwrap(), "Say 'hi', params: \né日");
        assert_eq!((request.at_s, request.output_tokens), (of_year("11-30", "12:00:01"), Some(16)));
        assert_eq!(request.root, Root::default().with("lora", b"law"));
    }

    #[test]
    fn without_text_the_token_ids_are_the_prompt() {
        let read = line(
            "DEBUG 11-30 12:00:01 [x.py:1] Request a details: prompt: None, prompt_token_ids: [5, 6], prompt_embeds shape: None.",
        );
        let Ok(Line::Detail(detail)) = read else { panic!("{read:?}") };
        assert!(detail.request.is_tokens);
        assert_eq!(detail.request.prompt, [5, 0, 0, 0, 6, 0, 0, 0]);
    }

    #[test]
    fn other_lines_are_told_from_broken_ones() {
        let access = "INFO:     127.0.0.1:5000 - \"POST /v1/completions HTTP/1.1\" 200 OK";
        assert_eq!(line(access), Err(NoRequest::Aside));
        for broken in [
            "hello",
            "INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: 'cut",
            "INFO 11-30 12:00:01 [logger.py:43] Received request cmpl-1: prompt: None, params: x",
        ] {
            assert!(matches!(line(broken), Err(NoRequest::Broken(_))), "{broken}");
        }
    }
}
