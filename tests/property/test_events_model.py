"""Router.apply_events against a plain model: for each worker, the blocks that it was told to hold, by their handles."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trunkline import Router

BLOCK = 4
WORKERS = ("w0", "w1")
# Few different blocks, so that chains share prefixes and branch often.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
SALTS = st.sampled_from([None, "a"])

Path = tuple[int, ...]
Name = tuple[str | None, Path]


def tokens_of(path: Path) -> list[int]:
    return [block * 10 + at for block in path for at in range(BLOCK)]


def handle_of(salt: str | None, path: Path) -> int:
    """Name a block as an engine would: by all that precedes it."""
    number = 1 if salt is None else 2
    for block in path:
        number = number * 3 + block
    return number + (1 << 63)


class EventsModel(RuleBasedStateMachine):
    """Random chains stored, stored again, removed in the middle, cleared, forgotten."""

    @initialize(seed=st.integers(0, 2**64 - 1))
    def make(self, seed: int) -> None:
        self.router = Router(seed=seed)
        self.held: dict[str, set[Name]] = {worker: set() for worker in WORKERS}
        for worker in WORKERS:
            self.router.add_worker(worker)
            self.router.set_cache_view(worker, "events")

    def apply(self, worker: str, *events: dict[str, Any]) -> Any:
        return self.router.apply_events(worker, msgspec.msgpack.encode([0.0, list(events), 0]))

    def stored(self, salt: str | None, path: Path, start: int) -> dict[str, Any]:
        """Tell blocks `start` and on of a path."""
        names = [path[:end] for end in range(start + 1, len(path) + 1)]
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [handle_of(salt, name) for name in names],
            "parent_block_hash": handle_of(salt, path[:start]) if start else None,
            "token_ids": tokens_of(path[start:]),
            "block_size": BLOCK,
            "medium": "GPU",
        }
        if salt is not None:
            first = [salt] if start == 0 else None
            event["extra_keys"] = [first, *[None] * (len(names) - 1)]
        return event

    @rule(worker=st.sampled_from(WORKERS), salt=SALTS, path=PATHS, data=st.data())
    def store(self, worker: str, salt: str | None, path: Path, data: st.DataObject) -> None:
        """Tell a chain from behind any block of it that is held, or from the start."""
        held = self.held[worker]
        starts = [0, *[at for at in range(1, len(path)) if (salt, path[:at]) in held]]
        start = data.draw(st.sampled_from(starts))
        names = {(salt, path[:end]) for end in range(start + 1, len(path) + 1)}
        applied = self.apply(worker, self.stored(salt, path, start))
        assert (applied.stored, applied.orphans, applied.refused) == (len(names - held), 0, 0)
        held |= names

    @rule(worker=st.sampled_from(WORKERS), salt=SALTS, paths=st.lists(PATHS, min_size=1, max_size=4, unique=True))
    def remove(self, worker: str, salt: str | None, paths: list[Path]) -> None:
        held = self.held[worker]
        names = {(salt, path) for path in paths}
        event = {"type": "BlockRemoved", "block_hashes": [handle_of(salt, path) for path in paths], "medium": "GPU"}
        assert self.apply(worker, event).removed == len(names & held)
        held -= names

    @rule(worker=st.sampled_from(WORKERS))
    def clear(self, worker: str) -> None:
        assert self.apply(worker, {"type": "AllBlocksCleared"}).cleared
        self.held[worker].clear()

    @rule(worker=st.sampled_from(WORKERS))
    def forget(self, worker: str) -> None:
        self.router.forget_events(worker)
        self.held[worker].clear()

    @rule(worker=st.sampled_from(WORKERS), salt=SALTS, path=PATHS)
    def store_and_remove_in_one_message(self, worker: str, salt: str | None, path: Path) -> None:
        last = handle_of(salt, path)
        self.apply(
            worker,
            self.stored(salt, path, 0),
            {"type": "BlockRemoved", "block_hashes": [last], "medium": "GPU"},
        )
        self.held[worker] |= {(salt, path[:end]) for end in range(1, len(path))}
        self.held[worker].discard((salt, path))

    @rule(salt=SALTS, path=PATHS)
    def look(self, salt: str | None, path: Path) -> None:
        """Expect the leading blocks that are held, up to the first that is not."""
        found = self.router.peek([*tokens_of(path), 9_999], salt=salt).workers
        for worker, held in self.held.items():
            missing = next((at for at in range(len(path)) if (salt, path[: at + 1]) not in held), len(path))
            assert found.get(worker, 0) == missing * BLOCK, (worker, salt, path)

    @invariant()
    def counts_what_it_holds(self) -> None:
        if hasattr(self, "held"):
            blocks = {worker.id: worker.cached_blocks for worker in self.router.workers}
            assert blocks == {worker: len(held) for worker, held in self.held.items()}


# Hypothesis parses sources while it runs a machine, and CPython 3.11's `ast` is not safe from threads.
TestEventsModel = pytest.mark.thread_unsafe(reason="ast in CPython 3.11")(EventsModel.TestCase)
