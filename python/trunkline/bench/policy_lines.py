"""The pass lines of the policy study (section 8) as data: which runs a line compares, and its bar.

A figure is the mean over the seeds, or the ratio of two such means. Bars are the study's; none is changed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Figure: TypeAlias = Literal["hit", "mean", "p90", "p99"]

OURS = "kv_aware"
SEEDS = (4, 5, 6)


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario under a policy."""

    scenario: str
    policy: str = OURS
    routers: int = 1
    gossip_s: float | None = None
    events: bool = False
    """Whether ours gets KV events; without them its view of the caches is its own."""
    host_events: bool = True
    """Whether events tell of the host's tier too."""
    event_delay_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """One bar."""

    text: str
    run: Run
    figure: Figure
    bar: float
    at_least: bool = False
    against: tuple[Run, ...] = ()
    """What it is divided by: the least of these; nothing for the figure itself."""


def lines() -> list[Line]:
    """Return the lines that compare figures of whole runs."""
    return list(_lines())


def _ratio(scenario: str, bars: dict[Figure, float], *rivals: str) -> Iterator[Line]:
    for figure, bar in bars.items():
        runs = tuple(Run(scenario, rival) for rival in rivals)
        text = f"{scenario}: {figure} / {' or '.join(rivals)}"
        yield Line(text, Run(scenario), figure, bar, against=runs)


def _hit(text: str, run: Run, bar: float) -> Line:
    return Line(text, run, "hit", bar, at_least=True)


def _lines() -> Iterator[Line]:
    yield _hit("aws5@.95: hit rate", Run("aws5@.95"), 0.75)
    yield from _ratio("aws5@.95", {"p90": 0.30, "p99": 0.22}, "random")
    yield _hit("header@.95: hit rate", Run("header@.95"), 0.90)
    yield from _ratio("header@.95", {"mean": 0.34}, "random")
    yield from _ratio("conv@.95", {"mean": 0.25}, "random")
    yield from _ratio("conv@.95", {"mean": 0.80}, "llm_d")
    for overload in ("conv@1.2", "synth@1.2"):
        yield from _ratio(overload, {"mean": 0.12}, "random")
    yield from _ratio("conv@1.2", {"p99": 1.10}, "ect")
    for saturated in ("long@40", "long@44"):
        yield from _ratio(saturated, {"mean": 1.10, "p99": 1.08}, "cache_aware")
    yield from _ratio("zipf@70", {"p90": 1.15, "mean": 1.06}, "lmetric")
    for loops in ("agent3@35", "agent3@45"):
        yield from _ratio(loops, {"mean": 1.06}, "e1_lean")
    yield from _ratio("slow@25", {"mean": 1.06, "p99": 1.10}, "e1")
    for mixed in ("mixlong@20", "mixconv@.6"):
        yield from _ratio(mixed, {"mean": 0.92, "p99": 0.80}, "ect")
    for delay_s, words in ((0.02, "20 ms"), (1.0, "1 s")):
        text = f"burst@40, events {words} late: mean / cache_aware"
        rival = Run("burst@40", "cache_aware", event_delay_s=delay_s)
        yield Line(text, Run("burst@40", events=True, event_delay_s=delay_s), "mean", 1.06, against=(rival,))
    blind = Run("longhost@30", events=True, host_events=False)
    text = "longhost@30: mean / without credit for the host tier"
    yield Line(text, Run("longhost@30", events=True), "mean", 0.80, against=(blind,))
    for starved in ("agent3kv@25", "chatkv@.9"):
        yield from _ratio(starved, {"mean": 1.15}, "e1", "lmetric")
    yield from _ratio("lost@30", {"mean": 1.05}, "cache_aware")
    yield from _ratio("spike", {"p99": 1.20}, "cache_aware")
    yield _hit("aws5@.95, 4 routers that share nothing: hit rate", Run("aws5@.95", routers=4), 0.70)
    yield _hit("aws5@.95, events 1 s late: hit rate", Run("aws5@.95", events=True, event_delay_s=1.0), 0.75)
    for scenario, bar in (("conv@.95", 1.2), ("aws5@.95", 1.25)):
        text = f"{scenario}, 4 routers, gossip 100 ms: mean / one router"
        yield Line(text, Run(scenario, routers=4, gossip_s=0.1), "mean", bar, against=(Run(scenario),))


# When the rush of the scenario `spike` is.
SPIKE_S = (0.35 * 3500 / 45.7, 0.7 * 3500 / 45.7)

# The rules of the study's table, of which the best one of each scenario is what ours is held against.
RULES = (
    "random", "least_outstanding", "sagemaker", "chwbl", "cache_aware", "preble", "llm_d", "dynamo", "lmetric", "e1",
    "e1_lean", "ect", "ect2",
)  # fmt: skip
OVERALL = 1.05
WORST: dict[Figure, float] = {"mean": 1.20, "p99": 1.25}
# Overload is for admission control: scenarios in which even the best rule's mean is above this do not count.
OVERALL_MEAN_S = 2.0
# A difference below this is none.
NOISE = 1.02
