"""The benchmarks: what they time, check and print, and the page that is rendered from their results."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from trunkline import Router, jump_hash
from trunkline.bench import core, peers
from trunkline.bench.facts import commit, facts
from trunkline.bench.report import Call, Floor, Report, Target, Versus
from trunkline.bench.timing import Group, Timing, measure, one_by_one
from trunkline.bench.workload import BRANCHES, PROMPT_TOKENS, Workload, as_text
from trunkline.cli import cli

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout, and what it runs is measured")

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--blocks", "1000", "--workers", "2", "--rounds", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("bench", "core", *arguments), prog_name="trunkline")


def script(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benches" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timing(ns: float) -> Timing:
    return Timing(ns=ns, low_ns=ns, high_ns=ns)


class Clock:
    """Each reading takes 5 ns; calls add to it."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 5
        return self.now


def test_a_timing_is_the_median_round_without_reading_the_clock_or_making_arguments() -> None:
    clock = Clock()
    # One group that is not counted, then three rounds of two groups of two calls.
    costs = iter([9, 9, *[10] * 4, *[40] * 4, *[20] * 4])

    def make() -> list[int]:
        clock.now += 1000
        return [next(costs), next(costs)]

    def spend(cost: int) -> None:
        clock.now += cost

    found = measure(one_by_one(spend, make, 2), groups=2, rounds=3, clock=clock)
    assert found == Timing(ns=20, low_ns=10, high_ns=40)


def test_a_call_that_costs_nothing_is_never_negative() -> None:
    readings = itertools.chain(itertools.count(0, 7))
    values = [next(readings) for _ in range(2002)]
    # While it is measured, reading the clock costs 7 ns; afterwards nothing.
    sequence = itertools.chain(values, itertools.repeat(values[-1]))
    found = measure(Group(make=list, run=len, calls=1), groups=3, rounds=1, clock=lambda: next(sequence))
    assert found.ns == 0


def test_the_workload_shares_halves_within_groups_only() -> None:
    load = Workload.make(blocks=2000, workers=4, seed=3)
    assert [one.prompt_tokens for one in load.classes] == list(PROMPT_TOKENS)
    for one in load.classes:
        half = one.prompt_tokens // 2
        first, sibling = one.prompt(0), one.prompt(BRANCHES - 1)
        assert (first[:half] == sibling[:half]).all()
        assert (first[half:] != sibling[half:]).any()
        known = {one.prompt(number).tobytes() for number in range(len(one))}
        rng = np.random.default_rng(0)
        full = {prompt.tobytes() for prompt in itertools.islice(one.prompts("full", rng), len(one))}
        assert full == known, "every prompt comes once before any comes again"
        assert next(one.prompts("half", rng)).tobytes() not in known
        assert all(1 <= len(set(holders)) == len(holders) <= 3 for holders in one.holders)
    stores = list(load.stores(1))
    assert len(stores) == 5 * 4 + sum(len(holders) for one in load.classes for holders in one.holders)
    again = Workload.make(blocks=2000, workers=4, seed=3)
    assert all((one.own == other.own).all() for one, other in zip(load.classes, again.classes, strict=True))


def test_text_has_four_characters_for_each_token() -> None:
    tokens = np.array([1, 2, 127_999], dtype=np.uint32)
    text = as_text(tokens)
    assert len(text) == 12
    assert text.isascii()
    assert as_text(tokens[:2]) == text[:8]


def test_a_router_that_lost_prompts_is_not_timed() -> None:
    load = Workload.make(blocks=1000, workers=2, seed=3)
    router = core.filled(load, core.Options(blocks=1000, workers=2, seed=3))
    core.check(router, load.classes[0])
    router.reset_worker("w0")
    with pytest.raises(AssertionError, match="was found on"):
        core.check(router, load.classes[0])
    empty = Router()
    empty.add_worker("w0")
    with pytest.raises(AssertionError):
        core.check(empty, load.classes[0])


def test_a_file_that_cannot_be_written_costs_no_figures(tmp_path: Path) -> None:
    done = run(*SMALL, "--json", "--output", str(tmp_path / "missing" / "result.json"))
    assert (done.exit_code, "No such file" in done.stderr) == (1, True), done.output
    assert json.loads(done.stdout)["kind"]


def test_bench_core_prints_every_class_and_every_target(tmp_path: Path) -> None:
    path = tmp_path / "core.json"
    done = run(*SMALL, "--json", "--output", str(path))
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads(path.read_text())
    seen = {
        (row["call"], row["prompt_tokens"], row["cached"])
        for row in report["calls"]
        if row["call"] != "route + complete"
    }
    wanted = {("peek", tokens, cached) for tokens in PROMPT_TOKENS for cached in ("full", "half", "miss", "cold")}
    wanted |= {("match_batch", tokens, cached) for tokens in PROMPT_TOKENS for cached in ("full", "half", "miss")}
    assert seen == wanted | {("hashing alone", tokens, "full") for tokens in PROMPT_TOKENS}
    assert {row["workers"] for row in report["calls"] if row["call"] == "route + complete"} == {2, 8, 1024}
    for row in (*report["calls"], *report["floors"]):
        assert 0 < row["timing"]["low_ns"] <= row["timing"]["ns"] <= row["timing"]["high_ns"], row
    assert (report["setup"]["workers"], report["setup"]["rounds"]) == (2, 1)
    assert report["setup"]["blocks"] >= 1000
    assert report["sizes"]["bytes per block, token ids"] > 8
    assert report["peers"] == {}
    assert len(report["targets"]) >= 13
    assert report["facts"]["command"] == "trunkline bench core --blocks 1000 --workers 2 --rounds 1"
    assert script("render").core(report)


def test_a_peer_that_is_not_installed_is_missing_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, *_: object) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(core, "run", lambda *_, **__: (report(), Workload.make(blocks=100, workers=1, seed=1)))
    done = run(*SMALL, "--peers")
    assert done.exit_code == 1
    for peer in peers.PEERS:
        assert f"MISSING: {peer} is not installed" in done.stdout
    assert "make bench-peers" in done.output
    found = json.loads(run(*SMALL, "--peers", "--json").stdout)
    assert found["peers"] == dict.fromkeys(peers.PEERS)


def test_a_peer_is_measured_on_the_prompts_of_the_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.SimpleNamespace(hash=jump_hash)

    def only_jump(name: str) -> Any:
        if name != "jump":
            raise ImportError(name)
        return stand_in

    monkeypatch.setattr(importlib, "import_module", only_jump)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = report()
    options = core.Options(blocks=1000, workers=1, rounds=1)
    peers.run(found, Workload.make(blocks=100, workers=1, seed=1), options, lambda _: None)
    assert sorted(found.missing) == sorted({*peers.PEERS} - {peers.JUMP})
    assert [row.our_call for row in found.versus] == [f"jump_hash(key, {n})" for n in peers.BUCKETS]
    assert [row.target for row in found.versus] == [None, 1 / 1.5, None]
    assert [target.figure for target in found.targets][-1] == "jump_hash(key, 64) against jump-consistent-hash"
    stand_in.hash = lambda _key, _buckets: 0
    with pytest.raises(AssertionError, match="elsewhere"):
        peers.run(found, Workload.make(blocks=100, workers=1, seed=1), options, lambda _: None)


def report(**changed: Any) -> Report:
    made = Report(
        facts=facts("trunkline bench core"),
        setup={"blocks": 1000, "pairs": 2000, "workers": 2, "block_size": 16, "rounds": 7},
        floors=[
            Floor(name="an empty call", timing=timing(100), reference_ns=80),
            Floor(name="hashing", timing=timing(900), reference_ns=90, ours=True),
        ],
        calls=[
            Call(call="peek", prompt_tokens=64, cached=cached, workers=2, timing=timing(400))
            for cached in ("full", "half")
        ],
        sizes={"bytes per block": 20.0},
    )
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def versus(peer_ns: float, our_ns: float) -> Versus:
    return Versus(
        peer="ray",
        peer_call="prefix_match",
        our_call="peek(str)",
        prompt_tokens=512,
        cached="full",
        peer_timing=timing(peer_ns),
        our_timing=timing(our_ns),
    )


@pytest.mark.parametrize(
    ("measured", "at_least", "met", "short_by"),
    [(5.0, True, True, 0), (4.0, True, False, 0.2), (5.0, False, True, 0), (7.5, False, False, 0.5)],
)
def test_a_target_says_whether_it_was_met_and_by_how_much_not(
    measured: float,
    at_least: bool,  # noqa: FBT001
    met: bool,  # noqa: FBT001
    short_by: float,
) -> None:
    target = Target(figure="f", unit="x", wanted=5, measured=measured, at_least=at_least, absolute=True)
    assert target.met == met
    assert target.short_by == pytest.approx(short_by)


def test_the_machine_is_judged_by_floors_without_our_code() -> None:
    assert report().floor_ratio == 1.25
    assert "this machine is within 1.3x of the reference: 1.25x" in report().as_text()
    slow = report(floors=[Floor(name="an empty call", timing=timing(160), reference_ns=80)])
    missed = Target(figure="peek", unit="M/s", wanted=2, measured=1, at_least=True, absolute=True)
    slow.targets = [missed]
    assert "NOT within" in slow.as_text()
    assert "MISSED by 50% (floor 2.00x)" in slow.as_text()


def test_losses_are_printed() -> None:
    found = report(peers={"ray": "1.0", "pygtrie": None}, versus=[versus(100, 200)])
    text = found.as_text()
    assert "0.5x" in text
    assert "MISSING: pygtrie" in text
    page = "\n".join(script("render").core(found.as_dict()))
    assert "**0.50x**" in page
    assert "pygtrie: MISSING" in page
    assert versus(400, 200).ratio == 2


def test_facts_name_no_host_and_no_folder(tmp_path: Path) -> None:
    about = json.dumps(facts("trunkline bench core", ("numpy", "no-such-package")))
    assert str(Path.home()) not in about
    assert str(ROOT) not in about
    assert "numpy" in about
    assert "no-such-package" not in about
    assert commit(tmp_path) is None


def test_the_page_is_what_the_results_say() -> None:
    render = script("render")
    assert render.page(render.RESULTS) == render.PAGE.read_text(), "run: python benches/render.py"
    for path in render.RESULTS.glob("*.json"):
        about = json.loads(path.read_text())["facts"]
        assert set(about) == {"date", "commit", "command", "machine", "versions"}


def test_rust_targets_are_judged_and_none_is_dropped() -> None:
    rows = [
        {"group": "route/hit", "function": "8_workers", "value": "4096", "ns": 4500.0},
        {"group": "find/hit", "function": "64_workers", "value": "32768", "ns": 150.0},
        {"group": "hash", "function": None, "value": "32768", "ns": 100.0},
    ]
    judged = {figure: (measured, verdict) for figure, _, measured, verdict in script("render").rust_targets(rows)}
    assert judged["route + complete, 4,096 tokens, 8 workers"] == ("4.5 us", "**missed by 50%**")
    assert judged["find against hashing alone, 32,768 tokens"] == ("1.5 x", "met")
    assert judged["route + complete, 4,096 tokens, 64 workers"] == ("-", "not run")
    assert len(judged) == 8


def test_gateways_are_compared_with_the_direct_row_of_their_round_and_losses_are_printed() -> None:
    def row(gateway: str, cell: str, cpu_us: float | None, p50_us: float) -> dict[str, object]:
        latencies = {"p10_us": p50_us, "p50_us": p50_us, "first_p50_us": p50_us}
        rates = {"per_second": 1000.0, "affinity": 0.5, "busiest_over_mean": 1.1, "failures": 0}
        start = {} if cpu_us is None else {"cpu_us": cpu_us, "start_s": 0.25, "start_rss_mb": 30.0}
        return {"round": 0, "gateway": gateway, "cell": cell} | latencies | rates | start

    rows = [
        row(gateway, cell, cpu_us, p50_us)
        for cell in ("8 KB, 1 connection", "8 KB, 64 connections")
        for gateway, cpu_us, p50_us in (
            ("direct", None, 100.0),
            ("nginx", 20.0, 200.0),
            ("hyper pass-through", 20.0, 200.0),
            ("trunkline kv_aware", 28.0, 270.0),
        )
    ]
    about = facts("make bench-gateway")
    found = {
        "facts": about,
        "setup": {"workers": 4, "rounds": 1, "seconds": 1},
        "missing": {"smg": "smg is not installed"},
        "rows": rows,
    }
    page = "\n".join(script("render").gateway(found))
    assert "- smg: MISSING in this run (smg is not installed)" in page
    assert "against nginx | <= 1.5 x | 1.4 x | met |" in page
    assert "pass-through | <= 1.2 x | 1.4 x | **missed by 17%** |" in page
    assert "p50, 1 connection, against nginx | <= 1.5 x | 1.7 x | **missed by 13%** |" in page
    assert "256 at once, against nginx | <= 1.25 x | - | not run |" in page


def test_criterion_results_are_collected(tmp_path: Path) -> None:
    for value, ns in (("4096", 20.0), ("64", 10.0)):
        folder = tmp_path / "find_hit" / value / "new"
        folder.mkdir(parents=True)
        names = {"group_id": "find/hit", "function_id": "64_workers", "value_str": value}
        (folder / "benchmark.json").write_text(json.dumps(names))
        interval = {"lower_bound": ns - 1, "upper_bound": ns + 1}
        (folder / "estimates.json").write_text(
            json.dumps({"median": {"point_estimate": ns, "confidence_interval": interval}})
        )
    rows = script("collect").criterion(tmp_path)
    assert [(row["value"], row["ns"], row["low_ns"]) for row in rows] == [("64", 10.0, 9.0), ("4096", 20.0, 19.0)]
    collected: Callable[[list[str]], int] = script("collect").main
    assert collected(["nothing"]) == 2
