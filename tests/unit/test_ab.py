"""What `trunkline ab` prints: tables, and sentences that say no more than the figures do."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.ab.report import has_stopped, is_over, shadow_table, trial_table, verdict


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def arm(**figures: Any) -> dict[str, Any]:
    counts = {"requests": 500, "errors": 1, "crossed": 0, "spills": 7, "groups": 64}
    rates = dict.fromkeys(("hit_rate", "expected_hit", "spill_rate", "error_rate", "ttft_p50_s", "ttft_p90_s"))
    return {"policy": "random", **counts, **rates} | figures


def trial(difference: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    keys = ("hit_rate", "expected_hit", "spill_rate", "error_rate", "ttft_p50_ratio", "ttft_p90_ratio")
    found = {"state": "split", "share": 0.25, "by": "tenant", "pool": None, "ramp": None, "stopped": None}
    found |= {"elapsed_s": 900.0, "stage": None}
    found["arms"] = {"a": arm(), "b": arm(policy="kv_aware", hit_rate=estimate(0.8, 0.75, 0.85))}
    found["difference"] = dict.fromkeys(keys) | (difference or {})
    return found | fields


def test_figures_stand_beside_each_other_with_their_intervals() -> None:
    header, rows = trial_table(
        trial({"hit_rate": estimate(0.4, 0.3, 0.5), "ttft_p90_ratio": estimate(0.5, 0.45, None)})
    )
    table = {row[0]: row[1:] for row in rows}
    assert header == ("", "a", "b", "difference")
    assert table["policy"] == ("random", "kv_aware", "")
    assert table["workers"] == ("all", "all", "")
    assert table["share of tenants"] == ("0.75", "0.25", "")
    assert table["hit rate"] == ("-", "0.8000 (0.7500 to 0.8500)", "+0.4000 (+0.3000 to +0.5000)")
    assert table["TTFT p90 ms"] == ("-", "-", "x0.500 (x0.450 to ?)")


def stage(number: int, share: float, *, of_a: int, **fields: Any) -> dict[str, Any]:
    figures = {key: trial()[key] for key in ("arms", "difference")}
    return {"stage": number, "share": share, "a_of_stage": of_a, "elapsed_s": 130.4} | figures | fields


def test_a_ramp_shows_its_stage_apart_from_all() -> None:
    arms = {"a": arm(requests=90), "b": arm(requests=10)}
    _, rows = trial_table(trial(state="ramping", stage=stage(1, 0.1, of_a=1, arms=arms)))
    names = [row[0] for row in rows]
    of_stage, of_all = names.index("stage 2, 130 s"), names.index("all shares, 900 s")
    assert rows[of_stage : of_stage + 2] == [("stage 2, 130 s", "", "share 0.1", ""), ("requests", "90", "10", "")]
    assert rows[of_all : of_all + 2] == [("all shares, 900 s", "", "", ""), ("requests", "500", "500", "")]
    assert names[of_stage + 1 : of_all] == names[of_all + 1 :]


def test_the_last_stage_says_whose_figures_stand_for_those_that_nobody_is_left_to_make() -> None:
    _, rows = trial_table(trial(state="done", share=1, stage=stage(4, 1, of_a=3)))
    assert ("stage 5, 130 s", "of stage 4", "share 1", "") in rows


def test_what_is_said_of_a_ramp_is_said_of_its_stage() -> None:
    slower = trial({"ttft_p90_ratio": estimate(1.5, 1.2, 1.8)})
    ramp = {"stage": 1, "stages": [0.1, 0.5, 1], "waits_for": "27 s of this stage are left"}
    alike = stage(1, 0.5, of_a=1)
    assert verdict(slower | {"state": "ramping", "ramp": ramp, "stage": alike}).endswith(
        "left. Stage 2: No difference of hit rate, TTFT p90 or error rate beyond chance so far."
    )
    assert "Stage 2: In arm b the TTFT p90 is longer: x1.5" in verdict(
        trial(state="done", stage=alike | {"difference": slower["difference"]})
    )


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({"hit_rate": estimate(0.4, 0.3, 0.5)}, "the hit rate is higher: +0.4000"),
        ({"expected_hit": estimate(-0.1, -0.2, -0.05)}, "the hit rate is lower: -0.1000"),
        ({"ttft_p90_ratio": estimate(1.5, 1.2, 1.8)}, "the TTFT p90 is longer: x1.500"),
        ({"error_rate": estimate(0.02, 0.01, 0.03)}, "the error rate is higher: +0.0200"),
        ({"hit_rate": estimate(0.4, -0.1, 0.9)}, "No difference"),
        ({"ttft_p90_ratio": estimate(2.9, 2.3, None)}, "the TTFT p90 is longer: x2.900"),
        ({"ttft_p90_ratio": estimate(0.5, None, 0.7)}, "the TTFT p90 is shorter: x0.500"),
        ({"ttft_p90_ratio": estimate(1.5, None, None)}, "No difference"),
        ({"ttft_p90_ratio": estimate(1.5, None, 2.0)}, "No difference"),
        ({}, "No difference"),
    ],
)
def test_a_difference_is_one_only_beyond_its_interval(difference: dict[str, Any], said: str) -> None:
    assert said in verdict(trial(difference))


def test_few_tenants_are_said_to_be_few() -> None:
    few = trial(arms={"a": arm(), "b": arm(groups=3)})
    assert "3 groups" in verdict(few)


def test_a_ramp_that_stopped_is_not_said_to_show_no_difference() -> None:
    said = verdict(trial(state="stopped", stopped={"share": 0.05, "reason": "TTFT p90 is 674 ms in b and 198 ms in a"}))
    assert said.endswith("before another try.")


def test_a_trial_without_requests_has_no_findings() -> None:
    nobody = arm(requests=0, groups=0)
    assert verdict(trial(arms={"a": nobody, "b": nobody})) == "Arm b has a share of 0.25. No requests yet."


def test_how_it_stands_is_said_first() -> None:
    ramp = {"stage": 1, "stages": [0.1, 0.5, 1], "waits_for": "arm b has had 7 of 200 requests"}
    stopped = {"share": 0.05, "reason": "error rate is 0.5 in b and 0.0 in a"}
    assert verdict(trial(state="off")).startswith("Nobody is in arm b.")
    assert verdict(trial()).startswith("Arm b has a share of 0.25.")
    assert "stage 2 of 3; arm b has had 7 of 200 requests." in verdict(trial(state="ramping", ramp=ramp))
    assert verdict(trial(state="done", share=1)).startswith("The ramp is done: arm b has a share of 1.")
    assert "STOPPED at a share of 0.05: error rate is 0.5 in b" in verdict(trial(state="stopped", stopped=stopped))


def test_who_waits_for_a_ramp_knows_when_it_is_over() -> None:
    def report(state: str) -> dict[str, Any]:
        return {"trial": trial(state=state), "shadow": None}

    assert [is_over(report(state)) for state in ("ramping", "done", "stopped", "split")] == [False, True, True, True]
    assert [has_stopped(report(state)) for state in ("done", "stopped")] == [False, True]
    assert is_over({"trial": None, "shadow": None})
    assert not has_stopped({"trial": None, "shadow": None})


def test_a_shadow_is_said_to_know_no_ttft() -> None:
    side = {"policy": "kv_aware", "expected_hit": estimate(0.5, 0.4, 0.6), "spill_rate": None, "load_spread": 1.25}
    shadow = {
        "requests": 9,
        "agreement": estimate(0.9, 0.8, 0.95),
        "live": side,
        "shadow": side | {"policy": "random", "load_spread": None},
        "difference": {"expected_hit": estimate(0.0, -0.1, 0.1), "spill_rate": None},
    }
    _, rows = shadow_table(shadow)
    table = {row[0]: row[1:] for row in rows}
    assert table["TTFT"][1] == "cannot be known"
    assert table["load spread"] == ("1.25", "-", "")
    assert table["same worker"][1] == "0.9000 (0.8000 to 0.9500)"
