//! Sizes in bytes as people write them: 268435456, "256MiB", "1 GB".

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error;

const ALLOWED: &str = "a number of bytes, or text like 256MiB (B, kB, MB, GB, KiB, MiB, GiB)";

/// The bytes that `value`, an int or a text, stands for. Errors: `ConfigError` that names `key`.
pub(crate) fn bytes(key: &'static str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let refused = || error::config(value.py(), key, value, ALLOWED);
    match value.cast::<PyString>() {
        Ok(text) => parse(text.to_str()?).ok_or_else(refused),
        Err(_) => value.extract().map_err(|_| refused()),
    }
}

fn parse(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}
