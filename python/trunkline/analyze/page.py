"""Findings as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from trunkline.simulate.plot import Chart, Series, document, svg

from .report import as_text, verdict

if TYPE_CHECKING:
    from pathlib import Path

    from .spec import Findings, Forecast

_MS = 1e3


def write(findings: Findings, profile: str, path: Path) -> None:
    """Write the page. Raises OSError."""
    path.write_text(page(findings, profile), encoding="utf-8")


def page(findings: Findings, profile: str) -> str:
    """Return the page: the answer, plots, then the report."""
    of = findings.files[0].name if len(findings.files) == 1 else f"{len(findings.files)} files"
    figures = "\n".join(svg(chart) for chart in charts(findings))
    answer = "\n".join(f'<p class="verdict">{html.escape(sentence)}</p>' for sentence in verdict(findings))
    report = f'<pre class="wrapped">{html.escape(as_text(findings, profile))}</pre>'
    return document(f"trunkline analyze {of}", f"{answer}\n{figures}\n{report}")


def charts(findings: Findings) -> list[Chart]:
    """Return what is drawn: hit rates over the size of a cache, of fleets, over time; what prefixes and advice save."""
    points = [(float(max(1, point.cache_tokens)), point.hit_rate) for point in findings.curve]
    out = [
        Chart(
            "Ideal hit rate over the size of one cache",
            "size of the cache, tokens",
            "share of prompt tokens",
            [Series("one cache", points)],
            logarithmic=True,
        )
    ]
    if len(findings.forecast) > 1:
        out += _over_workers(findings.forecast)
    for forecast in findings.forecast[-1:]:
        series = [Series(row.policy, row.timeline) for row in forecast.policies]
        title = f"Forecast hit rate over time, {forecast.workers} workers"
        out.append(Chart(title, "seconds", "share of prompt tokens", series))
    for title, shares in (
        (
            "What the shared prefixes save, added up",
            sorted((prefix.share for prefix in findings.prefixes), reverse=True),
        ),
        ("What the advice would save, added up", [advice.share for advice in findings.advice]),
    ):
        if shares:
            added = [(float(at), sum(shares[:at])) for at in range(len(shares) + 1)]
            axis = "how many of them, largest saving first"
            out.append(Chart(title, axis, "share of prompt tokens", [Series("saved", added)]))
    return out


def _over_workers(forecasts: list[Forecast]) -> list[Chart]:
    policies = [row.policy for row in forecasts[0].policies]
    rows = [(forecast.workers, row) for forecast in forecasts for row in forecast.policies]

    def series(figure: str) -> list[Series]:
        def value(at: int) -> float:
            row = rows[at][1]
            return row.hit_rate if figure == "hit" else row.ttft_s.p50 * _MS

        return [
            Series(policy, [(float(rows[at][0]), value(at)) for at in range(len(rows)) if rows[at][1].policy == policy])
            for policy in policies
        ]

    return [
        Chart("Forecast hit rate over the size of the fleet", "workers", "share of prompt tokens", series("hit")),
        Chart("Forecast TTFT p50 over the size of the fleet", "workers", "milliseconds", series("ttft")),
    ]
