// Uses the C API as an embedder would, and as none should. Exits 0 if every answer was right.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunkline.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            char why[256]; \
            api->last_error(why, sizeof why); \
            fprintf(stderr, "line %d: %s (last error: %s)\n", __LINE__, #condition, why); \
            exit(1); \
        } \
    } while (0)

static const TrunklineApi *api;

static TrunklineRequest tokens(const uint32_t *ids, size_t len) {
    TrunklineRequest request = {.size = sizeof request, .kind = TRUNKLINE_TOKENS, .prompt = ids, .prompt_len = len};
    return request;
}

static uint32_t add(uint64_t router, const char *name) {
    TrunklineWorker worker = {.size = sizeof worker, .name = name, .name_len = strlen(name)};
    uint32_t number;
    CHECK(api->add_worker(router, &worker, &number) == TRUNKLINE_OK);
    return number;
}

static void the_life_of_a_request(void) {
    uint64_t router;
    CHECK(api->router_new(NULL, &router) == TRUNKLINE_OK);
    uint32_t a = add(router, "http://a:1"), b = add(router, "http://b:1"), found;
    CHECK(api->find_worker(router, "http://b:1", 10, &found) == TRUNKLINE_OK && found == b && a != b);

    // The prompt is freed after the call: nothing may be kept of it.
    size_t len = 64;
    uint32_t *ids = malloc(len * sizeof *ids);
    for (size_t at = 0; at < len; at++) ids[at] = (uint32_t)at;
    TrunklineRequest request = tokens(ids, len);
    TrunklineDecision first = {.size = sizeof first}, second = {.size = sizeof second};
    CHECK(api->route(router, &request, &first) == TRUNKLINE_OK);
    CHECK(first.matched_tokens == 0 && first.prompt_tokens == 64 && first.prompt_blocks == 4);
    CHECK(first.preferred == TRUNKLINE_NO_WORKER || first.preferred == a || first.preferred == b);
    CHECK(api->first_token(router, first.id, 0) == TRUNKLINE_OK);
    CHECK(api->first_token(router, first.id, 0) == TRUNKLINE_ALREADY);
    TrunklineUsage usage = {.size = sizeof usage, .prompt_tokens = 64, .cached_tokens = 0, .completion_tokens = 5};
    CHECK(api->complete(router, first.id, &usage, 0) == TRUNKLINE_OK);
    CHECK(api->complete(router, first.id, NULL, 0) == TRUNKLINE_ALREADY);
    CHECK(api->route(router, &request, &second) == TRUNKLINE_OK);
    CHECK(second.worker == first.worker && second.matched_tokens == 64);

    TrunklineHolder holders[2];
    TrunklineMatch match = {.size = sizeof match, .holders = holders, .holders_capacity = 2};
    CHECK(api->peek(router, &request, &match) == TRUNKLINE_OK);
    CHECK(match.holders_len == 1 && holders[0].worker == first.worker && holders[0].matched_tokens == 64);
    // A zero-length array is not written to.
    match.holders_capacity = 0;
    CHECK(api->peek(router, &request, &match) == TRUNKLINE_E_SHORT && match.holders_len == 1);
    match.holders = NULL;
    CHECK(api->peek(router, &request, &match) == TRUNKLINE_OK && match.matched_tokens == 64);
    free(ids);

    TrunklineRequest text = {.size = sizeof text, .kind = TRUNKLINE_TEXT, .prompt = "hello", .prompt_len = 5,
                             .model = "llama", .model_len = 5, .salt = "t", .salt_len = 1, .exclude = &first.worker,
                             .exclude_len = 1};
    TrunklineDecision other = {.size = sizeof other};
    CHECK(api->route(router, &text, &other) == TRUNKLINE_OK && other.worker != first.worker);

    TrunklineStats stats = {.size = sizeof stats};
    CHECK(api->stats(router, &stats) == TRUNKLINE_OK && stats.workers == 2 && stats.in_flight == 2);

    char *name = malloc(10);
    size_t name_len;
    CHECK(api->worker_name(router, b, name, 10, &name_len) == TRUNKLINE_OK && name_len == 10);
    CHECK(memcmp(name, "http://b:1", 10) == 0);
    CHECK(api->worker_name(router, b, name, 9, &name_len) == TRUNKLINE_E_SHORT && name_len == 10);
    free(name);

    CHECK(api->drain_worker(router, a, 1) == TRUNKLINE_OK && api->set_healthy(router, b, 0) == TRUNKLINE_OK);
    CHECK(api->route(router, &text, &other) == TRUNKLINE_E_NO_WORKER);
    char *why = malloc(8);
    CHECK(api->last_error(why, 8) > 8 && strlen(why) == 7);
    free(why);
    CHECK(api->remove_worker(router, a) == TRUNKLINE_OK);
    CHECK(api->remove_worker(router, a) == TRUNKLINE_E_UNKNOWN_WORKER);
    CHECK(api->complete(router, second.id, NULL, 0) >= 0);
    CHECK(api->router_free(router) == TRUNKLINE_OK);
}

static void what_callers_get_wrong(void) {
    uint64_t router, stale;
    TrunklineConfig config = {.size = sizeof config, .block_size = 32, .policy = "round_robin", .memory_budget = 1 << 20,
                              .seed = 7};
    CHECK(api->router_new(&config, &router) == TRUNKLINE_OK && api->router_new(&config, &stale) == TRUNKLINE_OK);
    CHECK(api->router_free(stale) == TRUNKLINE_OK);
    config.policy = "fastest";
    CHECK(api->router_new(&config, &stale) == TRUNKLINE_E_CONFIG);
    config.policy = NULL, config.block_size = 257;
    CHECK(api->router_new(&config, &stale) == TRUNKLINE_E_CONFIG);
    CHECK(api->router_new(NULL, NULL) == TRUNKLINE_E_ARGUMENT);
    CHECK(trunkline_api(0) == NULL && trunkline_api(TRUNKLINE_API_VERSION + 1) == NULL);

    uint32_t number = add(router, "w"), ids[4] = {1, 2, 3, 4};
    TrunklineWorker worker = {.size = sizeof worker, .name = "w", .name_len = 1};
    CHECK(api->add_worker(router, &worker, &number) == TRUNKLINE_E_DUPLICATE_WORKER);
    worker.name = "\xff";
    CHECK(api->add_worker(router, &worker, &number) == TRUNKLINE_E_ARGUMENT);
    worker.name = NULL;
    CHECK(api->add_worker(router, &worker, &number) == TRUNKLINE_E_ARGUMENT);
    CHECK(api->add_worker(router, NULL, &number) == TRUNKLINE_E_ARGUMENT);
    worker.name = "x", worker.weight = 65;
    CHECK(api->add_worker(router, &worker, &number) == TRUNKLINE_E_CONFIG);

    uint64_t wrong[] = {0, 1, stale, UINT64_MAX, router + (1ull << 32), router + 1};
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        TrunklineRequest request = tokens(ids, 4);
        TrunklineDecision decision = {.size = sizeof decision};
        TrunklineStats stats = {.size = sizeof stats};
        CHECK(api->route(wrong[at], &request, &decision) == TRUNKLINE_E_HANDLE);
        CHECK(api->stats(wrong[at], &stats) == TRUNKLINE_E_HANDLE);
        CHECK(api->complete(wrong[at], 1, NULL, 0) == TRUNKLINE_E_HANDLE);
        CHECK(api->router_free(wrong[at]) == TRUNKLINE_E_HANDLE);
    }

    TrunklineRequest request = tokens(ids, 4);
    TrunklineDecision decision = {.size = sizeof decision};
    CHECK(api->route(router, NULL, &decision) == TRUNKLINE_E_ARGUMENT);
    CHECK(api->route(router, &request, NULL) == TRUNKLINE_E_ARGUMENT);
    // A caller of an older version has a smaller structure: what lies behind it is not touched.
    uint32_t *small = malloc(8);
    small[0] = 8, small[1] = 77;
    CHECK(api->route(router, &request, (TrunklineDecision *)small) == TRUNKLINE_E_SIZE && small[1] == 77);
    CHECK(api->route(router, (TrunklineRequest *)small, &decision) == TRUNKLINE_E_SIZE);
    free(small);
    request.size = 4;
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_E_SIZE);
    request = tokens((uint32_t *)((char *)ids + 1), 3);
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_E_ARGUMENT);
    request = tokens(ids, SIZE_MAX / 2);
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_E_ARGUMENT);
    request = tokens(NULL, 4);
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_E_ARGUMENT);
    request = tokens(ids, 4), request.kind = 9;
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_E_ARGUMENT);
    request = tokens(NULL, 0);
    CHECK(api->route(router, &request, &decision) == TRUNKLINE_OK);
    CHECK(api->complete(router, 0x123456789, NULL, 0) == TRUNKLINE_ALREADY);
    CHECK(api->find_worker(router, "nobody", 6, &number) == TRUNKLINE_E_UNKNOWN_WORKER);
    CHECK(api->remove_worker(router, 4711) == TRUNKLINE_E_UNKNOWN_WORKER);
    CHECK(api->last_error(NULL, 0) > 0);
    CHECK(api->router_free(router) == TRUNKLINE_OK);
}

static void *many(void *argument) {
    uint64_t router = *(uint64_t *)argument;
    uint32_t ids[32] = {0};
    for (uint32_t round = 0; round < 2000; round++) {
        ids[0] = round % 16;
        TrunklineRequest request = tokens(ids, 32);
        TrunklineDecision decision = {.size = sizeof decision};
        int32_t code = api->route(router, &request, &decision);
        // The router may be freed meanwhile, and then every call says so.
        CHECK(code == TRUNKLINE_OK || code == TRUNKLINE_E_HANDLE);
        if (code == TRUNKLINE_OK) code = api->complete(router, decision.id, NULL, 0);
        CHECK(code == TRUNKLINE_OK || code == TRUNKLINE_E_HANDLE);
    }
    return NULL;
}

static void many_threads_and_a_router_freed_under_them(void) {
    uint64_t router;
    CHECK(api->router_new(NULL, &router) == TRUNKLINE_OK);
    add(router, "a"), add(router, "b");
    pthread_t threads[4];
    for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, many, &router) == 0);
    TrunklineStats stats = {.size = sizeof stats};
    do CHECK(api->stats(router, &stats) == TRUNKLINE_OK);
    while (stats.decisions[0] + stats.decisions[1] + stats.decisions[2] + stats.decisions[3] + stats.decisions[4] < 50);
    CHECK(api->router_free(router) == TRUNKLINE_OK);
    for (int at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

int main(void) {
    api = trunkline_api(TRUNKLINE_API_VERSION);
    if (!api || api->version != TRUNKLINE_API_VERSION || api->size != sizeof *api) return 2;
    the_life_of_a_request();
    what_callers_get_wrong();
    many_threads_and_a_router_freed_under_them();
    puts("all right");
    return 0;
}
