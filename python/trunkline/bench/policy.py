"""`trunkline bench policy`: the real router on the policy study's scenarios, against the study's pass lines.

Everything runs in the simulator with fixed seeds, so two runs print the same figures. A line whose trace is not at hand
is named as not run; the traces are public but not part of this package.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trunkline.simulate import scale, traces
from trunkline.simulate.runs import Job, run_all
from trunkline.simulate.spec import Spec, scenarios

from .policy_lines import (
    NOISE,
    OURS,
    OVERALL,
    OVERALL_MEAN_S,
    RULES,
    SEEDS,
    SPIKE_S,
    WORST,
    Figure,
    Line,
    Run,
    lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trunkline.simulate.runs import Stopped
    from trunkline.simulate.spec import Found


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line and how it went."""

    text: str
    figure: float | None
    """None if it was not run."""
    bar: float
    at_least: bool = False
    why: str = ""
    """Why it was not run."""

    @property
    def status(self) -> str:
        """Pass, MISS, or not run."""
        if self.figure is None:
            return "not run"
        return "pass" if (self.figure >= self.bar if self.at_least else self.figure <= self.bar) else "MISS"


@dataclass(frozen=True, slots=True)
class Better:
    """A scenario where another rule is better by more than noise, and by how much."""

    scenario: str
    figure: str
    ratio: float
    rule: str


@dataclass(slots=True)
class Result:
    """All lines."""

    seeds: tuple[int, ...]
    verdicts: list[Verdict] = field(default_factory=list)
    better: list[Better] = field(default_factory=list)
    simulated_requests: int = 0
    cpu_s: float = 0.0
    """What they took, all threads together, without the runs that scale."""

    @property
    def missed(self) -> int:
        """Lines that are not kept."""
        return sum(verdict.status == "MISS" for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "seeds": self.seeds,
            "missed": self.missed,
            "lines": [asdict(verdict) | {"status": verdict.status} for verdict in self.verdicts],
            "better": [asdict(one) for one in self.better],
            "simulated_requests": self.simulated_requests,
            "cpu_s": self.cpu_s,
        }

    def as_text(self) -> str:
        """Return it as a table."""
        width = max(len(verdict.text) for verdict in self.verdicts)
        out = [f"{'line':{width}}  {'figure':>7}  {'bar':>8}  result"]
        for verdict in self.verdicts:
            figure = "-" if verdict.figure is None else f"{verdict.figure:.3f}"
            bar = f"{'>=' if verdict.at_least else '<='} {verdict.bar:.2f}"
            why = f" ({verdict.why})" if verdict.why else ""
            out.append(f"{verdict.text:{width}}  {figure:>7}  {bar:>8}  {verdict.status}{why}")
        if self.better:
            out += ["", "another rule of the study's table is better by more than 2 % (ratio of ours to it):"]
            out += [f"  {one.scenario:12} {one.figure:4}  {one.ratio:.2f}  {one.rule}" for one in self.better]
        speed = f"{self.simulated_requests:,} requests simulated in {self.cpu_s:.1f} s of CPU"
        kept = sum(verdict.status == "pass" for verdict in self.verdicts)
        out += ["", f"{kept} kept, {self.missed} missed, {len(self.verdicts) - kept - self.missed} not run; {speed}"]
        return "\n".join(out)


class Bench:
    """Runs what the lines need, each run once."""

    def __init__(self, *, traces_in: Path | None, stopped: Stopped | None = None) -> None:
        self._directory = traces_in
        self._seeds = SEEDS
        self._stopped = stopped
        self._needs = scenarios()
        self._texts: dict[str, str | None] = {}
        self._found: dict[Run, list[Found]] = {}
        self.simulated_requests = 0
        self.cpu_s = 0.0

    def _trace(self, scenario: str) -> tuple[str | None, str]:
        """Return the text of the trace that a scenario replays, and what is missing if there is none."""
        name = self._needs.get(scenario)
        if name is None:
            return None, ""
        if name not in self._texts:
            path = None if self._directory is None else traces.find(self._directory, name)
            self._texts[name] = None if path is None else traces.read(path)
        text = self._texts[name]
        return text, "" if text is not None else f"needs --traces with {name}.jsonl"

    def can_run(self, scenario: str) -> str:
        """Return why a scenario cannot be run; nothing if it can."""
        return self._trace(scenario)[1]

    def run(self, wanted: Iterable[Run], *, label: str) -> None:
        """Run all of these that were not run and can be."""
        fresh = [run for run in dict.fromkeys(wanted) if run not in self._found and not self.can_run(run.scenario)]
        jobs = [Job(_spec(run, seed), self._trace(run.scenario)[0]) for run in fresh for seed in self._seeds]
        began_s = time.process_time()
        found = iter(run_all(jobs, label=label, stopped=self._stopped)) if jobs else iter(())
        self.cpu_s += time.process_time() - began_s
        for run in fresh:
            runs = [next(found) for _ in self._seeds]
            # A run that was stopped shows nothing.
            has_ended = self._stopped is None or not self._stopped.is_set()
            self.simulated_requests += sum(one.report.requests for one in runs if one is not None)
            self._found[run] = [one for one in runs if one is not None and (has_ended or not one.report.unanswered)]

    def figure(self, run: Run, figure: Figure) -> float | None:
        """Return the mean over the seeds; None if a run is missing."""
        values = self.values(run, figure)
        return statistics.fmean(values) if len(values) == len(self._seeds) else None

    def values(self, run: Run, figure: Figure) -> list[float]:
        """Return the figure of each seed."""
        return [_figure(found, figure) for found in self._found.get(run, [])]

    def found(self, run: Run) -> list[Found]:
        """Return what the run of each seed found."""
        return self._found.get(run, [])

    def judge(self, line: Line) -> Verdict:
        """Hold a line to its bar."""
        figure = self.figure(line.run, line.figure)
        rivals = [self.figure(rival, line.figure) for rival in line.against]
        if figure is None or None in rivals:
            why = self.can_run(line.run.scenario) or "stopped"
            return Verdict(line.text, None, line.bar, line.at_least, why)
        if rivals:
            figure /= min(rival for rival in rivals if rival is not None)
        return Verdict(line.text, figure, line.bar, line.at_least)


def bench_policy(*, traces_in: Path | None, quick: bool, stopped: Stopped | None = None) -> Result:
    """Run the lines; `quick` leaves out the one over all scenarios."""
    bench = Bench(traces_in=traces_in, stopped=stopped)
    result = Result(SEEDS)
    plain = lines()
    bench.run([run for line in plain for run in (line.run, *line.against)], label="lines")
    result.verdicts += [bench.judge(line) for line in plain]
    result.verdicts += _of_runs(bench)
    result.verdicts += _of_scaling(stopped)
    if not quick:
        _overall(bench, result)
    result.simulated_requests, result.cpu_s = bench.simulated_requests, bench.cpu_s
    return result


_OVERALL_FIGURES: tuple[Figure, ...] = ("mean", "p90", "p99")


def _of_runs(bench: Bench) -> list[Verdict]:
    """Judge what is no ratio of figures."""
    lost, spike = bench.found(Run("lost@30")), bench.found(Run("spike"))
    unanswered = max((one.report.unanswered + one.report.refused for one in lost), default=None)
    hottest = [one.windows[0].hottest_workers for one in spike]
    return [
        Verdict("lost@30: requests not answered", unanswered, 0),
        Verdict("spike: workers of the hot prefix, at least", min(hottest, default=None), 2, at_least=True),
        Verdict("spike: workers of the hot prefix, at most", max(hottest, default=None), 7),
    ]


def _of_scaling(stopped: Stopped | None) -> list[Verdict]:
    """Judge 4 -> 7 -> 5 workers."""
    found = scale.run_scale([OURS], seeds=SEEDS, stopped=stopped)
    verdicts = []
    for chatbot in scale.CHATBOTS:
        changes = found.get((chatbot, OURS))
        for at, sizes in enumerate(("4 -> 7", "7 -> 5")):
            change = changes[at] if changes else None
            why = "" if change else "stopped"
            for text, figure, bar in (
                ("prefixes that leave a worker that stays", None if change is None else change.abandoned, 0.05),
                ("hit rate lost", None if change is None else change.hit_dip, 0.02),
                ("p99 after / before", None if change is None else change.p99_ratio, 1.15),
            ):
                verdicts.append(Verdict(f"{chatbot}, {sizes} workers: {text}", figure, bar, why=why))
    return verdicts


def _overall(bench: Bench, result: Result) -> None:
    """Hold ours against the best rule of each scenario, by the means over the seeds, as the study's table does."""
    names = [name for name in scenarios() if not bench.can_run(name)]
    bench.run([Run(name, rule) for name in names for rule in (OURS, *RULES)], label="all scenarios")
    ratios = {figure: _ratios(bench, names, figure) for figure in _OVERALL_FIGURES}
    left_out = len(scenarios()) - len(names)
    why = f" of {len(ratios['mean'])} scenarios" + (f", {left_out} without their trace" if left_out else "")
    for figure in _OVERALL_FIGURES:
        found = [ratio for ratio, _ in ratios[figure].values()]
        mean = math.exp(statistics.fmean(map(math.log, found))) if found else None
        result.verdicts.append(Verdict(f"overall: {figure} / best rule, geometric mean{why}", mean, OVERALL))
    for figure, bar in WORST.items():
        worst = max(ratios[figure].items(), key=lambda item: item[1][0], default=None)
        text = f"overall: largest {figure} / best rule" + (f" ({worst[0]})" if worst else "")
        result.verdicts.append(Verdict(text, worst[1][0] if worst else None, bar))
    for figure in _OVERALL_FIGURES:
        worse = [Better(name, figure, ratio, rule) for name, (ratio, rule) in ratios[figure].items() if ratio > NOISE]
        result.better += sorted(worse, key=lambda one: -one.ratio)


def _ratios(bench: Bench, names: list[str], figure: Figure) -> dict[str, tuple[float, str]]:
    """Return ours over the best rule, and that rule, for each scenario that counts."""
    found = {}
    for name in names:
        means, values = (
            {rule: _middle(bench.values(Run(name, rule), of)) for rule in (OURS, *RULES)} for of in ("mean", figure)
        )
        if all(means.values()) and min(means.values()) < OVERALL_MEAN_S:
            best = min(values, key=lambda rule: values[rule])
            found[name] = (values[OURS] / values[best], best)
    return found


def _middle(values: list[float]) -> float:
    """Return the geometric mean; 0 if there is nothing."""
    return math.exp(statistics.fmean(math.log(max(value, 1e-4)) for value in values)) if values else 0.0


def _spec(run: Run, seed: int) -> Spec:
    return Spec(
        source={"scenario": {"name": run.scenario, "seed": seed}},
        policy=run.policy,
        routers=run.routers,
        gossip_s=run.gossip_s,
        events=run.events,
        host_events=run.host_events,
        event_delay_s=run.event_delay_s,
        seed=seed,
        windows=[SPIKE_S] if run.scenario == "spike" else [],
    )


def _figure(found: Found, figure: Figure) -> float:
    if figure == "hit":
        return found.report.hit_rate
    return float(getattr(found.report.ttft_s, figure))
