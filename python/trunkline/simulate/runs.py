"""Several policies, loads and seeds beside each other, on all cores, with a bar that says how far they are."""

from __future__ import annotations

import math
import os
import signal
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .spec import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .spec import Found, Report, Spec

# 97.5 % points of Student's distribution with 1, 2, ... degrees of freedom; beyond, the normal one is close enough.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.96
_BAR_STEPS = 1000
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A simulation that is to run, and the text of its trace."""

    spec: Spec
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean over seeds, and half of its 95 % confidence interval; None with one seed."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from the figures of all seeds."""
        mean = statistics.fmean(values)
        if len(values) < 2:  # noqa: PLR2004
            return cls(mean, None)
        student = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else _NORMAL
        return cls(mean, student * statistics.stdev(values) / math.sqrt(len(values)))


def estimate(runs: Sequence[Found], figure: Callable[[Report], float]) -> Estimate:
    """Estimate a figure from runs that differ in their seed only."""
    return Estimate.of([figure(found.report) for found in runs])


class Stopped(threading.Event):
    """Set when the user has seen enough."""


def run_all(jobs: Sequence[Job], *, label: str, stopped: Stopped | None = None) -> list[Found | None]:
    """Run all jobs; return their figures in order, None for those that had not begun when `stopped` was set.

    Raises what a run raises. Uses as many threads as there are cores; a run holds no GIL.
    """
    stopped = stopped or Stopped()
    shares = [0.0] * len(jobs)

    def one(at: int) -> Found | None:
        if stopped.is_set():
            return None

        def watch(answered: int, requests: int) -> bool:
            shares[at] = answered / max(1, requests)
            return not stopped.is_set()

        found = run(jobs[at].spec, trace=jobs[at].trace, watch=watch)
        shares[at] = 1.0
        return found

    threads = min(len(jobs), os.cpu_count() or 1) or 1
    with (
        click.progressbar(length=_BAR_STEPS, label=label, file=sys.stderr, show_pos=False) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        pending = [pool.submit(one, at) for at in range(len(jobs))]
        try:
            shown = 0
            for future in pending:
                while not future.done():
                    wait([future], timeout=_LOOK_S)
                    now = int(_BAR_STEPS * sum(shares) / len(jobs))
                    bar.update(now - shown)
                    shown = now
            return [future.result() for future in pending]
        except BaseException:
            stopped.set()
            raise


@contextmanager
def stop_on_interrupt() -> Iterator[Stopped]:
    """Turn the first Ctrl-C into a wish to stop, so that what is known can be shown; the second one interrupts."""
    stopped = Stopped()

    def interrupted(number: int, frame: object) -> None:
        if stopped.is_set():
            signal.default_int_handler(number, frame)  # type: ignore[arg-type]
        stopped.set()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
