//! What the C table adds to a call of the core: `make bench-cython` prints it beside a Cython loop.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline::types::*;
use trunkline::{Clock, Handle, trunkline_api};
use trunkline_core::{Millis, Prompt, RouteRequest, Router, RouterConfig, WorkerSpec};

const ROUNDS: usize = 201;
const CALLS: u32 = 1_000;

fn main() {
    let router = Arc::new(Router::new(RouterConfig::default()).expect("defaults are allowed"));
    for number in 0..8 {
        router.add_worker(WorkerSpec::new(format!("w{number}"))).expect("new");
    }
    let clock = Clock::showing(Millis(1));
    let handle = Handle::new(&router, clock).expect("there is room");
    // SAFETY: the table is static.
    let api = unsafe { &*trunkline_api(TRUNKLINE_API_VERSION) };
    for tokens in [64u32, 512, 4096] {
        let ids: Vec<u32> = (0..tokens).collect();
        let plain = || {
            let request = RouteRequest::new(Prompt::Tokens(&ids));
            let decision = router.route(&request, clock.now()).expect("it is routed");
            assert!(router.complete(decision.id, None, clock.now()));
        };
        let table = || {
            let mut request: TrunklineRequest = unsafe { std::mem::zeroed() };
            request.size = size_of::<TrunklineRequest>() as u32;
            request.prompt = ids.as_ptr().cast::<c_void>();
            request.prompt_len = ids.len();
            let mut decision: TrunklineDecision = unsafe { std::mem::zeroed() };
            decision.size = size_of::<TrunklineDecision>() as u32;
            // SAFETY: all that is pointed to is here.
            unsafe {
                assert_eq!((api.route)(handle.number(), &raw const request, &raw mut decision), TRUNKLINE_OK);
                assert_eq!((api.complete)(handle.number(), decision.id, std::ptr::null(), 0), TRUNKLINE_OK);
            }
        };
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            times[0].push(time(plain));
            times[1].push(time(table));
        }
        let [plain, table] = times.map(|mut rounds| {
            rounds.sort_unstable();
            rounds[ROUNDS / 2].as_secs_f64() * 1e9 / f64::from(CALLS)
        });
        println!("{tokens} tokens: Rust {plain:.0} ns, C table {table:.0} ns, {:.2}x", table / plain);
    }
}

fn time(mut call: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed()
}
