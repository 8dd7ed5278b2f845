//! The router for C: one exported function, [`trunkline_api`], hands out a table of the others.
//!
//! Gateways in C, C++, Cython or Go call the core without Python objects and without the GIL. Routers are numbers
//! ([`handle`]), errors are integers ([`types`]), no panic crosses the boundary, and what a caller gets wrong (NULL, a freed
//! router, a structure of another version, a short array) is a code. What remains the caller's duty: a pointer that is not
//! NULL points to as much as its length says.
//!
//! ```c
//! const TrunklineApi *api = trunkline_api(TRUNKLINE_API_VERSION);
//! uint64_t router;
//! int32_t code = api->router_new(NULL, &router);
//! ```

mod calls;
mod clock;
mod guard;
pub mod handle;
pub mod types;

pub use clock::Clock;
pub use handle::Handle;
pub use types::TrunklineApi;

static API: TrunklineApi = TrunklineApi {
    version: types::TRUNKLINE_API_VERSION,
    size: size_of::<TrunklineApi>() as u32,
    router_new: calls::router_new,
    router_free: calls::router_free,
    add_worker: calls::add_worker,
    remove_worker: calls::remove_worker,
    drain_worker: calls::drain_worker,
    set_healthy: calls::set_healthy,
    find_worker: calls::find_worker,
    worker_name: calls::worker_name,
    route: calls::route,
    first_token: calls::first_token,
    complete: calls::complete,
    peek: calls::peek,
    stats: calls::stats,
    last_error: calls::last_error,
};

/// The table of functions, which lives as long as the process; NULL if this library does not have that version.
#[unsafe(no_mangle)]
pub extern "C" fn trunkline_api(version: u32) -> *const TrunklineApi {
    if version == types::TRUNKLINE_API_VERSION { &raw const API } else { std::ptr::null() }
}
