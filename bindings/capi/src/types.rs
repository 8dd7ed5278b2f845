//! What crosses the boundary: codes, structures and the table of functions. The header is made from this file and
//! `trunkline_api` alone.
//!
//! Every structure begins with its `size` in bytes as the caller compiled it, so that one can grow at its end: a smaller
//! one than this version needs is refused, never written past.

use std::ffi::{c_char, c_void};

/// Version of the table. A table of another version has another layout.
pub const TRUNKLINE_API_VERSION: u32 = 1;

/// Done.
pub const TRUNKLINE_OK: i32 = 0;
/// There was nothing left to do: the booking was released before, or was never made. No error.
pub const TRUNKLINE_ALREADY: i32 = 1;
/// A pointer is NULL or not aligned, a length is impossible, or text is not UTF-8.
pub const TRUNKLINE_E_ARGUMENT: i32 = -1;
/// The handle names no router: it was freed, or never made.
pub const TRUNKLINE_E_HANDLE: i32 = -2;
/// `size` of a structure is smaller than this version needs.
pub const TRUNKLINE_E_SIZE: i32 = -3;
/// The caller's array is too short; its length field says what is needed.
pub const TRUNKLINE_E_SHORT: i32 = -4;
/// A setting is outside its range.
pub const TRUNKLINE_E_CONFIG: i32 = -5;
/// No worker of this number or name is in the fleet.
pub const TRUNKLINE_E_UNKNOWN_WORKER: i32 = -6;
/// A worker of this name is in the fleet already.
pub const TRUNKLINE_E_DUPLICATE_WORKER: i32 = -7;
/// Nobody may take the request; nothing was booked.
pub const TRUNKLINE_E_NO_WORKER: i32 = -8;
/// No more routers can be made in this process.
pub const TRUNKLINE_E_LIMIT: i32 = -9;
/// A bug of ours. The router can still be used.
pub const TRUNKLINE_E_INTERNAL: i32 = -10;

/// The prompt is `uint32_t` token ids.
pub const TRUNKLINE_TOKENS: u32 = 0;
/// The prompt is bytes of text.
pub const TRUNKLINE_TEXT: u32 = 1;

/// No worker.
pub const TRUNKLINE_NO_WORKER: u32 = u32::MAX;

/// It holds the longest cached part of the prompt and costs least.
pub const TRUNKLINE_REASON_PREFIX: u32 = 0;
/// It alone holds this prompt's own history and keeps it.
pub const TRUNKLINE_REASON_SESSION: u32 = 1;
/// Nothing decided between the best workers, so the hash of the prompt did.
pub const TRUNKLINE_REASON_HOME: u32 = 2;
/// It costs least, although another holds more.
pub const TRUNKLINE_REASON_LOAD: u32 = 3;
/// The preferred worker was over its bound.
pub const TRUNKLINE_REASON_SPILL: u32 = 4;
/// It was the only worker allowed.
pub const TRUNKLINE_REASON_ONLY: u32 = 5;
/// Its turn, its luck or its few requests.
pub const TRUNKLINE_REASON_BASELINE: u32 = 6;

/// Settings of a router. All zero but `size` means the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineConfig {
    /// `sizeof(TrunklineConfig)`.
    pub size: u32,
    /// Tokens per block, 1 to 256; 0 means 16.
    pub block_size: u32,
    /// Name of the policy, ends with a zero byte; NULL means `kv_aware`.
    pub policy: *const c_char,
    /// Bytes that the index may own; 0 means 256 MiB.
    pub memory_budget: u64,
    /// Seed of the index's hashes; 0 takes a random one.
    pub seed: u64,
    /// Seed of homes, equal on all replicas.
    pub placement_seed: u64,
    /// Routers in front of the same workers; 0 means 1.
    pub replicas: u32,
    /// Of the policy `prefix_aware`; 0 means 4096.
    pub prefix_length: u32,
    /// Of the policy `prefix_aware`; 0 means none.
    pub concurrency_threshold: u32,
}

/// A worker to add.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineWorker {
    /// `sizeof(TrunklineWorker)`.
    pub size: u32,
    /// Its share of the prompts that nobody holds, 1 to 64; 0 means 1.
    pub weight: u32,
    /// Its stable name, UTF-8, usually its URL; copied.
    pub name: *const c_char,
    /// Bytes of the name.
    pub name_len: usize,
    /// Size of its KV cache in tokens; 0 means unknown.
    pub capacity_tokens: u64,
}

/// A request. Nothing is kept of what it points to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineRequest {
    /// `sizeof(TrunklineRequest)`.
    pub size: u32,
    /// `TRUNKLINE_TOKENS` or `TRUNKLINE_TEXT`.
    pub kind: u32,
    /// Token ids (aligned) or bytes; may be NULL if there are none.
    pub prompt: *const c_void,
    /// How many token ids or bytes.
    pub prompt_len: usize,
    /// Model, UTF-8; NULL means none is told. Equal prompts of two models are different cache entries.
    pub model: *const c_char,
    /// Bytes of the model's name.
    pub model_len: usize,
    /// Any other bytes that part equal prompts; NULL for none.
    pub salt: *const c_void,
    /// Bytes of the salt.
    pub salt_len: usize,
    /// Numbers of the workers that may take it; NULL means all.
    pub eligible: *const u32,
    /// How many.
    pub eligible_len: usize,
    /// Numbers of workers that must not: those that failed it. May be NULL if there are none.
    pub exclude: *const u32,
    /// How many.
    pub exclude_len: usize,
    /// Milliseconds of a clock that does not go back; 0 reads the router's own. Use one or the other.
    pub now_ms: u64,
}

/// Where a request goes, and why.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineDecision {
    /// `sizeof(TrunklineDecision)`, set by the caller.
    pub size: u32,
    /// One of `TRUNKLINE_REASON_...`.
    pub reason: u32,
    /// Of the booking, for `first_token` and `complete`.
    pub id: u64,
    /// Number of the worker.
    pub worker: u32,
    /// The worker that the choice left, or `TRUNKLINE_NO_WORKER`.
    pub preferred: u32,
    /// Leading tokens believed cached on the worker.
    pub matched_tokens: u32,
    /// Tokens of the prompt; for text an estimate.
    pub prompt_tokens: u32,
    /// Leading blocks believed cached on the worker.
    pub matched_blocks: u32,
    /// Whole blocks of the prompt.
    pub prompt_blocks: u32,
}

/// What an engine's answer said about its request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineUsage {
    /// `sizeof(TrunklineUsage)`.
    pub size: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the engine's cache; `UINT32_MAX` if it did not say.
    pub cached_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

/// A worker that holds a part of a prompt.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineHolder {
    /// Number of the worker.
    pub worker: u32,
    /// Leading tokens that it holds.
    pub matched_tokens: u32,
}

/// Who holds how much of a prompt.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineMatch {
    /// `sizeof(TrunklineMatch)`, set by the caller.
    pub size: u32,
    /// Leading tokens of the prompt on the worker that holds most of it.
    pub matched_tokens: u32,
    /// Tokens of the prompt; for text an estimate.
    pub prompt_tokens: u32,
    /// Whole blocks of the prompt.
    pub prompt_blocks: u32,
    /// The caller's array, in no order; NULL if nobody wants it.
    pub holders: *mut TrunklineHolder,
    /// How many fit.
    pub holders_capacity: usize,
    /// How many there are; more than fit means `TRUNKLINE_E_SHORT`, and the first ones were written.
    pub holders_len: usize,
}

/// Counters and sizes at one moment.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineStats {
    /// `sizeof(TrunklineStats)`, set by the caller.
    pub size: u32,
    /// Workers in the fleet.
    pub workers: u32,
    /// Of these, healthy and not draining.
    pub live_workers: u32,
    /// Decisions that are not completed.
    pub in_flight: u32,
    /// Decisions so far, by reason.
    pub decisions: [u64; 7],
    /// Prompt tokens routed so far, as estimated.
    pub prompt_tokens: u64,
    /// Of these, believed cached where they went.
    pub matched_tokens: u64,
    /// Bytes that the index owns.
    pub index_bytes: u64,
    /// Distinct blocks in the index.
    pub index_blocks: u64,
}

/// The functions. Each may be called from any thread, none blocks on anything but memory, none keeps a pointer that it was
/// given, and each returns `TRUNKLINE_OK`, `TRUNKLINE_ALREADY` or a negative code.
///
/// A router is a number. A number that was freed, or never was one, is refused for as long as the process lives.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TrunklineApi {
    /// `TRUNKLINE_API_VERSION` of the library.
    pub version: u32,
    /// Bytes of this table in the library; functions are only ever added at its end.
    pub size: u32,
    /// Makes a router; `config` may be NULL.
    pub router_new: unsafe extern "C" fn(config: *const TrunklineConfig, router: *mut u64) -> i32,
    /// Frees a router. Calls that run in other threads finish.
    pub router_free: unsafe extern "C" fn(router: u64) -> i32,
    /// Adds a worker, healthy and with an empty cache, and tells its number.
    pub add_worker:
        unsafe extern "C" fn(router: u64, worker: *const TrunklineWorker, number: *mut u32) -> i32,
    /// Removes a worker and forgets its cache.
    pub remove_worker: unsafe extern "C" fn(router: u64, number: u32) -> i32,
    /// Starts (not 0) or ends (0) draining: nothing new, what runs is finished.
    pub drain_worker: unsafe extern "C" fn(router: u64, number: u32, draining: i32) -> i32,
    /// Takes a worker out of rotation (0) or back in (not 0).
    pub set_healthy: unsafe extern "C" fn(router: u64, number: u32, healthy: i32) -> i32,
    /// The number of the worker of this name.
    pub find_worker:
        unsafe extern "C" fn(router: u64, name: *const c_char, name_len: usize, number: *mut u32) -> i32,
    /// Writes a worker's name, without a zero byte, and its length; `TRUNKLINE_E_SHORT` tells the length alone. O(workers).
    pub worker_name: unsafe extern "C" fn(
        router: u64,
        number: u32,
        name: *mut c_char,
        capacity: usize,
        name_len: *mut usize,
    ) -> i32,
    /// Chooses a worker and books the request on it. About a microsecond.
    pub route: unsafe extern "C" fn(
        router: u64,
        request: *const TrunklineRequest,
        decision: *mut TrunklineDecision,
    ) -> i32,
    /// Says that the first token came; releases the prompt from the worker's queue. `now_ms` as in the request.
    pub first_token: unsafe extern "C" fn(router: u64, decision: u64, now_ms: u64) -> i32,
    /// Says that the request is over, answered or not; releases all that was booked. `usage` may be NULL.
    pub complete:
        unsafe extern "C" fn(router: u64, decision: u64, usage: *const TrunklineUsage, now_ms: u64) -> i32,
    /// Who holds how much of a prompt; books nothing. `eligible`, `exclude` and `now_ms` are not looked at.
    pub peek: unsafe extern "C" fn(
        router: u64,
        request: *const TrunklineRequest,
        found: *mut TrunklineMatch,
    ) -> i32,
    /// Counters and sizes. O(workers).
    pub stats: unsafe extern "C" fn(router: u64, stats: *mut TrunklineStats) -> i32,
    /// Writes what the last negative code in this thread meant, for people, cut to `capacity` and ended with a zero byte.
    /// Returns the length of the whole text.
    pub last_error: unsafe extern "C" fn(text: *mut c_char, capacity: usize) -> usize,
}
