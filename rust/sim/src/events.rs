//! What a worker tells of its prefix cache: KV events in vLLM's form over ZeroMQ, a message for each step that changed it.
//!
//! Messages can be late, lost, doubled or swapped on purpose, for tests of who follows them. What was lost is in the replay, as
//! it is when a socket drops a message.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use rmp::encode as put;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};
use trunkline_events::{Publisher, PublisherConfig};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cache::SequenceHash;
use crate::config::EventsConfig;

/// What events say of a sequence's blocks.
#[derive(Debug)]
pub(crate) struct Told {
    /// Names of its blocks.
    pub(crate) chain: Vec<SequenceHash>,
    /// Tokens of at least all its blocks.
    pub(crate) tokens: Vec<u32>,
    /// The request's `cache_salt`.
    pub(crate) salt: Option<String>,
}

/// Events of one message, packed.
#[derive(Debug, Default)]
pub(crate) struct Events {
    packed: Vec<u8>,
    count: u32,
}

/// Packing into memory cannot fail.
const ROOM: &str = "there is memory";

impl Events {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Blocks `first..end` of a sequence were stored.
    pub(crate) fn stored(&mut self, told: &Told, first: usize, end: usize, block_size: u32) {
        let size = block_size as usize;
        let salt = told.salt.as_deref().filter(|_| first == 0);
        self.begin("BlockStored", 7 + u32::from(salt.is_some()));
        self.hashes(&told.chain[first..end]);
        self.key("parent_block_hash");
        match first.checked_sub(1) {
            Some(parent) => put::write_u64(&mut self.packed, told.chain[parent].0).expect(ROOM),
            None => put::write_nil(&mut self.packed).expect(ROOM),
        }
        self.key("token_ids");
        let tokens = &told.tokens[first * size..end * size];
        put::write_array_len(&mut self.packed, tokens.len() as u32).expect(ROOM);
        for &token in tokens {
            put::write_uint(&mut self.packed, token.into()).expect(ROOM);
        }
        self.key("block_size");
        put::write_uint(&mut self.packed, block_size.into()).expect(ROOM);
        for name in ["lora_id", "lora_name"] {
            self.key(name);
            put::write_nil(&mut self.packed).expect(ROOM);
        }
        self.medium();
        if let Some(salt) = salt {
            self.key("extra_keys");
            put::write_array_len(&mut self.packed, (end - first) as u32).expect(ROOM);
            put::write_array_len(&mut self.packed, 1).expect(ROOM);
            put::write_str(&mut self.packed, salt).expect(ROOM);
            (first + 1..end).for_each(|_| put::write_nil(&mut self.packed).expect(ROOM));
        }
    }

    /// These blocks were evicted: an event for each, as vLLM's.
    pub(crate) fn removed(&mut self, hashes: &[SequenceHash]) {
        for hash in hashes {
            self.begin("BlockRemoved", 2);
            self.hashes(std::slice::from_ref(hash));
            self.medium();
        }
    }

    /// The whole cache was emptied.
    pub(crate) fn cleared(&mut self) {
        self.begin("AllBlocksCleared", 0);
    }

    /// The message, of this time in seconds since 1970; no events are left.
    fn message(&mut self, ts: f64) -> Bytes {
        let mut packed = Vec::with_capacity(self.packed.len() + 16);
        put::write_array_len(&mut packed, 3).expect(ROOM);
        put::write_f64(&mut packed, ts).expect(ROOM);
        put::write_array_len(&mut packed, self.count).expect(ROOM);
        packed.append(&mut self.packed);
        put::write_uint(&mut packed, 0).expect(ROOM);
        self.count = 0;
        packed.into()
    }

    fn begin(&mut self, kind: &str, fields: u32) {
        self.count += 1;
        put::write_map_len(&mut self.packed, fields + 1).expect(ROOM);
        self.key("type");
        self.key(kind);
    }

    fn key(&mut self, name: &str) {
        put::write_str(&mut self.packed, name).expect(ROOM);
    }

    fn hashes(&mut self, hashes: &[SequenceHash]) {
        self.key("block_hashes");
        put::write_array_len(&mut self.packed, hashes.len() as u32).expect(ROOM);
        for hash in hashes {
            put::write_u64(&mut self.packed, hash.0).expect(ROOM);
        }
    }

    fn medium(&mut self) {
        self.key("medium");
        self.key("GPU");
    }
}

/// Publishes a worker's events.
#[derive(Debug)]
pub(crate) struct Teller {
    publisher: Publisher,
    config: EventsConfig,
    ports: [u16; 2],
    topic: String,
    /// Messages that are late on purpose.
    late: Option<UnboundedSender<(Instant, Bytes)>>,
    /// A message that goes out after the next one.
    held: Mutex<Option<(u64, Bytes)>>,
}

impl Teller {
    /// Takes its ports on the worker's address and publishes from now on. Inside a Tokio runtime.
    pub(crate) fn start(config: &EventsConfig, worker: SocketAddr) -> io::Result<Arc<Self>> {
        let bind = |port| TcpListener::bind(SocketAddr::new(worker.ip(), port));
        let (live, replay) = (bind(config.port)?, bind(config.replay_port)?);
        let ports = [live.local_addr()?.port(), replay.local_addr()?.port()];
        let topic = format!("kv@{worker}");
        let publisher_config = PublisherConfig {
            topic: topic.clone(),
            buffer_steps: config.buffer_steps,
            ..PublisherConfig::default()
        };
        let publisher = Publisher::start(live, replay, &publisher_config)?;
        let (late, queue) = unbounded_channel();
        let is_late = config.delay_s > 0.0;
        let teller = Arc::new(Self {
            publisher,
            config: config.clone(),
            ports,
            topic,
            late: is_late.then_some(late),
            held: Mutex::default(),
        });
        if is_late {
            tokio::spawn(deliver_late(Arc::clone(&teller), queue));
        }
        Ok(teller)
    }

    /// Publishes events of now, if there are any.
    pub(crate) fn tell(&self, events: &mut Events) {
        if events.is_empty() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let message = events.message(now.as_secs_f64());
        match &self.late {
            // An error means that the worker has stopped.
            Some(late) => {
                _ = late.send((Instant::now() + Duration::from_secs_f64(self.config.delay_s), message))
            }
            None => self.publish(message),
        }
    }

    /// Ends all connections and refuses new ones, or ends that.
    pub(crate) fn pause(&self, paused: bool) {
        self.publisher.set_open(!paused);
    }

    /// Messages so far, lost ones included; one that is late counts once it is sent.
    pub(crate) fn messages(&self) -> u64 {
        self.publisher.numbered()
    }

    /// Where it publishes, and where it answers with old messages.
    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// The answer to `GET /kv_event_sources`.
    pub(crate) fn sources(&self) -> Value {
        let [port, replay_port] = self.ports;
        let hwm = PublisherConfig::default().hwm;
        json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": self.topic,
            "endpoint": format!("tcp://*:{port}"), "replay_endpoint": format!("tcp://*:{replay_port}"),
            "buffer_steps": self.config.buffer_steps, "hwm": hwm, "max_queue_size": hwm,
        }})
    }

    fn publish(&self, message: Bytes) {
        let number = self.publisher.number(message.clone());
        // By the number, so that a run is like the next.
        let happens = |share: f64, seed: u64| {
            (xxh3_64_with_seed(&number.to_le_bytes(), seed) as f64) < share * u64::MAX as f64
        };
        if happens(self.config.drop_share, 1) {
            return;
        }
        let mut held = self.held.lock();
        if held.is_none() && happens(self.config.reorder_share, 2) {
            *held = Some((number, message));
            return;
        }
        if happens(self.config.duplicate_share, 3) {
            self.publisher.send(number, message.clone());
        }
        self.publisher.send(number, message);
        if let Some((number, message)) = held.take() {
            self.publisher.send(number, message);
        }
    }
}

async fn deliver_late(teller: Arc<Teller>, mut queue: UnboundedReceiver<(Instant, Bytes)>) {
    while let Some((due, message)) = queue.recv().await {
        sleep_until(due).await;
        teller.publish(message);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{CacheEvent, Handle, Root};
    use trunkline_events::{Batch, Decoder};

    use super::*;

    #[test]
    fn what_is_packed_is_read_as_it_was_meant() {
        let told = Told {
            chain: [1 << 63, 2, 3].map(SequenceHash).to_vec(),
            tokens: (250..262).collect(),
            salt: Some("tenant".to_owned()),
        };
        let mut events = Events::default();
        events.cleared();
        events.removed(&told.chain[1..]);
        events.stored(&told, 0, 2, 4);
        events.stored(&told, 2, 3, 4);
        let mut batch = Batch::new();
        Decoder::new().decode(&events.message(12.5), &mut batch).unwrap();
        assert!(events.is_empty());
        assert!((batch.ts - 12.5).abs() < 1e-9 && batch.refused == 0);
        let read: Vec<CacheEvent<'_>> = batch.events().collect();
        assert_eq!(read.len(), 5);
        assert_eq!(read[0], CacheEvent::Cleared);
        assert!(matches!(read[2], CacheEvent::Removed { handles: [Handle(3)], .. }));
        let CacheEvent::Stored(first) = read[3] else { panic!("{:?}", read[3]) };
        assert_eq!(first.handles, [Handle(1 << 63), Handle(2)]);
        assert_eq!((first.parent, first.block_size, first.tokens), (None, 4, &told.tokens[..8]));
        assert_eq!(first.root, Root::default().with("cache_salt", b"tenant"));
        let CacheEvent::Stored(second) = read[4] else { panic!("{:?}", read[4]) };
        assert_eq!((second.parent, second.tokens), (Some(Handle(2)), &told.tokens[8..]));
    }
}
