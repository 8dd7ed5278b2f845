"""A comparison as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .runs import estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .request import Cell, Comparison
    from .scale import Change
    from .spec import Report

_MS = 1e3
_HOUR_S = 3600.0
_PER_REQUESTS = 1000

# Name for JSON, heading of the table, digits, factor, figure.
_FIGURES: tuple[tuple[str, str, int, float, Callable[[Report], float]], ...] = (
    ("ttft_p50_ms", "TTFT p50 ms", 0, _MS, lambda report: report.ttft_s.p50),
    ("ttft_p90_ms", "p90", 0, _MS, lambda report: report.ttft_s.p90),
    ("ttft_p99_ms", "p99", 0, _MS, lambda report: report.ttft_s.p99),
    ("ttft_mean_ms", "mean", 0, _MS, lambda report: report.ttft_s.mean),
    ("tpot_p50_ms", "TPOT p50 ms", 1, _MS, lambda report: report.tpot_s.p50),
    ("hit_rate", "hit rate", 3, 1.0, lambda report: report.hit_rate),
    ("throughput_rps", "requests/s", 1, 1.0, lambda report: report.throughput_rps),
    ("busiest_over_mean", "busiest/mean", 2, 1.0, lambda report: report.busiest_over_mean),
    ("utilisation", "busy", 2, 1.0, lambda report: report.utilisation),
    ("gpu_s_per_request", "GPU s/request", 2, 1.0, lambda report: report.gpu_s_per_request),
)


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return it for JSON: of each figure the mean over the seeds and half of its 95 % confidence interval."""
    rows = []
    for cell in comparison.cells:
        row: dict[str, Any] = {"policy": cell.policy, "load": cell.load, "runs": len(cell.found)}
        for name, _, _, factor, figure in _FIGURES:
            value = estimate(cell.found, figure)
            width = value.half_width
            row[name] = {"mean": value.mean * factor, "ci95": None if width is None else width * factor}
        if comparison.gpu_hour_price is not None:
            row["money_per_1000_requests"] = _money(cell, comparison.gpu_hour_price)
        row |= {
            name: sum(getattr(one.report, name) for one in cell.found) for name in ("requests", "refused", "unanswered")
        }
        row["ideal_hit_rate"] = estimate(cell.found, lambda report: report.ideal_hit_rate).mean
        row["requests_per_worker"] = [worker.requests for worker in cell.found[0].report.workers]
        row["preemptions"] = sum(worker.preemptions for one in cell.found for worker in one.report.workers)
        rows.append(row)
    lines, named = _skipped(comparison)
    return {
        "traffic": comparison.traffic,
        "seeds": comparison.seeds,
        "stopped": comparison.stopped,
        "skipped_lines": {"count": lines, "named": named},
        "rows": rows,
    }


def as_text(comparison: Comparison) -> str:
    """Return it as a table with the reading that it allows."""
    has_loads = len({cell.load for cell in comparison.cells}) > 1
    head = ["policy", *(["load"] if has_loads else []), *(heading for _, heading, *_ in _FIGURES)]
    if comparison.gpu_hour_price is not None:
        head.append("money/1000")
    rows = [head]
    for cell in comparison.cells:
        row = [cell.policy, *([f"{cell.load:g}"] if has_loads else [])]
        for _, _, digits, factor, figure in _FIGURES:
            value = estimate(cell.found, figure)
            text = f"{value.mean * factor:.{digits}f}"
            if value.half_width is not None and value.half_width * factor >= 0.5 * 10**-digits:
                text += f" ±{value.half_width * factor:.{digits}f}"
            row.append(text)
        if comparison.gpu_hour_price is not None:
            row.append(f"{_money(cell, comparison.gpu_hour_price):.3f}")
        rows.append(row)
    first = comparison.cells[0].found[0].report
    runs = comparison.cells[0].found
    ideal = estimate(runs, lambda report: report.ideal_hit_rate).mean
    out = [
        (
            f"{comparison.traffic}: {first.requests} requests to {len(first.workers)} workers, "
            f"{len(runs)} run{'s' if len(runs) > 1 else ''} each; an endless cache would hit {ideal:.3f}"
        ),
        *_table(rows),
    ]
    if comparison.seeds > 1:
        out.append("± is half of the 95 % confidence interval over the seeds.")
    out.append("Ratios between policies carry over to real fleets, absolute times do not.")
    if any(cell.found[0].report.refused for cell in comparison.cells):
        out.append(f"{first.refused} requests are longer than a worker's cache and were left out.")
    lines, named = _skipped(comparison)
    if lines:
        out.append(
            f"{lines} lines of the file were left out; the first: " + "; ".join(f"{at}: {why}" for at, why in named[:3])
        )
    if comparison.stopped:
        left = sum(one.report.unanswered for cell in comparison.cells for one in cell.found)
        out.append(f"Stopped early: {left} requests of these runs were not answered, other runs are missing.")
    return "\n".join(out)


def scale_as_dict(found: Mapping[tuple[str, str], Sequence[Change]]) -> dict[str, Any]:
    """Return changes of size for JSON."""
    rows = [
        {"traffic": traffic, "policy": policy, "changes": [asdict(change) for change in changes]}
        for (traffic, policy), changes in found.items()
    ]
    return {"rows": rows}


def scale_as_text(found: Mapping[tuple[str, str], Sequence[Change]]) -> str:
    """Return changes of size as a table."""
    rows = [["traffic", "policy", "workers", "prefixes", "moved", "forced", "abandoned", "hit rate", "TTFT p99 ms"]]
    for (traffic, policy), changes in found.items():
        rows += [
            [
                traffic,
                policy,
                f"{change.workers_before} -> {change.workers_after}",
                f"{change.prefixes:.0f}",
                f"{change.changed:.2f}",
                f"{change.forced:.2f}",
                f"{change.abandoned:.2f}",
                f"{change.hit_rate_before:.3f} -> {change.hit_rate_after:.3f}",
                f"{change.ttft_p99_before_s * _MS:.0f} -> {change.ttft_p99_after_s * _MS:.0f}",
            ]
            for change in changes
        ]
    note = "Shares of the prefixes: another main worker, main worker left, main worker there but no longer used."
    return "\n".join([*_table(rows), note])


def _money(cell: Cell, price: float) -> float:
    """Money for a thousand requests, of a fleet that stands there whether it computes or not."""
    return estimate(cell.found, lambda report: report.gpu_s_per_request).mean * price / _HOUR_S * _PER_REQUESTS


def _skipped(comparison: Comparison) -> tuple[int, list[tuple[int, str]]]:
    """Return how many lines of the file were left out, and the first of them."""
    found = comparison.cells[0].found[0]
    return found.skipped_lines, found.skipped


def _table(rows: list[list[str]]) -> list[str]:
    """Align: the first column to the left, figures to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
