//! Readers beside a writer that inserts, splits, evicts and removes as fast as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trunkline_core::index::{BatchMatches, MIN_BUDGET, Matches, PrefixIndex, ViewId};
use trunkline_core::{
    BlockHash, Decision, Millis, Prompt, Reason, RouteRequest, Router, RouterConfig, WorkerId, WorkerSpec,
};

const VIEWS: u64 = 4;
const RUN_FOR: Duration = Duration::from_millis(1500);

/// Prompt `number` of a group: all of a group share blocks, no two groups do.
fn prompt(group: u64, number: u64) -> Vec<BlockHash> {
    let (shared, own) = (10 + group % 30, 5 + number % 400);
    let shared = (0..shared).map(|at| group << 32 | at);
    shared.chain((0..own).map(|at| group << 32 | (number + 1) << 16 | at)).map(BlockHash).collect()
}

#[test]
fn readers_see_nothing_that_was_never_stored_and_never_lose_what_stays() {
    let (index, mut writer) = PrefixIndex::new(MIN_BUDGET).expect("address space");
    let keeper = writer.add_view(None).expect("free");
    let kept: Vec<BlockHash> = (0..300).map(|at| BlockHash(at | 1 << 62)).collect();
    let mut views: Vec<ViewId> = (0..VIEWS).map(|_| writer.add_view(None).expect("free")).collect();
    writer.insert(keeper, &kept, 0);
    let (stop, looked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..3u64)
        .map(|reader| {
            let (index, stop, looked, kept) =
                (Arc::clone(&index), Arc::clone(&stop), Arc::clone(&looked), kept.clone());
            std::thread::spawn(move || {
                let (mut matches, mut together, mut step) =
                    (Matches::default(), BatchMatches::default(), reader);
                while !stop.load(Ordering::Relaxed) {
                    step += 1;
                    let group = step.wrapping_mul(0x9E37_79B9) % 64;
                    let blocks = prompt(group, step % 500);
                    index.find(&blocks[..], 0, &mut matches);
                    for (view, depth) in matches.holders() {
                        assert!(depth as usize <= blocks.len());
                        // View 0 is the keeper; a group is stored by one view, under two numbers as it is replaced.
                        assert_eq!((view as u64 - 1) % VIEWS, group % VIEWS, "group {group} on view {view}");
                    }
                    index.find(&kept[..], 0, &mut matches);
                    assert_eq!(matches.depth(keeper), 300);
                    let batch = [&kept[..], &blocks, &kept[..150], &kept[..1]];
                    index.find_batch(batch, 0, &mut together, |number, matches| {
                        let depth = matches.depth(keeper) as usize;
                        assert_eq!(depth, if number == 1 { 0 } else { batch[number].len() });
                    });
                    looked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let end = Instant::now() + RUN_FOR;
    let mut step = 0u64;
    while Instant::now() < end || looked.load(Ordering::Relaxed) < 2000 {
        step += 1;
        let group = step.wrapping_mul(0x85EB_CA6B) % 64;
        writer.insert(views[(group % VIEWS) as usize], &prompt(group, step % 500), step as u32);
        writer.insert(keeper, &kept, step as u32);
        if step.is_multiple_of(997) {
            // A worker restarts: views 1..=4 alternate with 5..=8.
            let which = (step / 997 % VIEWS) as usize;
            writer.remove_view(views[which]);
            views[which] = view_of_residue(&mut writer, which as u64);
        }
        assert!(writer.bytes() <= MIN_BUDGET);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().expect("no reader saw anything wrong");
    }
}

/// A new view whose number says which groups it stores; those on the way there are given back.
fn view_of_residue(writer: &mut trunkline_core::Writer, residue: u64) -> ViewId {
    let mut passed = Vec::new();
    loop {
        let view = writer.add_view(None).expect("free");
        if view.index() > 0 && (view.index() as u64 - 1) % VIEWS == residue {
            for other in passed {
                writer.remove_view(other);
            }
            return view;
        }
        passed.push(view);
    }
}

#[test]
fn concurrent_decisions_balance_and_agree_with_one_thread() {
    let router = Router::new(RouterConfig::default()).expect("default");
    for worker in 0..8 {
        router.add_worker(WorkerSpec::new(format!("w{worker}"))).expect("new");
    }
    // Bursts of one new prompt from all threads at once: all but the first few must see it where it went.
    let tokens = |burst: u32| (0..640).map(|at| burst << 12 | at).collect::<Vec<u32>>();
    for burst in 0..50 {
        let barrier = std::sync::Barrier::new(4);
        let decisions: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let prompt = tokens(burst);
                        barrier.wait();
                        router
                            .route(&RouteRequest::new(Prompt::Tokens(&prompt)), Millis(u64::from(burst)))
                            .expect("live")
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let cold = decisions.iter().filter(|decision| decision.matched_tokens == 0).count();
        let workers: std::collections::HashSet<_> =
            decisions.iter().map(|decision| decision.worker).collect();
        assert_eq!(cold, workers.len(), "each worker computes the prompt once: {decisions:?}");
        for decision in decisions {
            assert!(router.complete(decision.id, None, Millis(u64::from(burst))));
        }
    }
    assert_eq!(router.stats().in_flight, 0);
}

const WORKERS: u32 = 3;

/// What thread `thread` does in its step `step`, with its own workers and prompts.
fn act(router: &Router, thread: u32, step: u32, open: &mut Vec<Decision>) {
    let now = Millis(u64::from(step));
    let mine: Vec<WorkerId> = (0..WORKERS).map(|number| WorkerId(thread * WORKERS + number)).collect();
    let random = combine(thread, step);
    match random % 64 {
        0 => router.reset_worker(mine[random as usize / 64 % 3]).expect("known"),
        1..=3 => router.set_capacity(mine[1], Some(2_000 + u64::from(random % 4_000))).expect("known"),
        4..=33 if !open.is_empty() => {
            let decision = open.swap_remove(random as usize / 64 % open.len());
            assert!(router.complete(decision.id, None, now));
        }
        _ => {
            let group = random / 64 % 7;
            let ids: Vec<u32> = (0..64 + 16 * (random / 512 % 20))
                .map(|at| combine(thread << 16 | group, if at < 160 { at } else { at * 256 + random % 5 }))
                .collect();
            let request = RouteRequest { eligible: Some(&mine), ..RouteRequest::new(Prompt::Tokens(&ids)) };
            open.push(router.route(&request, now).expect("mine are live"));
            let held = router.peek(&RouteRequest::new(Prompt::Tokens(&ids))).expect("good tokens");
            assert!(held.workers.iter().all(|(worker, _)| mine.contains(worker)), "{held:?}");
        }
    }
}

fn combine(a: u32, b: u32) -> u32 {
    let mixed = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_shr(33) as u32
}

/// Threads share the index, its memory and its lock, but no worker and no prompt: so each one's outcome is that of its steps
/// alone, whatever the others do.
#[test]
fn threads_end_where_a_single_thread_ends() {
    const THREADS: u32 = 4;
    const STEPS: u32 = 3_000;
    let router = || {
        let router = Router::new(RouterConfig::default()).expect("default");
        for number in 0..THREADS * WORKERS {
            let spec =
                WorkerSpec { capacity_tokens: Some(4_000), ..WorkerSpec::new(format!("w{number:02}")) };
            router.add_worker(spec).expect("new");
        }
        router
    };
    let (raced, model) = (router(), router());
    let run = |router: &Router, thread| {
        let mut open = Vec::new();
        (0..STEPS).for_each(|step| act(router, thread, step, &mut open));
        open
    };
    let raced_open: Vec<Vec<Decision>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let (run, raced) = (&run, &raced);
                    move || run(raced, thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let model_open: Vec<Vec<Decision>> = (0..THREADS).map(|thread| run(&model, thread)).collect();
    let without_ids = |open: &[Vec<Decision>]| -> Vec<(WorkerId, Reason, u32)> {
        open.iter().flatten().map(|made| (made.worker, made.reason, made.matched_tokens)).collect()
    };
    assert_eq!(without_ids(&raced_open), without_ids(&model_open));
    assert_eq!(raced.workers(), model.workers());
    let (one, two) = (raced.stats(), model.stats());
    assert!(one.evicted_blocks > 1_000 && one.in_flight < 2_000, "{one:?}");
    assert_eq!(
        (one.decisions, one.in_flight, one.evicted_blocks),
        (two.decisions, two.in_flight, two.evicted_blocks)
    );
    assert_eq!((one.prompt_tokens, one.matched_tokens), (two.prompt_tokens, two.matched_tokens));
}
