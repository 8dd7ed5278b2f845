"""What each method of Router promises."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support import MakeRouter
from trunkline import (
    ConfigError,
    DuplicateWorkerError,
    NoWorkerAvailableError,
    Router,
    TokenIdError,
    TrunklineError,
    UnknownWorkerError,
)

PROMPT = list(range(64))
OTHER = list(range(1000, 1064))


def in_flight(router: Router) -> dict[str, int]:
    return {worker.id: worker.in_flight for worker in router.workers}


def test_a_prompt_returns_to_the_worker_that_holds_it(make_router: MakeRouter) -> None:
    router = make_router(4)
    first = router.route(PROMPT)
    assert (first.matched_tokens, first.prompt_tokens, first.prompt_blocks) == (0, 64, 4)
    router.complete(first)
    second = router.route(PROMPT)
    assert second.worker == first.worker
    assert (second.matched_tokens, second.matched_blocks, second.expected_hit) == (64, 4, 1.0)
    assert second.reason in ("prefix", "session")


def test_a_decision_tells_the_endpoint(make_router: MakeRouter) -> None:
    decision = make_router(1).route(PROMPT)
    assert (decision.worker, decision.url, decision.reason) == ("w0", "http://10.0.0.0:8000", "only")
    assert decision.preferred is None
    plain = Router()
    plain.add_worker("http://a:1")
    assert plain.route(PROMPT).url is None


def test_booking_and_release_are_counted_once(make_router: MakeRouter) -> None:
    router = make_router(1)
    decision = router.route(PROMPT)
    [worker] = router.workers
    assert (worker.in_flight, worker.queued_tokens) == (1, 64)
    assert router.first_token(decision)
    assert not router.first_token(decision)
    assert router.workers[0].queued_tokens == 0
    assert router.complete(decision)
    assert not router.complete(decision)
    assert not router.first_token(decision)
    assert in_flight(router) == {"w0": 0}


def test_complete_alone_releases_everything(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.complete(router.route(PROMPT))
    [worker] = router.workers
    assert (worker.in_flight, worker.queued_tokens) == (0, 0)


def test_reported_usage_is_counted(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.complete(router.route(PROMPT), cached_tokens=48)
    router.complete(router.route(PROMPT), prompt_tokens=70, cached_tokens=64, completion_tokens=9)
    router.complete(router.route(PROMPT))
    [worker] = router.workers
    assert (worker.reported_prompt_tokens, worker.reported_cached_tokens) == (64 + 70, 48 + 64)
    assert (worker.decisions, worker.prompt_tokens, worker.matched_tokens) == (3, 192, 128)


def test_a_decision_of_another_router_is_refused(make_router: MakeRouter) -> None:
    here, there = make_router(1), make_router(1)
    decision = there.route(PROMPT)
    for refuse in (here.complete, here.first_token):
        with pytest.raises(ValueError, match="another router"):
            refuse(decision)
    assert in_flight(there) == {"w0": 1}


def test_lease_books_on_entry_and_completes_on_exit(make_router: MakeRouter) -> None:
    router = make_router(2)
    lease = router.lease(PROMPT)
    assert router.stats().in_flight == 0
    with lease as decision:
        assert in_flight(router)[decision.worker] == 1
        router.first_token(decision)
    assert router.stats().in_flight == 0
    with lease as again:
        assert again.worker == decision.worker
        router.complete(again, cached_tokens=64)
    assert router.stats().in_flight == 0


def test_lease_completes_when_the_body_raises(make_router: MakeRouter) -> None:
    router = make_router(2)
    with pytest.raises(KeyError, match="mine"), router.lease(PROMPT):
        raise KeyError("mine")
    assert router.stats().in_flight == 0


def test_lease_entered_twice_at_once_is_refused(make_router: MakeRouter) -> None:
    router = make_router(2)
    lease = router.lease(PROMPT)
    with lease, pytest.raises(RuntimeError, match="entered already"):
        lease.__enter__()
    assert router.stats().in_flight == 0


def test_lease_serves_async_with(make_router: MakeRouter) -> None:
    router = make_router(2)

    async def use() -> str:
        async with router.lease(PROMPT, model="m", salt="s", exclude=["w0"]) as decision:
            await asyncio.sleep(0)
            assert router.stats().in_flight == 1
            return decision.worker

    async def cancelled() -> None:
        async with router.lease(PROMPT):
            raise asyncio.CancelledError

    assert asyncio.run(use()) == "w1"
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert router.stats().in_flight == 0


@pytest.mark.parametrize(
    ("model", "salt", "matched_tokens"),
    [("a", "s", 64), ("a", b"s", 64), ("b", "s", 0), ("a", "t", 0), ("s", "a", 0), ("a", None, 0), (None, None, 0)],
)
def test_model_and_salt_part_the_cache(
    make_router: MakeRouter, model: str | None, salt: str | bytes | None, matched_tokens: int
) -> None:
    router = make_router(1)
    router.complete(router.route(PROMPT, model="a", salt="s"))
    assert router.peek(PROMPT, model=model, salt=salt).matched_tokens == matched_tokens
    assert router.explain(PROMPT, model=model, salt=salt).candidates[0].matched_tokens == matched_tokens


def test_eligible_and_exclude_bound_the_choice(make_router: MakeRouter) -> None:
    router = make_router(3)
    assert router.route(PROMPT, eligible=["w2"]).worker == "w2"
    assert router.route(PROMPT, eligible={"w1", "w2"}, exclude=("w2",)).worker == "w1"
    assert router.route(PROMPT, exclude=["w0", "w1", "gone"]).worker == "w2"
    with pytest.raises(NoWorkerAvailableError) as refused:
        router.route(PROMPT, eligible=["gone"])
    assert (refused.value.known, refused.value.live, refused.value.eligible) == (3, 3, 0)
    assert isinstance(refused.value, RuntimeError)
    for arguments in ({"eligible": "w0"}, {"exclude": "w0"}, {"eligible": [1]}, {"exclude": 7}):
        with pytest.raises(TypeError):
            router.route(PROMPT, **arguments)


def test_an_empty_fleet_has_nobody() -> None:
    router = Router()
    for call in (router.route, router.explain):
        with pytest.raises(NoWorkerAvailableError) as refused:
            call(PROMPT)
        assert (refused.value.known, refused.value.live, refused.value.eligible) == (0, 0, 0)
    assert router.peek(PROMPT).workers == {}


def test_drained_and_unhealthy_workers_get_nothing_new(make_router: MakeRouter) -> None:
    router = make_router(2)
    running = router.route(PROMPT, eligible=["w0"])
    router.drain_worker("w0")
    assert {router.route(OTHER).worker for _ in range(8)} == {"w1"}
    assert router.complete(running)
    router.drain_worker("w0", draining=False)
    router.set_load("w1", healthy=False)
    assert {router.route(OTHER).worker for _ in range(8)} == {"w0"}
    router.set_load("w1", healthy=True)
    assert [worker.healthy for worker in router.workers] == [True, True]
    assert [worker.draining for worker in router.workers] == [False, False]


def test_removed_workers_are_forgotten(make_router: MakeRouter) -> None:
    router = make_router(2)
    decision = router.route(PROMPT)
    router.remove_worker(decision.worker)
    assert router.peek(PROMPT).workers == {}
    assert decision.worker not in in_flight(router)
    assert router.complete(decision)
    router.add_worker(decision.worker)
    assert in_flight(router)[decision.worker] == 0
    assert router.peek(PROMPT).workers == {}


def test_a_reset_worker_keeps_its_requests_and_loses_its_cache(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.route(PROMPT)
    router.reset_worker("w0")
    assert router.peek(PROMPT).matched_tokens == 0
    assert in_flight(router) == {"w0": 1}


def test_set_load_changes_what_it_is_told(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.set_load("w0")
    assert (router.workers[0].capacity_tokens, router.workers[0].healthy) == (None, True)
    router.set_load("w0", capacity_tokens=32)
    assert (router.workers[0].capacity_tokens, router.workers[0].healthy) == (32, True)
    router.complete(router.route(OTHER))
    router.complete(router.route(PROMPT))
    assert router.workers[0].cached_blocks <= 2


@pytest.mark.parametrize("method", ["remove_worker", "drain_worker", "reset_worker", "set_load"])
def test_unknown_workers_are_named(make_router: MakeRouter, method: str) -> None:
    with pytest.raises(UnknownWorkerError, match="nobody") as refused:
        getattr(make_router(1), method)("nobody")
    assert refused.value.worker == "nobody"
    assert isinstance(refused.value, LookupError)
    assert isinstance(refused.value, TrunklineError)


def test_a_worker_is_added_once(make_router: MakeRouter) -> None:
    with pytest.raises(DuplicateWorkerError, match="w0") as refused:
        make_router(1).add_worker("w0")
    assert refused.value.worker == "w0"
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy", "best"),
        ("block_size", 0),
        ("block_size", 257),
        ("memory_budget", 1000),
        ("memory_budget", "1000"),
        ("memory_budget", "5 parsecs"),
        ("memory_budget", "-1MiB"),
        ("memory_budget", 1.5),
        ("replicas", 0),
    ],
)
def test_settings_out_of_range_are_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        Router(**{key: value})  # type: ignore[arg-type]
    assert (refused.value.key, refused.value.value) == (key, str(value))
    assert refused.value.allowed
    assert isinstance(refused.value, ValueError)
    assert all(part in str(refused.value) for part in (key, str(value), refused.value.allowed))


@pytest.mark.parametrize(("key", "value"), [("prefix_length", 1023), ("concurrency_threshold", 1025)])
def test_settings_of_prefix_aware_are_checked(key: str, value: int) -> None:
    with pytest.raises(ConfigError) as refused:
        Router(policy="prefix_aware", **{key: value})
    assert refused.value.key == key


@pytest.mark.parametrize("weight", [0, 65])
def test_weight_is_checked(weight: int) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Router().add_worker("w", weight=weight)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1MiB", 1 << 20), ("2 MB", 2_000_000), ("1gib", 1 << 30), ("4m", 4 << 20), ("1048576B", 1 << 20)],
)
def test_sizes_may_be_written(text: str, size: int) -> None:
    Router(memory_budget=text)
    Router(memory_budget=size)


@pytest.mark.parametrize("policy", ["kv_aware", "prefix_aware", "least_outstanding", "round_robin", "random"])
def test_every_policy_routes(make_router: MakeRouter, policy: str) -> None:
    router = make_router(3, policy=policy)
    assert router.policy == policy
    for _ in range(30):
        assert router.complete(router.route(PROMPT))
    assert sum(router.stats().decisions.values()) == 30


def test_explain_says_what_route_does_and_books_nothing(make_router: MakeRouter) -> None:
    router = make_router(4)
    router.complete(router.route(PROMPT))
    explained = router.explain(PROMPT)
    assert router.stats().in_flight == 0
    assert (explained.prompt_tokens, explained.prompt_blocks, explained.preferred) == (64, 4, None)
    assert len(explained.candidates) == 4
    costs = [candidate.cost for candidate in explained.candidates]
    assert costs == sorted(costs)
    holder = next(candidate for candidate in explained.candidates if candidate.matched_tokens)
    assert (holder.matched_tokens, holder.in_flight, holder.queued_tokens, holder.slowness) == (64, 0, 0, 1.0)
    assert holder.replication == holder.memory == holder.over_mean == holder.home_bonus == 0.0
    decision = router.route(PROMPT)
    assert (decision.worker, decision.reason) == (explained.worker, explained.reason)


def test_peek_names_every_holder_deepest_first(make_router: MakeRouter) -> None:
    router = make_router(3)
    router.complete(router.route(PROMPT[:32], eligible=["w0"]))
    router.complete(router.route(PROMPT, eligible=["w1"]))
    found = router.peek(PROMPT + OTHER)
    assert list(found.workers.items()) == [("w1", 64), ("w0", 32)]
    assert (found.matched_tokens, found.prompt_tokens, found.prompt_blocks) == (64, 128, 8)
    assert router.stats().in_flight == 0


def test_stats_count(make_router: MakeRouter) -> None:
    router = make_router(3)
    router.drain_worker("w0")
    router.complete(router.route(PROMPT))
    router.route(PROMPT)
    stats = router.stats()
    assert (stats.workers, stats.live_workers, stats.in_flight) == (3, 2, 1)
    assert (stats.prompt_tokens, stats.matched_tokens) == (128, 64)
    assert (stats.index_blocks, stats.evicted_blocks) == (4, 0)
    assert 0 < stats.index_bytes < 2 << 20, "an almost empty index owns its directories"
    assert sum(stats.decisions.values()) == 2


def test_time_may_be_told_and_is_monotonic_time(make_router: MakeRouter) -> None:
    router = make_router(1)
    now = time.monotonic()
    decision = router.route(PROMPT, now=now)
    assert router.first_token(decision, now=now + 0.5)
    assert router.complete(decision, now=now + 1)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="now"):
            router.route(PROMPT, now=bad)
    assert router.stats().in_flight == 0


def test_text_of_a_prompt_is_estimated_in_tokens(make_router: MakeRouter) -> None:
    router = make_router(1)
    decision = router.route("x" * 4000)
    assert decision.prompt_tokens == 1000
    # Bytes per token are learnt for each model from what engines report.
    for _ in range(100):
        router.complete(router.route("x" * 4000, model="m"), prompt_tokens=2000, cached_tokens=0)
    assert 1900 <= router.route("x" * 4000, model="m").prompt_tokens <= 2000
    assert router.route("x" * 4000).prompt_tokens == 1000


def test_a_prompt_without_a_whole_block_is_routed(make_router: MakeRouter) -> None:
    router = make_router(2)
    for prompt in ([], [1, 2], "", b"", "hi"):
        decision = router.route(prompt)
        assert (decision.prompt_blocks, decision.expected_hit) == (0, 0.0)
        router.complete(decision)
    assert router.stats().index_blocks == 0


def test_token_ids_out_of_range_book_nothing(make_router: MakeRouter) -> None:
    router = make_router(1)
    with pytest.raises(TokenIdError) as refused:
        router.route([*PROMPT, 1 << 32])
    assert (refused.value.position, refused.value.value) == (64, 1 << 32)
    assert router.stats().in_flight == 0


def test_reprs_tell_the_main_thing(make_router: MakeRouter) -> None:
    router = make_router(2)
    decision = router.route(PROMPT, eligible=["w0"])
    assert repr(router) == 'Router(policy="kv_aware", workers=2, in_flight=1)'
    assert repr(decision).startswith('Decision(worker="w0", reason="only"')
    assert repr(router.peek(PROMPT)) == "Match(matched_tokens=64, prompt_tokens=64, workers={'w0': 64})"
    assert repr(router.workers[0]).startswith("WorkerView(id='w0', in_flight=1")
    assert repr(router.stats()).startswith("Stats(decisions={")
    assert repr(router.explain(PROMPT)).startswith("Explanation(worker='w")
