"""Counts the outcomes of a run, compares two runs, and judges them against the demo's bars."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .replay import Outcome

# A workload on which random placement hits less or more than this shows nothing: it is mis-tuned.
RANDOM_HIT_RATE = (0.20, 0.50)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run amounts to."""

    policy: str
    requests: int
    ttft_p50_ms: float
    ttft_p90_ms: float
    hit_rate: float
    """Cached prompt tokens / prompt tokens, as the workers report them."""
    requests_per_worker: tuple[int, ...]
    busiest_over_mean: float
    throughput_rps: float
    client_late_p99_ms: float
    """How late the client itself sent: what it may have added to the times."""

    @classmethod
    def of(cls, policy: str, outcomes: Sequence[Outcome], *, workers: int) -> Figures:
        """Count outcomes, none of which is an error."""
        ttft_ms = [outcome.ttft_s * 1e3 for outcome in outcomes]
        counts = sorted(Counter(outcome.worker for outcome in outcomes).values(), reverse=True)
        counts += [0] * (workers - len(counts))
        duration_s = max(outcome.finished_s for outcome in outcomes) - min(outcome.sent_s for outcome in outcomes)
        return cls(
            policy=policy,
            requests=len(outcomes),
            ttft_p50_ms=percentile(ttft_ms, 0.5),
            ttft_p90_ms=percentile(ttft_ms, 0.9),
            hit_rate=hit_rate(outcomes),
            requests_per_worker=tuple(counts),
            busiest_over_mean=counts[0] * workers / len(outcomes),
            throughput_rps=len(outcomes) / duration_s,
            client_late_p99_ms=percentile([(outcome.sent_s - outcome.due_s) * 1e3 for outcome in outcomes], 0.99),
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise of the demo, and how it went."""

    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def passed(self) -> bool:
        """Whether the value keeps the promise."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        """Say it in one line."""
        relation = ">=" if self.at_least else "<="
        return f"{'pass' if self.passed else 'MISS'}  {self.name} {self.value:.2f} (bar {relation} {self.limit:.2f})"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def hit_rate(outcomes: Sequence[Outcome]) -> float:
    """Return cached / prompt tokens over all outcomes."""
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    return sum(outcome.cached_tokens for outcome in outcomes) / prompt_tokens if prompt_tokens else 0.0


def bars(random: Figures, aware: Figures) -> list[Bar]:
    """Judge prefix-aware routing, beside random on the same workload."""
    return [
        Bar("hit rate", aware.hit_rate, 0.75, at_least=True),
        Bar("TTFT p50 / random's", aware.ttft_p50_ms / random.ttft_p50_ms, 0.35, at_least=False),
        Bar("busiest worker / mean", aware.busiest_over_mean, 1.30, at_least=False),
    ]


def mistuned(random: Figures) -> str | None:
    """Say why the comparison means nothing, if it does not."""
    low, high = RANDOM_HIT_RATE
    if low <= random.hit_rate <= high:
        return None
    return (
        f"mis-tuned: random routing hit {random.hit_rate:.2f} of the prompt tokens, outside {low:.2f}..{high:.2f}; "
        "on this workload the comparison shows nothing"
    )


def as_table(random: Figures, aware: Figures) -> Table:
    """Lay two runs side by side."""
    table = Table(title=f"{aware.requests} requests per policy, the same in both")
    table.add_column("")
    for figures in (random, aware):
        table.add_column(figures.policy, justify="right")
    table.add_column("ratio", justify="right")

    def row(name: str, form: str, left: float, right: float) -> None:
        table.add_row(name, format(left, form), format(right, form), f"{right / left:.2f}" if left else "-")

    row("TTFT p50, ms", ".0f", random.ttft_p50_ms, aware.ttft_p50_ms)
    row("TTFT p90, ms", ".0f", random.ttft_p90_ms, aware.ttft_p90_ms)
    row("hit rate", ".2f", random.hit_rate, aware.hit_rate)
    row("throughput, requests/s", ".1f", random.throughput_rps, aware.throughput_rps)
    row("busiest worker / mean", ".2f", random.busiest_over_mean, aware.busiest_over_mean)
    spreads = (" ".join(map(str, figures.requests_per_worker)) for figures in (random, aware))
    table.add_row("requests per worker", *spreads, "")
    return table


def as_json(random: Figures, aware: Figures) -> dict[str, Any]:
    """Return everything that the table shows, as plain data."""
    return {
        "policies": {figures.policy: asdict(figures) for figures in (random, aware)},
        "bars": [asdict(bar) | {"passed": bar.passed} for bar in bars(random, aware)],
    }
