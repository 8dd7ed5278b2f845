"""PrefixIndex against a model that can be checked by reading: for each worker, the set of prefixes it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trunkline import PrefixIndex

BLOCK_SIZE = 4
BUDGET = 1 << 20
WORKERS = st.integers(0, 4)
# Few different blocks, so that prompts share prefixes and branch often; a tail that is no whole block.
PROMPTS = st.tuples(st.lists(st.integers(0, 2), max_size=12), st.integers(0, BLOCK_SIZE - 1))

Path = tuple[int, ...]


def tokens_of(path: Path, tail: int = 0) -> list[int]:
    return [block * 100 + at for block in path for at in range(BLOCK_SIZE)] + [999] * tail


class IndexModel(RuleBasedStateMachine):
    """Random insertions, look-ups, removals and evictions."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, set[Path]] = {}
        self.capacity: dict[int, int] = {}
        self.evicted = False

    @initialize(seed=st.integers(0, 2**64 - 1))
    def make(self, seed: int) -> None:
        self.index = PrefixIndex(block_size=BLOCK_SIZE, memory_budget=BUDGET, seed=seed)

    def depth(self, worker: int, path: Path) -> int:
        """Blocks of the path that the worker was given, in the model."""
        held = self.held.get(worker, set())
        return max((depth for depth in range(1, len(path) + 1) if path[:depth] in held), default=0)

    def is_exact(self, worker: int) -> bool:
        """Whether the worker cannot have lost anything."""
        return not self.evicted and worker not in self.capacity

    @rule(worker=WORKERS, prompt=PROMPTS)
    def insert(self, worker: int, prompt: tuple[list[int], int]) -> None:
        path, tail = tuple(prompt[0]), prompt[1]
        self.index.insert(worker, tokens_of(path, tail))
        self.held.setdefault(worker, set()).update(path[:depth] for depth in range(1, len(path) + 1))
        if path and len(path) <= self.capacity.get(worker, len(path)):
            assert dict(self.index.match(tokens_of(path)))[worker] == len(path) * BLOCK_SIZE

    @rule(prompt=PROMPTS)
    def match(self, prompt: tuple[list[int], int]) -> None:
        path, tail = tuple(prompt[0]), prompt[1]
        found = self.index.match(tokens_of(path, tail))
        assert found == sorted(found, key=lambda holder: (-holder[1], holder[0]))
        depths = {worker: matched // BLOCK_SIZE for worker, matched in found}
        for worker, depth in depths.items():
            assert 0 < depth <= self.depth(worker, path), f"worker {worker} was never given that much of {path}"
        for worker in self.held:
            if self.is_exact(worker):
                assert depths.get(worker, 0) == self.depth(worker, path)

    @rule(worker=WORKERS)
    def remove(self, worker: int) -> None:
        self.index.remove_worker(worker)
        self.held.pop(worker, None)
        self.capacity.pop(worker, None)

    @rule(worker=WORKERS, blocks=st.integers(0, 20))
    def bound(self, worker: int, blocks: int) -> None:
        self.index.set_capacity(worker, blocks * BLOCK_SIZE)
        self.held.setdefault(worker, set())
        self.capacity[worker] = blocks

    @rule(worker=WORKERS, seed=st.integers(0, 2**32 - 1))
    def flood(self, worker: int, seed: int) -> None:
        """Fill a good part of the budget with a prompt of its own."""
        flood = np.random.default_rng(seed).integers(10_000, 2**32, size=1 << 16, dtype=np.uint32)
        self.index.insert(worker, flood)
        self.evicted = True

    @invariant()
    def bytes_stay_within_the_budget(self) -> None:
        assert self.index.bytes <= BUDGET

    @invariant()
    def a_bounded_worker_holds_no_more_than_its_bound(self) -> None:
        for worker, blocks in self.capacity.items():
            given = self.held.get(worker, set())
            found = sum(
                dict(self.index.match(tokens_of(path))).get(worker, 0) == len(path) * BLOCK_SIZE for path in given
            )
            assert found <= blocks

    @invariant()
    def no_more_blocks_than_were_given(self) -> None:
        if not self.evicted and not self.capacity:
            assert self.index.blocks >= len(set().union(*self.held.values()))


# Hypothesis parses sources while it runs a machine, and CPython 3.11's `ast` is not safe from threads.
TestIndexModel = pytest.mark.thread_unsafe(reason="ast in CPython 3.11")(IndexModel.TestCase)
