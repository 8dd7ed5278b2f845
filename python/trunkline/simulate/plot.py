"""Draws a comparison: one HTML page with inline SVG that loads nothing from anywhere."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .runs import estimate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .request import Cell, Comparison
    from .spec import Bin, Report

# Colours that those who cannot tell red from green can tell apart (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """A named line."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis."""

    title: str
    x: str
    y: str
    series: list[Series] = field(default_factory=list)
    logarithmic: bool = False
    """Whether x, above 0, is."""


def charts(comparison: Comparison) -> list[Chart]:
    """Return what is drawn: figures over the load, then over time at the highest load, then each worker's work."""
    loads = sorted({cell.load for cell in comparison.cells})
    policies = list(dict.fromkeys(cell.policy for cell in comparison.cells))
    cells = {(cell.policy, cell.load): cell for cell in comparison.cells}
    out = []
    over_load: tuple[tuple[str, str, Callable[[Report], float]], ...] = (
        ("TTFT p50", "seconds", lambda report: report.ttft_s.p50),
        ("TTFT p99", "seconds", lambda report: report.ttft_s.p99),
        ("Hit rate", "share of prompt tokens", lambda report: report.hit_rate),
        ("Throughput", "requests/s", lambda report: report.throughput_rps),
    )
    if len(loads) > 1:
        for title, unit, figure in over_load:
            series = []
            for policy in policies:
                known = [load for load in loads if (policy, load) in cells]
                points = [(load, estimate(cells[policy, load].found, figure).mean) for load in known]
                series.append(Series(policy, points))
            out.append(Chart(f"{title} over load", "load", unit, series))
    highest = [cell for cell in comparison.cells if cell.load == loads[-1]]
    over_time = (
        ("TTFT p50", "seconds", "ttft_p50"),
        ("TTFT p99", "seconds", "ttft_p99"),
        ("Hit rate", "share", "hit_rate"),
    )
    for title, unit, name in over_time:
        series = []
        for cell in highest:
            points = [(part.at_s, float(getattr(part, name))) for part in _timeline(cell)]
            series.append(Series(cell.policy, points))
        out.append(Chart(f"{title} over time", "seconds", unit, series))
    for cell in highest:
        title = f"Prompt tokens that each worker computed: {cell.policy}"
        out.append(Chart(title, "seconds", "tokens/s", _workers(cell)))
    return out


def _timeline(cell: Cell) -> list[Bin]:
    return cell.found[0].report.timeline


def _workers(cell: Cell) -> list[Series]:
    timeline = _timeline(cell)
    if len(timeline) < 2:  # noqa: PLR2004
        return []
    width_s = timeline[1].at_s - timeline[0].at_s
    count = len(timeline[0].uncached_tokens)
    return [
        Series(f"worker {worker}", [(part.at_s, part.uncached_tokens[worker] / width_s) for part in timeline])
        for worker in range(min(count, len(_COLOURS)))
    ]


def draw(comparison: Comparison, path: Path) -> None:
    """Write the page. Raises OSError."""
    path.write_text(page(comparison), encoding="utf-8")


def page(comparison: Comparison) -> str:
    """Return the page."""
    from .report import as_text  # noqa: PLC0415 (only pages hold the table)

    figures = "\n".join(svg(chart) for chart in charts(comparison))
    return document(
        f"trunkline simulate {comparison.traffic}", f"<pre>{html.escape(as_text(comparison))}</pre>\n{figures}"
    )


def document(title: str, body: str) -> str:
    """Return a page with this title (plain text) and this body (HTML)."""
    title = html.escape(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1120px; color: #222; background: #fff }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1em }}
figure {{ display: inline-block; margin: 0 1em 1.5em 0; vertical-align: top }}
figcaption {{ font-weight: 600; margin-bottom: .3em }}
svg text {{ font-size: 11px; fill: #444 }}
</style></head><body><h1>{title}</h1>{body}
</body></html>
"""


def svg(chart: Chart) -> str:
    """Return a chart as a figure with inline SVG."""
    points = [point for series in chart.series for point in series.points if all(map(math.isfinite, point))]
    if not points:
        return ""
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1.0
    step = _nice(top / _TICKS)
    top = math.ceil(top / step) * step

    def place(x: float, y: float) -> tuple[float, float]:
        across = 0.5
        if high > low:
            across = math.log(x / low) / math.log(high / low) if chart.logarithmic else (x - low) / (high - low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    out = [f"<figure><figcaption>{html.escape(chart.title)}</figcaption>"]
    out.append(f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">')
    for tick in range(round(top / step) + 1):
        _, y = place(low, tick * step)
        out.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
    for share in (0.0, 0.5, 1.0):
        value = low * (high / low) ** share if chart.logarithmic else low + share * (high - low)
        x, _ = place(value, 0.0)
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{value:.3g}</text>')
    out.append(f'<text x="{_LEFT}" y="{_TOP - 3}">{html.escape(chart.y)}</text>')
    out.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 18}" text-anchor="end">{html.escape(chart.x)}</text>')
    across = _LEFT
    for number, series in enumerate(chart.series):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in series.points if math.isfinite(y))
        name = html.escape(series.name)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6">')
        out.append(f"<title>{name}</title></polyline>")
        out.append(f'<rect x="{across}" y="{_HEIGHT - 12}" width="10" height="3" fill="{colour}"/>')
        out.append(f'<text x="{across + 13}" y="{_HEIGHT - 7}">{name}</text>')
        across += 22 + round(6.2 * len(series.name))
    return "".join(out) + "</svg></figure>"


def _nice(step: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * 0.999)
