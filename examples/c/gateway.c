// Two requests through a router in C: prints where each goes and why.
//
//   cargo build --release -p trunkline-capi
//   cc -I python/trunkline/include examples/c/gateway.c target/release/libtrunkline.a -lpthread -ldl -lm -o gateway

#include <stdio.h>
#include <string.h>

#include "trunkline.h"

int main(void) {
    const TrunklineApi *api = trunkline_api(TRUNKLINE_API_VERSION);
    if (!api) return 1; // built against another version

    uint64_t router;
    if (api->router_new(NULL, &router) != TRUNKLINE_OK) return 1;
    const char *names[] = {"http://10.0.0.1:8000", "http://10.0.0.2:8000"};
    for (int at = 0; at < 2; at++) {
        TrunklineWorker worker = {.size = sizeof worker, .name = names[at], .name_len = strlen(names[at])};
        uint32_t number;
        if (api->add_worker(router, &worker, &number) != TRUNKLINE_OK) return 1;
    }

    uint32_t prompt[256];
    for (uint32_t at = 0; at < 256; at++) prompt[at] = at;
    for (int turn = 0; turn < 2; turn++) {
        TrunklineRequest request = {
            .size = sizeof request, .kind = TRUNKLINE_TOKENS, .prompt = prompt, .prompt_len = 256};
        TrunklineDecision decision = {.size = sizeof decision};
        if (api->route(router, &request, &decision) != TRUNKLINE_OK) {
            char why[200];
            api->last_error(why, sizeof why);
            fprintf(stderr, "%s\n", why);
            return 1;
        }
        char name[200];
        size_t length;
        if (api->worker_name(router, decision.worker, name, sizeof name, &length) != TRUNKLINE_OK) return 1;
        printf("%.*s %u/%u\n", (int)length, name, decision.matched_tokens, decision.prompt_tokens);
        // Send the request there; then
        api->first_token(router, decision.id, 0);
        api->complete(router, decision.id, NULL, 0);
    }
    return api->router_free(router) == TRUNKLINE_OK ? 0 : 1;
}
