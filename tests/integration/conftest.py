"""A gateway as a real process before simulated workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import MakeWorkers, Serve, Served
from trunkline import MockWorker


@pytest.fixture
def make_workers() -> Iterator[MakeWorkers]:
    """Start mock workers, a hundred times faster than the modelled hardware unless told otherwise."""
    with contextlib.ExitStack() as stack:

        def make(count: int, **arguments: Any) -> list[MockWorker]:
            return [stack.enter_context(MockWorker(**{"time_scale": 0.01} | arguments)) for _ in range(count)]

        yield make


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start gateways before workers, given as objects or URLs."""
    with contextlib.ExitStack() as stack:

        def start(workers: list[MockWorker] | list[str], *arguments: str) -> Served:
            urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
            served = Served(*[word for url in urls for word in ("--worker", url)], *arguments)
            stack.callback(served.stop)
            return served

        yield start
