//! What workers' events cost: applied, kept, and looked up beside, in CPU time of the thread.
//!
//! `events [BLOCKS]` fills a router with what 64 workers tell of the benches' workload (a million distinct blocks unless told
//! otherwise), once matched by token ids and once by text, and prints one JSON object. Payloads are made before they are
//! timed; decoding them, and what each worker calls its blocks, is in the time and in the bytes. `make bench-events` runs it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trunkline_benches::cpu;
use trunkline_benches::workload::{BLOCK, CLASSES, Cached, Numbers, Workload};
use trunkline_core::{
    CacheView, ExactPrompt, Millis, Prompt, RouteRequest, Router, RouterConfig, Spelling, WorkerId,
    WorkerSpec,
};
use trunkline_events::{Batch, Decoder};
use trunkline_text::Vocabulary;

const WORKERS: usize = 64;
/// Blocks of one event: what an engine computes in a step of 8,192 tokens.
const EVENT_BLOCKS: usize = 512;
/// Block events per second beside which readers are measured.
const RATE: usize = 100_000;

/// Tokens of the vocabulary; its first ones are used most.
const TOKENS: u32 = 1 << 17;

/// A prompt of tokens that are all as likely, with each token replaced by one of a language: the n-th is used 1/n as often as
/// the first. Source: Zipf's law.
fn worded(mut prompt: Vec<u32>) -> Vec<u32> {
    for token in &mut prompt {
        let share = f64::from(*token) / f64::from(TOKENS);
        *token = (f64::from(TOKENS).powf(share) as u32).min(TOKENS - 1);
    }
    prompt
}

/// Tokens of 1 to 8 bytes each, 4.5 on average.
fn vocabulary() -> Vocabulary {
    let mut numbers = Numbers::new(11);
    let mut token =
        || -> Vec<u8> { (0..=numbers.below(8)).map(|_| b' ' + numbers.below(90) as u8).collect() };
    Vocabulary::new((0..TOKENS).map(|id| (id, token()))).expect("each id once")
}

/// A worker's payloads, as its engine would send them.
struct Told {
    worker: usize,
    payload: Vec<u8>,
    blocks: usize,
}

/// What the workers tell while they fill their caches: only blocks that they do not hold yet.
fn told(load: &Workload) -> impl Iterator<Item = Told> + '_ {
    let mut held: Vec<HashSet<u64>> = vec![HashSet::new(); load.workers];
    load.stores().flat_map(move |(prompt, worker)| {
        let prompt = worded(prompt);
        let mut handle = 0u64;
        let mut fresh: Vec<(u64, Option<u64>, &[u32])> = Vec::new();
        for block in prompt.chunks_exact(BLOCK) {
            let parent = (handle != 0).then_some(handle);
            handle = block.iter().fold(handle, |hash, &token| {
                (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            }) | 1;
            if held[worker].insert(handle) {
                fresh.push((handle, parent, block));
            }
        }
        let events: Vec<Told> = (fresh.chunks(EVENT_BLOCKS))
            .map(|blocks| Told { worker, payload: payload(blocks), blocks: blocks.len() })
            .collect();
        events
    })
}

/// `[ts, [{type, block_hashes, parent_block_hash, token_ids, block_size, medium}], 0]`
fn payload(blocks: &[(u64, Option<u64>, &[u32])]) -> Vec<u8> {
    use rmp::encode as put;
    const ROOM: &str = "a vector has room";
    let mut out = Vec::new();
    put::write_array_len(&mut out, 3).expect(ROOM);
    put::write_f64(&mut out, 1.7e9).expect(ROOM);
    put::write_array_len(&mut out, 1).expect(ROOM);
    put::write_map_len(&mut out, 6).expect(ROOM);
    put::write_str(&mut out, "type").expect(ROOM);
    put::write_str(&mut out, "BlockStored").expect(ROOM);
    put::write_str(&mut out, "block_hashes").expect(ROOM);
    put::write_array_len(&mut out, blocks.len() as u32).expect(ROOM);
    for (handle, ..) in blocks {
        put::write_uint(&mut out, *handle).expect(ROOM);
    }
    put::write_str(&mut out, "parent_block_hash").expect(ROOM);
    match blocks[0].1 {
        Some(parent) => _ = put::write_uint(&mut out, parent).expect(ROOM),
        None => put::write_nil(&mut out).expect(ROOM),
    }
    put::write_str(&mut out, "token_ids").expect(ROOM);
    put::write_array_len(&mut out, (blocks.len() * BLOCK) as u32).expect(ROOM);
    for &token in blocks.iter().flat_map(|(.., tokens)| *tokens) {
        put::write_uint(&mut out, u64::from(token)).expect(ROOM);
    }
    put::write_str(&mut out, "block_size").expect(ROOM);
    put::write_uint(&mut out, BLOCK as u64).expect(ROOM);
    put::write_str(&mut out, "medium").expect(ROOM);
    put::write_str(&mut out, "GPU").expect(ROOM);
    put::write_uint(&mut out, 0).expect(ROOM);
    out
}

/// A router, and what it is told.
struct Fed {
    router: Router,
    ids: Vec<WorkerId>,
    decoder: Decoder,
    batch: Batch,
}

impl Fed {
    fn new() -> Self {
        let config = RouterConfig { events_budget: 4 << 30, index_seed: 1, ..RouterConfig::default() };
        let router = Router::new(config).expect("a valid configuration");
        let add = |worker| {
            let id = router.add_worker(WorkerSpec::new(format!("w{worker}"))).expect("a new name");
            router.set_cache_view(id, CacheView::Events).expect("it was added");
            id
        };
        let ids = (0..WORKERS).map(add).collect();
        Self { router, ids, decoder: Decoder::new(), batch: Batch::new() }
    }

    fn apply(&mut self, told: &Told, spelling: Option<&dyn Spelling>) -> u64 {
        self.decoder.decode(&told.payload, &mut self.batch).expect("a good payload");
        let events = self.batch.events();
        let applied = self.router.apply_events(self.ids[told.worker], events, spelling, Some(1), Millis(1));
        applied.expect("a worker of it").stored
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of one look-up of each class, `cached` as said; the text of prompts is made before.
fn look_up(fed: &Fed, load: &Workload, tokens: usize, cached: Cached, spelling: Option<&Vocabulary>) -> f64 {
    let prompts = load.prompts(tokens);
    let rounds = (2_000_000 / tokens).clamp(15, 2000);
    let (reading, mut costs) = (cpu::reading(), Vec::with_capacity(rounds));
    let mut bytes = Vec::new();
    for round in 0..rounds {
        let mut prompt = worded(load.prompt(tokens, round * 7919 % prompts, cached, round as u64));
        prompt.push(1);
        bytes.clear();
        match spelling {
            Some(table) => _ = table.spell(&prompt, &mut bytes),
            None => bytes.extend(prompt.iter().flat_map(|token| token.to_le_bytes())),
        }
        let exact = ExactPrompt { bytes: &bytes, is_tokens: spelling.is_none(), ..ExactPrompt::default() };
        let request = RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Text(&[])) };
        let start = cpu::now();
        let found = fed.router.peek(&request).expect("text");
        costs.push((cpu::now() - start).saturating_sub(reading).as_secs_f64() * 1e6);
        let expected = match cached {
            Cached::Full => tokens,
            Cached::Half => tokens / 2,
            Cached::Nothing => 0,
        };
        let whole = expected / BLOCK * BLOCK;
        assert_eq!(found.matched_tokens as usize, whole, "prompt {round} of {tokens} tokens");
    }
    median(costs)
}

/// CPU of look-ups with a writer at [`RATE`] beside them, over that without, and how fast the writer was.
fn beside(fed: &mut Fed, load: &Workload, table: &Vocabulary) -> (f64, f64) {
    let extra = Workload::new(400_000, WORKERS, 77);
    let more: Vec<Told> = told(&extra).take(4000).collect();
    let quiet = read_for(&fed.router, load, table, Duration::from_secs(2));
    let done = AtomicBool::new(false);
    let ids = fed.ids.clone();
    let router = &fed.router;
    let mut rate = 0.0;
    let loaded = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut decoder, mut batch) = (Decoder::new(), Batch::new());
            let (start, mut blocks) = (Instant::now(), 0);
            for told in more.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                decoder.decode(&told.payload, &mut batch).expect("a good payload");
                let id = ids[told.worker];
                router.apply_events(id, batch.events(), Some(table), Some(1), Millis(1)).expect("a worker");
                blocks += told.blocks;
                let due = Duration::from_secs_f64(blocks as f64 / RATE as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
            blocks as f64 / start.elapsed().as_secs_f64()
        });
        let loaded = read_for(router, load, table, Duration::from_secs(3));
        done.store(true, Ordering::Relaxed);
        rate = writer.join().expect("the writer ends");
        loaded
    });
    (loaded / quiet, rate)
}

/// Microseconds of CPU of a look-up of 4,096 tokens, the median over the time.
fn read_for(router: &Router, load: &Workload, table: &Vocabulary, time: Duration) -> f64 {
    let tokens = 4096;
    let (end, mut round, mut bytes, mut costs) = (Instant::now() + time, 0, Vec::new(), Vec::new());
    while Instant::now() < end {
        let prompt = worded(load.prompt(tokens, round * 7919 % load.prompts(tokens), Cached::Full, 0));
        bytes.clear();
        table.spell(&prompt, &mut bytes);
        let exact = ExactPrompt { bytes: &bytes, ..ExactPrompt::default() };
        let request = RouteRequest { exact: Some(exact), ..RouteRequest::new(Prompt::Text(&[])) };
        let start = cpu::now();
        router.peek(&request).expect("text");
        costs.push((cpu::now() - start).as_secs_f64() * 1e6);
        round += 1;
    }
    costs.iter().sum::<f64>() / costs.len() as f64
}

fn main() {
    let blocks = std::env::args().nth(1).map_or(1_000_000, |blocks| blocks.parse().expect("a number"));
    let load = Workload::new(blocks, WORKERS, 7);
    let table = vocabulary();
    let mut kinds = Vec::new();
    for spelling in [None, Some(&table)] {
        let mut fed = Fed::new();
        let (mut stored, mut time, mut decoding) = (0, Duration::ZERO, Duration::ZERO);
        let reading = cpu::reading();
        for told in told(&load) {
            let start = cpu::now();
            fed.decoder.decode(&told.payload, &mut fed.batch).expect("a good payload");
            decoding += (cpu::now() - start).saturating_sub(reading);
            let start = cpu::now();
            stored += fed.apply(&told, spelling.map(|table| table as &dyn Spelling));
            time += (cpu::now() - start).saturating_sub(reading);
        }
        let stats = fed.router.stats();
        let look_ups: Vec<String> = CLASSES
            .into_iter()
            .map(|tokens| {
                let cost = |cached| look_up(&fed, &load, tokens, cached, spelling);
                format!(
                    "      {{\"tokens\": {tokens}, \"full_us\": {:.2}, \"half_us\": {:.2}, \"miss_us\": {:.2}}}",
                    cost(Cached::Full),
                    cost(Cached::Half),
                    cost(Cached::Nothing)
                )
            })
            .collect();
        let readers = spelling.map(|table| beside(&mut fed, &load, table));
        let readers = readers.map_or(String::new(), |(ratio, rate)| {
            format!("\n      \"reader_cpu_ratio\": {ratio:.3}, \"beside_blocks_per_s\": {rate:.0},")
        });
        kinds.push(format!(
            "    {{\n      \"matched_by\": \"{}\", \"worker_blocks\": {stored}, \"blocks\": {},\n      \
             \"blocks_per_s\": {:.0}, \"decode_ns\": {:.1}, \"total_ns\": {:.1},\n      \
             \"bytes_per_worker_block\": {:.1},{readers}\n      \
             \"look_ups\": [\n{}\n      ]\n    }}",
            if spelling.is_some() { "text" } else { "tokens" },
            stats.events_blocks,
            stored as f64 / time.as_secs_f64(),
            decoding.as_secs_f64() * 1e9 / stored as f64,
            time.as_secs_f64() * 1e9 / stored as f64,
            stats.events_bytes as f64 / stored as f64,
            look_ups.join(",\n"),
        ));
    }
    println!(
        "{{\n  \"workers\": {WORKERS}, \"block_size\": {BLOCK},\n  \"kinds\": [\n{}\n  ]\n}}",
        kinds.join(",\n")
    );
}
