"""AWS's sixteen cells in simulated fleets."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from trunkline.bench import aws16
from trunkline.bench.aws16 import BARS, Figures, Result, bench_aws16
from trunkline.cli import cli
from trunkline.simulate.runs import Stopped

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")


def test_there_are_sixteen_cells_and_every_bar_is_met() -> None:
    done = CliRunner().invoke(cli, ("bench", "aws16", "--quick", "--json"))
    result = json.loads(done.stdout)
    assert done.exit_code == 0
    cells = {tuple(cell[key] for key in ("context", "model", "api", "strategy")) for cell in result["cells"]}
    assert len(result["cells"]) == len(cells) == 16
    assert len(result["bars"]) == len(BARS)
    assert {bar["status"] for bar in result["bars"]} == {"met"}


def test_random_beside_itself_meets_no_ratio() -> None:
    same = Figures(hit_rate=0.3, ttft_p50_ms=100.0, ttft_p90_ms=200.0, throughput_rps=9.0, busiest_over_mean=1.2)
    result = Result((1,), {(context, strategy): same for context in ("long", "short") for strategy in aws16.STRATEGIES})
    assert result.missed == len(BARS)
    text = result.as_text()
    assert text.count("MISS") == len(BARS)
    assert text.count("inference components") == 8


def test_a_stopped_bench_shows_nothing() -> None:
    stopped = Stopped()
    stopped.set()
    result = bench_aws16(quick=True, stopped=stopped)
    assert not result.rows()
    assert result.missed == 0
