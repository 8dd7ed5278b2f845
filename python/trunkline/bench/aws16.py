"""`trunkline bench aws16`: AWS's benchmark of prefix-aware routing, its sixteen cells.

They run in simulated fleets of AWS's size and, with `--live`, through the gateway at a small scale (`aws16_live`).

AWS ran {single model, inference components} x {Invoke, OpenAI API} x {long, short context} x {RANDOM, PREFIX_AWARE}
on seven p5.48xlarge with Llama 3.1 70B and published changes against RANDOM, not the cells (September 2026). A
simulated fleet has one copy of the model on each of seven workers and gets prompts, not HTTP. Of the APIs only the
key of `prefix_aware` would tell (Invoke: the first bytes of the body; OpenAI: the first characters of the messages),
and `kv_aware` has none. So cells that differ in model or API only share their runs, and the table says so.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from trunkline.simulate.runs import Job, run_all
from trunkline.simulate.sources import GENERATORS
from trunkline.simulate.spec import Options, Spec

if TYPE_CHECKING:
    from trunkline.simulate.runs import Stopped
    from trunkline.simulate.spec import Report

WORKERS = 7
SEEDS = (4, 5, 6)
STRATEGIES = ("random", "kv_aware")
MODELS = ("single model", "inference components")
APIS = ("Invoke", "OpenAI")
# Share of the first arrivals, while caches fill, that does not count.
WARM_UP = 0.2
# Context, model, API, strategy.
Cell: TypeAlias = tuple[str, str, str, str]
_QUICK = 6


@dataclass(frozen=True, slots=True)
class Context:
    """One of AWS's two data sets, asked by a closed loop of clients: by the clock, throughput would be the rate."""

    name: str
    traffic: str
    requests: int
    clients: int


# The sizes are those of an hour and of half an hour at the generators' rates. AWS does not publish its load; ours keeps
# eight and sixteen requests on each worker.
CONTEXTS = (
    Context("long", "aws-long", 36_000, 56),
    Context("short", "aws-short", 54_000, 112),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over the seeds."""

    hit_rate: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    throughput_rps: float
    busiest_over_mean: float

    @classmethod
    def of(cls, reports: list[Report]) -> Figures:
        """Return the means of these runs."""
        mean = statistics.fmean
        return cls(
            hit_rate=mean(report.hit_rate for report in reports),
            ttft_p50_ms=1e3 * mean(report.ttft_s.p50 for report in reports),
            ttft_p90_ms=1e3 * mean(report.ttft_s.p90 for report in reports),
            throughput_rps=mean(report.throughput_rps for report in reports),
            busiest_over_mean=mean(report.busiest_over_mean for report in reports),
        )

    @classmethod
    def mean(cls, cells: list[Figures]) -> Figures:
        """Return the mean of cells, at least one."""
        columns = zip(*(astuple(cell) for cell in cells), strict=True)
        return cls(*map(statistics.fmean, columns))


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that is to be reached, and what AWS published for it."""

    context: str
    figure: str
    bar: float
    aws: str
    is_ratio: bool = True
    """Of ours to RANDOM's; else ours alone."""
    at_least: bool = False

    def value(self, random: Figures, ours: Figures) -> float:
        """Return our figure."""
        value: float = getattr(ours, self.figure)
        return value / getattr(random, self.figure) if self.is_ratio else value

    def is_met(self, value: float) -> bool:
        """Tell whether it is reached."""
        return value >= self.bar if self.at_least else value <= self.bar


BARS = (
    Bar("long", "hit_rate", 0.80, "25 -> 82 %", is_ratio=False, at_least=True),
    Bar("long", "ttft_p50_ms", 0.23, "-71..77 %"),
    Bar("long", "ttft_p90_ms", 0.60, "-33..37 %"),
    Bar("long", "throughput_rps", 1.16, "+15..16 %", at_least=True),
    Bar("long", "busiest_over_mean", 1.05, "1.078", is_ratio=False),
    Bar("short", "hit_rate", 0.80, "30 -> 80 %", is_ratio=False, at_least=True),
    Bar("short", "ttft_p50_ms", 0.84, "-13..16 %"),
    Bar("short", "ttft_p90_ms", 0.63, "-24..37 %"),
)


@dataclass(slots=True)
class Result:
    """The cells as far as they were run."""

    seeds: tuple[int, ...]
    cells: dict[tuple[str, str], Figures] = field(default_factory=dict)
    """Simulated, by context and strategy."""
    live: dict[Cell, Figures] = field(default_factory=dict)

    def verdicts(self) -> list[tuple[Bar, float]]:
        """Return each bar whose simulated cells were run, with our figure."""
        return _verdicts(self.cells)

    def live_verdicts(self) -> list[tuple[Bar, float]]:
        """Return the same of the live cells: the mean over models and APIs."""
        means = {}
        for context, strategy in itertools.product((context.name for context in CONTEXTS), STRATEGIES):
            cells = [figures for cell, figures in self.live.items() if (cell[0], cell[3]) == (context, strategy)]
            if len(cells) == len(MODELS) * len(APIS):
                means[context, strategy] = Figures.mean(cells)
        return _verdicts(means)

    @property
    def missed(self) -> int:
        """Bars that are not met, simulated or live."""
        return sum(not bar.is_met(value) for bar, value in self.verdicts() + self.live_verdicts())

    @property
    def judged(self) -> int:
        """Bars that were judged, simulated or live."""
        return len(self.verdicts()) + len(self.live_verdicts())

    def rows(self) -> list[tuple[Cell, Figures]]:
        """Return the sixteen simulated cells."""
        names = itertools.product((context.name for context in CONTEXTS), MODELS, APIS, STRATEGIES)
        return [(name, self.cells[name[0], name[3]]) for name in names if (name[0], name[3]) in self.cells]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "seeds": self.seeds,
            "workers": WORKERS,
            "cells": [_cell_as_dict(*row) for row in self.rows()],
            "bars": [_bar_as_dict(*verdict) for verdict in self.verdicts()],
            "live_cells": [_cell_as_dict(*row) for row in self.live.items()],
            "live_bars": [_bar_as_dict(*verdict) for verdict in self.live_verdicts()],
        }

    def as_text(self) -> str:
        """Return it as tables."""
        out = []
        if self.live:
            out += [
                "Live, at a small scale: the gateway before mock workers.",
                _HEAD,
                *_lines(list(self.live.items())),
                "",
            ]
        if self.cells:
            out += ["Simulated, at AWS's scale: cells that differ in model or API only share their runs.", _HEAD]
            out += [*_lines(self.rows()), ""]
        live = {(bar.context, bar.figure): value for bar, value in self.live_verdicts()}
        simulated = {(bar.context, bar.figure): value for bar, value in self.verdicts()}
        out.append("context  figure             AWS against RANDOM       bar  simulated            live")
        for bar in BARS:
            key = (bar.context, bar.figure)
            if key in live or key in simulated:
                sign = ">=" if bar.at_least else "<="
                found = "  ".join(_verdict(bar, values.get(key)) for values in (simulated, live))
                out.append(f"{bar.context:8} {bar.figure:18} {bar.aws:20}  {sign} {bar.bar:.2f}  {found}".rstrip())
        return "\n".join(out)


_HEAD = "context  model                 API     strategy   hit    p50 ms  p90 ms  requests/s  busiest/mean"


def _verdicts(cells: dict[tuple[str, str], Figures]) -> list[tuple[Bar, float]]:
    found = []
    for bar in BARS:
        random, ours = (cells.get((bar.context, strategy)) for strategy in STRATEGIES)
        if random and ours:
            found.append((bar, bar.value(random, ours)))
    return found


def _verdict(bar: Bar, value: float | None) -> str:
    if value is None:
        return " " * 19
    what = f"{value:.3f}" + (" x" if bar.is_ratio else "")
    return f"{what:>8}  {'met' if bar.is_met(value) else 'MISS':9}"


def _lines(rows: list[tuple[Cell, Figures]]) -> list[str]:
    return [
        f"{context:8} {model:21} {api:7} {strategy:9} {of.hit_rate:5.3f} {of.ttft_p50_ms:8.1f} "
        f"{of.ttft_p90_ms:7.1f} {of.throughput_rps:11.2f} {of.busiest_over_mean:13.3f}"
        for (context, model, api, strategy), of in rows
    ]


def _cell_as_dict(cell: Cell, figures: Figures) -> dict[str, Any]:
    return dict(zip(("context", "model", "api", "strategy"), cell, strict=True)) | asdict(figures)


def _bar_as_dict(bar: Bar, value: float) -> dict[str, Any]:
    return asdict(bar) | {"value": value, "status": "met" if bar.is_met(value) else "MISS"}


def bench_aws16(*, quick: bool, stopped: Stopped | None = None) -> Result:
    """Run the cells; `quick` takes a sixth of the requests and one seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    keys = [(context, strategy) for context in CONTEXTS for strategy in STRATEGIES]
    jobs = [Job(_spec(context, strategy, seed, quick=quick)) for context, strategy in keys for seed in seeds]
    found = iter(run_all(jobs, label="aws16", stopped=stopped))
    result = Result(seeds)
    for context, strategy in keys:
        reports = [one.report for one in (next(found) for _ in seeds) if one is not None]
        # A run that was stopped shows nothing.
        if len(reports) == len(seeds) and not any(report.unanswered for report in reports):
            result.cells[context.name, strategy] = Figures.of(reports)
    return result


def _spec(context: Context, strategy: str, seed: int, *, quick: bool) -> Spec:
    requests = context.requests // _QUICK if quick else context.requests
    return Spec(
        source=GENERATORS[context.traffic].source(seed, None, requests, {}),
        policy=strategy,
        options=Options(workers=WORKERS, clients=context.clients),
        skip=WARM_UP,
        seed=seed,
    )
