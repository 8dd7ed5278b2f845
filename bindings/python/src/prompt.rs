//! From what Python calls a prompt to the core's [`Prompt`]: text stays text, buffers of token ids stay where they are,
//! only lists are copied.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyString};
use trunkline_core::{Error, Prompt};

use crate::buffer::{Items, is_buffer, with_array, with_buffer};
use crate::error;

/// Lends `object` to `use_prompt` as a prompt.
///
/// Cost: nothing per token for `bytes`, `str` (UTF-8 is made once and kept by the string if it is not ASCII) and unsigned
/// or 64-bit buffers, one pass for signed 32-bit buffers, about 20 ns per token for other sequences.
pub(crate) fn with_prompt<R>(
    object: &Bound<'_, PyAny>,
    use_prompt: impl FnOnce(Prompt<'_>) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return use_prompt(Prompt::Text(&[bytes.as_bytes()]));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return use_prompt(Prompt::Text(&[text.to_str()?.as_bytes()]));
    }
    if is_buffer(object) {
        return with_buffer(object, |items| match items {
            Items::Bytes(text) => use_prompt(Prompt::Text(&[text])),
            items => use_prompt(tokens(object, &items)?),
        });
    }
    let ids = token_list(object)?;
    use_prompt(Prompt::WideTokens(&ids))
}

/// Lends `object`, a buffer of token ids, to `use_tokens`; for the batch calls, which take no other kind.
pub(crate) fn with_tokens<R>(
    object: &Bound<'_, PyAny>,
    use_tokens: impl FnOnce(Prompt<'_>) -> PyResult<R>,
) -> PyResult<R> {
    with_array(object, "tokens", |items| use_tokens(tokens(object, &items)?))
}

fn tokens<'a>(object: &Bound<'_, PyAny>, items: &Items<'a>) -> PyResult<Prompt<'a>> {
    match *items {
        Items::U32(ids) => Ok(Prompt::Tokens(ids)),
        Items::I32(ids) => match ids.iter().fold(0, |bits, id| bits | id) {
            0.. => Ok(Prompt::Tokens(bytemuck::cast_slice(ids))),
            _ => Err(error::core(object.py(), negative(ids))),
        },
        Items::I64(ids) => Ok(Prompt::WideTokens(ids)),
        Items::Bytes(_) | Items::U64(_) => Err(error::buffer_type(object)),
    }
}

fn negative(ids: &[i32]) -> Error {
    let position = ids.iter().position(|&id| id < 0).expect("the caller saw a sign bit");
    Error::TokenId { position, value: i64::from(ids[position]) }
}

/// For each block of a prompt, what it depends on besides its tokens: a sequence of int.
pub(crate) struct Extras(pub(crate) Vec<u64>);

impl<'py> FromPyObject<'_, 'py> for Extras {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let sequence = object.cast::<PySequence>()?;
        let mut extras = with_room(&sequence)?;
        for item in sequence.try_iter()? {
            extras.push(item?.extract()?);
        }
        Ok(Self(extras))
    }
}

/// Room for what a sequence says that it holds. Errors: `MemoryError` if there is none.
fn with_room<T>(sequence: &Bound<'_, PySequence>) -> PyResult<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(sequence.len()?).map_err(|_| error::no_memory())?;
    Ok(room)
}

fn token_list(object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let sequence = object.cast::<PySequence>().map_err(|_| error::not_a_prompt(object))?;
    let mut ids = with_room(sequence)?;
    for (position, item) in sequence.try_iter()?.enumerate() {
        let item = item?;
        ids.push(item.extract().map_err(|cause| error::token_item(&item, position, cause))?);
    }
    Ok(ids)
}
