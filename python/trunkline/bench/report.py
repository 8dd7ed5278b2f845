"""Keep the figures of one run, compare them with their targets, and show them as JSON or as text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .timing import Timing

# A figure in absolute time counts while the floors of its run are this close to the reference machine's.
FLOOR_LIMIT = 1.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floor:
    """What no code of ours can go below, and what it cost where the targets were set.

    ours: it runs code of ours (our block hash), so it says nothing about the machine alone.
    """

    name: str
    timing: Timing
    reference_ns: float
    ours: bool = False

    @property
    def ratio(self) -> float:
        """How much slower than the reference."""
        return self.timing.ns / self.reference_ns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What one call costs. cached: full, half, miss, or cold: full, but neither prompt nor index in any cache."""

    call: str
    prompt_tokens: int
    cached: str
    workers: int
    timing: Timing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Versus:
    """What a peer needs for the work of one of our calls, measured one after the other."""

    peer: str
    peer_call: str
    our_call: str
    prompt_tokens: int
    cached: str
    peer_timing: Timing
    our_timing: Timing
    # How many times cheaper we want to be, if that was promised.
    target: float | None = None

    @property
    def ratio(self) -> float:
        """How many times cheaper we are."""
        return self.peer_timing.ns / max(self.our_timing.ns, 1e-9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A promise and what was measured. absolute: it counts only while the machine's floors are near the reference."""

    figure: str
    unit: str
    wanted: float
    measured: float
    at_least: bool
    absolute: bool

    @property
    def met(self) -> bool:
        """Whether the promise was kept."""
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted

    @property
    def short_by(self) -> float:
        """How far it was missed, as a part of what was wanted; 0 if it was met."""
        return 0.0 if self.met else abs(self.measured - self.wanted) / self.wanted


@dataclasses.dataclass(kw_only=True)
class Report:
    """All figures of one run of `trunkline bench core`."""

    facts: dict[str, Any]
    setup: dict[str, Any]
    floors: list[Floor] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    sizes: dict[str, float] = dataclasses.field(default_factory=dict)
    peers: dict[str, str | None] = dataclasses.field(default_factory=dict)
    versus: list[Versus] = dataclasses.field(default_factory=list)
    targets: list[Target] = dataclasses.field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Peers that were asked for and are not installed."""
        return [peer for peer, version in self.peers.items() if version is None]

    @property
    def floor_ratio(self) -> float:
        """How much slower than the reference the machine is, by its worst floor without code of ours."""
        return max((floor.ratio for floor in self.floors if not floor.ours), default=1.0)

    def timing(self, call: str, prompt_tokens: int, cached: str, workers: int | None = None) -> Timing:
        """Return one figure."""
        for row in self.calls:
            same = (row.call, row.prompt_tokens, row.cached) == (call, prompt_tokens, cached)
            if same and workers in (None, row.workers):
                return row.timing
        raise KeyError((call, prompt_tokens, cached, workers))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = dataclasses.asdict(self)
        for row, floor in zip(found["floors"], self.floors, strict=True):
            row["ratio"] = floor.ratio
        for row, versus in zip(found["versus"], self.versus, strict=True):
            row["ratio"] = versus.ratio
        for row, target in zip(found["targets"], self.targets, strict=True):
            row |= {"met": target.met, "short_by": target.short_by}
        return {"kind": "core", **found, "floor_ratio": self.floor_ratio}

    def as_text(self) -> str:
        """Return it as tables."""
        parts = [
            self._setup(),
            self._floors(),
            self._calls(),
            _table(("other", "measured"), [(name, f"{value:,.1f}") for name, value in self.sizes.items()]),
            self._versus(),
            self._targets(),
        ]
        return "\n\n".join(part for part in parts if part)

    def _setup(self) -> str:
        setup = self.setup
        blocks = f"{setup['blocks']:,} blocks of {setup['block_size']} tokens"
        cached = f"{setup['pairs']:,} times a block on a worker, {setup['workers']:,} workers"
        return f"{blocks}, {cached}; CPU time, median of {setup['rounds']}"

    def _floors(self) -> str:
        rows = [
            (
                floor.name,
                f"{floor.timing.ns:,.0f}",
                f"{floor.reference_ns:,.0f}",
                f"{floor.ratio:.2f}x",
                "our code" if floor.ours else "the machine",
            )
            for floor in self.floors
        ]
        verdict = "within" if self.floor_ratio <= FLOOR_LIMIT else "NOT within"
        note = f"this machine is {verdict} {FLOOR_LIMIT}x of the reference: {self.floor_ratio:.2f}x"
        return _table(("floor", "ns", "reference ns", "ratio", "tells of"), rows) + "\n" + note

    def _calls(self) -> str:
        kinds = list(dict.fromkeys(row.cached for row in self.calls))
        lines = list(dict.fromkeys((row.call, row.prompt_tokens, row.workers) for row in self.calls))
        found = {(row.call, row.prompt_tokens, row.workers, row.cached): row.timing.ns for row in self.calls}
        rows = []
        for line in lines:
            cells = [found.get((*line, kind)) for kind in kinds]
            full = found.get((*line, "full"))
            rate = "-" if full is None else f"{1e3 / full:.3f}"
            shown = ["-" if cell is None else f"{cell:,.0f}" for cell in cells]
            rows.append((line[0], f"{line[1]:,}", f"{line[2]:,}", *shown, rate))
        columns = ("call", "tokens", "workers", *(f"{kind} ns" for kind in kinds), "full M/s")
        return _table(columns, rows)

    def _versus(self) -> str:
        rows = [
            (
                f"{row.peer} {self.peers[row.peer]}",
                row.peer_call,
                f"{row.prompt_tokens:,}" if row.prompt_tokens else "-",
                row.cached,
                f"{row.peer_timing.ns:,.0f}",
                row.our_call,
                f"{row.our_timing.ns:,.0f}",
                f"{row.ratio:.1f}x",
            )
            for row in self.versus
        ]
        missing = [f"MISSING: {peer} is not installed" for peer in self.missing]
        table = _table(("peer", "its call", "tokens", "cached", "its ns", "our call", "our ns", "ratio"), rows)
        return "\n".join([*([table] if rows else []), *missing])

    def _targets(self) -> str:
        rows = []
        for target in self.targets:
            verdict = "met" if target.met else f"MISSED by {target.short_by:.0%}"
            if target.absolute and not target.met and self.floor_ratio > FLOOR_LIMIT:
                verdict += f" (floor {self.floor_ratio:.2f}x)"
            sign = ">=" if target.at_least else "<="
            wanted = f"{sign} {target.wanted:g} {target.unit}"
            rows.append((target.figure, wanted, f"{target.measured:.3g} {target.unit}", verdict))
        return _table(("target", "wanted", "measured", ""), rows)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows below their column names; text to the left, figures to the right."""
    lines = [columns, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    right = [all(row[at][:1] in "0123456789-" for row in rows) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )
