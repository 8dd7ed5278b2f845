"""What `trunkline ab` prints: arms side by side, a policy in the shadow, and what follows from the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Groups of tenants without which the gateway gives no interval.
MIN_GROUPS = 8

Row = tuple[str, str, str, str]


class _Figure(NamedTuple):
    """A figure of both arms: its name, its key in an arm, the key of its difference, and how one value is written."""

    name: str
    key: str
    difference: str
    write: Callable[[float], str]


def _rate(value: float) -> str:
    return f"{value:.4f}"


def _ms(value: float) -> str:
    return f"{value * 1e3:.1f}"


def _signed(value: float) -> str:
    return f"{value:+.4f}"


def _times(value: float) -> str:
    return f"x{value:.3f}"


_TRIAL = (
    _Figure("hit rate", "hit_rate", "hit_rate", _rate),
    _Figure("expected hit", "expected_hit", "expected_hit", _rate),
    _Figure("TTFT p50 ms", "ttft_p50_s", "ttft_p50_ratio", _ms),
    _Figure("TTFT p90 ms", "ttft_p90_s", "ttft_p90_ratio", _ms),
    _Figure("spill rate", "spill_rate", "spill_rate", _rate),
    _Figure("error rate", "error_rate", "error_rate", _rate),
)
_SHADOW = (
    _Figure("expected hit", "expected_hit", "expected_hit", _rate),
    _Figure("spill rate", "spill_rate", "spill_rate", _rate),
)


def is_over(report: Mapping[str, Any]) -> bool:
    """Whether no ramp is under way."""
    trial = report["trial"]
    return trial is None or trial["state"] != "ramping"


def has_stopped(report: Mapping[str, Any]) -> bool:
    """Whether the trial's ramp has stopped by itself."""
    trial = report["trial"]
    return trial is not None and trial["state"] == "stopped"


def trial_table(trial: Mapping[str, Any]) -> tuple[Row, list[Row]]:
    """Return the header and the rows of a trial, figures down and arms across; a ramp's stage comes before all time."""
    a, b = trial["arms"]["a"], trial["arms"]["b"]
    share = trial["share"]
    pool = trial["pool"]
    rows: list[Row] = [
        ("policy", a["policy"], b["policy"], ""),
        ("workers", f"all but {pool}" if pool else "all", pool or "all", ""),
        (f"share of {trial['by']}s", f"{1 - share:g}", f"{share:g}", ""),
    ]
    stage = trial["stage"]
    if stage is not None:
        of_a = "" if stage["a_of_stage"] == stage["stage"] else f"of stage {stage['a_of_stage'] + 1}"
        title = f"stage {stage['stage'] + 1}, {stage['elapsed_s']:.0f} s"
        rows += [(title, of_a, f"share {stage['share']:g}", ""), *_figures(stage)]
        rows.append((f"all shares, {trial['elapsed_s']:.0f} s", "", "", ""))
    return ("", "a", "b", "difference"), rows + _figures(trial)


def _figures(compared: Mapping[str, Any]) -> list[Row]:
    a, b = compared["arms"]["a"], compared["arms"]["b"]
    counts: list[Row] = [(key, str(a[key]), str(b[key]), "") for key in ("requests", "errors", "crossed", "spills")]
    return counts + [_row(figure, a, b, compared["difference"]) for figure in _TRIAL]


def shadow_table(shadow: Mapping[str, Any]) -> tuple[Row, list[Row]]:
    """Return the header and the rows of a policy in the shadow."""
    live, own = shadow["live"], shadow["shadow"]
    spread = [_plain(arm["load_spread"], "{:.2f}".format) for arm in (live, own)]
    rows: list[Row] = [
        ("policy", live["policy"], own["policy"], ""),
        ("requests", str(shadow["requests"]), "routes none", ""),
        ("same worker", "", _interval(shadow["agreement"], _rate), ""),
        *(_row(figure, live, own, shadow["difference"]) for figure in _SHADOW),
        ("load spread", spread[0], spread[1], ""),
        ("TTFT", "see metrics", "cannot be known", ""),
    ]
    return ("", "live", "shadow", "difference"), rows


def verdict(trial: Mapping[str, Any]) -> str:
    """Say in words how the trial stands and what its figures show, and no more than they do."""
    standing = {
        "off": "Nobody is in arm b.",
        "split": f"Arm b has a share of {trial['share']:g}.",
        "ramping": _ramping(trial),
        "done": f"The ramp is done: arm b has a share of {trial['share']:g}.",
        "stopped": _stopped(trial),
    }[trial["state"]]
    return f"{standing} {_findings(trial)}".rstrip()


def _ramping(trial: Mapping[str, Any]) -> str:
    ramp = trial["ramp"] or {"stage": 0, "stages": [], "waits_for": ""}
    return (
        f"Ramping: arm b has a share of {trial['share']:g}, stage {ramp['stage'] + 1} of {len(ramp['stages'])}; "
        f"{ramp['waits_for']}."
    )


def _stopped(trial: Mapping[str, Any]) -> str:
    stopped = trial["stopped"] or {"share": 0, "reason": ""}
    return (
        f"The ramp STOPPED at a share of {stopped['share']:g}: {stopped['reason']}. "
        "All traffic is back in arm a; `trunkline ab reset` before another try."
    )


def _findings(trial: Mapping[str, Any]) -> str:
    """Say what the figures show: of a ramp those of its stage, which no other share is mixed into."""
    stage = trial["stage"]
    if stage is None:
        return _found(trial, trial["state"])
    found = _found(stage, trial["state"])
    return found and f"Stage {stage['stage'] + 1}: {found}"


def _found(compared: Mapping[str, Any], state: str) -> str:
    difference, arms = compared["difference"], compared["arms"]
    found = [
        _finding("hit rate is {}", difference["hit_rate"] or difference["expected_hit"], _HIGHER),
        _finding("TTFT p90 is {}", difference["ttft_p90_ratio"], _LONGER),
        _finding("error rate is {}", difference["error_rate"], _HIGHER),
    ]
    seen = [text for text in found if text]
    if seen:
        return "In arm b " + ", ".join(seen) + "."
    if state == "stopped":
        return ""  # The ramp's own look, with requests that still waited, found what these figures may not show.
    if not arms["a"]["requests"] + arms["b"]["requests"]:
        return "No requests yet."
    groups = min(arms["a"]["groups"], arms["b"]["groups"])
    if groups < MIN_GROUPS:
        return f"Too few tenants for intervals: {groups} groups of them in the smaller arm, {MIN_GROUPS} are needed."
    return "No difference of hit rate, TTFT p90 or error rate beyond chance so far."


class _Sides(NamedTuple):
    """The value of no difference, the words for more and for less, and how a difference is written."""

    none: float
    more: str
    less: str
    write: Callable[[float], str]


_HIGHER = _Sides(0.0, "higher", "lower", _signed)
_LONGER = _Sides(1.0, "longer", "shorter", _times)


def _finding(text: str, estimate: Any, sides: _Sides) -> str:  # noqa: ANN401 (JSON)
    """Say that a figure differs, if its interval is on one side of no difference; the far bound need not be known."""
    if estimate is None:
        return ""
    if estimate["low"] is not None and estimate["low"] > sides.none:
        side = sides.more
    elif estimate["high"] is not None and estimate["high"] < sides.none:
        side = sides.less
    else:
        return ""
    return f"the {text.format(side)}: {_interval(estimate, sides.write)}"


def _row(figure: _Figure, a: Mapping[str, Any], b: Mapping[str, Any], difference: Mapping[str, Any]) -> Row:
    write = _times if figure.difference.endswith("_ratio") else _signed
    apart = _interval(difference[figure.difference], write)
    return figure.name, _interval(a[figure.key], figure.write), _interval(b[figure.key], figure.write), apart


def _interval(estimate: Any, write: Callable[[float], str]) -> str:  # noqa: ANN401 (JSON)
    """Write a figure and its interval of 95 %; a bound that is not known is a question mark."""
    if estimate is None:
        return "-"
    low, high = (_plain(estimate[bound], write, unknown="?") for bound in ("low", "high"))
    value = write(estimate["value"])
    return value if low == high == "?" else f"{value} ({low} to {high})"


def _plain(value: float | None, write: Callable[[float], str], *, unknown: str = "-") -> str:
    return unknown if value is None else write(value)
