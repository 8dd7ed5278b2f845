//! How many blocks a second one thread decodes: events of a real worker's shape with 64 blocks of 16 tokens each, of 64 messages
//! in turn, so that no branch predictor learns them by heart.
//!
//! `cargo run --release -p trunkline-events --example decode_rate`

use std::error::Error;
use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use trunkline_core::CacheEvent;
use trunkline_events::{Batch, Decoder};

const BLOCKS: u32 = 64;
const BLOCK_SIZE: u32 = 16;
const MESSAGES: u64 = 64;

/// A batch of one `BlockStored`, as vLLM 0.32 packs it.
fn message(seed: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    use rmp::encode as put;
    let mut out = Vec::new();
    let mut number = seed;
    let mut random = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        number ^ number >> 31
    };
    put::write_array_len(&mut out, 3)?;
    put::write_f64(&mut out, 1.8e9)?;
    put::write_array_len(&mut out, 1)?;
    put::write_map_len(&mut out, 11)?;
    put::write_str(&mut out, "type")?;
    put::write_str(&mut out, "BlockStored")?;
    put::write_str(&mut out, "block_hashes")?;
    put::write_array_len(&mut out, BLOCKS)?;
    for _ in 0..BLOCKS {
        put::write_uint(&mut out, random())?;
    }
    put::write_str(&mut out, "parent_block_hash")?;
    put::write_nil(&mut out)?;
    put::write_str(&mut out, "token_ids")?;
    put::write_array_len(&mut out, BLOCKS * BLOCK_SIZE)?;
    for _ in 0..BLOCKS * BLOCK_SIZE {
        // A vocabulary of 128,256, frequent ids first.
        put::write_uint(&mut out, (random() % 128_256) >> (random() % 12))?;
    }
    put::write_str(&mut out, "block_size")?;
    put::write_uint(&mut out, BLOCK_SIZE.into())?;
    for nothing in ["lora_id", "lora_name"] {
        put::write_str(&mut out, nothing)?;
        put::write_nil(&mut out)?;
    }
    put::write_str(&mut out, "medium")?;
    put::write_str(&mut out, "GPU")?;
    put::write_str(&mut out, "extra_keys")?;
    put::write_array_len(&mut out, BLOCKS)?;
    for _ in 0..BLOCKS {
        put::write_nil(&mut out)?;
    }
    put::write_str(&mut out, "group_idx")?;
    put::write_uint(&mut out, 0)?;
    put::write_str(&mut out, "kv_cache_spec_kind")?;
    put::write_str(&mut out, "full_attention")?;
    put::write_uint(&mut out, 0)?;
    Ok(out)
}

/// CPU time of this thread: what other processes take does not count.
fn thread_cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let payloads: Vec<_> = (1..=MESSAGES).map(message).collect::<Result<_, _>>()?;
    let (mut decoder, mut batch) = (Decoder::new(), Batch::new());
    for payload in &payloads {
        decoder.decode(payload, &mut batch)?;
        let Some(CacheEvent::Stored(stored)) = batch.events().next() else { return Err("not stored".into()) };
        assert_eq!(stored.handles.len(), BLOCKS as usize, "decoded before it is timed");
    }
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let (start, times) = (thread_cpu_ns(), 60);
            for payload in (0..times).flat_map(|_| &payloads) {
                decoder.decode(black_box(payload), &mut batch).expect("decoded before");
                black_box(&batch);
            }
            (thread_cpu_ns() - start) / (f64::from(times * BLOCKS) * MESSAGES as f64)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let median = rounds[rounds.len() / 2];
    println!(
        "{} B a message: {median:.1} ns a block of {BLOCK_SIZE} tokens (least {:.1}), {:.1} M blocks/s",
        payloads[0].len(),
        rounds[0],
        1e3 / median
    );
    Ok(())
}
