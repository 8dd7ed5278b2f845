"""A worker's constants off its vLLM metrics page.

Counters of a page are sums since the worker's start; with an earlier page only the difference counts. What a page does
not tell keeps the value of the profile that one begins with, times scaled like the decode step.
"""

from __future__ import annotations

import http.client
import math
import re
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from .spec import Profile

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIMEOUT_S = 10.0
# The decode step at batch 1 is near the fast end of the times between tokens.
_FAST = 0.1
# Fewer samples than this tell nothing.
_ENOUGH = 50
# Share of the prefill time that is arithmetic at least.
_LEAST_COMPUTED = 0.1
_ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


class FitError(ValueError):
    """The page tells nothing that a profile could be made from."""


Samples = dict[str, list[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A profile, and what each fitted constant comes from."""

    profile: Profile
    sources: dict[str, str]

    def profile_dict(self) -> dict[str, Any]:
        """Return the profile alone, as `--profile` reads it."""
        found: dict[str, Any] = msgspec.to_builtins(self.profile)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return both for JSON."""
        return {"profile": self.profile_dict(), "sources": self.sources}

    def explained(self) -> list[str]:
        """Return one line for each constant that was fitted."""
        return [f"{key}: {source}" for key, source in self.sources.items()]


def read_page(place: str) -> str:
    """Return the text of a page: - for standard input, an http(s) URL, or a file."""
    if place == "-":
        return sys.stdin.read()
    if place.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(place, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (the user's own URL)
                text: str = answer.read().decode(errors="replace")
                return text
        except (http.client.HTTPException, ValueError) as odd:  # ValueError: it is no URL
            raise OSError(f"no page from {place}: {odd}") from odd
    return Path(place).read_text(encoding="utf-8", errors="replace")


def parse(page: str) -> Samples:
    """Return the samples of a page in Prometheus' text format by name; lines that are none are passed over."""
    samples: Samples = {}
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if not found:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        samples.setdefault(found["name"], []).append((dict(_LABEL.findall(found["labels"] or "")), value))
    return samples


def fit(page: str, *, since: str | None, base: Profile) -> Fitted:
    """Fit a profile to a page. Raises FitError if it is no page of vLLM."""
    now, before = parse(page), parse(since or "")
    if not any(name.startswith("vllm:") for name in now):
        raise FitError("no metric of this page begins with vllm:")
    sources: dict[str, str] = {}
    step = _prefill(now, before, base, sources) | _decode(now, before, base, sources)
    changes = _cache(now, sources)
    if not sources:
        raise FitError("the page tells neither the cache's size nor enough about prefill or decode times")
    profile = msgspec.structs.replace(base, step=msgspec.structs.replace(base.step, **step), **changes)
    return Fitted(profile, sources)


def _cache(now: Samples, sources: dict[str, str]) -> dict[str, int]:
    """Return the cache's size, if the page tells it."""
    for labels, _ in now.get("vllm:cache_config_info", []):
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdigit() and size.isdigit() and int(blocks) * int(size) > 0:
            sources["kv_tokens"] = f"cache_config_info: {blocks} blocks of {size} tokens"
            return {"kv_tokens": int(blocks) * int(size)}
    return {}


def _prefill(now: Samples, before: Samples, base: Profile, sources: dict[str, str]) -> dict[str, float]:
    """Return the prefill rate, if there were enough prefills.

    A prefill also takes the part of its last step that is no arithmetic; that of the base profile is taken off.
    """
    prompt = _count(now, before, "vllm:prompt_tokens")
    hits = _count(now, before, "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits") or 0.0
    prefills = _count(now, before, "vllm:request_prefill_time_seconds_count") or 0.0
    total_s = _count(now, before, "vllm:request_prefill_time_seconds_sum")
    if not prompt or not total_s or prefills < _ENOUGH or prompt <= hits:
        return {}
    overhead_s = (base.step.step_s - base.step.weight_read_s) * prefills
    computed_s = max(total_s - overhead_s, _LEAST_COMPUTED * total_s)
    sources["prefill_tokens_per_s"] = f"{prompt - hits:.0f} uncached prompt tokens in {computed_s:.1f} s of prefill"
    return {"prefill_tokens_per_s": (prompt - hits) / computed_s}


def _decode(now: Samples, before: Samples, base: Profile, sources: dict[str, str]) -> dict[str, float]:
    """Return the decode step and what scales with it, if there were enough tokens."""
    for name in _ITL:
        fast = _quantile(now, before, f"{name}_bucket", _FAST)
        if fast is not None:
            sources["step_s"] = f"the fastest tenth of {name}"
            ratio = fast / base.step.step_s
            scaled = ("weight_read_s", "per_sequence_s", "per_kv_token_s", "per_attention_pair_s")
            return {"step_s": fast} | {key: getattr(base.step, key) * ratio for key in scaled}
    return {}


def _count(now: Samples, before: Samples, *names: str) -> float | None:
    """Return how far a counter has come; the first of these names that the page has, with or without _total."""
    for name in names:
        for spelling in (name, f"{name}_total"):
            if spelling in now:
                earlier = sum(value for _, value in before.get(spelling, []))
                return sum(value for _, value in now[spelling]) - earlier
    return None


def _quantile(now: Samples, before: Samples, name: str, share: float) -> float | None:
    """Return a quantile of a histogram, linear within a bucket; None if there are too few samples."""
    sums: dict[float, float] = {}
    for page, sign in ((now, 1.0), (before, -1.0)):
        for labels, value in page.get(name, []):
            bound = float(labels.get("le", "inf").replace("+Inf", "inf"))
            sums[bound] = sums.get(bound, 0.0) + sign * value
    buckets = sorted(sums.items())
    if not buckets or buckets[-1][1] < _ENOUGH:
        return None
    wanted = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, total in buckets:
        if total >= wanted:
            if math.isinf(bound):
                return low or None
            return low + (bound - low) * (wanted - below) / max(total - below, 1e-9)
        low, below = bound, total
    return None
