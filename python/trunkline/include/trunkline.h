// The C API of Trunkline. Made by cbindgen from bindings/capi; change it there.

#ifndef TRUNKLINE_H
#define TRUNKLINE_H

#include <stddef.h>
#include <stdint.h>

// Version of the table. A table of another version has another layout.
#define TRUNKLINE_API_VERSION 1

// Done.
#define TRUNKLINE_OK 0

// There was nothing left to do: the booking was released before, or was never made. No error.
#define TRUNKLINE_ALREADY 1

// A pointer is NULL or not aligned, a length is impossible, or text is not UTF-8.
#define TRUNKLINE_E_ARGUMENT -1

// The handle names no router: it was freed, or never made.
#define TRUNKLINE_E_HANDLE -2

// `size` of a structure is smaller than this version needs.
#define TRUNKLINE_E_SIZE -3

// The caller's array is too short; its length field says what is needed.
#define TRUNKLINE_E_SHORT -4

// A setting is outside its range.
#define TRUNKLINE_E_CONFIG -5

// No worker of this number or name is in the fleet.
#define TRUNKLINE_E_UNKNOWN_WORKER -6

// A worker of this name is in the fleet already.
#define TRUNKLINE_E_DUPLICATE_WORKER -7

// Nobody may take the request; nothing was booked.
#define TRUNKLINE_E_NO_WORKER -8

// No more routers can be made in this process.
#define TRUNKLINE_E_LIMIT -9

// A bug of ours. The router can still be used.
#define TRUNKLINE_E_INTERNAL -10

// The prompt is `uint32_t` token ids.
#define TRUNKLINE_TOKENS 0

// The prompt is bytes of text.
#define TRUNKLINE_TEXT 1

// No worker.
#define TRUNKLINE_NO_WORKER UINT32_MAX

// It holds the longest cached part of the prompt and costs least.
#define TRUNKLINE_REASON_PREFIX 0

// It alone holds this prompt's own history and keeps it.
#define TRUNKLINE_REASON_SESSION 1

// Nothing decided between the best workers, so the hash of the prompt did.
#define TRUNKLINE_REASON_HOME 2

// It costs least, although another holds more.
#define TRUNKLINE_REASON_LOAD 3

// The preferred worker was over its bound.
#define TRUNKLINE_REASON_SPILL 4

// It was the only worker allowed.
#define TRUNKLINE_REASON_ONLY 5

// Its turn, its luck or its few requests.
#define TRUNKLINE_REASON_BASELINE 6

// Settings of a router. All zero but `size` means the defaults.
typedef struct TrunklineConfig {
    // `sizeof(TrunklineConfig)`.
    uint32_t size;
    // Tokens per block, 1 to 256; 0 means 16.
    uint32_t block_size;
    // Name of the policy, ends with a zero byte; NULL means `kv_aware`.
    const char *policy;
    // Bytes that the index may own; 0 means 256 MiB.
    uint64_t memory_budget;
    // Seed of the index's hashes; 0 takes a random one.
    uint64_t seed;
    // Seed of homes, equal on all replicas.
    uint64_t placement_seed;
    // Routers in front of the same workers; 0 means 1.
    uint32_t replicas;
    // Of the policy `prefix_aware`; 0 means 4096.
    uint32_t prefix_length;
    // Of the policy `prefix_aware`; 0 means none.
    uint32_t concurrency_threshold;
} TrunklineConfig;

// A worker to add.
typedef struct TrunklineWorker {
    // `sizeof(TrunklineWorker)`.
    uint32_t size;
    // Its share of the prompts that nobody holds, 1 to 64; 0 means 1.
    uint32_t weight;
    // Its stable name, UTF-8, usually its URL; copied.
    const char *name;
    // Bytes of the name.
    uintptr_t name_len;
    // Size of its KV cache in tokens; 0 means unknown.
    uint64_t capacity_tokens;
} TrunklineWorker;

// A request. Nothing is kept of what it points to.
typedef struct TrunklineRequest {
    // `sizeof(TrunklineRequest)`.
    uint32_t size;
    // `TRUNKLINE_TOKENS` or `TRUNKLINE_TEXT`.
    uint32_t kind;
    // Token ids (aligned) or bytes; may be NULL if there are none.
    const void *prompt;
    // How many token ids or bytes.
    uintptr_t prompt_len;
    // Model, UTF-8; NULL means none is told. Equal prompts of two models are different cache entries.
    const char *model;
    // Bytes of the model's name.
    uintptr_t model_len;
    // Any other bytes that part equal prompts; NULL for none.
    const void *salt;
    // Bytes of the salt.
    uintptr_t salt_len;
    // Numbers of the workers that may take it; NULL means all.
    const uint32_t *eligible;
    // How many.
    uintptr_t eligible_len;
    // Numbers of workers that must not: those that failed it. May be NULL if there are none.
    const uint32_t *exclude;
    // How many.
    uintptr_t exclude_len;
    // Milliseconds of a clock that does not go back; 0 reads the router's own. Use one or the other.
    uint64_t now_ms;
} TrunklineRequest;

// Where a request goes, and why.
typedef struct TrunklineDecision {
    // `sizeof(TrunklineDecision)`, set by the caller.
    uint32_t size;
    // One of `TRUNKLINE_REASON_...`.
    uint32_t reason;
    // Of the booking, for `first_token` and `complete`.
    uint64_t id;
    // Number of the worker.
    uint32_t worker;
    // The worker that the choice left, or `TRUNKLINE_NO_WORKER`.
    uint32_t preferred;
    // Leading tokens believed cached on the worker.
    uint32_t matched_tokens;
    // Tokens of the prompt; for text an estimate.
    uint32_t prompt_tokens;
    // Leading blocks believed cached on the worker.
    uint32_t matched_blocks;
    // Whole blocks of the prompt.
    uint32_t prompt_blocks;
} TrunklineDecision;

// What an engine's answer said about its request.
typedef struct TrunklineUsage {
    // `sizeof(TrunklineUsage)`.
    uint32_t size;
    // Tokens of the prompt.
    uint32_t prompt_tokens;
    // Of these, found in the engine's cache; `UINT32_MAX` if it did not say.
    uint32_t cached_tokens;
    // Tokens of the answer.
    uint32_t completion_tokens;
} TrunklineUsage;

// A worker that holds a part of a prompt.
typedef struct TrunklineHolder {
    // Number of the worker.
    uint32_t worker;
    // Leading tokens that it holds.
    uint32_t matched_tokens;
} TrunklineHolder;

// Who holds how much of a prompt.
typedef struct TrunklineMatch {
    // `sizeof(TrunklineMatch)`, set by the caller.
    uint32_t size;
    // Leading tokens of the prompt on the worker that holds most of it.
    uint32_t matched_tokens;
    // Tokens of the prompt; for text an estimate.
    uint32_t prompt_tokens;
    // Whole blocks of the prompt.
    uint32_t prompt_blocks;
    // The caller's array, in no order; NULL if nobody wants it.
    struct TrunklineHolder *holders;
    // How many fit.
    uintptr_t holders_capacity;
    // How many there are; more than fit means `TRUNKLINE_E_SHORT`, and the first ones were written.
    uintptr_t holders_len;
} TrunklineMatch;

// Counters and sizes at one moment.
typedef struct TrunklineStats {
    // `sizeof(TrunklineStats)`, set by the caller.
    uint32_t size;
    // Workers in the fleet.
    uint32_t workers;
    // Of these, healthy and not draining.
    uint32_t live_workers;
    // Decisions that are not completed.
    uint32_t in_flight;
    // Decisions so far, by reason.
    uint64_t decisions[7];
    // Prompt tokens routed so far, as estimated.
    uint64_t prompt_tokens;
    // Of these, believed cached where they went.
    uint64_t matched_tokens;
    // Bytes that the index owns.
    uint64_t index_bytes;
    // Distinct blocks in the index.
    uint64_t index_blocks;
} TrunklineStats;

// The functions. Each may be called from any thread, none blocks on anything but memory, none keeps a pointer that it was
// given, and each returns `TRUNKLINE_OK`, `TRUNKLINE_ALREADY` or a negative code.
//
// A router is a number. A number that was freed, or never was one, is refused for as long as the process lives.
typedef struct TrunklineApi {
    // `TRUNKLINE_API_VERSION` of the library.
    uint32_t version;
    // Bytes of this table in the library; functions are only ever added at its end.
    uint32_t size;
    // Makes a router; `config` may be NULL.
    int32_t (*router_new)(const struct TrunklineConfig *config, uint64_t *router);
    // Frees a router. Calls that run in other threads finish.
    int32_t (*router_free)(uint64_t router);
    // Adds a worker, healthy and with an empty cache, and tells its number.
    int32_t (*add_worker)(uint64_t router, const struct TrunklineWorker *worker, uint32_t *number);
    // Removes a worker and forgets its cache.
    int32_t (*remove_worker)(uint64_t router, uint32_t number);
    // Starts (not 0) or ends (0) draining: nothing new, what runs is finished.
    int32_t (*drain_worker)(uint64_t router, uint32_t number, int32_t draining);
    // Takes a worker out of rotation (0) or back in (not 0).
    int32_t (*set_healthy)(uint64_t router, uint32_t number, int32_t healthy);
    // The number of the worker of this name.
    int32_t (*find_worker)(uint64_t router, const char *name, uintptr_t name_len, uint32_t *number);
    // Writes a worker's name, without a zero byte, and its length; `TRUNKLINE_E_SHORT` tells the length alone. O(workers).
    int32_t (*worker_name)(uint64_t router, uint32_t number, char *name, uintptr_t capacity, uintptr_t *name_len);
    // Chooses a worker and books the request on it. About a microsecond.
    int32_t (*route)(uint64_t router, const struct TrunklineRequest *request, struct TrunklineDecision *decision);
    // Says that the first token came; releases the prompt from the worker's queue. `now_ms` as in the request.
    int32_t (*first_token)(uint64_t router, uint64_t decision, uint64_t now_ms);
    // Says that the request is over, answered or not; releases all that was booked. `usage` may be NULL.
    int32_t (*complete)(uint64_t router, uint64_t decision, const struct TrunklineUsage *usage, uint64_t now_ms);
    // Who holds how much of a prompt; books nothing. `eligible`, `exclude` and `now_ms` are not looked at.
    int32_t (*peek)(uint64_t router, const struct TrunklineRequest *request, struct TrunklineMatch *found);
    // Counters and sizes. O(workers).
    int32_t (*stats)(uint64_t router, struct TrunklineStats *stats);
    // Writes what the last negative code in this thread meant, for people, cut to `capacity` and ended with a zero byte.
    // Returns the length of the whole text.
    uintptr_t (*last_error)(char *text, uintptr_t capacity);
} TrunklineApi;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The table of functions, which lives as long as the process; NULL if this library does not have that version.
const struct TrunklineApi *trunkline_api(uint32_t version);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRUNKLINE_H */
