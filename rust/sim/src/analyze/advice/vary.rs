//! What kind of thing differs between two prompts: a time, a name, the order of items.

use serde::Serialize;
use serde_json::Value;

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A date, a time of day or a Unix time.
    Timestamp,
    /// Hexadecimal or mixed letters and digits: a UUID, a session, a trace.
    Id,
    /// Digits: a counter.
    Number,
    /// A few words: a user, a place.
    Name,
    /// The same tools, or keys of them, in another order.
    ToolsOrder,
    /// The same JSON keys in another order.
    KeysOrder,
    /// The same items in another order.
    ItemsOrder,
    /// Something that one has and the other has not.
    Omitted,
    /// Anything else.
    Text,
}

/// Longest name in bytes and words.
const NAME_BYTES: usize = 48;
const NAME_WORDS: usize = 4;
/// Shortest id.
const ID_BYTES: usize = 8;
const MONTHS_AND_DAYS: [&str; 19] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "mon", "tue", "wed",
    "thu", "fri", "sat", "sun",
];

/// Says what `a` and `b` are, which stand in the same place of two prompts.
pub(super) fn kind_of(a: &str, b: &str) -> Kind {
    let (a, b) = (a.trim(), b.trim());
    if a.is_empty() || b.is_empty() {
        return Kind::Omitted;
    }
    let (mut items, mut others) = (items(a), items(b));
    if items.len() > 1 && items != others {
        items.sort_unstable();
        others.sort_unstable();
        if items == others {
            let has_keys = items.iter().filter(|item| item.contains("\":")).count() * 2 > items.len();
            return if has_keys { Kind::KeysOrder } else { Kind::ItemsOrder };
        }
    }
    let both = |is: fn(&str) -> bool| is(a) && is(b);
    if both(is_time) {
        Kind::Timestamp
    } else if both(is_number) {
        Kind::Number
    } else if both(is_id) {
        Kind::Id
    } else if both(is_name) {
        Kind::Name
    } else {
        Kind::Text
    }
}

/// Items of a list, lines, or members of an object.
fn items(text: &str) -> Vec<&str> {
    let parts = text.split([',', '\n', '{', '}', '[', ']']);
    parts.map(|item| item.trim_matches([' ', '"'])).filter(|item| !item.is_empty()).collect()
}

fn digits(text: &str) -> usize {
    text.bytes().filter(u8::is_ascii_digit).count()
}

/// `12:34`, `2026-11-30`, `30/11/26`, `Nov 30`, or ten to nineteen digits that begin like a Unix time of this age.
fn is_time(text: &str) -> bool {
    if text.len() > 64 {
        return false;
    }
    let words = || text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let numbers: Vec<&str> = words().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).collect();
    if let [only] = numbers[..]
        && (10..=19).contains(&only.len())
    {
        return words().count() == 1 && (only.starts_with('1') || only.starts_with('2'));
    }
    let has_month = words().any(|word| {
        let word = word.to_ascii_lowercase();
        word.len() <= 9 && MONTHS_AND_DAYS.iter().any(|name| word.starts_with(name))
    });
    let is_short = |number: &str| number.len() <= 2;
    let parts = |separator: char| {
        text.split(|c: char| c != separator && !c.is_ascii_digit()).any(|run| {
            let parts: Vec<&str> = run.split(separator).collect();
            let year = parts.iter().filter(|part| part.len() == 4).count();
            parts.len() >= 2
                && parts.iter().all(|part| !part.is_empty() && part.len() <= 4)
                && (separator == ':' || parts.len() == 3)
                && parts.iter().filter(|part| is_short(part)).count() + year.min(1) == parts.len()
        })
    };
    parts(':') || parts('-') || parts('/') || (has_month && !numbers.is_empty())
}

fn is_number(text: &str) -> bool {
    digits(text) > 0 && text.bytes().all(|byte| byte.is_ascii_digit() || b".,+-# ".contains(&byte))
}

/// One word of letters and digits, hexadecimal or mixed.
fn is_id(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    text.len() >= ID_BYTES && text.bytes().all(is_word) && digits(text) >= 2
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES
        && text.split_whitespace().count() <= NAME_WORDS
        && text.chars().any(char::is_alphabetic)
        && !text.contains('\n')
}

/// Whether two lists of tools are the same but for order, of tools or of keys in them.
pub(super) fn is_same_tools(a: &[u8], b: &[u8]) -> bool {
    // Objects of `serde_json` have their keys in order; so equal tools are equal texts.
    let canonical = |framed: &[u8]| -> Option<Vec<String>> {
        let start = framed.iter().position(|&byte| byte == b'[')?;
        let end = framed.iter().rposition(|&byte| byte == b']')?;
        let tools: Vec<Value> = serde_json::from_slice(framed.get(start..=end)?).ok()?;
        let mut tools: Vec<String> = tools.iter().map(canonical_json).collect();
        tools.sort_unstable();
        Some(tools)
    };
    a != b && canonical(a).is_some_and(|tools| Some(tools) == canonical(b))
}

/// JSON with the keys of each object in order.
fn canonical_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key:?}:{}", canonical_json(value))).collect();
            fields.sort_unstable();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical_json).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart() {
        for (a, b, kind) in [
            ("12:00:01", "12:00:07", Kind::Timestamp),
            ("2026-11-30T12:00:01Z", "2026-11-30T12:09:01Z", Kind::Timestamp),
            ("2026-11-29", "2026-11-30", Kind::Timestamp),
            ("November 30, 2026", "December 1, 2026", Kind::Timestamp),
            ("1795996801", "1795996999.5", Kind::Number),
            ("1795996801", "1795996999", Kind::Timestamp),
            ("7", "1,024", Kind::Number),
            ("550e8400-e29b-41d4-a716-446655440000", "123e4567-e89b-12d3-a456-426614174000", Kind::Id),
            ("session-8f3a2b1c", "session-0d9e8f7a", Kind::Id),
            ("Alice Meier", "Bob", Kind::Name),
            ("alice@example.com", "bob@example.com", Kind::Name),
            ("日本太郎", "山田花子", Kind::Name),
            ("", "more", Kind::Omitted),
            (r#""a": 1, "b": 2"#, r#""b": 2, "a": 1"#, Kind::KeysOrder),
            ("apples, pears, figs", "figs, apples, pears", Kind::ItemsOrder),
            (
                "A long sentence that says one thing or other.",
                "Another sentence, about something else.",
                Kind::Text,
            ),
        ] {
            assert_eq!(kind_of(a, b), kind, "{a:?} {b:?}");
        }
    }

    #[test]
    fn tools_are_compared_whatever_their_order() {
        let tools = |text: &str| format!("tools\x1f{text}\x1e").into_bytes();
        let one = tools(r#"[{"name": "a", "x": 1}, {"name": "b"}]"#);
        assert!(is_same_tools(&one, &tools(r#"[{"name":"b"},{"x":1,"name":"a"}]"#)));
        assert!(!is_same_tools(&one, &tools(r#"[{"name":"b"},{"x":2,"name":"a"}]"#)));
        assert!(!is_same_tools(&one, &one));
        assert!(!is_same_tools(&one, b"tools\x1f[{\x1e"));
    }
}
