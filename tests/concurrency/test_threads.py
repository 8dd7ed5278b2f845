"""One router, many threads: nothing is lost, nothing is counted twice, nobody waits for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import MakeRouter
from trunkline import NoWorkerAvailableError, PrefixIndex, TrunklineError

THREADS = 8
ROUNDS = 400


def hammer(work: Callable[[random.Random], None]) -> None:
    """Run `work` in all threads at once; raise what any of them raises."""
    start = threading.Barrier(THREADS)

    def run(seed: int) -> None:
        rng = random.Random(seed)
        start.wait(timeout=30)
        work(rng)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(run, seed) for seed in range(THREADS)]:
            future.result(timeout=60)


def prompt_of(rng: random.Random) -> NDArray[np.uint32]:
    """Return one of a few prompts that share prefixes."""
    return np.repeat(np.array([rng.randrange(3) for _ in range(rng.randrange(1, 8))], dtype=np.uint32), 16)


@pytest.mark.parametrize("policy", ["kv_aware", "prefix_aware", "round_robin"])
def test_counts_end_at_zero(make_router: MakeRouter, policy: str) -> None:
    router = make_router(4, policy=policy)

    def work(rng: random.Random) -> None:
        for _ in range(ROUNDS):
            decision = router.route(prompt_of(rng))
            if rng.random() < 0.5:
                router.first_token(decision)
            assert router.complete(decision)
            assert not router.complete(decision)

    hammer(work)
    assert [(worker.in_flight, worker.queued_tokens) for worker in router.workers] == [(0, 0)] * 4
    assert sum(router.stats().decisions.values()) == THREADS * ROUNDS


def test_a_booking_is_completed_by_one_thread_only(make_router: MakeRouter) -> None:
    router = make_router(2)
    decisions = [router.route([number]) for number in range(ROUNDS)]
    completed: list[int] = []  # append is atomic

    def work(rng: random.Random) -> None:
        for decision in rng.sample(decisions, len(decisions)):
            if router.complete(decision):
                completed.append(decision.id)  # noqa: PERF401 (others append meanwhile)

    hammer(work)
    assert sorted(completed) == sorted(decision.id for decision in decisions)
    assert router.stats().in_flight == 0


def test_batches_and_single_calls_mix(make_router: MakeRouter) -> None:
    router = make_router(4)

    def work(rng: random.Random) -> None:
        for _ in range(ROUNDS // 10):
            prompts = [prompt_of(rng) for _ in range(10)]
            offsets = np.cumsum([0, *map(len, prompts)], dtype=np.int64)
            batch = router.route_batch(np.concatenate(prompts), offsets)
            with router.lease(prompts[0]):
                router.match_batch(np.concatenate(prompts), offsets)
            assert router.complete_batch(batch.decision) == 10

    hammer(work)
    assert router.stats().in_flight == 0


def test_the_fleet_changes_under_load(make_router: MakeRouter) -> None:
    router = make_router(1)

    def work(rng: random.Random) -> None:
        mine = f"mine-{rng.getrandbits(64)}"
        for _ in range(ROUNDS // 10):
            router.add_worker(mine)
            for _ in range(5):
                router.complete(router.route(prompt_of(rng)))
            only_here = router.route(prompt_of(rng), eligible=[mine])
            assert only_here.worker == mine
            router.drain_worker(mine)
            with pytest.raises(NoWorkerAvailableError):
                router.route(prompt_of(rng), eligible=[mine])
            router.remove_worker(mine)
            assert mine not in router.peek(prompt_of(rng)).workers
            router.complete(only_here)

    hammer(work)
    assert [(worker.id, worker.in_flight) for worker in router.workers] == [("w0", 0)]
    assert router.stats().in_flight == 0


def test_an_index_is_shared() -> None:
    index = PrefixIndex(memory_budget="1MiB")

    def work(rng: random.Random) -> None:
        worker = rng.randrange(1 << 30)
        for _ in range(ROUNDS):
            prompt = prompt_of(rng)
            index.insert(worker, prompt)
            assert (worker, len(prompt)) in index.match(prompt)
        index.remove_worker(worker)

    hammer(work)
    assert index.match([0] * 16) == []


def test_errors_cross_threads(make_router: MakeRouter) -> None:
    router = make_router(1)

    def work(_rng: random.Random) -> None:
        for _ in range(50):
            with pytest.raises(TrunklineError):
                router.remove_worker("nobody")

    hammer(work)
