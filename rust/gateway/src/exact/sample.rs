//! Compares a rendered prompt with the engine's own: the same request, for one token, with the ids of its prompt.
//!
//! The request is a copy of a client's that was just answered, so its prompt is cached and costs little; the client's own is
//! not touched. It goes to the worker that answered, past the books.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::time::timeout;

use super::Prompted;
use crate::fleet::{Fleet, Worker};
use crate::probe;

/// Longest wait for the engine's tokens: it has other work.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for instead of an answer. Of a key that comes twice engines take the last one.
const INSTEAD: &[u8] = br#","stream":false,"max_tokens":1,"max_completion_tokens":1,"n":1,"return_token_ids":true,"logprobs":null,"stream_options":null}"#;

#[derive(Deserialize)]
struct Answer {
    prompt_token_ids: Option<Vec<u32>>,
    choices: Option<Vec<Choice>>,
}

#[derive(Deserialize)]
struct Choice {
    prompt_token_ids: Option<Vec<u32>>,
}

/// Compares, notes the result, and says so if they differ.
pub(crate) async fn sample(
    fleet: Arc<Fleet>,
    worker: Arc<Worker>,
    path: String,
    body: Bytes,
    prompted: Prompted,
) {
    let Some(at) = prompted.watched() else { return };
    let Some(body) = instead(&body) else { return };
    let answer = timeout(PATIENCE, probe::ask(&worker.endpoint, &path, body)).await;
    let exact = &fleet.exact;
    let ids = answer.ok().and_then(Result::ok).and_then(|answer| {
        let answer: Answer = serde_json::from_slice(&answer).ok()?;
        answer.prompt_token_ids.or_else(|| answer.choices?.into_iter().next()?.prompt_token_ids)
    });
    let text = exact.text(at);
    let Some(spelled) = ids.and_then(|ids| text.renderer.spells(&ids)) else {
        exact.outcomes.sampled("unknown");
        return;
    };
    match difference(&prompted.bytes, &spelled) {
        None => exact.outcomes.sampled("equal"),
        Some(at) => {
            exact.outcomes.sampled("different");
            text.watch.differs(fleet.now());
            fleet.log.say(format_args!(
                "prompts of {} are rendered in another way than {} does: of {} bytes the first that differs is \
                 number {at}, {} instead of {}",
                text.model.as_deref().unwrap_or("the model"),
                worker.endpoint.url,
                prompted.bytes.len(),
                named(&prompted.bytes, at),
                named(&spelled, at),
            ));
        }
    }
}

/// The request with other endings.
fn instead(body: &[u8]) -> Option<Bytes> {
    let end = body.iter().rposition(|&byte| byte == b'}')?;
    Some([&body[..end], INSTEAD].concat().into())
}

/// Where two texts part.
fn difference(ours: &[u8], its: &[u8]) -> Option<usize> {
    let common = ours.iter().zip(its).take_while(|(a, b)| a == b).count();
    (common < ours.len() || common < its.len()).then_some(common)
}

/// The byte at a place. One byte: logs are no place for prompts.
fn named(text: &[u8], at: usize) -> String {
    text.get(at).map_or_else(|| "the end".into(), |byte| format!("{byte:#04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_part_at_their_first_other_byte_or_their_end() {
        assert_eq!(difference(b"abc", b"abc"), None);
        assert_eq!(difference(b"abc", b"abd"), Some(2));
        assert_eq!(difference(b"abc", b"ab"), Some(2));
        assert_eq!(difference(b"", b"a"), Some(0));
        assert_eq!(named(b"abc", 2), "0x63");
        assert_eq!(named(b"abc", 3), "the end");
    }

    #[test]
    fn the_copy_is_a_request_for_one_token_and_its_ids() {
        let body = instead(br#"{"messages":[],"stream":true,"max_tokens":500 } "#).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(read["max_tokens"], 1);
        assert_eq!(read["stream"], false);
        assert_eq!(read["return_token_ids"], true);
        assert!(instead(b"no object").is_none());
    }
}
