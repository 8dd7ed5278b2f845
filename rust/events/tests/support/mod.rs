//! MessagePack by hand, recordings, and a plain model of what a worker's cache holds.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{HashMap, HashSet};

use trunkline_core::{CacheEvent, Handle, Medium, Root};
use trunkline_events::Batch;

/// A value to be packed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Nil,
    Int(i128),
    Float(f64),
    Str(String),
    Bin(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

pub(crate) fn s(text: &str) -> Value {
    Value::Str(text.to_owned())
}

pub(crate) fn ints<T: Into<i128>>(values: impl IntoIterator<Item = T>) -> Value {
    Value::List(values.into_iter().map(|value| Value::Int(value.into())).collect())
}

impl Value {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pack_into(&mut bytes);
        bytes
    }

    fn pack_into(&self, out: &mut Vec<u8>) {
        use rmp::encode as put;
        match self {
            Self::Nil => put::write_nil(out).unwrap(),
            Self::Int(value) => match i64::try_from(*value) {
                Ok(value) => _ = put::write_sint(out, value).unwrap(),
                Err(_) => put::write_u64(out, u64::try_from(*value).unwrap()).unwrap(),
            },
            Self::Float(value) => put::write_f64(out, *value).unwrap(),
            Self::Str(text) => put::write_str(out, text).unwrap(),
            Self::Bin(bytes) => put::write_bin(out, bytes).unwrap(),
            Self::List(values) => {
                put::write_array_len(out, values.len() as u32).unwrap();
                values.iter().for_each(|value| value.pack_into(out));
            }
            Self::Map(pairs) => {
                put::write_map_len(out, pairs.len() as u32).unwrap();
                for (key, value) in pairs {
                    put::write_str(out, key).unwrap();
                    value.pack_into(out);
                }
            }
        }
    }
}

/// A batch as vLLM packs it, of packed events.
pub(crate) fn batch_of(ts: f64, events: Vec<Value>) -> Vec<u8> {
    Value::List(vec![Value::Float(ts), Value::List(events), Value::Int(0)]).pack()
}

/// `BlockStored` as of mid-2026.
pub(crate) fn stored(handles: &[u64], parent: Option<u64>, tokens: &[u32], block_size: u32) -> Value {
    Value::Map(vec![
        ("type", s("BlockStored")),
        ("block_hashes", ints(handles.iter().copied())),
        ("parent_block_hash", parent.map_or(Value::Nil, |parent| Value::Int(parent.into()))),
        ("token_ids", ints(tokens.iter().copied())),
        ("block_size", Value::Int(block_size.into())),
        ("lora_id", Value::Nil),
        ("medium", s("GPU")),
        ("lora_name", Value::Nil),
    ])
}

pub(crate) fn removed(handles: &[u64]) -> Value {
    Value::Map(vec![
        ("type", s("BlockRemoved")),
        ("block_hashes", ints(handles.iter().copied())),
        ("medium", s("GPU")),
    ])
}

pub(crate) fn cleared() -> Value {
    Value::Map(vec![("type", s("AllBlocksCleared"))])
}

/// Where a block hangs: below another one, or at the start of prompts of one root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Below(Handle),
    Start(Root),
}

/// The blocks that a worker holds, by plain set rules.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cache {
    held: HashSet<Handle>,
    blocks: HashMap<(Place, Vec<u32>, u64), Handle>,
}

impl Cache {
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for event in batch.events() {
            match event {
                CacheEvent::Stored(stored) => {
                    let size = stored.block_size as usize;
                    let mut place = stored.parent.map_or(Place::Start(stored.root), Place::Below);
                    for (at, &handle) in stored.handles.iter().enumerate() {
                        let tokens = stored.tokens[at * size..][..size].to_vec();
                        let extra = stored.extras.get(at).copied().unwrap_or(0);
                        self.blocks.insert((place, tokens, extra), handle);
                        self.held.insert(handle);
                        place = Place::Below(handle);
                    }
                }
                CacheEvent::Removed { handles, medium } => {
                    if medium == Medium::Gpu {
                        handles.iter().for_each(|handle| _ = self.held.remove(handle));
                    }
                }
                CacheEvent::Cleared => self.held.clear(),
            }
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The blocks in the cache.
    pub(crate) fn held(&self) -> &HashSet<Handle> {
        &self.held
    }

    /// Tokens that an engine would find: whole blocks, and never the whole prompt.
    pub(crate) fn cached_tokens(&self, prompt: &[u32], root: Root, block_size: usize) -> usize {
        let mut place = Place::Start(root);
        let mut found = 0;
        for block in prompt[..prompt.len().saturating_sub(1)].chunks_exact(block_size) {
            match self.blocks.get(&(place, block.to_vec(), 0)) {
                Some(&handle) if self.held.contains(&handle) => place = Place::Below(handle),
                _ => break,
            }
            found += block_size;
        }
        found
    }
}

/// Bytes of standard base64.
pub(crate) fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        bits = bits << 6 | ALPHABET.iter().position(|&other| other == letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// The lines of a recording.
pub(crate) fn recording(name: &str) -> Vec<serde_json::Value> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
