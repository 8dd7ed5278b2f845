//! Reading arguments and writing answers, byte by byte. Nothing here knows a router.

use serde_json::{Value, json};
use trunkline_core::{Decision, Error};

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// First bytes of a hello.
pub(crate) const MAGIC: &[u8; 4] = b"TRKL";
/// Largest answer: a snapshot.
pub(crate) const MAX_ANSWER: usize = u32::MAX as usize;
/// No worker, no number.
pub const NONE: u32 = u32::MAX;

/// First byte of an answer that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Nobody may take the request.
    NoWorker = 1,
    /// A setting is outside its range.
    Config = 2,
    /// No such worker.
    UnknownWorker = 3,
    /// There is such a worker already.
    DuplicateWorker = 4,
    /// The frame is none of this protocol; the connection is closed.
    Malformed = 5,
    /// Another version of the protocol; the connection is closed.
    Version = 6,
    /// As many clients as are allowed; the connection is closed.
    Full = 7,
    /// A bug of ours; the connection is closed.
    Internal = 8,
    /// A payload is none that an engine sends.
    Payload = 9,
    /// The answer does not fit a frame.
    TooLong = 10,
}

/// What is told of a prompt beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Name of the model.
    Model = 1,
    /// What parts equal prompts.
    Salt = 2,
    /// A worker that may take it.
    Eligible = 3,
    /// One that must not.
    Excluded = 4,
    /// Only workers that are named may take it; it has no value.
    NamedOnly = 5,
    /// Name of its LoRA adapter.
    Lora = 6,
    /// For each block a `u64`, what it depends on besides its tokens.
    Extras = 7,
}

impl Field {
    const ALL: [Self; 7] =
        [Self::Model, Self::Salt, Self::Eligible, Self::Excluded, Self::NamedOnly, Self::Lora, Self::Extras];

    pub(crate) fn read(name: u8) -> Result<Self, Refused> {
        let found = Self::ALL.into_iter().find(|&field| field as u8 == name);
        found.ok_or_else(|| Refused::malformed(&format!("{name} is no field")))
    }

    /// Appends the field with its value.
    pub fn put(self, value: &[u8], out: &mut Vec<u8>) {
        out.push(self as u8);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
    }
}

/// A question that is not answered.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: Status,
    detail: Value,
}

impl Refused {
    pub(crate) fn new(status: Status, message: &str) -> Self {
        Self { status, detail: json!({ "message": message }) }
    }

    pub(crate) fn payload(fault: &dyn std::fmt::Display) -> Self {
        Self::new(Status::Payload, &fault.to_string())
    }

    pub(crate) fn malformed(message: &str) -> Self {
        Self::new(Status::Malformed, message)
    }

    pub(crate) fn unknown_worker(name: &str) -> Self {
        let message = format!("no worker {name:?} is in the fleet");
        Self { status: Status::UnknownWorker, detail: json!({ "message": message, "worker": name }) }
    }

    /// Refuses an answer of so many bytes if its length could not be written.
    pub(crate) fn if_longer_than_an_answer(bytes: usize) -> Result<(), Self> {
        match bytes < MAX_ANSWER {
            true => Ok(()),
            false => {
                Err(Self::new(Status::TooLong, &format!("{bytes} bytes fit no answer, of 4 GiB at most")))
            }
        }
    }

    /// Whether nothing more can be understood on its connection.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.status, Status::Malformed | Status::Version | Status::Full | Status::Internal)
    }

    /// Writes it as a frame.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        frame(out, |out| {
            out.push(self.status as u8);
            out.extend_from_slice(self.detail.to_string().as_bytes());
        });
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let (status, detail) = match error {
            Error::NoWorkerAvailable { known, live, eligible } => (
                Status::NoWorker,
                json!({ "message": message, "known": known, "live": live, "eligible": eligible }),
            ),
            Error::Config { key, value, allowed } => (
                Status::Config,
                json!({ "message": message, "key": key, "value": value, "allowed": allowed }),
            ),
            Error::DuplicateWorker { name } => {
                (Status::DuplicateWorker, json!({ "message": message, "worker": name }))
            }
            Error::UnknownWorker { .. } => (Status::UnknownWorker, json!({ "message": message })),
            _ => (Status::Internal, json!({ "message": message })),
        };
        Self { status, detail }
    }
}

/// Writes a frame whose bytes `fill` appends.
pub(crate) fn frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Writes `u32`s.
pub(crate) fn put(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Writes a decision.
pub(crate) fn put_decision(out: &mut Vec<u8>, decision: &Decision) {
    out.extend_from_slice(&decision.id.to_u64().to_le_bytes());
    let numbers = [
        decision.worker.0,
        decision.preferred.map_or(NONE, |id| id.0),
        decision.matched_tokens,
        decision.prompt_tokens,
        decision.matched_blocks,
        decision.prompt_blocks,
        decision.reason as u32,
        decision.told_tokens.unwrap_or(NONE),
    ];
    put(out, &numbers);
}

/// What is left of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Refused> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or_else(|| Refused::malformed("a frame ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refused> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refused> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refused> {
        let low = u64::from(self.u32()?);
        Ok(u64::from(self.u32()?) << 32 | low)
    }

    /// Zero bytes that a later version may use.
    pub(crate) fn zeros(&mut self, count: usize) -> Result<(), Refused> {
        match self.bytes(count)?.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => Err(Refused::malformed("a byte that must be 0 is not")),
        }
    }
}

/// Token ids, which need not be aligned where they lie.
pub(crate) fn token_ids(bytes: &[u8]) -> Result<Vec<u32>, Refused> {
    match bytes.as_chunks() {
        (ids, []) => Ok(ids.iter().map(|&id| u32::from_le_bytes(id)).collect()),
        _ => Err(Refused::malformed("token ids of 4 bytes each do not fill the frame")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_whose_length_cannot_be_written_is_refused() {
        assert!(Refused::if_longer_than_an_answer(MAX_ANSWER - 1).is_ok());
        let refused = Refused::if_longer_than_an_answer(MAX_ANSWER).unwrap_err();
        assert!(refused.status == Status::TooLong && !refused.is_final());
    }
}
