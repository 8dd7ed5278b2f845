"""Draws charts as one PNG, for slides and tickets; with matplotlib, which only this needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .plot import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .plot import Chart

_COLUMNS, _WIDTH_IN, _HEIGHT_IN, _DPI = 2, 6.0, 3.6, 120


def draw_picture(title: str, charts: Sequence[Chart], path: Path) -> None:
    """Write the charts that have points, two in a row, with a title above them. Raises OSError."""
    shown = [chart for chart in charts if any(series.points for series in chart.series)]
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    figure = Figure(figsize=(_COLUMNS * _WIDTH_IN, rows * _HEIGHT_IN), dpi=_DPI, layout="constrained")
    figure.suptitle(title)
    places = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for place, chart in zip(places, shown, strict=False):
        for number, series in enumerate(chart.series):
            points = [point for point in series.points if all(map(math.isfinite, point))]
            place.plot(*zip(*points, strict=True), label=series.name, color=COLOURS[number % len(COLOURS)])
        place.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        place.set_ylim(bottom=0)
        if chart.logarithmic:
            place.set_xscale("log")
        if len(chart.series) > 1:
            place.legend(fontsize="small")
        place.grid(alpha=0.3)
    for place in list(figure.axes)[len(shown) :]:
        place.remove()
    figure.savefig(path, format="png")
