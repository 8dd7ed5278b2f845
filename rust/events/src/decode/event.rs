//! One event of vLLM's family, by position or by name.
//!
//! By position, `["BlockStored", hashes, parent, tokens, block_size, lora_id, medium, lora_name, extra_keys, group_idx, kind, ..]`
//! and `["BlockRemoved", hashes, medium, group_idx, ..]`. SGLang has a map of metadata where vLLM has `lora_name`: the type tells.

use trunkline_core::{Handle, Medium};
use xxhash_rust::xxh3::xxh3_64;

use super::Fault;
use super::extra::{self, Parted};
use super::reader::{Blob, Group, Reader};
use crate::batch::{Batch, Record};

/// Fields of events that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    Extras,
    GroupIndex,
    Kind,
    Salt,
    Metadata,
    Unread,
}

const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::Extras,
    Field::GroupIndex,
    Field::Kind,
];
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::GroupIndex];

fn named(name: &[u8]) -> Field {
    match name {
        b"block_hashes" => Field::Hashes,
        b"parent_block_hash" => Field::Parent,
        b"token_ids" => Field::Tokens,
        b"block_size" => Field::BlockSize,
        b"lora_id" => Field::LoraId,
        b"medium" => Field::Medium,
        b"lora_name" => Field::LoraName,
        b"extra_keys" => Field::Extras,
        b"group_idx" => Field::GroupIndex,
        b"kv_cache_spec_kind" => Field::Kind,
        b"cache_salt" => Field::Salt,
        b"metadata" => Field::Metadata,
        _ => Field::Unread,
    }
}

/// What was read of an event. Hashes and tokens are in the batch's arenas already.
#[derive(Debug, Default)]
struct Fields<'a> {
    has_hashes: bool,
    has_tokens: bool,
    parent: Option<Handle>,
    block_size: Option<u32>,
    parted: Parted<'a>,
    /// For how many blocks, and what they are unless all are nil. Read last: what they mean depends on the other fields.
    extra_keys: Option<(u32, Option<Reader<'a>>)>,
    medium: Medium,
    group: Option<u32>,
    /// Whether its blocks belong to attention over whole prompts, if the event says.
    whole: Option<bool>,
}

/// Reads one event to its end and appends it to the batch, or counts it as skipped.
pub(super) fn read(reader: &mut Reader<'_>, other_groups: &mut u64, batch: &mut Batch) -> Result<(), Fault> {
    let mark = batch.mark();
    let mut fields = Fields::default();
    let tag = match reader.group()? {
        Group::Array(0) => return Err(Fault::Missing),
        Group::Array(length) => by_position(reader, length, &mut fields, batch)?,
        Group::Map(length) => by_name(reader, length, &mut fields, batch)?,
    };
    match tag {
        b"BlockStored" => {}
        b"BlockRemoved" if !fields.has_hashes => return Err(Fault::Missing),
        b"BlockRemoved" => {
            batch.tokens.truncate(batch.tokens_since(mark).start as usize);
            let handles = batch.handles_since(mark);
            if fields.other_group(*other_groups) {
                batch.back_to(mark);
                batch.skipped += 1;
            } else if !handles.is_empty() {
                batch.records.push(Record::Removed { handles, medium: fields.medium });
            }
            return Ok(());
        }
        tag => {
            batch.back_to(mark);
            if tag == b"AllBlocksCleared" {
                batch.records.push(Record::Cleared);
            } else {
                batch.skipped += 1;
            }
            return Ok(());
        }
    }
    if let (Some(group @ 0..64), Some(whole)) = (fields.group, fields.whole) {
        *other_groups = *other_groups & !(1 << group) | u64::from(!whole) << group;
    }
    if fields.whole == Some(false) || fields.other_group(*other_groups) {
        batch.back_to(mark);
        batch.skipped += 1;
        return Ok(());
    }
    let (true, true, Some(block_size)) = (fields.has_hashes, fields.has_tokens, fields.block_size) else {
        return Err(Fault::Missing);
    };
    let (handles, tokens) = (batch.handles_since(mark), batch.tokens_since(mark));
    if block_size == 0 || handles.len() as u64 * u64::from(block_size) != tokens.len() as u64 {
        return Err(Fault::Blocks);
    }
    if handles.is_empty() {
        return Ok(());
    }
    if let Some((blocks, keys)) = fields.extra_keys {
        if blocks as usize != handles.len() {
            return Err(Fault::Blocks);
        }
        if let Some(mut keys) = keys {
            extra::keys(&mut keys, handles.len(), fields.parent.is_none(), &mut fields.parted, batch)?;
        }
    }
    batch.records.push(Record::Stored {
        handles,
        parent: fields.parent,
        tokens,
        block_size,
        root: fields.parted.root(),
        extras: batch.extras_since(mark),
        medium: fields.medium,
    });
    Ok(())
}

fn by_position<'a>(
    reader: &mut Reader<'a>,
    length: u32,
    fields: &mut Fields<'a>,
    batch: &mut Batch,
) -> Result<&'a [u8], Fault> {
    let tag = reader.string()?;
    let layout: &[Field] = match tag {
        b"BlockStored" => &STORED,
        b"BlockRemoved" => &REMOVED,
        _ => &[],
    };
    for at in 0..length - 1 {
        let field = layout.get(at as usize).copied().unwrap_or(Field::Unread);
        let mut ahead = *reader;
        let is_map = matches!(ahead.group(), Ok(Group::Map(_)));
        fields.read(if is_map && at > 3 { Field::Metadata } else { field }, reader, batch)?;
    }
    Ok(tag)
}

fn by_name<'a>(
    reader: &mut Reader<'a>,
    length: u32,
    fields: &mut Fields<'a>,
    batch: &mut Batch,
) -> Result<&'a [u8], Fault> {
    let mut tag = None;
    for _ in 0..length {
        match reader.string()? {
            b"type" => tag = Some(reader.string()?),
            name => fields.read(named(name), reader, batch)?,
        }
    }
    tag.ok_or(Fault::Missing)
}

impl<'a> Fields<'a> {
    fn read(&mut self, field: Field, reader: &mut Reader<'a>, batch: &mut Batch) -> Result<(), Fault> {
        if reader.nil() {
            return Ok(());
        }
        match field {
            Field::Hashes => {
                // Twice the same field: the arenas hold one of them.
                if std::mem::replace(&mut self.has_hashes, true) {
                    return Err(Fault::Type);
                }
                let count = reader.array()?;
                for _ in 0..count {
                    let handle = handle(reader)?;
                    batch.handles.push(handle);
                }
            }
            Field::Tokens => {
                if std::mem::replace(&mut self.has_tokens, true) {
                    return Err(Fault::Type);
                }
                reader.tokens(&mut batch.tokens)?;
            }
            Field::Parent => self.parent = Some(handle(reader)?),
            Field::BlockSize => {
                self.block_size = Some(u32::try_from(reader.integer()?).map_err(|_| Fault::Blocks)?)
            }
            Field::LoraId => match reader.blob() {
                Ok(name) => self.parted.lora = Some(name.bytes()),
                Err(_) => self.parted.lora_id = Some(reader.integer()?),
            },
            Field::Medium => self.medium = medium(reader.string()?),
            Field::LoraName => self.parted.lora = Some(reader.string()?),
            Field::Salt => self.parted.salt = Some(reader.blob()?.bytes()),
            Field::Extras => {
                let mut keys = *reader;
                let blocks = keys.array()?;
                if keys.nils(blocks) {
                    *reader = keys;
                    self.extra_keys = Some((blocks, None));
                } else {
                    reader.skip()?;
                    self.extra_keys = Some((blocks, Some(keys)));
                }
            }
            Field::GroupIndex => {
                self.group = Some(u32::try_from(reader.integer()?).map_err(|_| Fault::Type)?);
            }
            Field::Kind => self.whole = whole(reader.string()?),
            Field::Metadata => {
                let Group::Map(length) = reader.group()? else { return Err(Fault::Type) };
                for _ in 0..length {
                    match reader.string()? {
                        b"cache_salt" => self.read(Field::Salt, reader, batch)?,
                        b"lora_name" => self.read(Field::LoraName, reader, batch)?,
                        _ => _ = reader.skip()?,
                    }
                }
            }
            Field::Unread => _ = reader.skip()?,
        }
        Ok(())
    }

    /// Whether it is about a cache group that is known not to count.
    fn other_group(&self, other_groups: u64) -> bool {
        self.group.is_some_and(|group| group < 64 && other_groups >> group & 1 == 1)
    }
}

/// Whether blocks of this kind (vLLM's `KVCacheSpecKind`) hold attention over the whole prompt; `None` if it does not say.
fn whole(kind: &[u8]) -> Option<bool> {
    match kind {
        b"unknown" => None,
        b"full_attention" | b"mla_attention" | b"sink_full_attention" => Some(true),
        _ => Some(false),
    }
}

/// An integer's 64 bits, whatever its sign; of bytes their XXH3-64.
fn handle(reader: &mut Reader<'_>) -> Result<Handle, Fault> {
    if let Some(value) = reader.wide() {
        return Ok(Handle(value));
    }
    match reader.integer() {
        Ok(value) => Ok(Handle(value as u64)),
        Err(Fault::Truncated) => Err(Fault::Truncated),
        Err(_) => match reader.blob()? {
            Blob::Str(bytes) | Blob::Bin(bytes) if (8..=64).contains(&bytes.len()) => {
                Ok(Handle(xxh3_64(bytes)))
            }
            _ => Err(Fault::Hash),
        },
    }
}

/// The engines' names for where blocks are: vLLM's, SGLang's, and those of offloading connectors. What is in no memory of the
/// worker is as slow as storage.
pub(super) fn medium(name: &[u8]) -> Medium {
    let is = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    if is(&["gpu", "cuda", "device", "hbm", "npu", "xpu", "tpu", ""]) {
        Medium::Gpu
    } else if is(&["cpu", "cpu_pinned", "cpu_tier1", "host", "host_pinned", "dram", "ram"]) {
        Medium::Cpu
    } else {
        Medium::Disk
    }
}
