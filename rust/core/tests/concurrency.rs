//! Readers beside a writer that inserts, splits, evicts and removes as fast as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trunkline_core::index::{MIN_BUDGET, Matches, PrefixIndex, ViewId};
use trunkline_core::{BlockHash, Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec};

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
    let (index, mut writer) = PrefixIndex::new(MIN_BUDGET);
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
                let (mut matches, mut made, mut step) = (Matches::default(), Vec::new(), reader);
                while !stop.load(Ordering::Relaxed) {
                    step += 1;
                    let group = step.wrapping_mul(0x9E37_79B9) % 64;
                    let blocks = prompt(group, step % 500);
                    made.clear();
                    index.find(blocks.iter().copied(), &mut made, 0, &mut matches);
                    assert!(made.iter().zip(&blocks).all(|(made, block)| made == block));
                    for (view, depth) in matches.holders() {
                        assert!(depth as usize <= blocks.len());
                        // View 0 is the keeper; a group is stored by one view, under two numbers as it is replaced.
                        assert_eq!((view as u64 - 1) % VIEWS, group % VIEWS, "group {group} on view {view}");
                    }
                    made.clear();
                    index.find(kept.iter().copied(), &mut made, 0, &mut matches);
                    assert_eq!(matches.depth(keeper), 300);
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
