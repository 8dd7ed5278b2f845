# The C API as trunkline.h declares it, for Cython. What a name means is said there.

from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from "trunkline.h" nogil:
    const uint32_t TRUNKLINE_API_VERSION
    const int32_t TRUNKLINE_OK
    const int32_t TRUNKLINE_ALREADY
    const int32_t TRUNKLINE_E_ARGUMENT
    const int32_t TRUNKLINE_E_HANDLE
    const int32_t TRUNKLINE_E_SIZE
    const int32_t TRUNKLINE_E_SHORT
    const int32_t TRUNKLINE_E_CONFIG
    const int32_t TRUNKLINE_E_UNKNOWN_WORKER
    const int32_t TRUNKLINE_E_DUPLICATE_WORKER
    const int32_t TRUNKLINE_E_NO_WORKER
    const int32_t TRUNKLINE_E_LIMIT
    const int32_t TRUNKLINE_E_INTERNAL
    const uint32_t TRUNKLINE_TOKENS
    const uint32_t TRUNKLINE_TEXT
    const uint32_t TRUNKLINE_NO_WORKER

    ctypedef struct TrunklineConfig:
        uint32_t size
        uint32_t block_size
        const char *policy
        uint64_t memory_budget
        uint64_t seed
        uint64_t placement_seed
        uint32_t replicas
        uint32_t prefix_length
        uint32_t concurrency_threshold

    ctypedef struct TrunklineWorker:
        uint32_t size
        uint32_t weight
        const char *name
        size_t name_len
        uint64_t capacity_tokens

    ctypedef struct TrunklineRequest:
        uint32_t size
        uint32_t kind
        const void *prompt
        size_t prompt_len
        const char *model
        size_t model_len
        const void *salt
        size_t salt_len
        const uint32_t *eligible
        size_t eligible_len
        const uint32_t *exclude
        size_t exclude_len
        uint64_t now_ms

    ctypedef struct TrunklineDecision:
        uint32_t size
        uint32_t reason
        uint64_t id
        uint32_t worker
        uint32_t preferred
        uint32_t matched_tokens
        uint32_t prompt_tokens
        uint32_t matched_blocks
        uint32_t prompt_blocks

    ctypedef struct TrunklineUsage:
        uint32_t size
        uint32_t prompt_tokens
        uint32_t cached_tokens
        uint32_t completion_tokens

    ctypedef struct TrunklineHolder:
        uint32_t worker
        uint32_t matched_tokens

    ctypedef struct TrunklineMatch:
        uint32_t size
        uint32_t matched_tokens
        uint32_t prompt_tokens
        uint32_t prompt_blocks
        TrunklineHolder *holders
        size_t holders_capacity
        size_t holders_len

    ctypedef struct TrunklineStats:
        uint32_t size
        uint32_t workers
        uint32_t live_workers
        uint32_t in_flight
        uint64_t decisions[7]
        uint64_t prompt_tokens
        uint64_t matched_tokens
        uint64_t index_bytes
        uint64_t index_blocks

    ctypedef struct TrunklineApi:
        uint32_t version
        uint32_t size
        int32_t (*router_new)(const TrunklineConfig *config, uint64_t *router) noexcept nogil
        int32_t (*router_free)(uint64_t router) noexcept nogil
        int32_t (*add_worker)(uint64_t router, const TrunklineWorker *worker, uint32_t *number) noexcept nogil
        int32_t (*remove_worker)(uint64_t router, uint32_t number) noexcept nogil
        int32_t (*drain_worker)(uint64_t router, uint32_t number, int32_t draining) noexcept nogil
        int32_t (*set_healthy)(uint64_t router, uint32_t number, int32_t healthy) noexcept nogil
        int32_t (*find_worker)(uint64_t router, const char *name, size_t name_len, uint32_t *number) noexcept nogil
        int32_t (*worker_name)(
            uint64_t router, uint32_t number, char *name, size_t capacity, size_t *name_len
        ) noexcept nogil
        int32_t (*route)(uint64_t router, const TrunklineRequest *request, TrunklineDecision *decision) noexcept nogil
        int32_t (*first_token)(uint64_t router, uint64_t decision, uint64_t now_ms) noexcept nogil
        int32_t (*complete)(
            uint64_t router, uint64_t decision, const TrunklineUsage *usage, uint64_t now_ms
        ) noexcept nogil
        int32_t (*peek)(uint64_t router, const TrunklineRequest *request, TrunklineMatch *found) noexcept nogil
        int32_t (*stats)(uint64_t router, TrunklineStats *stats) noexcept nogil
        size_t (*last_error)(char *text, size_t capacity) noexcept nogil
