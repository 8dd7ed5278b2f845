//! Values as Python prints them: `repr` of floats and strings, `str` of anything, and `json.dumps`.
//!
//! Templates are written for Python, and a prompt that differs from the engine's in one character of a number differs
//! in every token behind it.

use std::fmt::Write;

use minijinja::value::{Object, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::template::object::View;

/// Bytes of a value's text. A template can nest a list in itself and ask for more than there are atoms.
const MAX_TEXT_BYTES: usize = 8 << 20;

/// An integer beyond 128 bits: it can be printed and nothing else.
#[derive(Debug)]
pub(crate) struct BigInt(pub(crate) Box<str>);

impl Object for BigInt {
    fn repr(self: &std::sync::Arc<Self>) -> minijinja::value::ObjectRepr {
        minijinja::value::ObjectRepr::Plain
    }

    fn render(self: &std::sync::Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Appends `repr(value)`: the shortest digits that read back, the even ones of two as near, an exponent below 1e-4 and
/// from 1e16 on.
pub(crate) fn float(value: f64, out: &mut String) {
    if value.is_nan() {
        return out.push_str("nan");
    }
    if value.is_sign_negative() {
        out.push('-');
    }
    if value.is_infinite() {
        return out.push_str("inf");
    }
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(value.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    // The power of ten of the first digit.
    let leading = all.len() as i32 - digits.len() as i32;
    let power = whole.len() as i32 - 1 - leading + exponent.parse::<i32>().unwrap_or(0);
    let digits = digits.trim_end_matches('0');
    let (first, rest) = digits.split_at(digits.len().min(1));
    let _ = match usize::try_from(power) {
        _ if digits.is_empty() => out.write_str("0.0"),
        Ok(power @ ..16) if rest.len() <= power => {
            write!(out, "{digits}{}.0", "0".repeat(power - rest.len()))
        }
        Ok(power @ ..16) => write!(out, "{}.{}", &digits[..=power], &digits[power + 1..]),
        Err(_) if power >= -4 => write!(out, "0.{}{digits}", "0".repeat(-power as usize - 1)),
        _ if rest.is_empty() => write!(out, "{first}e{}{:02}", sign(power), power.abs()),
        _ => write!(out, "{first}.{rest}e{}{:02}", sign(power), power.abs()),
    };
}

fn sign(power: i32) -> char {
    if power < 0 { '-' } else { '+' }
}

/// Whether `repr` of a string shows this character as an escape.
fn is_unprintable(character: char) -> bool {
    match u32::from(character) {
        0x20 => false,
        0x00..=0x1f | 0x7f..=0xa0 | 0xad => true,
        // Format characters, separators and what is for private use.
        0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x1680 | 0x180e => true,
        0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xfeff | 0xfff9..=0xfffb => true,
        0xe000..=0xf8ff | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a => {
            true
        }
        0xe0001 | 0xe0020..=0xe007f | 0xf0000.. => true,
        _ => false,
    }
}

/// Appends `repr(text)`.
pub(crate) fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        let _ = match character {
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            _ if character == quote => write!(out, "\\{quote}"),
            _ if !is_unprintable(character) => out.write_char(character),
            _ => match u32::from(character) {
                code @ ..=0xff => write!(out, "\\x{code:02x}"),
                code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            },
        };
    }
    out.push(quote);
}

/// Appends `str(value)`.
///
/// # Errors
/// The value has no text that follows from its content: a function, an iterator.
pub(crate) fn display(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => represent(value, out)?,
    }
    Ok(())
}

/// Appends `repr(value)`.
///
/// # Errors
/// Those of [`display`]; a value that is undefined.
pub(crate) fn represent(value: &Value, out: &mut String) -> Result<(), Error> {
    check_length(out)?;
    let cannot = || Error::new(ErrorKind::InvalidOperation, format!("a {} has no text", value.kind()));
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quoted(value.as_str().ok_or_else(cannot)?, out),
        ValueKind::Seq | ValueKind::Iterable if is_list(value) => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            for (at, item) in value.try_iter()?.enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                represent(&item, out)?;
            }
            if is_tuple && value.len() == Some(1) {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (at, (key, item)) in pairs(value)?.enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                represent(&key, out)?;
                out.push_str(": ");
                represent(&item, out)?;
            }
            out.push('}');
        }
        ValueKind::Plain => match value.downcast_object_ref::<BigInt>() {
            Some(digits) => out.push_str(&digits.0),
            None => return Err(cannot()),
        },
        _ => return Err(cannot()),
    }
    Ok(())
}

/// Whether Python has a list here. Slices and sums of lists are lists that `minijinja` makes only when it must.
pub(crate) fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq
        || (value.kind() == ValueKind::Iterable
            && value.len().is_some()
            && value.downcast_object_ref::<View>().is_none())
}

/// Refuses to go on with a text that is too long.
fn check_length(out: &str) -> Result<(), Error> {
    match out.len() > MAX_TEXT_BYTES {
        true => Err(Error::new(ErrorKind::OutOfFuel, "a value's text is too long")),
        false => Ok(()),
    }
}

/// Appends a number.
fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        float(f64::try_from(value.clone()).unwrap_or(f64::NAN), out);
    }
}

/// The entries of a map.
fn pairs(value: &Value) -> Result<impl Iterator<Item = (Value, Value)>, Error> {
    use minijinja::value::DynObject;
    let object: &DynObject =
        value.as_object().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a map without entries"))?;
    Ok(object.try_iter_pairs().into_iter().flatten())
}

/// How `json.dumps` is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dumps {
    pub(crate) is_ascii: bool,
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) is_sorted: bool,
}

impl Default for Dumps {
    fn default() -> Self {
        Self {
            is_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            is_sorted: false,
        }
    }
}

impl Dumps {
    /// Appends `json.dumps(value)`.
    ///
    /// # Errors
    /// The value, or a key, has no JSON.
    pub(crate) fn write(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        self.value(value, 0, out)
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        check_length(out)?;
        let cannot = || {
            let reason = format!("Object of type {} is not JSON serializable", value.kind());
            Error::new(ErrorKind::InvalidOperation, reason)
        };
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => json_number(value, out),
            ValueKind::String => self.string(value.as_str().ok_or_else(cannot)?, out),
            ValueKind::Seq | ValueKind::Iterable if is_list(value) => {
                let mut items = value.try_iter()?.peekable();
                if items.peek().is_none() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push('[');
                for (at, item) in items.enumerate() {
                    self.begin_item(at, depth + 1, out);
                    self.value(&item, depth + 1, out)?;
                }
                self.new_line(depth, out);
                out.push(']');
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for (key, item) in pairs(value)? {
                    entries.push((json_key(&key).ok_or_else(cannot)?, item));
                }
                if entries.is_empty() {
                    out.push_str("{}");
                    return Ok(());
                }
                if self.is_sorted {
                    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
                }
                out.push('{');
                for (at, (key, item)) in entries.iter().enumerate() {
                    self.begin_item(at, depth + 1, out);
                    self.string(key, out);
                    out.push_str(&self.key_separator);
                    self.value(item, depth + 1, out)?;
                }
                self.new_line(depth, out);
                out.push('}');
            }
            ValueKind::Plain => match value.downcast_object_ref::<BigInt>() {
                Some(digits) => out.push_str(&digits.0),
                None => return Err(cannot()),
            },
            _ => return Err(cannot()),
        }
        Ok(())
    }

    fn begin_item(&self, at: usize, depth: usize, out: &mut String) {
        if at > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth, out);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut copied = 0;
        for (at, character) in text.char_indices() {
            let is_plain = !matches!(character, '"' | '\\' | '\0'..='\x1f');
            if is_plain && (!self.is_ascii || character < '\x7f') {
                continue;
            }
            out.push_str(&text[copied..at]);
            copied = at + character.len_utf8();
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
            }
        }
        out.push_str(&text[copied..]);
        out.push('"');
    }
}

fn json_number(value: &Value, out: &mut String) {
    let start = out.len();
    number(value, out);
    let name = match &out[start..] {
        "nan" => "NaN",
        "inf" => "Infinity",
        "-inf" => "-Infinity",
        _ => return,
    };
    out.replace_range(start.., name);
}

/// A key as `json.dumps` writes it.
fn json_key(key: &Value) -> Option<String> {
    match key.kind() {
        ValueKind::String => key.as_str().map(str::to_owned),
        ValueKind::None => Some("null".into()),
        ValueKind::Bool => Some(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => {
            let mut name = String::new();
            json_number(key, &mut name);
            Some(name)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Json, parse_once};
    use crate::template::object::value;

    /// Values and what Python's `json.dumps` and `str` make of them.
    #[test]
    fn values_are_printed_as_python_prints_them() {
        let rows = parse_once(include_str!("../tests/data/dumped.json"), |rows, arena| {
            let Json::List(rows) = rows else { panic!("no rows") };
            for row in rows {
                let item = value(row.get("value", arena).unwrap(), arena);
                let wanted = |name: &str| row.get(name, arena).and_then(|text| text.as_text(arena)).unwrap();
                let dumped = |dumps: &Dumps| {
                    let mut text = String::new();
                    dumps.write(&item, &mut text).unwrap();
                    text
                };
                let plain = Dumps::default();
                assert_eq!(dumped(&plain), wanted("plain"));
                assert_eq!(dumped(&Dumps { is_ascii: true, ..plain.clone() }), wanted("ascii"));
                let (indent, item_separator) = (Some("  ".into()), ",".into());
                assert_eq!(dumped(&Dumps { indent, item_separator, ..plain.clone() }), wanted("indent"));
                let (item_separator, key_separator) = (",".into(), ":".into());
                let sorted = Dumps { is_sorted: true, item_separator, key_separator, ..plain };
                assert_eq!(dumped(&sorted), wanted("sorted"));
                let mut text = String::new();
                display(&item, &mut text).unwrap();
                assert_eq!(text, wanted("str"));
            }
            rows.len()
        });
        assert_eq!(rows, Ok(112));
    }

    #[test]
    fn what_has_no_text_is_an_error() {
        let mut text = String::new();
        assert!(represent(&Value::UNDEFINED, &mut text).is_err());
        assert!(Dumps::default().write(&Value::UNDEFINED, &mut text).is_err());
        let function = Value::from_function(|| 1);
        assert!(display(&function, &mut text).is_err());
        assert!(Dumps::default().write(&function, &mut text).is_err());
    }
}
