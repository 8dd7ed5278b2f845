"""A router as bytes: what survives, what does not, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.support import MakeRouter
from trunkline import Router, SnapshotError, TrunklineError

PROMPTS = [[number * 1000 + at for at in range(64 + 16 * (number % 5))] for number in range(40)]


def warm(router: Router) -> Router:
    for number, prompt in enumerate(PROMPTS):
        router.complete(router.route(prompt, now=float(number)), completion_tokens=20)
    return router


def test_a_restored_router_answers_as_the_saved_one(make_router: MakeRouter) -> None:
    router = warm(make_router(4, policy="kv_aware", replicas=2))
    router.drain_worker("w1")
    router.set_load("w2", capacity_tokens=5000, healthy=False)
    saved = router.snapshot(now=50.0)
    restored = Router.restore(saved, now=7.0)
    assert restored.snapshot(now=7.0) == saved
    assert repr(restored.workers) == repr(router.workers)
    assert restored.policy == router.policy
    assert (restored.stats().prompt_tokens, restored.stats().index_blocks) == (
        router.stats().prompt_tokens,
        router.stats().index_blocks,
    )
    for number, prompt in enumerate(PROMPTS * 2):
        expected = router.route(prompt, now=50.0 + number)
        decision = restored.route(prompt, now=7.0 + number)
        for name in ("worker", "url", "reason", "matched_tokens", "prompt_tokens", "preferred"):
            assert getattr(decision, name) == getattr(expected, name)


def test_nothing_is_in_flight_after_a_restore(make_router: MakeRouter) -> None:
    router = make_router(2)
    decision = router.route(PROMPTS[0])
    restored = Router.restore(router.snapshot())
    assert (router.stats().in_flight, restored.stats().in_flight) == (1, 0)
    assert restored.peek(PROMPTS[0]).matched_tokens == len(PROMPTS[0])
    with pytest.raises(ValueError, match="another router"):
        restored.complete(decision)
    assert router.complete(decision)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_router_pickles_as_its_snapshot(make_router: MakeRouter, protocol: int) -> None:
    router = warm(make_router(3))
    for again in (pickle.loads(pickle.dumps(router, protocol)), copy.deepcopy(router)):
        assert isinstance(again, Router)
        assert repr(again.workers) == repr(router.workers)
        assert all(again.peek(prompt).workers == router.peek(prompt).workers for prompt in PROMPTS)


def test_every_damage_is_refused_and_named(make_router: MakeRouter) -> None:
    saved = warm(make_router(2)).snapshot()
    cases = {
        "length": [saved[: len(saved) // 2], saved[:20], b"", saved + b"x"],
        "foreign": [b"PK" + saved[2:], b"something else"],
        "version": [saved[:8] + b"\xff" + saved[9:]],
        "checksum": [saved[:at] + bytes([saved[at] ^ 1]) + saved[at + 1 :] for at in (20, 40, len(saved) - 1)],
    }
    for fault, damaged in cases.items():
        for data in damaged:
            with pytest.raises(SnapshotError) as refused:
                Router.restore(data)
            assert refused.value.fault == fault
            assert (refused.value.expected is None) == (fault == "foreign")
            assert isinstance(refused.value, (TrunklineError, ValueError))
    with pytest.raises(SnapshotError) as refused:
        Router.restore(saved[:100])
    assert (refused.value.expected, refused.value.found) == (len(saved), 100)


def test_only_bytes_are_restored() -> None:
    with pytest.raises(TypeError):
        Router.restore("text")  # type: ignore[arg-type]
