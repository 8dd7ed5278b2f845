//! What the fuzz targets in `rust/fuzz` may call; built only for them (`--cfg fuzzing`, which cargo-fuzz sets).

use bytes::Bytes;

use crate::path::PathClass;
use crate::prompt::Located;
use crate::sagemaker::frame::{self, Kind};

/// Locates the prompt of a body that was sent to a path of class number `class`: its length in tokens or bytes, 0 without one.
/// `None` if the body cannot be read.
#[must_use]
pub fn locate(class: u8, body: &[u8]) -> Option<usize> {
    let class = PathClass::ALL[usize::from(class) % PathClass::ALL.len()];
    let located = Located::read(class, body)?;
    let _ = located.root(Some(b"tenant"));
    Some(located.with_prompt(|prompt| prompt.units()).unwrap_or(0))
}

/// Frames a piece of an answer of up to 16 MiB as a message of an event stream.
#[must_use]
pub fn frame(piece: &[u8]) -> Vec<u8> {
    frame::next(Kind::Part, &mut Bytes::copy_from_slice(piece)).concat()
}
