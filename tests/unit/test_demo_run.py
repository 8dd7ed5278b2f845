"""Exit codes and output of the demo, on figures made up for the test; `tests/integration/test_demo.py` runs it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from trunkline.demo import run
from trunkline.demo.fleet import FleetError
from trunkline.demo.report import Figures
from trunkline.demo.run import DemoError, DemoOptions, fleet_capacity_rps, run_demo
from trunkline.demo.workload import WorkloadSpec

pytestmark = pytest.mark.thread_unsafe(reason="it patches modules and reads what was printed")

if TYPE_CHECKING:
    from collections.abc import Callable

FIGURES = {
    "random": Figures(
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
}
FIGURES["kv_aware"] = replace(FIGURES["random"], policy="kv_aware", ttft_p50_ms=50.0, hit_rate=0.78)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Figures]], None]:
    """Replace the fleets and what is measured on them."""

    def fleet(policy: str, **_: object) -> AbstractContextManager[str]:
        return nullcontext(policy)

    def use(figures: dict[str, Figures]) -> None:
        monkeypatch.setattr(run, "Fleet", fleet)
        monkeypatch.setattr(run, "_measure", lambda policy, *_: figures[policy])

    return use


@pytest.mark.parametrize("check", [True, False])
def test_a_good_run_is_a_success(script: Callable[[dict[str, Figures]], None], check: bool) -> None:  # noqa: FBT001
    script(FIGURES)
    assert run_demo(DemoOptions(requests=5, check=check)) == 0


def test_a_missed_bar_fails_only_a_check(script: Callable[[dict[str, Figures]], None]) -> None:
    script(FIGURES | {"kv_aware": replace(FIGURES["kv_aware"], hit_rate=0.6)})
    assert run_demo(DemoOptions(requests=5)) == 0
    assert run_demo(DemoOptions(requests=5, check=True)) == 1


def test_a_mistuned_run_fails(script: Callable[[dict[str, Figures]], None], capsys: pytest.CaptureFixture[str]) -> None:
    script(FIGURES | {"random": replace(FIGURES["random"], hit_rate=0.6)})
    assert run_demo(DemoOptions(requests=5)) == 1
    assert "mis-tuned: random routing hit 0.60" in " ".join(capsys.readouterr().out.split())


def test_json_is_all_that_goes_to_stdout(
    script: Callable[[dict[str, Figures]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    script(FIGURES)
    assert run_demo(DemoOptions(requests=5, json=True, seed=3)) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["seed"], figures["policies"]["random"]["ttft_p50_ms"]) == (3, 200.0)


@pytest.mark.parametrize(
    ("fault", "code"), [(DemoError("3 requests failed"), 1), (FleetError("no port"), 1), (KeyboardInterrupt(), 130)]
)
def test_faults_and_ctrl_c_are_exit_codes(monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(run, "Fleet", refuse)
    assert run_demo(DemoOptions(requests=5)) == code


def test_capacity_follows_the_cost_model() -> None:
    cold = WorkloadSpec(seed=1, requests=5, rate_rps=1.0, uses_per_prompt=(1, 1), system_tokens=2200)
    assert fleet_capacity_rps(cold, time_scale=1.0) == pytest.approx(4 / 0.109)
    assert fleet_capacity_rps(cold, time_scale=2.0) == pytest.approx(2 / 0.109)
    warm = WorkloadSpec(seed=1, requests=5, rate_rps=1.0, uses_per_prompt=(10**6, 10**6))
    assert fleet_capacity_rps(warm, time_scale=1.0) == pytest.approx(4 / 0.014, rel=1e-3)
