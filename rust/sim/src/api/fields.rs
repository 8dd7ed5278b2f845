//! Reads single fields of a JSON body, so that a wrong one is named in the error. Fields that nobody asks for are
//! ignored, as vLLM does.

use serde_json::{Map, Value};

use super::error::ApiError;

/// A body that is a JSON object.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(ApiError::malformed("body", "the body is not a JSON object")),
            Err(fault) => Err(ApiError::malformed("body", format_args!("JSON decode error: {fault}"))),
        }
    }

    /// A field that is neither absent nor null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&Value, ApiError> {
        self.get(name).ok_or_else(|| ApiError::malformed(format!("body.{name}"), "Field required"))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        self.typed(name, "a boolean", Value::as_bool).map(Option::unwrap_or_default)
    }

    /// A whole number of at least 1.
    pub(crate) fn count(&self, name: &'static str) -> Result<Option<u32>, ApiError> {
        self.typed(name, "a whole number", Value::as_i64)?
            .map(|value| {
                u32::try_from(value).ok().filter(|&count| count > 0).ok_or_else(|| {
                    ApiError::bad_value(
                        name,
                        format!("{name} must be at least 1 and below 2^32, got {value}."),
                    )
                })
            })
            .transpose()
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name)
            .map(|value| read(value).ok_or_else(|| wrong_type(&format!("body.{name}"), what)))
            .transpose()
    }
}

/// The error for a value of the wrong type at `place`.
pub(crate) fn wrong_type(place: &str, what: &str) -> ApiError {
    ApiError::malformed(place, format_args!("Input should be {what}"))
}
