"""One analysis: what is wanted, what was found, the call between them; field for field as in `rust/sim/src/analyze`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from trunkline import _core
from trunkline.simulate.spec import Profile, Times  # noqa: TC001 (msgspec reads the annotations)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Watch: TypeAlias = Callable[[int, int, float], bool | None]
    """Told the bytes read, the requests found and the share of the forecasts that is done; False ends the analysis."""

Kind: TypeAlias = Literal[
    "timestamp", "id", "number", "name", "tools_order", "keys_order", "items_order", "omitted", "text"
]


class ForecastOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fleets and policies for which the log is replayed."""

    workers: list[int]
    """Sizes of the fleet; none for no forecast."""
    policies: list[str]
    profile: Profile
    rate_rps: float | None = None
    """None for the times of the log, or 10 if it has none."""
    requests: int = 50_000
    """At most, the first ones of the log."""
    seeds: int = 3


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One analysis."""

    memory_bytes: int
    forecast: ForecastOptions
    cache_tokens: list[int] = []
    """Sizes of a cache of which the hit rate is wanted."""
    top: int = 20
    text: bool = True
    """Whether findings quote prompts."""
    bytes_per_token: float | None = None
    """None for what the log tells, else 4."""
    advice_from: float = 0.005
    """Of the hit rate, what advice must save to be given."""


class FileFound(msgspec.Struct, frozen=True):
    """A file."""

    name: str
    lines: int
    requests: int
    skipped_lines: int
    """Lines that should have been requests."""
    other_lines: int
    """Lines that servers log beside requests."""
    problem: str | None


class SkippedLine(msgspec.Struct, frozen=True):
    """A line that was left out; `file` is the place of its file."""

    file: int
    line: int
    problem: str


class Clock(msgspec.Struct, frozen=True):
    """Steps and pauses that were taken out of the log's times, and requests without a time."""

    jumps: int
    missing: int


class CurvePoint(msgspec.Struct, frozen=True):
    """A size of a cache and its hit rate."""

    cache_tokens: int
    hit_rate: float


class Prefix(msgspec.Struct, frozen=True):
    """A prefix that prompts share, behind its parent (by place)."""

    parent: int | None
    from_tokens: int
    tokens: int
    requests: int
    saved_tokens: int
    share: float
    text: str


class Advice(msgspec.Struct, frozen=True):
    """A place where prompts diverge too early; lengths in tokens, `share` is what the hit rate would gain."""

    kind: Kind
    templates: int
    requests: int
    at_tokens: int
    varying_tokens: int
    shared_tokens: int
    saved_tokens: int
    share: float
    before: str
    values: tuple[str, str]
    after: str


class Coverage(msgspec.Struct, frozen=True):
    """What the figures rest on where a log is larger than the memory."""

    reuse_rate: float
    prefix_missed: int
    sample_rate: float
    window_requests: int
    window_is_recorded: bool
    window_rate_rps: float


class PolicyForecast(msgspec.Struct, frozen=True):
    """What a fleet would do under one policy: means over runs."""

    policy: str
    runs: int
    hit_rate: float
    ttft_s: Times
    busiest_over_mean: float
    refused: int
    timeline: list[tuple[float, float]]


class Forecast(msgspec.Struct, frozen=True):
    """What a fleet of one size would do."""

    workers: int
    policies: list[PolicyForecast]


class Findings(msgspec.Struct, frozen=True):
    """All that was found."""

    partial: bool
    files: list[FileFound]
    read_bytes: int
    requests: int
    prompt_tokens: int
    bytes_per_token: float
    bytes_per_token_is_measured: bool
    skipped: list[SkippedLine]
    clock: Clock
    coverage: Coverage
    ideal_hit_rate: float
    curve: list[CurvePoint]
    sizes: list[CurvePoint]
    prefixes: list[Prefix]
    advice: list[Advice]
    forecast: list[Forecast]


def run(options: Options, paths: Sequence[str], *, watch: Watch | None = None) -> Findings:
    """Analyse files without the GIL; - is standard input.

    Raises ConfigError for a value out of range, OSError for a file that cannot be opened, TrunklineError if no request
    is found.
    """
    found = _core._analyze(msgspec.json.encode(options), list(paths), progress=watch)  # noqa: SLF001 (ours)
    return msgspec.json.decode(found, type=Findings)
