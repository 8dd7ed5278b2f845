//! Methods of Python's strings and lists that templates call, where `minijinja-contrib` has none or another one.
//!
//! What neither has fails the rendering: a prompt that we cannot render is known to be unknown.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::object::View;

/// Whether Python's `strip()` takes it: white space and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1c'..='\x1f')
}

/// `text.strip(characters)`, from the start, the end, or both.
pub(crate) fn strip<'s>(text: &'s str, characters: Option<&str>, start: bool, end: bool) -> &'s str {
    let is_stripped = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let text = if start { text.trim_start_matches(is_stripped) } else { text };
    if end { text.trim_end_matches(is_stripped) } else { text }
}

/// Calls `method` of `value`, as Python would.
///
/// # Errors
/// Neither we nor `minijinja-contrib` know it; its arguments do not fit; it fails.
pub(crate) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, method, args)?,
        (None, ValueKind::Seq) => of_list(value, method, args)?,
        (None, ValueKind::Map) => of_dict(value, method, args)?,
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            let (start, end) = (method != "rstrip", method != "lstrip");
            let stripped = strip(text, characters, start, end);
            Value::from(stripped)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let found = if method == "index" { text.find(what) } else { text.rfind(what) };
            let at = found.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let is_first = method == "partition";
            let parts = if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match parts {
                Some((before, after)) => [before, separator, after],
                None if is_first => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            if separator == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            split(text, separator, most, method == "rsplit").into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keeps_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keeps_ends.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "casefold" if text.is_ascii() => Value::from(text.to_ascii_lowercase()),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = width.min(1000).saturating_sub(text.chars().count());
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        _ => return Ok(None),
    }))
}

/// `text.title()`: a letter behind a letter is small, any other large. Unlike Jinja's filter of this name, which goes by
/// words.
fn title(text: &str) -> String {
    let (mut titled, mut is_behind) = (String::with_capacity(text.len()), false);
    for letter in text.chars() {
        match is_behind {
            true => titled.extend(letter.to_lowercase()),
            false => titled.extend(letter.to_uppercase()),
        }
        is_behind = letter.is_lowercase() || letter.is_uppercase();
    }
    titled
}

/// `text.split(separator, most)`, or `rsplit`.
fn split<'s>(text: &'s str, separator: Option<&str>, most: usize, from_end: bool) -> Vec<&'s str> {
    let mut parts = Vec::new();
    match (separator, from_end) {
        (Some(separator), false) => parts.extend(text.splitn(most.saturating_add(1), separator)),
        (Some(separator), true) => {
            parts.extend(text.rsplitn(most.saturating_add(1), separator));
            parts.reverse();
        }
        (None, false) => {
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == most {
                    parts.push(rest);
                    break;
                }
                let end = rest.find(is_space).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
        }
        (None, true) => {
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == most {
                    parts.push(rest);
                    break;
                }
                let start = rest.char_indices().rfind(|&(_, letter)| is_space(letter));
                let start = start.map_or(0, |(at, letter)| at + letter.len_utf8());
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts.reverse();
        }
    }
    parts
}

/// `text.splitlines(keeps_ends)`: Python ends a line at more than line feeds.
fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |letter: char| {
        matches!(letter, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find(is_end) {
        let length = match &rest[end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(1, char::len_utf8),
        };
        parts.push(&rest[..if keeps_ends { end + length } else { end }]);
        rest = &rest[end + length..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if method != "index" {
        return Ok(None);
    }
    let (what,): (&Value,) = from_args(args)?;
    let found = value.try_iter()?.position(|item| item == *what);
    found
        .map(|at| Some(Value::from(at)))
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "not in the list"))
}

fn of_dict(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let (Some(dict), "keys" | "values" | "items") = (value.as_object(), method) else { return Ok(None) };
    let () = from_args(args)?;
    let entries = dict.try_iter_pairs().into_iter().flatten();
    let items = entries.map(|(key, item)| match method {
        "keys" => key,
        "values" => item,
        _ => Value::from(Tuple::from([key, item])),
    });
    Ok(Some(Value::from_object(View(items.collect()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_as_python_does() {
        assert_eq!(split("  a b  c ", None, usize::MAX, false), ["a", "b", "c"]);
        assert_eq!(split("  a b  c ", None, 1, false), ["a", "b  c "]);
        assert_eq!(split("  a b  c ", None, 1, true), ["  a b", "c"]);
        assert_eq!(split("  a b  c ", None, 0, false), ["a b  c "]);
        assert_eq!(split(" ", None, 1, false), [""; 0]);
        assert_eq!(split("a,b,,c", Some(","), 2, true), ["a,b", "", "c"]);
        assert_eq!(split("", Some(","), 2, false), [""]);
    }

    #[test]
    fn ends_lines_as_python_does() {
        assert_eq!(lines("a\r\nb\n\nc\u{2028}", false), ["a", "b", "", "c"]);
        assert_eq!(lines("a\r\nb\x0c", true), ["a\r\n", "b\x0c"]);
        assert_eq!(lines("", false), [""; 0]);
    }
}
