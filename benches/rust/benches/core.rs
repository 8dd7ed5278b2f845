//! The core's promises, one group each, in CPU time of the thread: `make bench-rust`.
//!
//! Prompts are made right before they are looked up, a few at a time, so they are in cache; of the index only what other
//! look-ups left there. What reading the clock costs is taken off. `cargo test --benches` runs everything once, small.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use trunkline_benches::cpu::{self, ThreadCpu};
use trunkline_benches::fixture::{AMPLE, Index, Reader, router};
use trunkline_benches::memory;
use trunkline_benches::workload::{BLOCK, CLASSES, Cached, Numbers, Workload};
use trunkline_core::index::{BatchMatches, Matches};
use trunkline_core::{BlockHash, Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec};

const SEED: u64 = 7;
const WORKERS: usize = 64;
const FLEETS: [usize; 4] = [8, 64, 512, 1024];
/// Prompts that are made together fit the first-level cache.
const GROUP_TOKENS: usize = 8192;
/// Tokens of a batch: they fit the second-level cache.
const BATCH_TOKENS: usize = 1 << 16;
/// Block events per second beside which readers are measured, and how they come: prompts of 20 blocks.
const EVENTS_PER_S: usize = 100_000;
const EVENT_BLOCKS: usize = 20;

type Bench = Criterion<ThreadCpu>;

fn main() {
    let mut criterion = Criterion::default()
        .with_measurement(ThreadCpu)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    // Under `cargo test` it only has to run.
    let blocks = if std::env::args().any(|argument| argument == "--test") { 10_000 } else { 1_000_000 };
    dependent_load(&mut criterion, blocks);
    find(&mut criterion, blocks);
    long_blocks(&mut criterion, blocks);
    insert(&mut criterion, blocks);
    route(&mut criterion, blocks);
    fleet(&mut criterion);
    contended(&mut criterion, blocks);
    criterion.final_summary();
}

/// Makes prompts and hands them to `call` until it had `count`. Returns the CPU time of the calls.
fn timed(
    count: u64,
    tokens: usize,
    mut make: impl FnMut() -> Vec<u32>,
    mut call: impl FnMut(&[u32]),
) -> Duration {
    let reading = cpu::reading();
    let size = (GROUP_TOKENS / tokens).clamp(1, 128) as u64;
    let (mut left, mut total) = (count, Duration::ZERO);
    while left > 0 {
        let group: Vec<Vec<u32>> = (0..size.min(left)).map(|_| make()).collect();
        left -= group.len() as u64;
        let start = cpu::now();
        group.iter().for_each(|prompt| call(prompt));
        total += (cpu::now() - start).saturating_sub(reading);
    }
    total
}

/// Prompts of a class in random order.
fn prompts(load: Workload, tokens: usize, cached: Cached) -> impl FnMut() -> Vec<u32> {
    let mut numbers = Numbers::new(SEED);
    move || {
        let salt = numbers.any();
        load.prompt(tokens, numbers.below(load.prompts(tokens)), cached, salt)
    }
}

/// A load whose address the load before it told: what a look-up that misses the caches pays for each step.
fn dependent_load(criterion: &mut Bench, blocks: usize) {
    let mut group = criterion.benchmark_group("floor/dependent_load");
    for mib in [24, 64, 256] {
        group.bench_function(BenchmarkId::new("mib", mib), |bencher| {
            // One cycle through all lines, in random order (Sattolo). A small run walks through fewer.
            let lines = (mib << 20) / size_of::<Line>() * blocks.min(1_000_000) / 1_000_000;
            let mut next: Vec<Line> = (0..lines).map(|line| Line([line; 8])).collect();
            let mut numbers = Numbers::new(SEED);
            for at in (1..lines).rev() {
                next.swap(at, numbers.below(at));
            }
            let mut at = 0;
            bencher.iter(|| {
                at = next[at].0[0];
                at
            });
        });
    }
}

/// A line of cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([usize; 8]);

fn find(criterion: &mut Bench, blocks: usize) {
    for workers in FLEETS {
        let load = Workload::new(blocks, workers, SEED);
        let before = memory::resident();
        let filled = Index::filled(&load, BLOCK);
        let (counted, said) = (memory::resident().saturating_sub(before), filled.writer.bytes());
        println!(
            "bytes per block, {workers} workers, {} blocks: {:.1} resident, {:.1} counted by the index",
            filled.writer.blocks(),
            counted as f64 / filled.writer.blocks() as f64,
            said as f64 / filled.writer.blocks() as f64
        );
        let kinds = [("hit", Cached::Full), ("half", Cached::Half), ("miss", Cached::Nothing)];
        for (name, cached) in kinds {
            let mut group = criterion.benchmark_group(format!("find/{name}"));
            // The other fleets: only where holders cost something.
            for tokens in CLASSES.into_iter().filter(|_| workers == WORKERS || cached == Cached::Full) {
                let mut matches = Matches::default();
                group.bench_function(BenchmarkId::new(format!("{workers}_workers"), tokens), |bencher| {
                    let mut make = prompts(load, tokens, cached);
                    bencher.iter_custom(|count| {
                        timed(count, tokens, &mut make, |prompt| {
                            _ = black_box(filled.reader.find(prompt, &mut matches))
                        })
                    });
                });
            }
        }
        if workers == WORKERS {
            find_batch(criterion, load, &filled.reader);
            hash(criterion, load, &filled.reader);
            beside_a_writer(criterion, load, filled);
        }
    }
}

/// Look-ups of whole prompts in an index of long blocks, and hashing these alone.
fn long_blocks(criterion: &mut Bench, blocks: usize) {
    const LONG: usize = 64;
    let load = Workload::new(blocks, WORKERS, SEED);
    let filled = Index::filled(&load, LONG);
    let mut group = criterion.benchmark_group(format!("find/hit/blocks_of_{LONG}"));
    for tokens in CLASSES {
        let mut matches = Matches::default();
        group.bench_function(BenchmarkId::new(format!("{WORKERS}_workers"), tokens), |bencher| {
            let mut make = prompts(load, tokens, Cached::Full);
            bencher.iter_custom(|count| {
                timed(count, tokens, &mut make, |prompt| {
                    _ = black_box(filled.reader.find(prompt, &mut matches))
                })
            });
        });
        group.bench_function(BenchmarkId::new("hash", tokens), |bencher| {
            let mut make = prompts(load, tokens, Cached::Full);
            bencher.iter_custom(|count| {
                timed(count, tokens, &mut make, |prompt| _ = black_box(filled.reader.hash_alone(prompt)))
            });
        });
    }
}

/// Time for each prompt of a batch of [`BATCH_TOKENS`].
fn find_batch(criterion: &mut Bench, load: Workload, reader: &Reader) {
    let mut group = criterion.benchmark_group("find_batch/hit");
    let mut matches = BatchMatches::default();
    for tokens in CLASSES.into_iter().filter(|tokens| tokens * 8 <= BATCH_TOKENS) {
        group.bench_function(BenchmarkId::new(format!("{WORKERS}_workers"), tokens), |bencher| {
            let mut make = prompts(load, tokens, Cached::Full);
            bencher.iter_custom(|count| {
                let (size, reading) = (BATCH_TOKENS / tokens, cpu::reading());
                let batches = count.div_ceil(size as u64);
                let mut total = Duration::ZERO;
                for _ in 0..batches {
                    let prompts: Vec<Vec<u32>> = (0..size).map(|_| make()).collect();
                    let start = cpu::now();
                    black_box(reader.find_batch(&prompts, &mut matches));
                    total += (cpu::now() - start).saturating_sub(reading);
                }
                total.mul_f64(count as f64 / (batches * size as u64) as f64)
            });
        });
    }
}

fn hash(criterion: &mut Bench, load: Workload, reader: &Reader) {
    let mut group = criterion.benchmark_group("hash");
    for tokens in CLASSES {
        group.throughput(Throughput::Bytes(4 * tokens as u64));
        group.bench_function(BenchmarkId::from_parameter(tokens), |bencher| {
            let mut make = prompts(load, tokens, Cached::Full);
            bencher.iter_custom(|count| {
                timed(count, tokens, &mut make, |prompt| _ = black_box(reader.hash_alone(prompt)))
            });
        });
    }
}

/// Look-ups while another thread inserts and forgets [`EVENTS_PER_S`] blocks per second, and in the same group without it.
fn beside_a_writer(criterion: &mut Bench, load: Workload, filled: Index) {
    const TOKENS: usize = 4096;
    let Index { reader, mut writer, .. } = filled;
    let mut group = criterion.benchmark_group("find/beside_writer");
    let mut look_up = |name: &str| {
        let (mut make, mut matches) = (prompts(load, TOKENS, Cached::Full), Matches::default());
        group.bench_function(BenchmarkId::new(name, TOKENS), |bencher| {
            bencher.iter_custom(|count| {
                timed(count, TOKENS, &mut make, |prompt| _ = black_box(reader.find(prompt, &mut matches)))
            });
        });
    };
    look_up("quiet");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Its view is small, so that it evicts as much as it inserts.
            let view = writer.add_view(Some(100 * EVENT_BLOCKS as u64)).expect("a free view");
            let (mut numbers, start, mut done) = (Numbers::new(SEED), Instant::now(), 0);
            while !stop.load(Ordering::Relaxed) {
                while done < (start.elapsed().as_secs_f64() * EVENTS_PER_S as f64) as usize {
                    let blocks: Vec<BlockHash> =
                        (0..EVENT_BLOCKS).map(|_| BlockHash(numbers.any())).collect();
                    writer.insert(view, &blocks, start.elapsed().as_millis() as u32);
                    done += EVENT_BLOCKS;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        look_up("100k_events_per_s");
        stop.store(true, Ordering::Relaxed);
    });
}

fn insert(criterion: &mut Bench, blocks: usize) {
    let load = Workload::new(blocks, WORKERS, SEED);
    let mut group = criterion.benchmark_group("insert");
    for tokens in CLASSES {
        // A fifth of the blocks, on one worker after the other; then an empty index again.
        let stores = load.prompts(tokens) as u64;
        group.throughput(Throughput::Elements((tokens / BLOCK) as u64));
        group.bench_function(BenchmarkId::new("worker_blocks", tokens), |bencher| {
            let (mut index, mut stored) = (Index::empty(WORKERS, AMPLE, BLOCK), 0u64);
            bencher.iter_custom(|count| {
                let reading = cpu::reading();
                let mut total = Duration::ZERO;
                for _ in 0..count {
                    if stored == stores {
                        (index, stored) = (Index::empty(WORKERS, AMPLE, BLOCK), 0);
                    }
                    let prompt = load.prompt(tokens, stored as usize, Cached::Full, 0);
                    let start = cpu::now();
                    let hashes = index.reader.hashes(&prompt);
                    index.insert(stored as usize % WORKERS, &hashes);
                    total += (cpu::now() - start).saturating_sub(reading);
                    stored += 1;
                }
                total
            });
        });
    }
}

/// Chooses, books and releases.
fn decide(router: &Router, prompt: &[u32]) {
    let decision = router.route(&RouteRequest::new(Prompt::Tokens(prompt)), Millis(0)).expect("workers live");
    assert!(router.complete(decision.id, None, Millis(0)));
}

fn route(criterion: &mut Bench, blocks: usize) {
    for workers in FLEETS {
        let load = Workload::new(blocks, workers, SEED);
        let filled = router(&load, AMPLE);
        for (name, cached) in [("hit", Cached::Full), ("miss", Cached::Nothing)] {
            let mut group = criterion.benchmark_group(format!("route/{name}"));
            for tokens in [64, 4096] {
                group.bench_function(BenchmarkId::new(format!("{workers}_workers"), tokens), |bencher| {
                    let mut make = prompts(load, tokens, cached);
                    bencher.iter_custom(|count| {
                        timed(count, tokens, &mut make, |prompt| decide(&filled, prompt))
                    });
                });
            }
        }
    }
}

/// Short prompts that nobody has seen, in fleets of all sizes: what a decision costs that finds nothing and may go anywhere.
fn fleet(criterion: &mut Bench) {
    const TOKENS: usize = 64;
    let mut group = criterion.benchmark_group("route/fleet");
    for workers in [4, 64, 1024, 10_000] {
        let router = Router::new(RouterConfig::default()).expect("default settings");
        for worker in 0..workers {
            router.add_worker(WorkerSpec::new(format!("w{worker}"))).expect("a new name");
        }
        let mut numbers = Numbers::new(SEED);
        let mut make = || {
            let mut prompt = Vec::with_capacity(TOKENS);
            numbers.tokens(TOKENS, &mut prompt);
            prompt
        };
        group.bench_function(BenchmarkId::new("workers", workers), |bencher| {
            bencher.iter_custom(|count| timed(count, TOKENS, &mut make, |prompt| decide(&router, prompt)));
        });
    }
}

/// One system prompt that all workers hold before a new question: CPU time per decision of one thread, and of two at once.
fn contended(criterion: &mut Bench, blocks: usize) {
    const SYSTEM: usize = 4096;
    const QUESTION: usize = 64;
    let load = Workload::new(blocks, WORKERS, SEED);
    let filled = router(&load, AMPLE);
    let make = |numbers: &mut Numbers| {
        let mut prompt = load.hot(SYSTEM);
        numbers.tokens(QUESTION, &mut prompt);
        prompt
    };
    let mut group = criterion.benchmark_group("route/contended");
    let mut seed = SEED;
    for threads in [1, 2] {
        group.bench_function(BenchmarkId::new("threads", threads), |bencher| {
            bencher.iter_custom(|count| {
                seed += 2;
                let (ready, count) = (Barrier::new(threads as usize), count.div_ceil(threads));
                let work = |seed| {
                    let mut numbers = Numbers::new(seed);
                    ready.wait();
                    timed(count, SYSTEM, || make(&mut numbers), |prompt| decide(&filled, prompt))
                };
                let work = &work;
                // Of all threads together, for all `count` decisions.
                std::thread::scope(|scope| {
                    let started: Vec<_> =
                        (0..threads).map(|at| scope.spawn(move || work(seed + at))).collect();
                    started.into_iter().map(|thread| thread.join().expect("the thread ends")).sum()
                })
            });
        });
    }
}
