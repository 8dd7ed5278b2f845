"""What no call of ours can go below on this machine, beside what it cost on the machine where the targets were set."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from trunkline._core import _hash_blocks, jump_hash

from .report import Floor
from .timing import Group, Timing, measure, one_by_one
from .workload import random_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

CALLS, GROUPS = 4096, 4
ROUND_BYTES, ROUND_TOKENS = 1 << 18, 1 << 18
# A cell is 48 bytes, its garbage collector's header included: 24 MiB.
CELLS, WARM_CELLS, STEPS = 1 << 19, 64, 20_000

# Nanoseconds on the reference machine.
EMPTY_NS, BUFFER_NS = 89, 151
SHA256_NS = {64: 497, 16_384: 11_200}
LOAD_NS = 137
HASH_NS = {4096: 901, 131_072: 28_900}


class _Cell:
    """One link of a chain in memory."""

    __slots__ = ("next",)
    next: _Cell


def measure_all(rounds: int, seed: int) -> list[Floor]:
    """Measure every floor."""
    rng = np.random.default_rng(seed)
    buffer = measure(
        one_by_one(_hash_blocks, _same(np.zeros(0, dtype=np.uint32), CALLS), CALLS), groups=GROUPS, rounds=rounds
    )
    found = [
        Floor(name="an empty call", timing=_empty(rounds), reference_ns=EMPTY_NS),
        Floor(name="a call that takes an array", timing=buffer, reference_ns=BUFFER_NS),
        Floor(name="a dependent load, 24 MiB", timing=_load(rounds, rng), reference_ns=LOAD_NS),
    ]
    for size, reference_ns in SHA256_NS.items():
        calls = max(16, ROUND_BYTES // size)
        timing = measure(one_by_one(_sha256, _same(rng.bytes(size), calls), calls), groups=GROUPS, rounds=rounds)
        found.append(Floor(name=f"SHA-256 of {size:,} bytes", timing=timing, reference_ns=reference_ns))
    for tokens, reference_ns in HASH_NS.items():
        calls = max(4, ROUND_TOKENS // tokens)
        prompts = _same(random_tokens(tokens, rng), calls)
        whole = measure(one_by_one(_hash_blocks, prompts, calls), groups=GROUPS, rounds=rounds)
        # The call itself is a floor of its own.
        name, alone = f"hashing {tokens:,} tokens", _without(whole, buffer.ns)
        found.append(Floor(name=name, timing=alone, reference_ns=reference_ns, ours=True))
    return found


def _empty(rounds: int) -> Timing:
    def run(keys: range) -> None:
        for key in keys:
            jump_hash(key, 1)

    return measure(Group(make=lambda: range(CALLS), run=run, calls=CALLS), groups=GROUPS, rounds=rounds)


def _load(rounds: int, rng: np.random.Generator) -> Timing:
    """Follow a chain of objects in random order, less what the same steps cost on a chain that is in cache."""
    warm = measure(_walk(_chain(WARM_CELLS, rng)), groups=GROUPS, rounds=rounds)
    return _without(measure(_walk(_chain(CELLS, rng)), groups=GROUPS, rounds=rounds), warm.ns)


def _chain(count: int, rng: np.random.Generator) -> list[_Cell]:
    """Return cells that form one circle."""
    cells = [_Cell() for _ in range(count)]
    order = rng.permutation(count).tolist()
    for here, there in zip(order, [*order[1:], order[0]], strict=True):
        cells[here].next = cells[there]
    return cells


def _walk(cells: list[_Cell]) -> Group[_Cell]:
    at = cells[0]

    def run(cell: _Cell) -> None:
        nonlocal at
        for _ in range(STEPS):
            cell = cell.next
        at = cell

    return Group(make=lambda: at, run=run, calls=STEPS)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _same(argument: _T, count: int) -> Callable[[], list[_T]]:
    return lambda: [argument] * count


def _without(timing: Timing, ns: float) -> Timing:
    low, median, high = (max(0.0, each - ns) for each in (timing.low_ns, timing.ns, timing.high_ns))
    return Timing(ns=median, low_ns=low, high_ns=high)
