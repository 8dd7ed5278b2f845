//! From an engine's message to a [`Batch`].
//!
//! One decoder reads what vLLM, SGLang and TensorRT-LLM publish: the batch an array or a map, each event an array or a map
//! with `type`, fields that are missing at the end, unknown fields and types that are skipped. Engines of several versions
//! run side by side, so the shape is taken from each message and never from the engine's name.
//!
//! What contradicts itself (a token too many, a hash of three bytes) costs its own event; what cannot be read to its end
//! costs the message. Nothing panics, whatever the bytes.

mod event;
mod extra;
mod reader;
pub mod trtllm;

pub use extra::{Extra, extra_hash};
use reader::{Group, Reader};

use crate::batch::Batch;

/// Why a message or an event was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It ends inside a value.
    #[error("the message ends inside a value")]
    Truncated,
    /// A value has another type than its field.
    #[error("a value is of another type than its field")]
    Type,
    /// A field that the event cannot do without is not there.
    #[error("a field is missing")]
    Missing,
    /// A token id is outside `0..2^32`.
    #[error("a token id is outside 0..2^32")]
    Token,
    /// A hash is neither an integer of 64 bits nor 8 to 64 bytes.
    #[error("a block hash is neither an integer of 64 bits nor 8 to 64 bytes")]
    Hash,
    /// The token ids, or the extra keys, are not as many as the blocks need.
    #[error("tokens or extra keys do not fit the blocks")]
    Blocks,
    /// There are bytes after the message.
    #[error("there are bytes after the message")]
    Trailing,
    /// It is no JSON of the engine's shape.
    #[error("not the JSON of the engine")]
    Json,
}

/// Decodes the messages of one source in their order. It remembers which cache groups of the engine are not attention over
/// whole prompts, as only events that store blocks say so.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    /// Bit `g` is set if events of cache group `g` do not count.
    other_groups: u64,
}

impl Decoder {
    /// A decoder for a source that nothing is known of.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes `payload` into `batch`, replacing what was in it. Cost: O(bytes), about 5 ns for each token; no allocation
    /// once `batch` has grown.
    ///
    /// # Errors
    /// The fault of the first value that makes the rest unreadable; `batch` is empty then. An event that is readable and wrong
    /// is left out and counted in [`Batch::refused`].
    pub fn decode(&mut self, payload: &[u8], batch: &mut Batch) -> Result<(), Fault> {
        batch.clear();
        let result = self.read(payload, batch);
        if result.is_err() {
            batch.clear();
        }
        result
    }

    fn read(&mut self, payload: &[u8], batch: &mut Batch) -> Result<(), Fault> {
        // Arenas are addressed in 32 bits.
        if u32::try_from(payload.len()).is_err() {
            return Err(Fault::Truncated);
        }
        let mut reader = Reader::new(payload);
        let mut found = false;
        match reader.group()? {
            Group::Array(length) => {
                if length < 2 {
                    return Err(Fault::Missing);
                }
                batch.ts = reader.float()?;
                self.events(&mut reader, batch)?;
                found = true;
                for at in 2..length {
                    if at == 2 { rank(&mut reader, batch)? } else { _ = reader.skip()? }
                }
            }
            Group::Map(length) => {
                for _ in 0..length {
                    match reader.string()? {
                        b"ts" => batch.ts = reader.float()?,
                        b"events" if !found => {
                            self.events(&mut reader, batch)?;
                            found = true;
                        }
                        b"data_parallel_rank" | b"attn_dp_rank" => rank(&mut reader, batch)?,
                        _ => _ = reader.skip()?,
                    }
                }
            }
        }
        if !found {
            return Err(Fault::Missing);
        }
        if reader.rest().is_empty() { Ok(()) } else { Err(Fault::Trailing) }
    }

    fn events(&mut self, reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Fault> {
        for _ in 0..reader.array()? {
            let (start, mark) = (*reader, batch.mark());
            if let Err(fault) = event::read(reader, &mut self.other_groups, batch) {
                batch.back_to(mark);
                // Where the event ends tells whether only it is wrong.
                *reader = start;
                reader.skip()?;
                batch.refuse(fault);
            }
        }
        Ok(())
    }
}

fn rank(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Fault> {
    if !reader.nil() {
        batch.rank = Some(u32::try_from(reader.integer()?).map_err(|_| Fault::Type)?);
    }
    Ok(())
}

/// When the engine made this message, in seconds since 1970, without reading the rest. Cost: O(1) for the usual shapes.
#[must_use]
pub fn timestamp(payload: &[u8]) -> Option<f64> {
    let mut reader = Reader::new(payload);
    match reader.group().ok()? {
        Group::Array(_) => reader.float().ok(),
        Group::Map(length) => {
            for _ in 0..length {
                if reader.string().ok()? == b"ts" {
                    return reader.float().ok();
                }
                reader.skip().ok()?;
            }
            None
        }
    }
    .filter(|ts| ts.is_finite())
}
