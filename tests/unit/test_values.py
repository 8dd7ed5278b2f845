"""Decisions are values: they compare, hash and pickle; nothing can be changed in them."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.support import MakeRouter
from trunkline import ConfigError, Decision, Router


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_decision_pickles_by_value(make_router: MakeRouter, protocol: int) -> None:
    router = make_router(3)
    for worker in ("w0", "w0", "w1"):
        decision = router.route(range(64), eligible=[worker])
        again: Decision = pickle.loads(pickle.dumps(decision, protocol))
        assert again == decision
        assert hash(again) == hash(decision)
        names = [name for name in dir(Decision) if not name.startswith("_")]
        assert len(names) == 11
        for name in names:
            assert getattr(again, name) == getattr(decision, name)


def test_a_copy_completes_the_booking_of_its_original(make_router: MakeRouter) -> None:
    router = make_router(1)
    decision = router.route("x")
    assert router.complete(copy.copy(decision))
    assert not router.complete(decision)


def test_a_preferred_worker_survives_pickling(make_router: MakeRouter) -> None:
    router = make_router(2)
    router.complete(router.route(range(6400), eligible=["w0"]))
    for number in range(40):
        router.route([*range(6400), number], eligible=["w0"])
    decision = router.route(range(6400))
    assert (decision.worker, decision.preferred) == ("w1", "w0")
    assert decision.reason in ("spill", "load")
    assert pickle.loads(pickle.dumps(decision)).preferred == "w0"


def test_decisions_differ_by_router_and_booking(make_router: MakeRouter) -> None:
    here, there = make_router(1), make_router(1)
    first, second, foreign = here.route("x"), here.route("x"), there.route("x")
    assert len({first, second, foreign}) == 3
    assert first != second
    assert first != foreign
    assert first != "x"
    assert (first == 1) is False


def test_a_forged_pickle_is_refused() -> None:
    from trunkline._core import _restore_decision  # noqa: PLC0415

    with pytest.raises(ValueError, match="no reason"):
        _restore_decision((1, 1, 0, None, 0, 0, 0, None, 0), ("w", None, None), "whim")


def test_values_cannot_be_changed_or_made(make_router: MakeRouter) -> None:
    decision = make_router(1).route("x")
    with pytest.raises(AttributeError):
        decision.worker = "w1"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Decision()


def test_errors_pickle_with_their_data() -> None:
    with pytest.raises(ConfigError) as refused:
        Router(replicas=0)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), str(again)) == (ConfigError, str(refused.value))
    assert (again.key, again.value, again.allowed) == ("replicas", "0", refused.value.allowed)
