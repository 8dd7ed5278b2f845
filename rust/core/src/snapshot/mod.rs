//! A router as bytes: saved, checked and restored.
//!
//! Kept are the settings, the workers with their slots, counters and learnt speeds, and the index with every use, clock and
//! holder. What is in flight is not: a restored router has nothing booked; nor what events told, which the workers tell again. Times are kept relative to the moment of saving.
//!
//! # Format
//! Little-endian. A *count* is 32 bits, a *text* a count of bytes and UTF-8, an *option* a flag byte and 64 bits.
//!
//! ```text
//! magic      8 bytes   "TRUNKLN\n"
//! version    u32       VERSION
//! length     u64       bytes of the body
//! checksum   u64       XXH3-64 of the body with the version as its seed
//! body                 settings, fleet, learnt lengths, index:
//!
//! settings   policy u8, prefix_length u32, concurrency_threshold u32 (0: none), block_size u32, memory_budget u64,
//!            events_budget u64, index_seed u64, placement_seed u64, replicas u32, shared_state flag
//! fleet      workers by id: count of (flag; if set: name text, endpoint flag + text, weight u32, capacity option,
//!            slowness flag + f64, healthy flag, draining flag, learnt speed f64 f64 u32, counters 5 x u64)
//!            slots: count of worker u32 (2^32 - 1: a hole)
//!            workers that left: count of (name text, worker u32, count of slots u32)
//!            fleet's speed 5 x f64, mean answer f64, turn u64, decisions 7 x u64, prompt tokens u64, matched tokens u64
//! learnt     count of (model u64, bytes per token f64)
//! index      tick u32, evicted blocks u64
//!            runs, parents before children: count of (number u32, parent u32 (2^32 - 1: none), uses f32, age in ms u32,
//!            count of holders u16, count of blocks u16, holders (worker's place among those present u16, blocks u16,
//!            clock u32), blocks u64)
//!            for each worker that is present, its uses, oldest first: count of (run u32, clock u32)
//! ```

mod fleet;
mod wire;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Error;
use crate::policy::Policy;
use crate::router::RouterConfig;
pub(crate) use wire::{Put, Reader};

const MAGIC: [u8; 8] = *b"TRUNKLN\n";
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8 + 8;

/// Version of the format that [`Router::snapshot`](crate::Router::snapshot) writes and the only one that is read.
pub const VERSION: u32 = 2;

/// Why bytes cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotFault {
    /// They do not begin as a snapshot does.
    #[error("it does not begin as a snapshot does")]
    Foreign,
    /// Another version wrote them.
    #[error("it has version {found} of the format, this is version {supported}")]
    Version {
        /// The version found.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// They were cut, or something was added.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// They were altered.
    #[error("its checksum is {found:016x} instead of {expected:016x}")]
    Checksum {
        /// The checksum that was written.
        expected: u64,
        /// The checksum of what is there.
        found: u64,
    },
    /// They are whole, but no router saves such a thing.
    #[error("{what} (before byte {offset} of its body)")]
    Content {
        /// Where reading stopped, in bytes of the body.
        offset: usize,
        /// What is wrong there.
        what: &'static str,
    },
}

/// An empty snapshot: room for the header.
pub(crate) fn begin() -> Vec<u8> {
    vec![0; HEADER_BYTES]
}

/// Writes the header before a body that is complete.
pub(crate) fn seal(snapshot: &mut [u8]) {
    let (header, body) = snapshot.split_at_mut(HEADER_BYTES);
    let checksum = xxh3_64_with_seed(body, u64::from(VERSION));
    let parts: [&[u8]; 4] =
        [&MAGIC, &VERSION.to_le_bytes(), &(body.len() as u64).to_le_bytes(), &checksum.to_le_bytes()];
    header.copy_from_slice(&parts.concat());
}

/// The body of a snapshot that is whole and of this version.
pub(crate) fn open(snapshot: &[u8]) -> Result<Reader<'_>, Error> {
    let refuse = |fault| Err(Error::Snapshot { fault });
    let found = snapshot.len() as u64;
    if !snapshot.starts_with(&MAGIC[..snapshot.len().min(MAGIC.len())]) {
        return refuse(SnapshotFault::Foreign);
    }
    let Some((header, body)) = snapshot.split_at_checked(HEADER_BYTES) else {
        return refuse(SnapshotFault::Length { expected: HEADER_BYTES as u64, found });
    };
    let mut header = Reader::new(&header[MAGIC.len()..]);
    let (version, length, expected) = (header.u32()?, header.u64()?, header.u64()?);
    if version != VERSION {
        return refuse(SnapshotFault::Version { found: version, supported: VERSION });
    }
    if body.len() as u64 != length {
        let expected = length.saturating_add(HEADER_BYTES as u64);
        return refuse(SnapshotFault::Length { expected, found });
    }
    let checksum = xxh3_64_with_seed(body, u64::from(version));
    if checksum != expected {
        return refuse(SnapshotFault::Checksum { expected, found: checksum });
    }
    Ok(Reader::new(body))
}

pub(crate) fn put_settings(config: &RouterConfig, out: &mut Vec<u8>) {
    let (code, prefix_length, concurrency_threshold) = match config.policy {
        Policy::KvAware => (0, 0, None),
        Policy::PrefixAware { prefix_length, concurrency_threshold } => {
            (1, prefix_length, concurrency_threshold)
        }
        Policy::LeastOutstanding => (2, 0, None),
        Policy::RoundRobin => (3, 0, None),
        Policy::Random => (4, 0, None),
    };
    out.put_u8(code);
    out.put_u32(prefix_length);
    out.put_u32(concurrency_threshold.unwrap_or(0));
    out.put_u32(config.block_size);
    out.put_u64(config.memory_budget as u64);
    out.put_u64(config.events_budget as u64);
    out.put_u64(config.index_seed);
    out.put_u64(config.placement_seed);
    out.put_u32(config.replicas);
    out.put_u8(u8::from(config.shared_state));
}

pub(crate) fn settings(body: &mut Reader<'_>) -> Result<RouterConfig, Error> {
    let (code, prefix_length, threshold) = (body.u8()?, body.u32()?, body.u32()?);
    let policy = match code {
        0 => Policy::KvAware,
        1 => Policy::PrefixAware {
            prefix_length,
            concurrency_threshold: Some(threshold).filter(|&threshold| threshold > 0),
        },
        2 => Policy::LeastOutstanding,
        3 => Policy::RoundRobin,
        4 => Policy::Random,
        _ => return Err(body.refuse("the policy is unknown")),
    };
    Ok(RouterConfig {
        policy,
        block_size: body.u32()?,
        memory_budget: usize::try_from(body.u64()?).map_err(|_| body.refuse("the budget is too large"))?,
        events_budget: usize::try_from(body.u64()?).map_err(|_| body.refuse("the budget is too large"))?,
        index_seed: body.u64()?,
        placement_seed: body.u64()?,
        replicas: body.u32()?,
        shared_state: body.flag()?,
    })
}
