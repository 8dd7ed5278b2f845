"""The pass lines of the policy study, at the size that needs no trace and no other rule's whole table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trunkline.bench import policy, policy_lines
from trunkline.bench.policy import Result, Verdict, bench_policy
from trunkline.cli import cli
from trunkline.simulate.runs import Stopped

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")


def test_every_line_that_needs_no_trace_is_kept() -> None:
    done = CliRunner().invoke(cli, ("bench", "policy", "--quick", "--json"))
    lines = {line["text"]: line for line in json.loads(done.stdout)["lines"]}
    assert not [line for line in lines.values() if line["status"] == "MISS"]
    assert done.exit_code == 0
    run = [text for text, line in lines.items() if line["status"] != "not run"]
    assert len(run) == 42
    not_run = [line["why"] for line in lines.values() if line["status"] == "not run"]
    assert all("mooncake" in why for why in not_run), not_run


def test_a_rule_that_forgets_prefixes_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines can fail: round robin is no prefix-aware policy."""
    monkeypatch.setattr(policy_lines, "OURS", "round_robin")
    lines = [
        policy_lines.Line("hit", policy_lines.Run("aws5@.95", "round_robin"), "hit", 0.75, at_least=True),
        policy_lines.Line(
            "mean",
            policy_lines.Run("long@40", "round_robin"),
            "mean",
            1.10,
            against=(policy_lines.Run("long@40", "cache_aware"),),
        ),
    ]
    bench = policy.Bench(traces_in=None)
    bench.run([run for line in lines for run in (line.run, *line.against)], label="")
    assert [bench.judge(line).status for line in lines] == ["MISS", "MISS"]


def test_a_stopped_bench_judges_nothing() -> None:
    stopped = Stopped()
    stopped.set()
    result = bench_policy(traces_in=None, quick=False, stopped=stopped)
    statuses = {verdict.status for verdict in result.verdicts}
    assert statuses == {"not run"}
    assert result.missed == 0


def test_a_line_says_whether_it_is_kept() -> None:
    assert Verdict("a", 1.0, 1.0).status == "pass"
    assert Verdict("a", 1.1, 1.0).status == "MISS"
    assert Verdict("a", 1.1, 1.0, at_least=True).status == "pass"
    assert Verdict("a", None, 1.0).status == "not run"
    text = Result((1,), [Verdict("long line", 1.1, 1.0), Verdict("b", None, 1.0, why="no trace")]).as_text()
    assert "long line" in text
    assert "MISS" in text
    assert "not run (no trace)" in text
    assert "0 kept, 1 missed, 1 not run" in text


def test_traces_are_looked_for_by_name(tmp_path: Path) -> None:
    bench = policy.Bench(traces_in=tmp_path)
    assert "mooncake_conversation" in bench.can_run("conv@.95")
    assert bench.can_run("aws5@.95") == ""
    (tmp_path / "mooncake_conversation.jsonl").write_text("")
    assert policy.Bench(traces_in=tmp_path).can_run("conv@.95") == ""
