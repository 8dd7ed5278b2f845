//! JSON as Python's `json.loads` reads it, borrowed from the document.
//!
//! Keys keep their order, of a repeated one the last value counts at the first one's place, integers have any size,
//! and `1.0` stays a float. Strings without a backslash stay where they are; others are decoded into one arena that
//! outlives the document and is used again. Refused, where Python goes on: NaN and infinities, and surrogates without
//! their partners, which stand for no text.

use std::collections::HashMap;

use memchr::memchr2;

use crate::escape::{copy_text, one_letter};

/// Containers within containers. Python refuses about a thousand; nobody sends ten.
const MAX_DEPTH: usize = 128;

/// Digits of an integer that Python reads (`sys.int_info.default_max_str_digits`).
const MAX_DIGITS: usize = 4300;

/// The bytes are not JSON, or more than we read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// The text of a string.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Text<'a> {
    /// As it stands in the document.
    Plain(&'a str),
    /// Decoded, in the arena from `.0` to `.1`.
    Decoded(usize, usize),
}

impl<'a> Text<'a> {
    /// The text, given the arena that the document was read with.
    pub(crate) fn get<'s>(self, arena: &'s Arena) -> &'s str
    where
        'a: 's,
    {
        match self {
            Self::Plain(text) => text,
            Self::Decoded(start, end) => &arena.text()[start..end],
        }
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits: its digits, as Python prints them.
    Big(&'a str),
    Float(f64),
    Text(Text<'a>),
    List(Vec<Json<'a>>),
    Map(Vec<(Text<'a>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// The value of `key`, if this is a map that has it.
    pub(crate) fn get(&self, key: &str, arena: &Arena) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name.get(arena) == key).map(|(_, value)| value)
    }

    /// The text, if this is a string.
    pub(crate) fn as_text<'s>(&self, arena: &'s Arena) -> Option<&'s str>
    where
        'a: 's,
    {
        match self {
            Self::Text(text) => Some(text.get(arena)),
            _ => None,
        }
    }
}

/// Where decoded strings are kept.
#[derive(Debug, Default)]
pub(crate) struct Arena(Vec<u8>);

impl Arena {
    /// Forgets what it holds and makes room for a document of so many bytes.
    pub(crate) fn reset(&mut self, document_bytes: usize) {
        self.0.clear();
        self.0.reserve(document_bytes);
    }

    fn text(&self) -> &str {
        // SAFETY: only `Parser::string` writes to it: pieces of a `str` that end before an ASCII byte, and characters.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }
}

/// Reads a document. Cost: one pass, no copy of strings without a backslash.
///
/// # Errors
/// It is no JSON, nested too deeply, or has what stands for no text.
pub(crate) fn parse<'a>(document: &'a str, arena: &mut Arena) -> Result<Json<'a>> {
    let mut parser = Parser { document, bytes: document.as_bytes(), at: 0, arena };
    let value = parser.value(0)?;
    match parser.peek() {
        Err(Malformed) => Ok(value),
        Ok(_) => Err(Malformed),
    }
}

struct Parser<'a, 's> {
    document: &'a str,
    bytes: &'a [u8],
    at: usize,
    arena: &'s mut Arena,
}

impl<'a> Parser<'a, '_> {
    /// The first byte of the next token.
    fn peek(&mut self) -> Result<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(&byte) => return Ok(byte),
                None => return Err(Malformed),
            }
        }
    }

    fn expect(&mut self, wanted: u8) -> Result<()> {
        if self.peek()? != wanted {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes a comma (`true`) or the end of the container.
    fn has_next(&mut self, end: u8) -> Result<bool> {
        let next = self.peek()?;
        self.at += 1;
        match next {
            b',' => Ok(true),
            _ if next == end => Ok(false),
            _ => Err(Malformed),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json<'a>> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        match self.peek()? {
            b'"' => self.string().map(Json::Text),
            b'{' => self.map(depth),
            b'[' => self.list(depth),
            b't' => self.literal("true", Json::Bool(true)),
            b'f' => self.literal("false", Json::Bool(false)),
            b'n' => self.literal("null", Json::Null),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(Malformed),
        }
    }

    fn literal(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Json<'a>> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if !self.has_next(b']')? {
                return Ok(Json::List(items));
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Json<'a>> {
        self.expect(b'{')?;
        let mut entries = Vec::new();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Json::Map(entries));
        }
        loop {
            self.peek()?;
            let key = self.string()?;
            self.expect(b':')?;
            entries.push((key, self.value(depth + 1)?));
            if !self.has_next(b'}')? {
                self.merge_repeated(&mut entries);
                return Ok(Json::Map(entries));
            }
        }
    }

    /// Moves the last value of a repeated key to the key's first place.
    fn merge_repeated(&self, entries: &mut Vec<(Text<'a>, Json<'a>)>) {
        let arena = &*self.arena;
        let is_repeated = |at: usize, key: &str| entries[..at].iter().any(|(name, _)| name.get(arena) == key);
        let few = entries.len() <= 16;
        if few && !(1..entries.len()).any(|at| is_repeated(at, entries[at].0.get(arena))) {
            return;
        }
        let mut places: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
        let mut merged: Vec<(Text<'a>, Json<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries.drain(..) {
            match places.get(key.get(arena)) {
                Some(&place) => merged[place].1 = value,
                None => {
                    places.insert(key.get(arena), merged.len());
                    merged.push((key, value));
                }
            }
        }
        *entries = merged;
    }

    fn string(&mut self) -> Result<Text<'a>> {
        self.expect(b'"')?;
        let rest = self.bytes.get(self.at..).ok_or(Malformed)?;
        let end = memchr2(b'"', b'\\', rest).ok_or(Malformed)?;
        if rest[end] == b'"' {
            let text = &self.document[self.at..self.at + end];
            self.at += end + 1;
            return Ok(Text::Plain(text));
        }
        let start = self.arena.0.len();
        let decoded = self.decode();
        if decoded.is_err() {
            self.arena.0.truncate(start);
        }
        decoded?;
        Ok(Text::Decoded(start, self.arena.0.len()))
    }

    /// Appends the text of the string that begins here to the arena.
    fn decode(&mut self) -> Result<()> {
        loop {
            let rest = &self.bytes[self.at..];
            let Some(end) = copy_text(rest, &mut self.arena.0) else { return Err(Malformed) };
            self.at += end + 1;
            if rest[end] == b'"' {
                return Ok(());
            }
            let letter = *self.bytes.get(self.at).ok_or(Malformed)?;
            self.at += 1;
            if letter == b'u' {
                let character = self.unicode_escape()?;
                self.arena.0.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                self.arena.0.push(one_letter(letter).ok_or(Malformed)?);
            }
        }
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let mut code = self.hex4()?;
        if (0xd800..0xdc00).contains(&code) {
            if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
                return Err(Malformed);
            }
            self.at += 2;
            let low = self.hex4()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(Malformed);
            }
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        char::from_u32(code).ok_or(Malformed)
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(Malformed)?;
        self.at += 4;
        digits.iter().try_fold(0, |value, &digit| {
            let digit = char::from(digit).to_digit(16).ok_or(Malformed)?;
            Ok(value << 4 | digit)
        })
    }

    fn number(&mut self) -> Result<Json<'a>> {
        let start = self.at;
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        let digits = self.digits()?;
        if digits > 1 && self.bytes[self.at - digits] == b'0' {
            return Err(Malformed);
        }
        let mut is_float = false;
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
            is_float = true;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            is_float = true;
        }
        let text = &self.document[start..self.at];
        if is_float {
            return text.parse().map(Json::Float).map_err(|_| Malformed);
        }
        match text.parse() {
            Ok(value) => Ok(Json::Int(value)),
            Err(_) if digits <= MAX_DIGITS => Ok(Json::Big(text)),
            Err(_) => Err(Malformed),
        }
    }

    /// Consumes digits, at least one; returns how many.
    fn digits(&mut self) -> Result<usize> {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(Malformed) } else { Ok(count) }
    }
}

/// Reads a document with an arena of its own and hands both to `act`.
///
/// # Errors
/// Those of [`parse`].
pub(crate) fn parse_once<R>(document: &str, act: impl FnOnce(&Json<'_>, &Arena) -> R) -> Result<R> {
    let mut arena = Arena::default();
    let value = parse(document, &mut arena)?;
    Ok(act(&value, &arena))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn show(json: &Json<'_>, arena: &Arena) -> String {
        match json {
            Json::Null => "null".into(),
            Json::Bool(value) => value.to_string(),
            Json::Int(value) => value.to_string(),
            Json::Big(digits) => format!("big {digits}"),
            Json::Float(value) => format!("{value:?}"),
            Json::Text(text) => format!("{:?}", text.get(arena)),
            Json::List(items) => {
                let items: Vec<_> = items.iter().map(|item| show(item, arena)).collect();
                format!("[{}]", items.join(","))
            }
            Json::Map(entries) => {
                let entries =
                    entries.iter().map(|(key, value)| format!("{:?}:{}", key.get(arena), show(value, arena)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
            }
        }
    }

    fn read(document: &str) -> Option<String> {
        parse_once(document, show).ok()
    }

    #[test]
    fn reads_what_python_reads() {
        let cases = [
            (
                r#" {"a":1,"b":[1.0,-0,2.50,1e-7,true,false,null],"a":"x\u00e9\ud83d\ude00\n"} "#,
                r#"{"a":"xé😀\n","b":[1.0,0,2.5,1e-7,true,false,null]}"#,
            ),
            (r#"12345678901234567890123"#, "big 12345678901234567890123"),
            (r#""plain""#, r#""plain""#),
            ("[]", "[]"),
            ("{}", "{}"),
        ];
        for (document, wanted) in cases {
            assert_eq!(read(document).as_deref(), Some(wanted), "{document}");
        }
    }

    #[test]
    fn refuses_what_is_no_json_or_no_text() {
        for document in [
            "",
            "{",
            "[1,]",
            "01",
            "1.",
            "-",
            "nul",
            "\"a",
            "\"\\x\"",
            "\"\\ud800\"",
            "{\"a\"}",
            "1 2",
            "NaN",
            "\"\\u12\"",
        ] {
            assert_eq!(read(document), None, "{document}");
        }
        assert_eq!(read(&"[".repeat(100_000)), None);
    }

    #[test]
    fn a_repeated_key_keeps_its_first_place_and_its_last_value() {
        let many: Vec<_> = (0..40).map(|key| format!("\"k{}\":{key}", key % 20)).collect();
        let wanted: Vec<_> = (0..20).map(|key| format!("\"k{key}\":{}", key + 20)).collect();
        assert_eq!(read(&format!("{{{}}}", many.join(","))), Some(format!("{{{}}}", wanted.join(","))));
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter_map("finite", |float| serde_json::Number::from_f64(float).map(Value::from)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
            ]
        })
    }

    fn back(json: &Json<'_>, arena: &Arena) -> serde_json::Value {
        use serde_json::Value;
        match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::from(*value),
            Json::Int(value) => Value::from(*value),
            Json::Big(digits) => Value::from(*digits),
            Json::Float(value) => Value::from(*value),
            Json::Text(text) => Value::from(text.get(arena)),
            Json::List(items) => items.iter().map(|item| back(item, arena)).collect(),
            Json::Map(entries) => {
                entries.iter().map(|(key, value)| (key.get(arena).to_owned(), back(value, arena))).collect()
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_reader(value in any_json(), is_pretty in any::<bool>()) {
            let document = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let document = document.unwrap();
            prop_assert_eq!(parse_once(&document, back), Ok(value));
        }

        #[test]
        fn no_text_makes_it_panic(document in "[\\[\\]{}\",:\\\\u0-9a-f.eE+tn é-]{0,60}") {
            let _ = parse_once(&document, show);
        }
    }
}
