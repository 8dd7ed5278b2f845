"""Draws a comparison: one HTML page with inline SVG that loads nothing from anywhere."""

from __future__ import annotations

import html
import itertools
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
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
_MS = 1e3
_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 20, 44
# Height of a row of the legend.
_ROW = 16
# About so many values are written at an axis.
_TICKS = 5
# What rounding may take from a multiple of a step, in steps.
_SLACK = 1e-9


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
        ("TTFT p50", "milliseconds", lambda report: report.ttft_s.p50 * _MS),
        ("TTFT p99", "milliseconds", lambda report: report.ttft_s.p99 * _MS),
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
            out.append(Chart(f"{title} over load", "load (times the traffic's own rate)", unit, series))
    highest = [cell for cell in comparison.cells if cell.load == loads[-1]]
    at_load = f", load {loads[-1]:g}" if len(loads) > 1 else ""
    over_time = (
        ("TTFT p50", "milliseconds", "ttft_p50", _MS),
        ("TTFT p99", "milliseconds", "ttft_p99", _MS),
        ("Hit rate", "share of prompt tokens", "hit_rate", 1.0),
    )
    for title, unit, name, factor in over_time:
        series = []
        for cell in highest:
            points = [(part.at_s, float(getattr(part, name)) * factor) for part in _timeline(cell)]
            series.append(Series(cell.policy, points))
        out.append(Chart(f"{title} over time{at_load}", "seconds", unit, series))
    for cell in highest:
        drawn = _workers(cell)
        workers = len(cell.found[0].report.workers)
        which = f"{len(drawn)} of {workers} workers" if len(drawn) < workers else "each worker"
        out.append(Chart(f"Prompt tokens computed by {which}: {cell.policy}{at_load}", "seconds", "tokens/s", drawn))
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
        for worker in range(min(count, len(COLOURS)))
    ]


def draw(comparison: Comparison, path: Path) -> None:
    """Write the page or, for a name that ends with .png, a picture of its charts.

    Raises OSError; ImportError if a picture is asked for and matplotlib is not installed.
    """
    if path.suffix.lower() == ".png":
        from .picture import draw_picture  # noqa: PLC0415 (matplotlib is heavy, and optional)

        draw_picture(f"trunkline simulate {comparison.traffic}", charts(comparison), path)
        return
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
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 1120px }}
body {{ color: #222; background: #fff }}
h1 {{ font-size: 1.5em }}
.verdict {{ font-size: 1.15em; margin: .4em 0 }}
.verdict:last-of-type {{ margin-bottom: 1.2em }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1em; font-size: 12px }}
pre.wrapped {{ white-space: pre-wrap; overflow-wrap: anywhere }}
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

    lines = [f'<text x="{_LEFT}" y="{_TOP - 8}">{html.escape(chart.y)}</text>']
    for tick in range(round(top / step) + 1):
        _, y = place(low, tick * step)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick * step)}</text>')
    for value in _ticks(low, high, logarithmic=chart.logarithmic, whole=all(x == int(x) for x, _ in points)):
        x, y = place(value, 0.0)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 4:.1f}" stroke="#888"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{_short(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{html.escape(chart.x)}</text>')
    for series, colour in zip(chart.series, itertools.cycle(COLOURS)):
        lines += _drawn(series.name, [place(x, y) for x, y in series.points if math.isfinite(y)], colour)
    legend, height = _legend([series.name for series in chart.series])
    return (
        f"<figure><figcaption>{html.escape(chart.title)}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT + height}" role="img">{"".join(lines + legend)}</svg></figure>'
    )


def _drawn(name: str, points: list[tuple[float, float]], colour: str) -> list[str]:
    """Return a line through these places, or a dot if there is only one."""
    title = f"<title>{html.escape(name)}</title>"
    if len(points) == 1:
        (x, y) = points[0]
        return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">{title}</circle>']
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6">{title}</polyline>']


def _legend(names: list[str]) -> tuple[list[str], int]:
    """Return the names beside their colours, below the chart, and the height that their rows take."""
    out: list[str] = []
    across, down = _LEFT, _HEIGHT + _ROW
    for name, colour in zip(names, itertools.cycle(COLOURS)):
        width = 26 + 7 * len(name)
        if across > _LEFT and across + width > _WIDTH:
            across, down = _LEFT, down + _ROW
        out.append(f'<rect x="{across}" y="{down - 6}" width="10" height="3" fill="{colour}"/>')
        out.append(f'<text x="{across + 14}" y="{down}">{html.escape(name)}</text>')
        across += width
    return out, down + 4 - _HEIGHT


def _ticks(low: float, high: float, *, logarithmic: bool, whole: bool) -> list[float]:
    """Return round values from low to high: multiples of a round step, or (logarithmic) powers of ten."""
    if high <= low:
        return [low]
    if logarithmic:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        return [10.0**power for power in powers] if len(powers) > 1 else [low, high]
    step = _nice((high - low) / _TICKS)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - _SLACK)
    return [at * step for at in range(first, math.floor(high / step + _SLACK) + 1)]


def _short(value: float) -> str:
    """Return the number on an axis: 0.05, 250, 10 k, 1.5 M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g}"


def _nice(step: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * 0.999)
