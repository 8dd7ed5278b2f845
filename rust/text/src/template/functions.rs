//! Filters and functions that `transformers` gives to chat templates, and those of Jinja whose text is Python's.

#![allow(clippy::needless_pass_by_value, reason = "minijinja calls functions with values")]

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{Timestamp, fmt::strtime};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use super::methods::strip;
use crate::python::{Dumps, display, is_list};

/// Under this name the template's context holds the time, in microseconds since 1970. No template can say it.
pub(super) const NOW: &str = "now in microseconds";

/// Adds them to `environment`. Dates are told in `zone`.
pub(super) fn add_to(environment: &mut Environment<'_>, zone: TimeZone) {
    environment.set_formatter(format);
    environment.set_unknown_method_callback(super::methods::call);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", trim);
    environment.add_filter("string", string);
    environment.add_filter("join", join);
    environment.add_filter(super::source::TEXT, text);
    environment.add_filter("int", int);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise);
    environment.add_function("strftime_now", move |state: &mut State<'_, '_>, format: &str| {
        strftime(state, &zone, format)
    });
}

/// Writes a value as Python's `str` shows it.
fn format(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let failed = |_| Error::from(ErrorKind::WriteFailure);
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(failed);
    }
    let mut text = String::new();
    display(value, &mut text)?;
    out.write_str(&text).map_err(failed)
}

fn trim(value: &Value, characters: Option<&str>) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => {
            let stripped = strip(text, characters, true, true);
            // A text that stays as it is need not be copied.
            Ok(if stripped.len() == text.len() { value.clone() } else { Value::from(stripped) })
        }
        None => {
            let mut text = String::new();
            display(value, &mut text)?;
            Ok(Value::from(strip(&text, characters, true, true)))
        }
    }
}

/// A term of a sum of texts.
fn text(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("cannot add a {} to a text", value.kind())))
        }
    }
}

/// Whether it has a length and items: Python's texts and dicts do, too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Map) || is_list(value)
}

/// A whole number, or the default where there is none.
fn int(value: &Value, default: Option<Value>) -> Result<Value, Error> {
    let found = match (value.as_str().map(str::trim), value.kind()) {
        (Some(text), _) => match text.parse::<i128>() {
            Ok(number) => Some(number),
            Err(_) => {
                text.parse::<f64>().ok().filter(|number| number.abs() < 1e30).map(|number| number as i128)
            }
        },
        (None, ValueKind::Number) if value.is_integer() => return Ok(value.clone()),
        (None, ValueKind::Number) => f64::try_from(value.clone())
            .ok()
            .filter(|number| number.abs() < 1e30)
            .map(|number| number as i128),
        (None, ValueKind::Bool) => Some(i128::from(value.is_true())),
        _ => None,
    };
    Ok(found.map_or_else(|| default.unwrap_or(Value::from(0)), Value::from))
}

fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut text = String::new();
    display(value, &mut text)?;
    Ok(Value::from(text))
}

fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    joiner: Option<&str>,
    attribute: Option<&Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let joiner = match joiner {
        Some(joiner) => joiner,
        None => kwargs.get::<Option<&str>>("d")?.unwrap_or_default(),
    };
    let attribute = match attribute {
        Some(attribute) => Some(attribute.clone()),
        None => kwargs.get::<Option<Value>>("attribute")?,
    };
    kwargs.assert_all_used()?;
    let mut text = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            text.push_str(joiner);
        }
        let start = text.len();
        match &attribute {
            Some(attribute) => display(&item.get_item(attribute)?, &mut text)?,
            None => display(&item, &mut text)?,
        }
        state.consume_fuel(1 + ((text.len() - start + joiner.len()) / 64) as u64)?;
    }
    Ok(Value::from(text))
}

/// `json.dumps` as `transformers` calls it.
fn to_json(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let mut args = args.iter().cloned();
    let mut argument = |name: &str| -> Result<Option<Value>, Error> {
        let value = match args.next() {
            Some(value) => Some(value),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    };
    let is_ascii = argument("ensure_ascii")?.is_some_and(|value| value.is_true());
    let mut dumps = Dumps { is_ascii, ..Dumps::default() };
    if let Some(indent) = argument("indent")? {
        dumps.indent = Some(match (indent.as_str(), i64::try_from(indent.clone())) {
            (Some(text), _) => text.to_owned(),
            (None, Ok(width)) => " ".repeat(usize::try_from(width).unwrap_or(0).min(64)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "an indent that is no number and no text",
                ));
            }
        });
        dumps.item_separator = ",".into();
    }
    if let Some(separators) = argument("separators")? {
        let parts: Vec<Value> = separators.try_iter()?.collect();
        let [Some(item), Some(key)] =
            [parts.first(), parts.get(1)].map(|part| part.and_then(|part| part.as_str()))
        else {
            return Err(Error::new(ErrorKind::InvalidOperation, "separators that are not two texts"));
        };
        (dumps.item_separator, dumps.key_separator) = (item.to_owned(), key.to_owned());
    }
    dumps.is_sorted = argument("sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let mut text = String::new();
    dumps.write(value, &mut text)?;
    state.consume_fuel((text.len() / 8) as u64)?;
    Ok(Value::from(text))
}

fn raise(message: &Value) -> Result<Value, Error> {
    let message: Arc<str> = message.to_str().unwrap_or_default();
    Err(Error::new(ErrorKind::InvalidOperation, format!("raised: {message}")))
}

fn strftime(state: &State<'_, '_>, zone: &TimeZone, format: &str) -> Result<Value, Error> {
    let cannot = |reason| Error::new(ErrorKind::InvalidOperation, reason);
    let now = state.lookup(NOW).filter(|now| now.kind() == ValueKind::Number);
    let now = now.and_then(|now| i64::try_from(now).ok()).ok_or_else(|| cannot("no time"))?;
    let now = Timestamp::from_microsecond(now).map_err(|_| cannot("a time out of range"))?;
    // `datetime.now()` knows no zone.
    let told = match format.contains("%Z") || format.contains("%z") {
        true => format.replace("%Z", "").replace("%z", ""),
        false => format.to_owned(),
    };
    let text = strtime::format(&told, &now.to_zoned(zone.clone())).map_err(|_| cannot("a date format"))?;
    Ok(Value::from(text))
}
