//! The functions of the table: each checks what it was given, calls the core once and writes the answer.

use std::ffi::{CStr, c_char};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::slice;
use std::sync::Arc;

use trunkline_core::{
    DecisionId, Error, Millis, Policy, Prompt, Reason, Root, RouteRequest, Router, RouterConfig, Usage,
    WorkerId, WorkerSpec,
};

use crate::clock::Clock;
use crate::guard::{Refused, guard, with_last, with_router};
use crate::handle;
use crate::types::*;

const REASONS: usize = Reason::ALL.len();

/// A structure that says how large its caller believes it to be.
///
/// # Safety
/// `repr(C)`, with a `u32` at its start.
unsafe trait Sized32: Copy {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineConfig {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineWorker {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineRequest {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineDecision {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineUsage {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineMatch {}
// SAFETY: see types.rs.
unsafe impl Sized32 for TrunklineStats {}

/// Refuses NULL, odd addresses and structures that are too small.
///
/// # Safety
/// A pointer that is not NULL points to as many bytes as its first word says.
unsafe fn check<T: Sized32>(pointer: *const T, name: &str) -> Result<(), Refused> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Refused::argument(&format!("{name} is NULL or not aligned")));
    }
    // SAFETY: the first word is there, by the caller's promise.
    let size = unsafe { *pointer.cast::<u32>() };
    if (size as usize) < size_of::<T>() {
        let text = format!("{name}: size is {size}, this version needs {}", size_of::<T>());
        return Err(Refused(TRUNKLINE_E_SIZE, text));
    }
    Ok(())
}

/// Lends a structure. Safety: as [`check`], and nobody changes it meanwhile.
#[inline]
unsafe fn read<'a, T: Sized32>(pointer: *const T, name: &str) -> Result<&'a T, Refused> {
    // SAFETY: the caller's promise is ours; `check` has seen that all of it is there.
    unsafe {
        check(pointer, name)?;
        Ok(&*pointer)
    }
}

/// Writes a number to a place that may not be NULL.
unsafe fn write<T>(place: *mut T, value: T, name: &str) -> Result<(), Refused> {
    if place.is_null() || !place.is_aligned() {
        return Err(Refused::argument(&format!("{name} is NULL or not aligned")));
    }
    // SAFETY: not NULL, aligned, and large enough by its type.
    unsafe { *place = value };
    Ok(())
}

/// An array of the caller; `None` if it is NULL.
///
/// # Safety
/// A pointer that is not NULL points to `len` items, which nobody changes during the call.
unsafe fn array<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<Option<&'a [T]>, Refused> {
    if pointer.is_null() {
        return if len == 0 { Ok(None) } else { Err(Refused::argument(&format!("{name} is NULL"))) };
    }
    if !pointer.is_aligned()
        || len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return Err(Refused::argument(&format!("{name} is not aligned, or its length is impossible")));
    }
    // SAFETY: checked above, and the caller's promise.
    Ok(Some(unsafe { slice::from_raw_parts(pointer, len) }))
}

/// Text of the caller. Safety: as [`array`].
unsafe fn text<'a>(pointer: *const c_char, len: usize, name: &str) -> Result<Option<&'a str>, Refused> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { array(pointer.cast::<u8>(), len, name)? };
    bytes.map(str::from_utf8).transpose().map_err(|_| Refused::argument(&format!("{name} is not UTF-8")))
}

pub(crate) unsafe extern "C" fn router_new(config: *const TrunklineConfig, router: *mut u64) -> i32 {
    guard(|| {
        let mut settings =
            RouterConfig { index_seed: RandomState::new().hash_one(0u64), ..RouterConfig::default() };
        if !config.is_null() {
            // SAFETY: not NULL.
            let given = unsafe { read(config, "config")? };
            // SAFETY: it ends with a zero byte, by the caller's promise.
            settings.policy = unsafe { policy(given)? };
            let or = |value: u64, default: u64| if value == 0 { default } else { value };
            settings.block_size = or(given.block_size.into(), settings.block_size.into()) as u32;
            settings.memory_budget = or(given.memory_budget, settings.memory_budget as u64) as usize;
            settings.index_seed = or(given.seed, settings.index_seed);
            settings.placement_seed = given.placement_seed;
            settings.replicas = or(given.replicas.into(), 1) as u32;
        }
        // SAFETY: the place is the caller's.
        unsafe { write(router, 0, "router")? };
        let clock = Clock::showing(Millis(1));
        let made = handle::insert(&Arc::new(Router::new(settings)?), clock)
            .ok_or_else(|| Refused(TRUNKLINE_E_LIMIT, "this process has 1024 routers".to_owned()))?;
        // SAFETY: as above.
        unsafe { write(router, made, "router")? };
        Ok(TRUNKLINE_OK)
    })
}

unsafe fn policy(config: &TrunklineConfig) -> Result<Policy, Refused> {
    if config.policy.is_null() {
        return Ok(Policy::KvAware);
    }
    // SAFETY: it ends with a zero byte, by the caller's promise.
    let name = unsafe { CStr::from_ptr(config.policy) };
    let name = name.to_str().map_err(|_| Refused::argument("policy is not UTF-8"))?;
    Ok(match Policy::parse(name)? {
        Policy::PrefixAware { prefix_length, .. } => Policy::PrefixAware {
            prefix_length: if config.prefix_length == 0 { prefix_length } else { config.prefix_length },
            concurrency_threshold: (config.concurrency_threshold != 0)
                .then_some(config.concurrency_threshold),
        },
        other => other,
    })
}

pub(crate) unsafe extern "C" fn router_free(router: u64) -> i32 {
    guard(|| match handle::remove(router) {
        true => Ok(TRUNKLINE_OK),
        false => Err(Refused(TRUNKLINE_E_HANDLE, format!("{router:#x} is no router of this process"))),
    })
}

pub(crate) unsafe extern "C" fn add_worker(
    router: u64,
    worker: *const TrunklineWorker,
    number: *mut u32,
) -> i32 {
    with_router(router, |shared| {
        // SAFETY: the caller's promises.
        let worker = unsafe { read(worker, "worker")? };
        // SAFETY: likewise.
        let name = unsafe { text(worker.name, worker.name_len, "name")? };
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| Refused::argument("name is empty"))?;
        // SAFETY: likewise.
        unsafe { write(number, TRUNKLINE_NO_WORKER, "number")? };
        let spec = WorkerSpec {
            weight: worker.weight.max(1),
            capacity_tokens: (worker.capacity_tokens != 0).then_some(worker.capacity_tokens),
            ..WorkerSpec::new(name)
        };
        let added = shared.core.add_worker(spec)?;
        // SAFETY: likewise.
        unsafe { write(number, added.0, "number")? };
        Ok(TRUNKLINE_OK)
    })
}

/// One change of one worker.
fn change(router: u64, change: impl FnOnce(&Router) -> Result<(), Error>) -> i32 {
    with_router(router, |shared| {
        change(&shared.core)?;
        Ok(TRUNKLINE_OK)
    })
}

pub(crate) unsafe extern "C" fn remove_worker(router: u64, number: u32) -> i32 {
    change(router, |core| core.remove_worker(WorkerId(number)))
}

pub(crate) unsafe extern "C" fn drain_worker(router: u64, number: u32, draining: i32) -> i32 {
    change(router, |core| core.drain_worker(WorkerId(number), draining != 0))
}

pub(crate) unsafe extern "C" fn set_healthy(router: u64, number: u32, healthy: i32) -> i32 {
    change(router, |core| core.set_healthy(WorkerId(number), healthy != 0))
}

pub(crate) unsafe extern "C" fn find_worker(
    router: u64,
    name: *const c_char,
    name_len: usize,
    number: *mut u32,
) -> i32 {
    with_router(router, |shared| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, name_len, "name")? }.unwrap_or_default();
        let found = shared.core.worker(name).ok_or_else(|| unknown(name))?;
        // SAFETY: likewise.
        unsafe { write(number, found.0, "number")? };
        Ok(TRUNKLINE_OK)
    })
}

fn unknown(name: &str) -> Refused {
    Refused(TRUNKLINE_E_UNKNOWN_WORKER, format!("no worker {name:?} is in the fleet"))
}

pub(crate) unsafe extern "C" fn worker_name(
    router: u64,
    number: u32,
    name: *mut c_char,
    capacity: usize,
    name_len: *mut usize,
) -> i32 {
    with_router(router, |shared| {
        let workers = shared.core.workers();
        let found = workers.iter().find(|worker| worker.id == WorkerId(number));
        let found = &found.ok_or_else(|| unknown(&number.to_string()))?.name;
        // SAFETY: the caller's promise.
        unsafe { write(name_len, found.len(), "name_len")? };
        if capacity < found.len() {
            return Err(Refused(TRUNKLINE_E_SHORT, format!("the name has {} bytes", found.len())));
        }
        if name.is_null() {
            return Err(Refused::argument("name is NULL"));
        }
        // SAFETY: it has room for `capacity` bytes, which are enough, and nobody else has them.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        Ok(TRUNKLINE_OK)
    })
}

/// Lends a request of C to `act` in the core's terms.
///
/// # Safety
/// As [`read`] and [`array`], for all that it points to.
unsafe fn with_request<R>(
    request: *const TrunklineRequest,
    act: impl FnOnce(&RouteRequest<'_>, u64) -> Result<R, Refused>,
) -> Result<R, Refused> {
    // SAFETY: the caller's promises, here and below.
    let given = unsafe { read(request, "request")? };
    let bytes;
    let prompt = match given.kind {
        TRUNKLINE_TOKENS => {
            // SAFETY: see above.
            Prompt::Tokens(
                unsafe { array(given.prompt.cast::<u32>(), given.prompt_len, "prompt")? }.unwrap_or(&[]),
            )
        }
        TRUNKLINE_TEXT => {
            // SAFETY: see above.
            bytes = [unsafe { array(given.prompt.cast::<u8>(), given.prompt_len, "prompt")? }.unwrap_or(&[])];
            Prompt::Text(&bytes)
        }
        other => return Err(Refused::argument(&format!("kind is {other}: allowed are 0 and 1"))),
    };
    // SAFETY: see above.
    let model = unsafe { text(given.model, given.model_len, "model")? };
    // SAFETY: see above.
    let salt = unsafe { array(given.salt.cast::<u8>(), given.salt_len, "salt")? };
    // SAFETY: see above; `WorkerId` is a transparent `u32`.
    let eligible = unsafe { array(given.eligible.cast::<WorkerId>(), given.eligible_len, "eligible")? };
    // SAFETY: see above.
    let exclude = unsafe { array(given.exclude.cast::<WorkerId>(), given.exclude_len, "exclude")? };
    let mut root = Root::default();
    let mut text_model = 0;
    if let Some(model) = model {
        root = root.with("model", model.as_bytes());
        if given.kind == TRUNKLINE_TEXT {
            let mut hasher = DefaultHasher::new();
            model.hash(&mut hasher);
            text_model = hasher.finish();
        }
    }
    if let Some(salt) = salt {
        root = root.with("salt", salt);
    }
    let request = RouteRequest {
        root,
        eligible,
        exclude: exclude.unwrap_or(&[]),
        text_model,
        ..RouteRequest::new(prompt)
    };
    act(&request, given.now_ms)
}

pub(crate) unsafe extern "C" fn route(
    router: u64,
    request: *const TrunklineRequest,
    decision: *mut TrunklineDecision,
) -> i32 {
    with_router(router, |shared| {
        // SAFETY: the caller's promises, here and below. The answer has a place before anything is booked.
        unsafe { check(decision, "decision")? };
        let decided = unsafe {
            with_request(request, |request, now| Ok(shared.core.route(request, shared.now(now))?))?
        };
        let answer = TrunklineDecision {
            // SAFETY: checked above.
            size: unsafe { (*decision).size },
            reason: decided.reason as u32,
            id: decided.id.to_u64(),
            worker: decided.worker.0,
            preferred: decided.preferred.map_or(TRUNKLINE_NO_WORKER, |id| id.0),
            matched_tokens: decided.matched_tokens,
            prompt_tokens: decided.prompt_tokens,
            matched_blocks: decided.matched_blocks,
            prompt_blocks: decided.prompt_blocks,
        };
        // SAFETY: checked above.
        unsafe { *decision = answer };
        Ok(TRUNKLINE_OK)
    })
}

pub(crate) unsafe extern "C" fn first_token(router: u64, decision: u64, now_ms: u64) -> i32 {
    with_router(router, |shared| {
        let was_new = shared.core.first_token(DecisionId::from_u64(decision), shared.now(now_ms));
        Ok(if was_new { TRUNKLINE_OK } else { TRUNKLINE_ALREADY })
    })
}

pub(crate) unsafe extern "C" fn complete(
    router: u64,
    decision: u64,
    usage: *const TrunklineUsage,
    now_ms: u64,
) -> i32 {
    with_router(router, |shared| {
        let mut told = None;
        if !usage.is_null() {
            // SAFETY: not NULL, and the caller's promise.
            let given = unsafe { read(usage, "usage")? };
            told = Some(Usage {
                prompt_tokens: given.prompt_tokens,
                cached_tokens: (given.cached_tokens != u32::MAX).then_some(given.cached_tokens),
                completion_tokens: given.completion_tokens,
            });
        }
        let was_new = shared.core.complete(DecisionId::from_u64(decision), told, shared.now(now_ms));
        Ok(if was_new { TRUNKLINE_OK } else { TRUNKLINE_ALREADY })
    })
}

pub(crate) unsafe extern "C" fn peek(
    router: u64,
    request: *const TrunklineRequest,
    found: *mut TrunklineMatch,
) -> i32 {
    with_router(router, |shared| {
        // SAFETY: the caller's promises, here and below.
        let place = *unsafe { read(found.cast_const(), "found")? };
        let seen = unsafe { with_request(request, |request, _| Ok(shared.core.peek(request)?))? };
        let len = seen.workers.len();
        let room = if place.holders.is_null() { 0 } else { place.holders_capacity };
        if room > 0 && !place.holders.is_aligned() {
            return Err(Refused::argument("holders is not aligned"));
        }
        for (at, &(worker, matched_tokens)) in seen.workers.iter().take(room).enumerate() {
            // SAFETY: `at` is less than the room that the caller has.
            unsafe { place.holders.add(at).write(TrunklineHolder { worker: worker.0, matched_tokens }) };
        }
        let answer = TrunklineMatch {
            matched_tokens: seen.matched_tokens,
            prompt_tokens: seen.prompt_tokens,
            prompt_blocks: seen.prompt_blocks,
            holders_len: len,
            ..place
        };
        // SAFETY: checked by `read`.
        unsafe { *found = answer };
        if !place.holders.is_null() && len > room {
            return Err(Refused(
                TRUNKLINE_E_SHORT,
                format!("{len} workers hold a part, there is room for {room}"),
            ));
        }
        Ok(TRUNKLINE_OK)
    })
}

pub(crate) unsafe extern "C" fn stats(router: u64, stats: *mut TrunklineStats) -> i32 {
    with_router(router, |shared| {
        // SAFETY: the caller's promise.
        let size = unsafe { read(stats.cast_const(), "stats")? }.size;
        let now = shared.core.stats();
        const { assert!(REASONS == 7, "the structure has a place for each reason") };
        let answer = TrunklineStats {
            size,
            workers: now.workers as u32,
            live_workers: now.live_workers as u32,
            in_flight: now.in_flight as u32,
            decisions: now.decisions,
            prompt_tokens: now.prompt_tokens,
            matched_tokens: now.matched_tokens,
            index_bytes: now.index_bytes as u64,
            index_blocks: now.index_blocks as u64,
        };
        // SAFETY: checked by `read`.
        unsafe { *stats = answer };
        Ok(TRUNKLINE_OK)
    })
}

pub(crate) unsafe extern "C" fn last_error(text: *mut c_char, capacity: usize) -> usize {
    with_last(|last| {
        if !text.is_null() && capacity > 0 {
            let len = last.len().min(capacity - 1);
            // SAFETY: there is room for `capacity` bytes, by the caller's promise.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(last.as_ptr(), len);
                text.add(len).write(0);
            }
        }
        last.len()
    })
    .unwrap_or(0)
}
