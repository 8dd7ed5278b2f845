//! The events that TensorRT-LLM hands out when it is asked (`/kv_cache_events`): a JSON list, each event once.
//!
//! Its newer ZMQ publisher sends vLLM's shapes and needs the ordinary [`Decoder`](super::Decoder).
//!
//! The list is a drain: what another reader took, or what the engine's bounded buffer dropped, shows as a step in `event_id` and
//! cannot be asked for again. Then the cache counts as empty, and the caller is told how many were missed.
//!
//! An event does not name the engine's block size, and the last block of a prompt may be shorter. So the size is the largest
//! that was seen, and shorter blocks are left out: no prompt can be matched with a part of a block.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use trunkline_core::{Handle, Medium, Root};
use xxhash_rust::xxh3::xxh3_64;

use super::extra::Parted;
use super::{Extra, Fault, extra_hash};
use crate::batch::{Batch, Record};

/// Decodes the drains of one engine (of one data-parallel rank) in their order.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    rank: Option<u32>,
    next_id: u64,
    block_tokens: usize,
    /// The widest attention window; events of narrower ones are about another cache.
    window: u64,
}

#[derive(Deserialize)]
struct Event<'a> {
    event_id: Option<u64>,
    #[serde(borrow)]
    data: Data<'a>,
    window_size: Option<u64>,
    attention_dp_rank: Option<u32>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    parent_hash: Option<Hash>,
    #[serde(borrow, default)]
    blocks: Vec<Block<'a>>,
    #[serde(default)]
    block_hashes: Vec<Hash>,
}

#[derive(Deserialize)]
struct Block<'a> {
    block_hash: Hash,
    tokens: Vec<Token>,
    lora_id: Option<u64>,
    cache_level: Option<u32>,
    #[serde(borrow)]
    cache_salt: Option<Cow<'a, str>>,
    #[serde(borrow)]
    mm_keys: Option<Vec<Item<'a>>>,
}

#[derive(Deserialize)]
struct Token {
    token_id: u32,
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    hash: Cow<'a, str>,
    #[serde(default)]
    start_offset: i64,
}

impl Decoder {
    /// A decoder for the events of `rank`, or for an engine without ranks.
    #[must_use]
    pub fn new(rank: Option<u32>) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Decodes one drain into `batch`, replacing what was in it. Returns how many events were lost before it: if any, the
    /// batch begins with an empty cache. Its `ts` is 0.
    ///
    /// Cost: O(bytes), with allocations; a poll a second is what this is for.
    ///
    /// # Errors
    /// [`Fault::Json`] if it is no list; `batch` is empty then. Single events that cannot be read are counted in it.
    pub fn decode(&mut self, json: &[u8], batch: &mut Batch) -> Result<u64, Fault> {
        batch.clear();
        batch.rank = self.rank;
        if u32::try_from(json.len()).is_err() {
            return Err(Fault::Truncated);
        }
        let events: Vec<&RawValue> = serde_json::from_slice(json).map_err(|_| Fault::Json)?;
        let mut missed = 0;
        for event in events {
            match serde_json::from_str::<Event<'_>>(event.get()) {
                Ok(event) => missed += self.event(&event, batch),
                Err(_) => batch.refuse(Fault::Json),
            }
        }
        Ok(missed)
    }

    fn event(&mut self, event: &Event<'_>, batch: &mut Batch) -> u64 {
        if self.rank.is_some() && event.attention_dp_rank.is_some() && self.rank != event.attention_dp_rank {
            return 0;
        }
        let mut missed = 0;
        if let Some(id) = event.event_id {
            if id != self.next_id {
                // Ids that begin anew are a new engine, ids that step over some have lost removals as well.
                missed = if id > self.next_id { id - self.next_id } else { id };
                batch.records.push(Record::Cleared);
            }
            self.next_id = id.saturating_add(1);
        }
        let window = event.window_size.unwrap_or(self.window);
        if window < self.window {
            batch.skipped += 1;
            return missed;
        }
        self.window = window;
        match &*event.data.kind {
            "created" => batch.records.push(Record::Cleared),
            "stored" => self.stored(&event.data, batch),
            "removed" => {
                let mark = batch.mark();
                batch.handles.extend(event.data.block_hashes.iter().map(|hash| Handle(hash.0)));
                let handles = batch.handles_since(mark);
                // It does not say from where: a block that is removed is on no level.
                for medium in [Medium::Gpu, Medium::Cpu] {
                    batch.records.push(Record::Removed { handles: handles.clone(), medium });
                }
            }
            // "updated" moves a block between levels and does not name its tokens; it is still there.
            _ => batch.skipped += 1,
        }
        missed
    }

    fn stored(&mut self, data: &Data<'_>, batch: &mut Batch) {
        let longest = data.blocks.iter().map(|block| block.tokens.len()).max().unwrap_or(0);
        self.block_tokens = self.block_tokens.max(longest);
        let whole = data.blocks.iter().take_while(|block| block.tokens.len() == self.block_tokens);
        let mark = batch.mark();
        for block in whole {
            batch.handles.push(Handle(block.block_hash.0));
            batch.tokens.extend(block.tokens.iter().map(|token| token.token_id));
            batch.extras.push(block.extra());
        }
        let (handles, tokens) = (batch.handles_since(mark), batch.tokens_since(mark));
        let (Some(first), false) = (data.blocks.first(), handles.is_empty() || tokens.is_empty()) else {
            batch.back_to(mark);
            return;
        };
        if batch.extras[mark.extras()..].iter().all(|&extra| extra == 0) {
            batch.extras.truncate(mark.extras());
        }
        batch.records.push(Record::Stored {
            handles,
            parent: data.parent_hash.map(|hash| Handle(hash.0)),
            tokens,
            block_size: self.block_tokens as u32,
            root: first.root(),
            extras: batch.extras_since(mark),
            medium: if first.cache_level.unwrap_or(0) == 0 { Medium::Gpu } else { Medium::Cpu },
        });
    }
}

impl Block<'_> {
    fn root(&self) -> Root {
        let salt = self.cache_salt.as_deref().map(str::as_bytes);
        Parted { lora: None, lora_id: self.lora_id.map(i128::from), salt }.root()
    }

    fn extra(&self) -> u64 {
        let items = self.mm_keys.iter().flatten();
        let items = items.map(|item| Extra::Item { id: item.hash.as_bytes(), offset: item.start_offset });
        let ids: Vec<[u8; 8]> = match self.tokens.iter().any(|token| token.token_extra_id != 0) {
            true => self.tokens.iter().map(|token| token.token_extra_id.to_le_bytes()).collect(),
            false => Vec::new(),
        };
        extra_hash(items.chain(ids.iter().map(|id| Extra::Other(id))))
    }
}

/// A block's hash: 64 bits of either sign, or text of which XXH3-64 is taken.
#[derive(Debug, Clone, Copy)]
struct Hash(u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfHash;
        impl Visitor<'_> for OfHash {
            type Value = Hash;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an integer of 64 bits or a string")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Hash, E> {
                Ok(Hash(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Hash, E> {
                Ok(Hash(value as u64))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Hash, E> {
                Ok(Hash(xxh3_64(value.as_bytes())))
            }
        }
        deserializer.deserialize_any(OfHash)
    }
}
