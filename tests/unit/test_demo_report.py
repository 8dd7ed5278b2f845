"""How the demo counts and judges."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from trunkline.demo.replay import Outcome
from trunkline.demo.report import Figures, as_json, as_table, bars, mistuned, percentile


def outcome(worker: str, ttft_ms: float, cached_tokens: int, *, sent_s: float = 0.0) -> Outcome:
    return Outcome(
        due_s=sent_s,
        sent_s=sent_s,
        worker=worker,
        first_text_s=sent_s + ttft_ms / 1e3,
        finished_s=sent_s + 1.0,
        prompt_tokens=1000,
        cached_tokens=cached_tokens,
    )


RANDOM = Figures(
    policy="random",
    requests=100,
    ttft_p50_ms=200.0,
    ttft_p90_ms=400.0,
    hit_rate=0.39,
    requests_per_worker=(30, 25, 25, 20),
    busiest_over_mean=1.2,
    throughput_rps=30.0,
    client_late_p99_ms=2.0,
)
AWARE = replace(RANDOM, policy="kv_aware", ttft_p50_ms=50.0, hit_rate=0.78, busiest_over_mean=1.1)


def test_percentiles_are_observed_values() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1, 1, 2, 3, 4]


def test_figures_count_tokens_and_workers_that_got_nothing() -> None:
    outcomes = [outcome("a", 100, 0), outcome("b", 20, 900), outcome("a", 30, 900, sent_s=1.0)]
    figures = Figures.of("random", outcomes, workers=4)
    assert figures.hit_rate == pytest.approx(0.6)
    assert figures.ttft_p50_ms == pytest.approx(30)
    assert figures.ttft_p90_ms == pytest.approx(100)
    assert figures.requests_per_worker == (2, 1, 0, 0)
    assert figures.busiest_over_mean == pytest.approx(2 / 0.75)
    assert figures.throughput_rps == pytest.approx(1.5)


def test_every_bar_can_be_passed_and_missed() -> None:
    assert all(bar.passed for bar in bars(RANDOM, AWARE))
    bad = replace(AWARE, hit_rate=0.74, ttft_p50_ms=71.0, busiest_over_mean=1.31)
    assert not any(bar.passed for bar in bars(RANDOM, bad))
    assert str(bars(RANDOM, bad)[0]) == "MISS  hit rate 0.74 (bar >= 0.75)"


@pytest.mark.parametrize(("hit_rate", "fits"), [(0.19, False), (0.20, True), (0.50, True), (0.51, False)])
def test_a_workload_on_which_random_hits_too_much_or_too_little_is_refused(hit_rate: float, fits: bool) -> None:  # noqa: FBT001
    assert (mistuned(replace(RANDOM, hit_rate=hit_rate)) is None) == fits


def test_the_table_and_the_json_hold_the_same_figures() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(as_table(RANDOM, AWARE))
    for text in ("TTFT p50", "200", "50", "0.25", "0.78", "30 25 25 20"):
        assert text in out.getvalue()
    data = as_json(RANDOM, AWARE)
    assert data["policies"]["kv_aware"]["hit_rate"] == 0.78
    assert [bar["passed"] for bar in data["bars"]] == [True, True, True]
