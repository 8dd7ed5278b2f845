"""Render docs/benchmarks.md from the raw results in benches/results. No figure on that page is written by hand."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Rows = list[tuple[str, ...]]

INTRODUCTION = """\
# Benchmarks

Rendered by `python benches/render.py` from the raw results in `benches/results`; losses are printed too.

- Times are CPU time of the thread, medians. On a shared machine they still grow with what the neighbours do to the
  caches, so each table comes with floors: things that no code of ours can make cheaper, beside what they cost on
  the machine where the targets were set. A missed absolute target says little while those floors are far above
  their reference; a ratio counts anyway.
- The index holds five classes of prompts from 64 to 131,072 tokens, a fifth of all blocks each. Eight prompts share
  a half; each is cached on one to three workers; one more prompt of each class is on all of them. *full* means that
  the whole prompt is cached, *half* the shared half, *miss* nothing.
- A prompt is made right before it is looked up, a few at a time: the prompt is in cache, and of the index only what
  other look-ups left there. *cold* prompts are *full* ones with neither in cache. What reading the clock costs is
  taken off; the loop around the calls is not.
- Results are checked before anything is timed.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(RESULTS), encoding="utf-8")


def page(results: Path) -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    sections = (
        ("core", core),
        ("rust", rust),
        ("memory", memory),
        ("events", events),
        ("gateway", gateway),
        ("policy", policy),
    )
    for kind, section in sections:
        path = results / f"{kind}.json"
        if path.exists():
            parts += section(json.loads(path.read_text(encoding="utf-8")))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)


def core(found: dict[str, Any]) -> list[str]:
    """Render `trunkline bench core --peers`."""
    setup = found["setup"]
    floors: Rows = [
        (
            floor["name"],
            _ns(floor["timing"]),
            f"{floor['reference_ns']:,}",
            f"{floor['ratio']:.2f}x",
            "our code" if floor["ours"] else "the machine",
        )
        for floor in found["floors"]
    ]
    targets: Rows = [
        (
            target["figure"],
            f"{'>=' if target['at_least'] else '<='} {target['wanted']:.3g} {target['unit']}",
            f"{target['measured']:.3g} {target['unit']}",
            "met" if target["met"] else f"**missed by {target['short_by']:.0%}**",
            "absolute" if target["absolute"] else "ratio or size",
        )
        for target in found["targets"]
    ]
    calls: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in found["calls"]:
        calls.setdefault((row["call"], row["prompt_tokens"], row["workers"]), {})[row["cached"]] = row["timing"]
    kinds = ("full", "half", "miss", "cold")
    costs: Rows = [
        (
            call,
            f"{tokens:,}",
            f"{workers:,}",
            *(_ns(timings[kind]) if kind in timings else "-" for kind in kinds),
            f"{1e3 / timings['full']['ns']:.3f}",
        )
        for (call, tokens, workers), timings in calls.items()
    ]
    peers: Rows = [
        (
            f"{row['peer']} {found['peers'][row['peer']]}",
            row["peer_call"],
            f"{row['prompt_tokens']:,}" if row["prompt_tokens"] else "-",
            row["cached"],
            _ns(row["peer_timing"]),
            row["our_call"],
            _ns(row["our_timing"]),
            f"{row['ratio']:.1f}x" if row["ratio"] >= 1 else f"**{row['ratio']:.2f}x**",
        )
        for row in found["versus"]
    ]
    missing = [f"- {peer}: MISSING in this run" for peer, version in found["peers"].items() if version is None]
    return [
        "## From Python",
        _facts(found["facts"]),
        _sentence(
            f"{setup['blocks']:,} distinct blocks of {setup['block_size']} tokens,",
            f"{setup['pairs']:,} blocks on {setup['workers']} workers,",
            f"medians of {setup['rounds']} rounds (lowest to highest in brackets), nanoseconds.",
        ),
        "### Targets",
        _sentence(
            f"The machine's floors were up to {found['floor_ratio']:.2f}x their reference in this run;",
            "absolute targets count up to 1.3x.",
        ),
        _table(("figure", "target", "measured", "", "kind"), targets),
        "### Floors",
        _table(("floor", "ns", "reference ns", "ratio", "tells of"), floors),
        "### Calls",
        _table(("call", "tokens", "workers", *(f"{kind}, ns" for kind in kinds), "full, M/s"), costs),
        "\n".join(f"- {name}: {value:,.1f}" for name, value in found["sizes"].items()),
        "### Peers",
        _sentence(
            "A ratio below 1 is a loss. Dynamo's tree runs on a thread of its own, so its CPU time is the process's.",
            "Ray's tree and pygtrie hold fewer blocks, as does ours beside them; pygtrie is given its hashes.",
        ),
        *(["\n".join(missing)] if missing else []),
        _table(("peer", "its call", "tokens", "cached", "its ns", "our call", "our ns", "ratio"), peers),
    ]


def rust(found: dict[str, Any]) -> list[str]:
    """Render `make bench-rust`."""
    rows: Rows = [(row["group"], row["function"] or "-", _thousands(row["value"]), _ns(row)) for row in found["rows"]]
    return [
        "## From Rust",
        _facts(found["facts"]),
        "### Targets",
        _table(("figure", "target", "measured", ""), rust_targets(found["rows"])),
        _sentence(
            "Not measured by this run: CPU time inside writer locks under one hot prompt (by hand 35 %, 15 % wanted;",
            "the end of [architecture.md](architecture.md) says why).",
        ),
        "### Calls",
        _sentence(
            "Medians with their 95 % interval in brackets, nanoseconds of CPU per call; `insert` is one prompt,",
            "hashing included. The value is tokens of the prompt, threads, or MiB.",
        ),
        _table(("group", "", "value", "ns"), rows),
    ]


def rust_targets(found: list[dict[str, Any]]) -> Rows:
    """Return the promises that only Rust can check; one whose benchmark did not run is left at "not run"."""
    ns = {(row["group"], row["function"], row["value"]): row["ns"] for row in found}

    def at_most(figure: str, unit: str, wanted: float, measured: float | None) -> tuple[str, ...]:
        if measured is None:
            return (figure, f"<= {wanted:g} {unit}", "-", "not run")
        verdict = "met" if measured <= wanted else f"**missed by {measured / wanted - 1:.0%}**"
        return (figure, f"<= {wanted:g} {unit}", f"{measured:.3g} {unit}", verdict)

    def ratio(above: tuple[str, str | None, str], below: tuple[str, str | None, str]) -> float | None:
        return ns[above] / ns[below] if above in ns and below in ns else None

    def micros(*row: str) -> float | None:
        return ns[row] / 1e3 if row in ns else None

    decides = [
        at_most(
            f"route + complete, 4,096 tokens, {workers:,} workers",
            "us",
            wanted,
            micros("route/hit", f"{workers}_workers", "4096"),
        )
        for workers, wanted in ((8, 3), (64, 4), (1024, 8))
    ]
    walks = [
        at_most(
            f"find against hashing alone, {int(tokens):,} tokens",
            "x",
            1.8,
            ratio(("find/hit", "64_workers", tokens), ("hash", None, tokens)),
        )
        for tokens in ("32768", "131072")
    ]
    beside = ratio(("find/beside_writer", "100k_events_per_s", "4096"), ("find/beside_writer", "quiet", "4096"))
    flat = ratio(("route/fleet", "workers", "10000"), ("route/fleet", "workers", "4"))
    contended = ratio(("route/contended", "threads", "2"), ("route/contended", "threads", "1"))
    return [
        *decides,
        *walks,
        at_most("a new short prompt among 10,000 workers, against 4", "x", 2, flat),
        at_most("a reader beside 100k events/s, against alone", "x", 1.25, beside),
        at_most("two threads on one hot prompt, against one, CPU per decision", "x", 1.25, contended),
    ]


def memory(found: dict[str, Any]) -> list[str]:
    """Render `make bench-memory`."""
    samples: Rows = [
        (
            f"{sample['prompts']:,}",
            f"{sample['resident_mib']:.1f}",
            f"{sample['index_mib']:.1f}",
            f"{sample['index_blocks']:,}",
            f"{sample['evicted_blocks']:,}",
        )
        for sample in found["samples"]
    ]
    return [
        "## Memory",
        _facts(found["facts"]),
        _sentence(
            f"{found['prompts']:,} different prompts through one router with a budget of {found['budget_mib']} MiB:",
            f"{found['peak_resident_mib']:.1f} MiB resident at most (the whole process; the bar is 1.2x the budget),",
            f"{found['second_half_growth_mib']:.2f} MiB of growth over the second half (the bar is 1 MiB):",
            f"{'met' if found['passed'] else '**missed**'}.",
        ),
        _table(("prompts", "resident MiB", "index MiB", "blocks", "evicted blocks"), samples),
    ]


def events(found: dict[str, Any]) -> list[str]:
    """Render `make bench-events`."""
    kinds = {kind["matched_by"]: kind for kind in found["kinds"]}
    request = found["requests"][-1]
    targets: Rows = [
        _target("block events/s per core, decoded and applied, by token ids", 3e6, kinds["tokens"]["blocks_per_s"]),
        _target("the same, spelled and matched by text", 3e6, kinds["text"]["blocks_per_s"]),
        _target("bytes per worker-block", 40, kinds["text"]["bytes_per_worker_block"], at_least=False),
        _target("CPU of a reader beside 100k events/s", 1.25, kinds["text"]["reader_cpu_ratio"], at_least=False),
        _target("us of CPU of a request of 100k tokens, all told", 300, request["total_us"], at_least=False),
    ]
    walks: Rows = [
        (kind, f"{row['tokens']:,}", *(f"{row[f'{cached}_us']:.1f}" for cached in ("full", "half", "miss")))
        for kind, result in kinds.items()
        for row in result["look_ups"]
    ]
    requests: Rows = [
        (
            f"{row['tokens']:,}",
            f"{row['render_us']:,.0f}",
            f"{row['route_us']:,.0f}",
            f"{row['total_us']:,.0f}",
            f"{row['tokenizers_us']:,.0f} ({row['tokenizers_us'] / row['total_us']:.0f}x)",
            f"{row['tiktoken_us']:,.0f} ({row['tiktoken_us'] / row['total_us']:.0f}x)",
        )
        for row in found["requests"]
    ]
    return [
        "## Events",
        _facts(found["facts"]),
        _sentence(
            f"{kinds['text']['worker_blocks']:,} blocks on {found['workers']} workers,",
            f"{kinds['text']['blocks']:,} distinct ones,",
            f"{found['block_size']} tokens each; tokens are as frequent as words of a language.",
        ),
        _table(("figure", "bar", "measured", ""), targets),
        "Look-ups on that, us of CPU:",
        _table(("matched by", "tokens", "full", "half", "miss"), walks),
        _sentence(
            "A chat that is matched by its text, beside tokenizing it; us of CPU, medians.",
            f"tokenizers {found['peers']['tokenizers']}, tiktoken {found['peers']['tiktoken']}, one vocabulary.",
        ),
        _table(("tokens", "render", "route", "total", "tokenizers", "tiktoken"), requests),
    ]


def _target(figure: str, wanted: float, measured: float, *, at_least: bool = True) -> tuple[str, ...]:
    met = measured >= wanted if at_least else measured <= wanted
    off = abs(measured - wanted) / wanted
    bar = f"{'>=' if at_least else '<='} {wanted:,.4g}"
    return figure, bar, f"{measured:,.4g}", "met" if met else f"**missed by {off:.0%}**"


OURS = "trunkline kv_aware"


def gateway(found: dict[str, Any]) -> list[str]:
    """Render `make bench-gateway`."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        rounds.setdefault((row["cell"], row["gateway"]), []).append(row)
    cells = list(dict.fromkeys(cell for cell, _ in rounds))
    names = list(dict.fromkeys(name for _, name in rounds))
    parts = [
        "## The gateway",
        _facts(found["facts"]),
        _sentence(
            f"{found['setup']['workers']} workers on the load's core, the gateway alone on the other,",
            f"{found['setup']['rounds']} interleaved rounds of {found['setup']['seconds']} s per cell;",
            "medians of the rounds (lowest to highest in brackets). CPU is that of all the gateway's processes per",
            "request; *added* is over the direct row of the same round; affinity is the share of requests on their",
            "prompt's main worker (chance is about 0.3), spread the busiest worker over the mean. A gateway that fails",
            "requests is not compared by its speed.",
        ),
        "\n".join(f"- {name}: MISSING in this run ({why})" for name, why in found["missing"].items()),
        "### Targets",
        _table(("figure", "target", "measured", ""), gateway_targets(rounds)),
    ]
    for cell in cells:
        rows: Rows = [
            (
                name,
                _spread(rounds[cell, name], "cpu_us"),
                _spread(rounds[cell, name], "per_second"),
                _spread(_added(rounds, cell, name), "p10_us"),
                _spread(_added(rounds, cell, name), "p50_us"),
                _spread(_added(rounds, cell, name), "first_p50_us"),
                " / ".join(f"{_median(rounds[cell, name], key):.2f}" for key in ("affinity", "busiest_over_mean")),
                f"{sum(row['failures'] for row in rounds[cell, name]):,}",
            )
            for name in names
            if (cell, name) in rounds
        ]
        columns = ("gateway", "CPU, us", "requests/s", "added p10, us", "added p50, us", "added to first byte p50, us")
        parts += [f"### {cell}", _table((*columns, "affinity / spread", "failures"), rows)]
    starts: Rows = [
        (name, *(_spread(rounds[cells[0], name], key, digits=2) for key in ("start_s", "start_rss_mb")))
        for name in names
        if "start_s" in rounds[cells[0], name][0]
    ]
    return [*parts, "### Start", _table(("gateway", "to the first 200, s", "RSS, MB"), starts)]


def gateway_targets(rounds: dict[tuple[str, str], list[dict[str, Any]]]) -> Rows:
    """Return what is promised about the gateway."""

    def row(figure: str, wanted: float, unit: str, measured: float) -> tuple[str, ...]:
        verdict = "met" if measured <= wanted else f"**missed by {measured / wanted - 1:.0%}**"
        return (figure, f"<= {wanted:g} {unit}", f"{measured:.3g} {unit}", verdict)

    def ratio(figure: str, wanted: float, cell: str, other: str, key: str) -> Rows:
        if (cell, OURS) not in rounds or (cell, other) not in rounds:
            return [(figure, f"<= {wanted:g} x", "-", "not run")]
        of = _added if key != "cpu_us" else lambda rounds, cell, name: rounds[cell, name]
        return [row(figure, wanted, "x", _median(of(rounds, cell, OURS), key) / _median(of(rounds, cell, other), key))]

    one, many, streams = "8 KB, 1 connection", "8 KB, 64 connections", "SSE, 256 streams"
    ours = rounds[many, OURS]
    return [
        *ratio("CPU per 8 KB request at 64 connections, against nginx", 1.5, many, "nginx", "cpu_us"),
        *ratio("the same against a bare hyper pass-through", 1.2, many, "hyper pass-through", "cpu_us"),
        *ratio("CPU per stream of 33 events, 256 at once, against nginx", 1.25, streams, "nginx", "cpu_us"),
        *ratio("latency added, p10, 1 connection, against nginx", 1.5, one, "nginx", "p10_us"),
        *ratio("latency added, p50, 1 connection, against nginx", 1.5, one, "nginx", "p50_us"),
        row("RSS at start", 40, "MB", _median(ours, "start_rss_mb")),
        row("start to first 200", 0.3, "s", _median(ours, "start_s")),
    ]


def _added(rounds: dict[tuple[str, str], list[dict[str, Any]]], cell: str, name: str) -> list[dict[str, Any]]:
    """Return a gateway's latencies less those of the direct row of each round."""
    direct = {row["round"]: row for row in rounds[cell, "direct"]}
    keys = ("p10_us", "p50_us", "first_p50_us")
    return [{key: row[key] - direct[row["round"]][key] for key in keys} for row in rounds[cell, name]]


def policy(found: dict[str, Any]) -> list[str]:
    """Render `trunkline bench policy`."""
    lines: Rows = [
        (
            line["text"],
            "-" if line["figure"] is None else f"{line['figure']:.3f}",
            f"{'>=' if line['at_least'] else '<='} {line['bar']:.2f}",
            f"**{line['status']}**" if line["status"] == "MISS" else f"{line['status']} {line['why']}".strip(),
        )
        for line in found["lines"]
    ]
    better: Rows = [(one["scenario"], one["figure"], f"{one['ratio']:.2f}", one["rule"]) for one in found["better"]]
    seeds = ", ".join(map(str, found["seeds"]))
    return [
        "## The policy",
        _facts(found["facts"]),
        _sentence(
            "Simulated fleets with the real router (simulator.md), bars of the study that its policy comes from.",
            f"{found['simulated_requests']:,} requests in {found['cpu_s']:.0f} s of CPU.",
            f"Means of seeds {seeds}; rules of others and of the study run beside ours.",
        ),
        _table(("line", "figure", "bar", ""), lines),
        "Scenarios in which another rule is better than `kv_aware` by more than 2 % (ratio of ours to it):",
        _table(("scenario", "TTFT", "ratio", "rule"), better),
    ]


def _median(rows: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


def _spread(rows: list[dict[str, Any]], key: str, *, digits: int = 0) -> str:
    if key not in rows[0]:
        return "-"
    values = [row[key] for row in rows]
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return f"{statistics.median(values):,.{digits}f} ({low} to {high})"


def _facts(about: dict[str, Any]) -> str:
    machine = about["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return _sentence(
        f"`{about['command']}`, {about['date']}, commit `{about['commit']}`, {versions};",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, {machine['system']},",
        f"load average {machine['load_average']}.",
    )


def _sentence(*parts: str) -> str:
    return " ".join(parts)


def _ns(timing: dict[str, float]) -> str:
    return f"{timing['ns']:,.0f} ({timing['low_ns']:,.0f}-{timing['high_ns']:,.0f})"


def _thousands(value: str | None) -> str:
    return f"{int(value):,}" if value else "-"


def _table(columns: tuple[str, ...], rows: Rows) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
