"""Runs the demo: the same traffic under random and under prefix-aware routing, each on a fresh fleet; then the table.

Every worker models Llama 3.1 70B on 8xH100 (the mock worker's defaults), in real time: prefilling a system prompt of
3,000 tokens takes 0.14 s, far above what the client and a busy machine add. The load is set relative to what the fleet
can do under random routing, see `fleet_capacity_rps`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from bisect import insort
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .fleet import Fleet, FleetError
from .replay import Outcome, Replay
from .report import Figures, as_json, as_table, bars, mistuned
from .workload import Session, WorkloadSpec, count_requests, expected_hit_rate, make_workload

WORKERS = 4
MODEL = "mock"
BASELINE, AWARE = "random", "kv_aware"
TIME_SCALE = 1.0
# Of the fleet's capacity under random routing: busy, but not so that random drowns in its queues.
LOAD = 0.75
REQUESTS, QUICK_REQUESTS = 1000, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a user may choose."""

    seed: int = 1
    requests: int | None = None
    """Requests per policy; None is what fits 90 seconds, or 25 if quick."""
    quick: bool = False
    json: bool = False
    """Print figures as JSON instead of a table."""
    check: bool = False
    """Whether a missed bar is a failure."""
    keep: bool = False
    """Keep the prefix-aware fleet running afterwards, until Ctrl-C."""


class DemoError(Exception):
    """The demo cannot be judged: requests failed, or the workload is mis-tuned."""


def run_demo(options: DemoOptions) -> int:
    """Run it; return the exit code: 0, 1 for a failed run (or, with `check`, a missed bar), 130 for Ctrl-C."""
    console = Console(stderr=options.json, highlight=False)
    try:
        return _run(options, console)
    except (DemoError, FleetError) as fault:
        console.print(f"demo failed: {fault}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 128 + signal.SIGINT


def fleet_capacity_rps(spec: WorkloadSpec, *, time_scale: float) -> float:
    """Return about how many requests per second the fleet sustains under random routing.

    Every request costs a worker one step: 14 ms if its system prompt is cached, else the prompt at 22,000 tokens/s and
    9 ms of overhead and attention. Decoding rides along in those steps.
    """
    hit_rate = expected_hit_rate(spec, workers=WORKERS)
    busy_s = hit_rate * 0.014 + (1 - hit_rate) * (spec.system_tokens / 22_000 + 0.009)
    return WORKERS / (busy_s * time_scale)


def _run(options: DemoOptions, console: Console) -> int:
    requests = options.requests or (QUICK_REQUESTS if options.quick else REQUESTS)
    spec = WorkloadSpec(seed=options.seed, requests=requests, rate_rps=1.0)
    spec = replace(spec, rate_rps=LOAD * fleet_capacity_rps(spec, time_scale=TIME_SCALE))
    sessions = make_workload(spec)
    console.print(
        f"{count_requests(sessions)} chats of {max(session.tenant for session in sessions) + 1} tenants to {WORKERS} "
        f"simulated workers at {spec.rate_rps:.0f} requests/s, seed {spec.seed}"
    )
    with Fleet(BASELINE, workers=WORKERS, time_scale=TIME_SCALE) as fleet:
        random = _measure(fleet, sessions, console)
    if reason := mistuned(random):
        raise DemoError(reason)
    with Fleet(AWARE, workers=WORKERS, time_scale=TIME_SCALE) as fleet:
        aware = _measure(fleet, sessions, console)
        code = _show(options, console, random, aware)
        if options.keep:
            _keep(fleet, console)
    return code


def _measure(fleet: Fleet, sessions: list[Session], console: Console) -> Figures:
    """Replay the workload against a fleet. Raises DemoError if a request fails."""
    progress = Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[live]}"),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=4,
    )
    with progress:
        live = _Live(progress, progress.add_task(fleet.policy, total=count_requests(sessions), live=""))
        outcomes = asyncio.run(Replay(fleet.url, model=MODEL, on_outcome=live.add).run(sessions))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise DemoError(
            f"{len(errors)} of {len(outcomes)} requests failed under {fleet.policy}; the first: {errors[0]}"
        )
    return Figures.of(fleet.policy, outcomes, workers=WORKERS)


class _Live:
    """The running figures beside a progress bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._ttft_s: list[float] = []
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, outcome: Outcome) -> None:
        """Count one more request."""
        if outcome.error:
            return
        insort(self._ttft_s, outcome.ttft_s)
        self._prompt_tokens += outcome.prompt_tokens
        self._cached_tokens += outcome.cached_tokens
        median_ms = self._ttft_s[len(self._ttft_s) // 2] * 1e3
        live = f"hit rate {self._cached_tokens / self._prompt_tokens:.2f}  TTFT p50 {median_ms:4.0f} ms"
        self._progress.update(self._task, advance=1, live=live)


def _show(options: DemoOptions, console: Console, random: Figures, aware: Figures) -> int:
    """Print the result; return the exit code."""
    if options.json:
        json.dump({"seed": options.seed} | as_json(random, aware), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        console.print(as_table(random, aware))
        for bar in bars(random, aware):
            console.print(str(bar), style="green" if bar.passed else "bold red")
    missed = [bar for bar in bars(random, aware) if not bar.passed]
    return 1 if missed and options.check else 0


def _keep(fleet: Fleet, console: Console) -> None:
    """Say where everything is, and wait for Ctrl-C."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]})
    console.print(
        f"\nStill running: gateway {fleet.url}, admin {fleet.admin_url}, workers {' '.join(fleet.workers)}\n"
        f"Try: curl -i {fleet.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"     curl {fleet.admin_url}/metrics\n"
        "Ctrl-C stops everything.",
        markup=False,
        soft_wrap=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
