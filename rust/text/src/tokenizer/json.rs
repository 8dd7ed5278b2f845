//! `tokenizer.json` of Hugging Face's `tokenizers`.
//!
//! Two families keep all text: byte-level BPE, whose tokens are written in an alphabet of 256 characters, and
//! sentencepiece's BPE and Unigram with a token for each byte. A step that drops or changes text beyond what
//! [`Canonical`] does is refused.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::canonical::{AddedToken, Form, Space};
use super::{Affixes, Canonical, Config, Tokenizer, Vocabulary, malformed};
use crate::error::{Error, Result};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Vocab,
    #[serde(default)]
    byte_fallback: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocab {
    Ids(HashMap<String, u32>),
    Scores(Vec<(String, f64)>),
}

/// How a token of the model is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// In the alphabet of bytes.
    ByteLevel,
    /// As text, U+2581 for a space and `<0x0A>` for a byte.
    Pieces,
}

fn refuse<T>(part: &'static str, reason: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported { part, reason: reason.into() })
}

/// Reads the file at `path`, which holds `text`.
pub(super) fn load(path: &Path, text: &str, config: &Config) -> Result<Tokenizer> {
    let file: File = serde_json::from_str(text).map_err(|error| malformed(path, error))?;
    let family = family(&file)?;
    let mut rules = Rules::default();
    for step in steps(file.normalizer.as_ref(), "normalizers") {
        rules.normalize(step)?;
    }
    let splits = steps(file.pre_tokenizer.as_ref(), "pretokenizers");
    for step in &splits {
        rules.split(step, family, splits.len() == 1)?;
    }
    let canonical = rules.finish(&file)?;
    let affixes = affixes(&file, config);
    let tokens = tokens(file, family);
    let vocabulary =
        Vocabulary::new(tokens).ok_or_else(|| malformed(path, "an id or a token is too large"))?;
    Ok(Tokenizer { vocabulary, canonical, affixes })
}

/// The steps of a part: those of a sequence, in order, or the one that it is.
fn steps<'v>(part: Option<&'v Value>, name: &str) -> Vec<&'v Value> {
    match part {
        None => Vec::new(),
        Some(step) if kind(step) == "Sequence" => {
            let inner = step.get(name).and_then(Value::as_array).into_iter().flatten();
            inner.flat_map(|step| steps(Some(step), name)).collect()
        }
        Some(step) => vec![step],
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn flag(step: &Value, name: &str) -> bool {
    step.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// The text that a pattern stands for, if it is no regular expression.
fn plain_pattern(step: &Value) -> Option<&str> {
    step.get("pattern")?.get("String")?.as_str()
}

fn family(file: &File) -> Result<Family> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if is_set(&file.model.continuing_subword_prefix) || is_set(&file.model.end_of_word_suffix) {
        return refuse("model", "marks of word parts are no text");
    }
    match file.model.kind.as_deref() {
        Some("BPE" | "Unigram") | None => {}
        Some(kind) => return refuse("model", format!("{kind}: white space between words is lost")),
    }
    let decoders = steps(file.decoder.as_ref(), "decoders");
    let mut family = None;
    for step in &decoders {
        let of_pieces = match (kind(step), plain_pattern(step)) {
            ("ByteLevel", _) => false,
            ("Replace", Some("\u{2581}")) if step.get("content").and_then(Value::as_str) == Some(" ") => true,
            ("Metaspace", _) if step.get("replacement").and_then(Value::as_str) == Some("\u{2581}") => true,
            // They join tokens, or take away the space that was put in front of a whole text.
            ("ByteFallback" | "Fuse", _) => continue,
            ("Strip", _) if step.get("content").and_then(Value::as_str) == Some(" ") => continue,
            (kind, _) => return refuse("decoder", kind),
        };
        let found = if of_pieces { Family::Pieces } else { Family::ByteLevel };
        if family.is_some_and(|family| family != found) {
            return refuse("decoder", "two ways of writing tokens");
        }
        family = Some(found);
    }
    match family {
        None => refuse("decoder", "none"),
        Some(Family::Pieces) if !file.model.byte_fallback => {
            refuse("model", "characters that are not in the vocabulary are lost (no byte_fallback)")
        }
        Some(family) => Ok(family),
    }
}

/// The rules of the steps read so far.
#[derive(Debug, Default)]
struct Rules {
    form: Option<Form>,
    space: Space,
    writes_blocks: bool,
}

impl Rules {
    fn normalize(&mut self, step: &Value) -> Result<()> {
        let form = match kind(step) {
            "NFC" => Form::Nfc,
            "NFD" => Form::Nfd,
            "NFKC" => Form::Nfkc,
            "NFKD" => Form::Nfkd,
            "Prepend" if step.get("prepend").and_then(Value::as_str) == Some("\u{2581}") => {
                return self.put_space(Space::Each, "normalizer");
            }
            "Replace" => {
                let content = step.get("content").and_then(Value::as_str);
                if (plain_pattern(step), content) != (Some(" "), Some("\u{2581}")) {
                    return refuse("normalizer", "Replace of more than spaces");
                }
                self.writes_blocks = true;
                return Ok(());
            }
            kind => return refuse("normalizer", kind),
        };
        match self.form.replace(form) {
            Some(_) => refuse("normalizer", "two normal forms"),
            None => Ok(()),
        }
    }

    fn put_space(&mut self, space: Space, part: &'static str) -> Result<()> {
        if self.space != Space::Never {
            return refuse(part, "spaces are put in front twice");
        }
        self.space = space;
        Ok(())
    }

    fn split(&mut self, step: &Value, family: Family, is_alone: bool) -> Result<()> {
        let part = "pre_tokenizer";
        match kind(step) {
            "ByteLevel" if flag(step, "add_prefix_space") => refuse(part, "ByteLevel with add_prefix_space"),
            "ByteLevel" if family == Family::ByteLevel => Ok(()),
            "Split" | "Punctuation" if step.get("behavior").and_then(Value::as_str) == Some("Removed") => {
                refuse(part, format!("{} that removes text", kind(step)))
            }
            "Split" | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength" => Ok(()),
            "Metaspace" if step.get("replacement").and_then(Value::as_str) == Some("\u{2581}") => {
                self.writes_blocks = true;
                let legacy = step.get("add_prefix_space").and_then(Value::as_bool);
                let scheme = step.get("prepend_scheme").and_then(Value::as_str);
                let space = match (scheme, legacy) {
                    (Some("never"), _) | (None, Some(false)) => return Ok(()),
                    (Some("first"), _) => Space::FirstWithout,
                    (Some("always"), _) | (None, _) => Space::EachWithout,
                    (Some(scheme), _) => {
                        return refuse(part, format!("Metaspace with prepend_scheme {scheme}"));
                    }
                };
                if !is_alone {
                    return refuse(part, "Metaspace that puts spaces within a sequence");
                }
                self.put_space(space, part)
            }
            kind => refuse(part, kind),
        }
    }

    fn finish(self, file: &File) -> Result<Canonical> {
        let added = &file.added_tokens;
        if self.form.is_some() || self.space != Space::Never {
            // With a normalizer, such tokens are looked for in what it makes of the text.
            if file.normalizer.is_some() && added.iter().any(|token| token.normalized) {
                return refuse("added_tokens", "tokens that are found behind the normalizer");
            }
        }
        if added.iter().any(|token| token.single_word) {
            return refuse("added_tokens", "tokens that are whole words only");
        }
        let added = added.iter().filter(|token| !token.content.is_empty()).map(|token| AddedToken {
            content: token.content.clone(),
            is_left_open: token.lstrip,
            is_right_open: token.rstrip,
        });
        let canonical = Canonical::new(self.form, self.space, self.writes_blocks, added.collect());
        canonical.ok_or_else(|| Error::Unsupported { part: "added_tokens", reason: "too many".into() })
    }
}

/// The bytes of each token. Added tokens are their own text; where U+2581 is a space, it is one in them, too.
fn tokens(file: File, family: Family) -> Vec<(u32, Vec<u8>)> {
    let alphabet = alphabet();
    let bytes = |token: &str| match family {
        Family::ByteLevel => {
            let bytes: Option<Vec<u8>> = token.chars().map(|letter| alphabet.get(&letter).copied()).collect();
            bytes.unwrap_or_else(|| token.as_bytes().to_vec())
        }
        Family::Pieces => match byte_of(token) {
            Some(byte) => vec![byte],
            None => token.replace('\u{2581}', " ").into_bytes(),
        },
    };
    let mut tokens: Vec<(u32, Vec<u8>)> = match file.model.vocab {
        Vocab::Ids(ids) => ids.into_iter().map(|(token, id)| (id, bytes(&token))).collect(),
        Vocab::Scores(scores) => (0..).zip(scores).map(|(id, (token, _))| (id, bytes(&token))).collect(),
    };
    tokens.sort_unstable_by_key(|(id, _)| *id);
    tokens.extend(file.added_tokens.into_iter().map(|token| match family {
        Family::ByteLevel => (token.id, token.content.into_bytes()),
        Family::Pieces => (token.id, token.content.replace('\u{2581}', " ").into_bytes()),
    }));
    tokens
}

/// The byte that `<0x0A>` stands for. A text with such a name in it is spelled as it stands; Unigram alone may take it
/// for the byte.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The character of each byte: itself where it is printable in Latin-1, else the next one from U+0100 on.
/// Source: the encoder of GPT-2.
fn alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    let mut character = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    };
    (0..=255).map(|byte| (character(byte), byte)).collect()
}

/// What the post-processor puts around a text. `None` if it does what we do not know, or what
/// `tokenizer_config.json` contradicts: which of both counts depends on the class that reads them.
fn affixes(file: &File, config: &Config) -> Option<Affixes> {
    let mut affixes = Affixes::default();
    for step in steps(file.post_processor.as_ref(), "processors") {
        match kind(step) {
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let mut is_behind = false;
                for part in step.get("single")?.as_array()? {
                    if let Some(special) = part.get("SpecialToken") {
                        let tokens =
                            step.get("special_tokens")?.get(special.get("id")?.as_str()?)?.get("tokens")?;
                        let side = if is_behind { &mut affixes.after } else { &mut affixes.before };
                        for token in tokens.as_array()? {
                            side.extend_from_slice(token.as_str()?.as_bytes());
                        }
                    } else {
                        part.get("Sequence")?;
                        is_behind = true;
                    }
                }
            }
            _ => return None,
        }
    }
    let agrees = |says: Option<bool>, bytes: &[u8]| says.is_none_or(|says| says != bytes.is_empty());
    (agrees(config.adds_bos, &affixes.before) && agrees(config.adds_eos, &affixes.after)).then_some(affixes)
}
