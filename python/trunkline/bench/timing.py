"""Take times of short calls: CPU time, small groups whose arguments were just made, medians of rounds.

CPU time, because on a shared machine the wall clock counts the neighbours. Small groups, so that what a call reads of
its arguments is in cache while what it reads of an index is not. Reading the clock costs as much as a short call:
what it costs is measured first and taken off.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Generic[_T]):
    """How calls are made together: `make` the arguments of one group, `run` all its calls, `calls` of them."""

    make: Callable[[], _T]
    run: Callable[[_T], object]
    calls: int


def one_by_one(call: Callable[[_T], object], make: Callable[[], list[_T]], calls: int) -> Group[list[_T]]:
    """Return a group that makes `calls` arguments and hands them to `call` in a loop, which is timed too."""

    def run(arguments: list[_T]) -> None:
        for argument in arguments:
            call(argument)

    return Group(make=make, run=run, calls=calls)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Nanoseconds of one call: the median of the rounds, and the quickest and the slowest round."""

    ns: float
    low_ns: float
    high_ns: float

    @classmethod
    def of(cls, rounds_ns: list[float]) -> Timing:
        """Summarise rounds."""
        return cls(ns=statistics.median(rounds_ns), low_ns=min(rounds_ns), high_ns=max(rounds_ns))


def measure(
    group: Group[_T], *, groups: int, rounds: int = 7, clock: Callable[[], int] = time.thread_time_ns
) -> Timing:
    """Time `rounds` rounds of `groups` groups each, after one group that is not counted.

    clock: CPU nanoseconds of the thread or, for a peer that works on threads of its own, of the process.
    """
    reading = _reading_ns(clock)
    collects = gc.isenabled()
    gc.disable()
    try:
        group.run(group.make())
        return Timing.of([_round(group, groups, reading, clock) for _ in range(rounds)])
    finally:
        if collects:
            gc.enable()


def _round(group: Group[_T], groups: int, reading: float, clock: Callable[[], int]) -> float:
    spent = 0.0
    for _ in range(groups):
        arguments = group.make()
        start = clock()
        group.run(arguments)
        spent += clock() - start - reading
    return max(spent, 0.0) / (groups * group.calls)


def _reading_ns(clock: Callable[[], int]) -> float:
    """Return what two readings of the clock cost."""
    empty = []
    for _ in range(1001):
        start = clock()
        empty.append(clock() - start)
    return statistics.median(empty)
