"""Findings as text for a terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .words import headline, quoted, remedy, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .spec import Findings, Forecast, Prefix

_PREVIEW = 64
_NAMED = 5
_MS = 1e3
_BASELINE = "random"


def as_dict(findings: Findings, profile: str) -> dict[str, Any]:
    """Return them for JSON, with sentences beside the figures of advice."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(findings))
    for row, advice in zip(found["advice"], findings.advice, strict=True):
        row |= {"found": headline(advice), "remedy": remedy(advice)}
    return found | {"profile": profile, "verdict": verdict(findings)}


def as_text(findings: Findings, profile: str) -> str:
    """Return the report."""
    parts = [
        _head(findings),
        ["Would prefix-aware routing help?", *_indented(verdict(findings))],
        _hit_rates(findings),
        _forecast(findings, profile),
        _prefixes(findings),
        _advice(findings),
        _notes(findings),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def verdict(findings: Findings) -> list[str]:
    """Answer the planner's question in sentences."""
    out = [f"{gain}." for forecast in findings.forecast if (gain := _gain(forecast))]
    points = sum(advice.share for advice in findings.advice) * 100
    if points >= 1:
        out.append(f"Prompts made otherwise would add up to {points:.0f} points; see the advice below.")
    if not findings.forecast:
        out.append(
            f"No forecast was made; an endless cache would serve {findings.ideal_hit_rate:.0%} of prompt tokens."
        )
    return out


def _gain(forecast: Forecast) -> str:
    """Return what the best policy of a forecast does beside random."""
    rows = {row.policy: row for row in forecast.policies}
    base = rows.pop(_BASELINE, None)
    if base is None or not rows:
        return ""
    best = max(rows.values(), key=lambda row: row.hit_rate)
    points = (best.hit_rate - base.hit_rate) * 100
    change = 1 - best.ttft_s.p50 / base.ttft_s.p50 if base.ttft_s.p50 else 0.0
    less = f"{abs(change):.0%} {'less' if change >= 0 else 'more'}"
    return (
        f"With {forecast.workers} workers {best.policy} hits {best.hit_rate:.3f} where random hits {base.hit_rate:.3f} "
        f"({points:+.0f} points), and the median TTFT is {less}"
    )


def _head(findings: Findings) -> list[str]:
    files = len(findings.files)
    of = quoted(findings.files[0].name) if files == 1 else f"{files} files"
    told = "as the log counts them" if findings.bytes_per_token_is_measured else "assumed"
    out = ["PARTIAL: ended early; figures are of what was read and simulated until then."] if findings.partial else []
    out.append(
        f"{of}: {findings.requests} requests, {tokens(findings.prompt_tokens)} prompt tokens "
        f"({findings.bytes_per_token:.2f} bytes each, {told})"
    )
    return out


def _hit_rates(findings: Findings) -> list[str]:
    rows = [["cache", "tokens", "hit rate"]]
    rows += [["of this size", tokens(size.cache_tokens), f"{size.hit_rate:.3f}"] for size in findings.sizes]
    rows.append(["endless", "-", f"{findings.ideal_hit_rate:.3f}"])
    return ["Ideal hit rate: one cache that sees all requests", *_indented(table(rows))]


def _forecast(findings: Findings, profile: str) -> list[str]:
    if not findings.forecast:
        return []
    coverage = findings.coverage
    times = "at the times of the log" if coverage.window_is_recorded else f"at {coverage.window_rate_rps:g} a second"
    part = "all" if coverage.window_requests == findings.requests else f"the first {coverage.window_requests}"
    rows = [["workers", "policy", "hit rate", "TTFT p50 ms", "p90", "busiest/mean"]]
    for forecast in findings.forecast:
        rows += [
            [
                str(forecast.workers),
                row.policy,
                f"{row.hit_rate:.3f}",
                f"{row.ttft_s.p50 * _MS:.0f}",
                f"{row.ttft_s.p90 * _MS:.0f}",
                f"{row.busiest_over_mean:.2f}",
            ]
            for row in forecast.policies
        ]
    out = [f"Forecast: {part} requests, {times}, to workers of profile {profile}", *_indented(table(rows, texts=2))]
    out.append("  Ratios between policies carry over to real fleets, absolute times do not.")
    refused = findings.forecast[0].policies[0].refused
    if refused:
        out.append(f"  {refused} requests are longer than a worker's cache and were left out.")
    return out


def _prefixes(findings: Findings) -> list[str]:
    if not findings.prefixes:
        return ["Shared prefixes: none"]
    rows = [["saved tokens", "of all", "requests", "from", "tokens", "begins with"]]
    depths = _depths(findings.prefixes)
    for prefix, depth in zip(findings.prefixes, depths, strict=True):
        text = quoted(prefix.text)
        rows.append(
            [
                tokens(prefix.saved_tokens),
                f"{prefix.share:.1%}",
                str(prefix.requests),
                str(prefix.from_tokens),
                str(prefix.tokens),
                "  " * depth + (text[:_PREVIEW] if text else "..."),
            ]
        )
    return ["Shared prefixes that save most (indented: behind the one above)", *_indented(table(rows, texts=-1))]


def _depths(prefixes: Sequence[Prefix]) -> list[int]:
    depths: list[int] = []
    for prefix in prefixes:
        depths.append(0 if prefix.parent is None else depths[prefix.parent] + 1)
    return depths


def _advice(findings: Findings) -> list[str]:
    if not findings.advice:
        return ["Prompt advice: no template of this log diverges before text that it shares"]
    out = ["Prompt advice, largest saving first"]
    for number, advice in enumerate(findings.advice, 1):
        out += [f"  {number}. {headline(advice)}", f"     {remedy(advice)}"]
        if any(advice.values) or advice.before:
            before, after = quoted(advice.before)[-_PREVIEW:], quoted(advice.after)[:_PREVIEW]
            out += [f"       ...{before}[{quoted(value)[:_PREVIEW]}]{after}..." for value in advice.values]
    return out


def _notes(findings: Findings) -> list[str]:
    return ["Notes", *_indented([*_of_files(findings), *_of_figures(findings)])]


def _of_files(findings: Findings) -> Iterator[str]:
    skipped = sum(file.skipped_lines for file in findings.files)
    if skipped:
        named = [
            f"{quoted(findings.files[line.file].name)}:{line.line}: {line.problem}"
            for line in findings.skipped[:_NAMED]
        ]
        yield f"{skipped} lines were left out; the first:"
        yield from (f"  {line}" for line in named)
    other = sum(file.other_lines for file in findings.files)
    if other:
        yield f"{other} lines of servers' logs are no requests."
    for file in findings.files:
        if file.problem:
            yield f"{quoted(file.name)}: read up to where it breaks off ({file.problem})."
        if not file.requests:
            yield f"{quoted(file.name)}: no request in it."


def _of_figures(findings: Findings) -> Iterator[str]:
    clock, coverage = findings.clock, findings.coverage
    if clock.jumps:
        yield f"The clock jumps {clock.jumps} times; steps back and pauses of more than an hour were taken out."
    if 0 < clock.missing < findings.requests:
        yield f"{clock.missing} requests have no time and count as arriving with the one before."
    if coverage.reuse_rate < 1:
        yield f"Hit rates are from {coverage.reuse_rate:.1%} of the blocks (SHARDS)."
    if coverage.prefix_missed:
        yield f"A prefix may have been used {coverage.prefix_missed} times more than is counted."
    if coverage.sample_rate < 1:
        yield f"Advice is from {coverage.sample_rate:.1%} of the requests."
    if any(prefix.text for prefix in findings.prefixes) or any(advice.before for advice in findings.advice):
        yield "This report quotes prompts, which may be private; --no-text leaves them out."
    yield "Savings are those of a cache that never forgets; docs/analyze.md says how far to trust the figures."


def table(rows: list[list[str]], *, texts: int = 1) -> list[str]:
    """Align: the first `texts` columns (the last one, if -1) to the left, figures to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    last = len(widths) - 1

    def cell(text: str, at: int) -> str:
        is_text = at == last if texts < 0 else at < texts
        return text.ljust(widths[at]) if is_text else text.rjust(widths[at])

    return ["  ".join(cell(text, at) for at, text in enumerate(row)).rstrip() for row in rows]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
