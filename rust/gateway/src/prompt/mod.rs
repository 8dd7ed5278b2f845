//! Locates the prompt in a request body without changing or copying it.
//!
//! A body is read once to find what decides the placement: the model, what parts the engine's cache (`cache_salt`,
//! `tools`, a tenant key) and the prompt's text or token ids. Everything else is skipped, and the worker gets the
//! client's bytes. Strings without a backslash stay where they are; others are decoded into one arena, so that
//! `\u65e5` and the character itself are one prompt. Of a repeated key the last one counts, as in every engine.
//!
//! A body that cannot be read yields `None`: it is forwarded as it is and the worker's own refusal reaches the
//! client. Values of an unexpected type are skipped.

mod text;

use std::borrow::Cow;

use smallvec::SmallVec;
use trunkline_core::{Prompt, Root};
use xxhash_rust::xxh3::xxh3_64;

use self::text::{Pieces, TextSink};
use crate::json::{Malformed, Piece, Scanner};
use crate::path::PathClass;
use crate::pulse::Kind;

/// What a body says about where its request should go. Borrows from the body.
#[derive(Debug, Default)]
pub(crate) struct Located<'a> {
    /// The model asked for. A header may override it.
    pub(crate) model: Option<Cow<'a, str>>,
    /// Whether the answer is to come in pieces.
    is_stream: bool,
    is_chat: bool,
    cache_salt: Option<Cow<'a, str>>,
    prompt_cache_key: Option<Cow<'a, str>>,
    tools: Option<&'a [u8]>,
    prompt: Found<'a>,
    arena: Vec<u8>,
}

/// A prompt as it was found.
#[derive(Debug, Default)]
enum Found<'a> {
    #[default]
    Nothing,
    Text(Pieces<'a>),
    Tokens(Vec<u32>),
}

/// Characters of a prompt that stand for the whole, as `prefix_aware` has it by default.
const HEAD: usize = 4096;

/// Slices of a text prompt, in order.
type Slices<'s> = SmallVec<[&'s [u8]; 32]>;

impl<'a> Located<'a> {
    /// Reads `body`, which was sent to a path of class `class`. Cost: one pass over the body.
    pub(crate) fn read(class: PathClass, body: &'a [u8]) -> Option<Self> {
        let mut scanner = Scanner::new(body);
        let mut located = Self::default();
        located.scan(class, &mut scanner).ok()?;
        scanner.is_at_end().then_some(located)
    }

    /// A body of no known shape, all of it the prompt.
    pub(crate) fn whole(body: &'a [u8]) -> Self {
        Self { prompt: Found::Text(Pieces::from_iter([Piece::Plain(body)])), ..Self::default() }
    }

    /// Whether it holds a prompt.
    pub(crate) fn has_prompt(&self) -> bool {
        match &self.prompt {
            Found::Nothing => false,
            Found::Text(pieces) => !pieces.is_empty(),
            Found::Tokens(ids) => !ids.is_empty(),
        }
    }

    /// What makes equal prompts different cache entries. `tenant` is a tenant key from a header; the body's own one
    /// adds up.
    pub(crate) fn root(&self, tenant: Option<&[u8]>) -> Root {
        let fields = [
            ("model", self.model.as_deref().map(str::as_bytes)),
            ("cache_salt", self.cache_salt.as_deref().map(str::as_bytes)),
            ("prompt_cache_key", self.prompt_cache_key.as_deref().map(str::as_bytes)),
            ("tools", self.tools),
            ("tenant", tenant),
        ];
        fields.into_iter().fold(Root::default(), |root, (field, value)| match value {
            Some(value) => root.with(field, value),
            None => root,
        })
    }

    /// The salt of the engine's cache, if it has one.
    pub(crate) fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    /// The prompt's token ids, if it is given so.
    pub(crate) fn token_ids(&self) -> Option<&[u32]> {
        match &self.prompt {
            Found::Tokens(ids) if !ids.is_empty() => Some(ids),
            _ => None,
        }
    }

    /// Whether the prompt is a conversation.
    pub(crate) fn is_chat(&self) -> bool {
        self.is_chat
    }

    /// How the answer will begin.
    pub(crate) fn kind(&self) -> Kind {
        if self.is_stream { Kind::Stream } else { Kind::Whole }
    }

    /// Names the model in the router's table of learnt bytes per token.
    pub(crate) fn model_key(&self) -> u64 {
        self.model.as_deref().map_or(0, |model| xxh3_64(model.as_bytes()))
    }

    /// Calls `act` with the prompt; `None` if the body holds none or an empty one.
    pub(crate) fn with_prompt<R>(&self, act: impl FnOnce(Prompt<'_>) -> R) -> Option<R> {
        match &self.prompt {
            Found::Text(pieces) if !pieces.is_empty() => {
                let slices: Slices<'_> = pieces.iter().map(|piece| piece.bytes(&self.arena)).collect();
                Some(act(Prompt::Text(&slices)))
            }
            Found::Tokens(ids) if !ids.is_empty() => Some(act(Prompt::Tokens(ids))),
            Found::Nothing | Found::Text(_) | Found::Tokens(_) => None,
        }
    }

    /// The key that the client gave its prefix.
    pub(crate) fn prompt_cache_key(&self) -> Option<&str> {
        self.prompt_cache_key.as_deref()
    }

    /// A hash that all turns of a conversation have in common: of everything up to and with its first user message. Of a prompt
    /// that is no conversation, the hash of its first 4,096 characters. `None` without a prompt. Cost: O(bytes).
    pub(crate) fn conversation_hash(&self, seed: u64) -> Option<u64> {
        let Found::Text(pieces) = &self.prompt else {
            return self.with_prompt(|prompt| prompt.head_hash(self.root(None), seed, HEAD));
        };
        let slices: Slices<'_> = pieces.iter().map(|piece| piece.bytes(&self.arena)).collect();
        let user = slices.windows(2).position(|pair| pair[0] == b"user" && pair[1] == text::UNIT_SEPARATOR);
        let end = user.and_then(|at| {
            slices[at..].iter().position(|slice| *slice == text::RECORD_SEPARATOR).map(|length| at + length)
        });
        let (head, length) = match end {
            Some(end) => (&slices[..end], usize::MAX),
            None => (&slices[..], HEAD),
        };
        (!head.is_empty()).then(|| Prompt::Text(head).head_hash(self.root(None), seed, length))
    }

    fn scan(&mut self, class: PathClass, scanner: &mut Scanner<'a>) -> Result<(), Malformed> {
        if scanner.peek()? != b'{' {
            return scanner.skip().map(drop);
        }
        let (mut lead, mut messages, mut prompt) = (Pieces::new(), Pieces::new(), Found::Nothing);
        scanner.object(|scanner, key| {
            let arena = &mut self.arena;
            match Field::of(class, key) {
                Field::Model => self.model = name(scanner)?,
                Field::Stream => self.is_stream = scanner.skip()? == b"true",
                Field::CacheSalt => self.cache_salt = name(scanner)?,
                Field::PromptCacheKey => self.prompt_cache_key = name(scanner)?,
                Field::Tools => {
                    self.tools = Some(scanner.skip()?).filter(|tools| !matches!(*tools, b"null" | b"[]"))
                }
                Field::Messages => {
                    messages.clear();
                    TextSink { arena, pieces: &mut messages }.messages(scanner)?;
                }
                Field::Lead => {
                    lead.clear();
                    TextSink { arena, pieces: &mut lead }.lead(scanner)?;
                }
                Field::Prompt => match found(scanner, arena)? {
                    Found::Nothing => {}
                    found => prompt = found,
                },
                Field::Skip => {
                    scanner.skip()?;
                }
            }
            Ok(())
        })?;
        self.is_chat = !messages.is_empty();
        self.prompt = if messages.is_empty() { prompt } else { Found::Text(messages) };
        if let Found::Text(pieces) = &mut self.prompt
            && !lead.is_empty()
        {
            lead.append(pieces);
            *pieces = lead;
        }
        Ok(())
    }
}

/// A string that names something; `None` for anything else.
fn name<'a>(scanner: &mut Scanner<'a>) -> Result<Option<Cow<'a, str>>, Malformed> {
    if scanner.peek()? != b'"' {
        scanner.skip()?;
        return Ok(None);
    }
    let mut decoded = Vec::new();
    match scanner.string(&mut decoded)? {
        Piece::Plain(name) => Ok(std::str::from_utf8(name).ok().map(Cow::Borrowed)),
        Piece::Decoded(..) => Ok(String::from_utf8(decoded).ok().map(Cow::Owned)),
    }
}

/// A prompt value: text, texts, token ids, lists of token ids, or items of a conversation.
///
/// Of several prompts in one request the first one places it: they run together, so one worker gets them all.
fn found<'a>(scanner: &mut Scanner<'a>, arena: &mut Vec<u8>) -> Result<Found<'a>, Malformed> {
    let mut pieces = Pieces::new();
    let mut sink = TextSink { arena, pieces: &mut pieces };
    match scanner.peek()? {
        b'"' => sink.text(scanner)?,
        b'[' => match scanner.first_item()? {
            b'{' => sink.messages(scanner)?,
            b'"' => scanner.first_of_array(|scanner| sink.text(scanner))?,
            b'0'..=b'9' => return token_ids(scanner).map(Found::Tokens),
            b'[' => {
                let mut ids = Vec::new();
                scanner.first_of_array(|scanner| {
                    ids = token_ids(scanner)?;
                    Ok(())
                })?;
                return Ok(Found::Tokens(ids));
            }
            _ => scanner.skip().map(drop)?,
        },
        _ => scanner.skip().map(drop)?,
    }
    Ok(if pieces.is_empty() { Found::Nothing } else { Found::Text(pieces) })
}

/// A list of token ids; empty if it holds anything else, which the worker will refuse.
fn token_ids(scanner: &mut Scanner<'_>) -> Result<Vec<u32>, Malformed> {
    let (mut ids, mut are_ids) = (Vec::with_capacity(512), true);
    scanner.array(|scanner| {
        match scanner.u32()? {
            Some(id) => ids.push(id),
            None => are_ids = false,
        }
        Ok(())
    })?;
    if !are_ids {
        ids.clear();
    }
    Ok(ids)
}

/// What a top-level key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    CacheSalt,
    PromptCacheKey,
    Tools,
    /// A conversation.
    Messages,
    /// Text that an engine puts before the conversation.
    Lead,
    /// A text, texts, token ids, or items of a conversation.
    Prompt,
    Skip,
}

impl Field {
    fn of(class: PathClass, key: &[u8]) -> Self {
        use PathClass as C;
        match (key, class) {
            (b"model", _) => Self::Model,
            (b"stream", _) => Self::Stream,
            (b"cache_salt", _) => Self::CacheSalt,
            (b"prompt_cache_key", _) => Self::PromptCacheKey,
            (b"tools", _) => Self::Tools,
            (b"messages", C::Chat | C::Messages | C::Invocations | C::Embeddings | C::Tokenize) => {
                Self::Messages
            }
            (b"instructions", C::Responses) | (b"system", C::Messages) => Self::Lead,
            (b"prompt", C::Completions | C::Generate | C::Invocations | C::Tokenize)
            | (b"input", C::Responses | C::Embeddings | C::Invocations)
            | (b"text" | b"inputs" | b"input_ids" | b"token_ids", C::Generate | C::Invocations)
            | (b"query", C::Rerank | C::Score | C::Invocations)
            | (b"text_1" | b"queries", C::Score | C::Invocations) => Self::Prompt,
            _ => Self::Skip,
        }
    }
}

#[cfg(test)]
mod tests;
