"""Many prompts in one call."""

from __future__ import annotations

import array
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.support import MakeRouter
from trunkline import NoWorkerAvailableError, RouteBatch, TokenIdError

TOKENS = np.arange(256, dtype=np.uint32)
OFFSETS = np.array([0, 64, 64, 256], dtype=np.int64)


def test_match_batch_returns_arrays(make_router: MakeRouter) -> None:
    router = make_router(2)
    router.complete(router.route(TOKENS[64:128], eligible=["w1"]))
    found = router.match_batch(TOKENS, OFFSETS)
    assert found.worker.dtype == np.int32
    assert found.matched_tokens.dtype == np.uint32
    assert found.worker.tolist() == [-1, -1, router.workers[1].slot]
    assert found.matched_tokens.tolist() == [0, 0, 64]


def test_match_batch_parts_by_model_and_salt(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.complete(router.route(TOKENS[:64], model="m", salt="s"))
    assert router.match_batch(TOKENS, OFFSETS, model="m", salt="s").matched_tokens.tolist() == [64, 0, 0]
    assert router.match_batch(TOKENS, OFFSETS, model="m").matched_tokens.tolist() == [0, 0, 0]


def test_route_batch_books_each_prompt(make_router: MakeRouter) -> None:
    router = make_router(3)
    batch = router.route_batch(TOKENS, OFFSETS, exclude=["w0"])
    assert len(batch) == 3
    assert [column.dtype for column in (batch.worker, batch.matched_tokens, batch.reason, batch.decision)] == [
        np.int32,
        np.uint32,
        np.uint8,
        np.uint64,
    ]
    slots = {worker.slot: worker.id for worker in router.workers}
    assert [slots[slot] for slot in batch.worker.tolist()] == batch.worker_ids
    assert "w0" not in batch.worker_ids
    assert all(RouteBatch.REASONS[reason] in router.stats().decisions for reason in batch.reason)
    assert router.stats().in_flight == 3
    assert router.first_token_batch(batch.decision) == 3
    assert router.first_token_batch(batch.decision) == 0
    assert sum(worker.queued_tokens for worker in router.workers) == 0
    assert router.complete_batch(batch.decision[:1]) == 1
    assert router.complete_batch(batch.decision) == 2
    assert router.stats().in_flight == 0


def test_ids_that_name_no_booking_are_harmless(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.route("x")
    assert router.complete_batch(array.array("Q", [12345, 1 << 63, (1 << 64) - 1])) == 0
    assert router.stats().in_flight == 1


def test_an_empty_batch_is_a_batch(make_router: MakeRouter) -> None:
    router = make_router(1)
    empty = np.array([], dtype=np.uint32)
    assert len(router.route_batch(empty, np.array([0]))) == 0
    assert router.match_batch(empty, np.array([0, 0])).worker.tolist() == [-1]
    assert router.complete_batch(np.array([], dtype=np.uint64)) == 0


@pytest.mark.parametrize(
    ("tokens", "offsets", "error", "words"),
    [
        (TOKENS, [0, 64], TypeError, "offsets: a list has no buffer"),
        (list(range(64)), OFFSETS, TypeError, "tokens: a list has no buffer"),
        (b"x" * 64, OFFSETS, TypeError, "no token ids"),
        (TOKENS.astype(np.float64), OFFSETS, TypeError, "format"),
        (TOKENS, OFFSETS.astype(np.uint32), TypeError, "offsets: a ndarray of another item type; allowed is int64"),
        (TOKENS, np.array([], np.int64), ValueError, "offsets is empty"),
        (TOKENS, np.array([0, 64, 63]), ValueError, r"offsets\[2\] = 63"),
        (TOKENS, np.array([-1, 64]), ValueError, r"offsets\[0\] = -1"),
        (TOKENS, np.array([0, 257]), ValueError, r"offsets\[1\] = 257: allowed are ascending numbers from 0 to 256"),
        (np.array([1, -1], np.int64), np.array([0, 2]), TokenIdError, "position 1"),
        (np.array([1, -1], np.int32), np.array([0, 2]), TokenIdError, "position 1"),
    ],
)
def test_unfit_batches_are_refused_and_book_nothing(
    make_router: MakeRouter, tokens: Any, offsets: Any, error: type[Exception], words: str
) -> None:
    router = make_router(1)
    for call in (router.match_batch, router.route_batch):
        with pytest.raises(error, match=words):
            call(tokens, offsets)
    assert router.stats().in_flight == 0
    assert sum(router.stats().decisions.values()) == 0


def test_a_batch_that_nobody_may_take_books_nothing(make_router: MakeRouter) -> None:
    router = make_router(1)
    with pytest.raises(NoWorkerAvailableError):
        router.route_batch(TOKENS, OFFSETS, eligible=["gone"])
    assert router.stats().in_flight == 0


@pytest.mark.parametrize("ids", [np.arange(3), np.arange(3, dtype=np.uint32), b"12345678", [1]])
def test_decisions_are_uint64(make_router: MakeRouter, ids: Any) -> None:
    router = make_router(1)
    for call in (router.complete_batch, router.first_token_batch):
        with pytest.raises(TypeError, match="decisions: "):
            call(ids)


def test_without_numpy_there_are_memoryviews() -> None:
    script = """
import sys; sys.modules["numpy"] = None
from array import array
from trunkline import Router
router = Router(); router.add_worker("w")
batch = router.route_batch(array("I", range(64)), array("q", [0, 32, 64]))
assert (type(batch.decision), batch.decision.format, len(batch.decision)) == (memoryview, "Q", 2)
assert (batch.worker.format, batch.worker.tolist()) == ("i", [0, 0])
assert router.complete_batch(batch.decision) == 2
"""
    subprocess.run([sys.executable, "-c", script], check=True)
