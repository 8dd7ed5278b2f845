"""One simulation: its description, its figures, and the call between them; field for field those of `des/spec.rs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from trunkline import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    Watch: TypeAlias = Callable[[int, int], bool | None]
    """Told the requests answered so far and those in all; False ends the run."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step of the engine takes, in seconds."""

    prefill_tokens_per_s: float
    step_s: float
    weight_read_s: float
    per_sequence_s: float
    per_kv_token_s: float
    per_attention_pair_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker is able to do."""

    step: Step
    step_token_budget: int
    max_sequences: int
    kv_tokens: int
    host_tokens: int
    host_cost: float
    preemption: bool
    gpus: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The last worker dies with its cache, and comes back empty."""

    down_s: float
    up_s: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and what befalls it."""

    workers: int = 7
    speeds: list[float] = []
    routers: int = 1
    clients: int | None = None
    scale: list[tuple[float, int]] = []
    losses: list[Loss] = []


class Compare(msgspec.Struct, frozen=True, kw_only=True):
    """Two times of arrival to be compared; workers below `alive` were there after the change."""

    before: tuple[float, float]
    after: tuple[float, float]
    alive: int


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One simulation."""

    source: dict[str, Any]
    """Kind of the traffic, and its parameters."""
    policy: str
    load: float = 1.0
    profile: Profile | None = None
    options: Options | None = None
    routers: int | None = None
    gossip_s: float | None = None
    events: bool = False
    host_events: bool = True
    event_delay_s: float = 0.02
    poll_s: float = 0.05
    prefix_length: int | None = None
    concurrency_threshold: int | None = None
    skip: float | None = None
    seed: int = 0
    windows: list[tuple[float, float]] = []
    compare: list[Compare] = []


class Times(msgspec.Struct, frozen=True):
    """Quantiles and mean of a time in seconds."""

    p50: float
    p90: float
    p99: float
    mean: float


class WorkerReport(msgspec.Struct, frozen=True):
    """One worker's share."""

    requests: int
    uncached_tokens: int
    busy_s: float
    evicted_blocks: int
    preemptions: int


class Bin(msgspec.Struct, frozen=True):
    """A part of the time of a run."""

    at_s: float
    requests: int
    ttft_p50: float
    ttft_p99: float
    hit_rate: float
    uncached_tokens: list[int]


class Report(msgspec.Struct, frozen=True):
    """Figures of one run."""

    requests: int
    refused: int
    unanswered: int
    ttft_s: Times
    e2e_s: Times
    tpot_s: Times
    hit_rate: float
    ideal_hit_rate: float
    throughput_rps: float
    output_tokens_per_s: float
    duration_s: float
    busiest_over_mean: float
    busy_over_mean: float
    utilisation: float
    gpu_s_per_request: float
    busy_gpu_s_per_request: float
    workers: list[WorkerReport]
    timeline: list[Bin]


class Windowed(msgspec.Struct, frozen=True):
    """Figures of the requests that arrived in a window."""

    requests: int
    ttft_s: Times
    hit_rate: float
    hottest_workers: int
    """Workers that answered requests of the commonest prefix."""


class Moves(msgspec.Struct, frozen=True):
    """What became of the prefixes that were seen at least three times in both of two windows."""

    prefixes: int
    changed: int
    forced: int
    abandoned: int


class Found(msgspec.Struct, frozen=True):
    """What a simulation found."""

    report: Report
    windows: list[Windowed]
    moves: list[Moves]
    skipped_lines: int
    skipped: list[tuple[int, str]]


def run(spec: Spec, *, trace: str | None = None, watch: Watch | None = None) -> Found:
    """Run a simulation without the GIL.

    trace: text of the file that the source reads.  Raises ConfigError for a value out of range, TrunklineError for a
    trace that cannot be read.
    """
    found = _core._simulate(msgspec.json.encode(spec), trace=trace, progress=watch)  # noqa: SLF001 (ours)
    try:
        return msgspec.json.decode(found, type=Found)
    except msgspec.ValidationError as odd:  # JSON has neither NaN nor infinity
        raise _core.TrunklineError(f"the figures are too large to be told: {odd}") from odd


def profiles() -> dict[str, Profile]:
    """Return the profiles by name."""
    named = _core._profiles()  # noqa: SLF001 (ours)
    return {name: msgspec.json.decode(profile, type=Profile) for name, profile in named}


def scenarios() -> dict[str, str | None]:
    """Return the names of the study's scenarios, each with that of the trace that it replays."""
    return dict(_core._scenarios())  # noqa: SLF001 (ours)
