"""The simulator's Python side: runs, figures, plots, fitted profiles, the command line."""

from __future__ import annotations

import gzip
import html.parser
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trunkline
from trunkline.cli import cli
from trunkline.simulate import fit, plot, report, traces
from trunkline.simulate.request import Cell, Comparison, RunRequest, profile_of, run_request
from trunkline.simulate.runs import Estimate, Job, Stopped, run_all
from trunkline.simulate.sources import GENERATORS, SourceError, Traffic
from trunkline.simulate.spec import Found, Options, Spec, profiles, run, scenarios

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")

CHAT: dict[str, Any] = {"chatbot": {"sessions": 60, "tenants": 6, "sessions_per_s": 20.0}}


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("simulate", *arguments), prog_name="trunkline")


def chat(policy: str, **more: Any) -> Found:
    return run(Spec(source=CHAT, policy=policy, options=Options(workers=3), **more))


def mooncake(rows: int) -> str:
    """Make a small trace: every third prompt has the same first block."""
    lines = [
        {"timestamp": 100 * at, "input_length": 700, "output_length": 5, "hash_ids": [at % 3, 100 + at]}
        for at in range(rows)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_prefix_aware_routing_hits_more_than_random() -> None:
    random, ours = chat("random").report, chat("kv_aware").report
    assert ours.hit_rate > random.hit_rate + 0.1
    assert ours.hit_rate <= ours.ideal_hit_rate
    assert ours.ttft_s.p50 <= ours.ttft_s.p90 <= ours.ttft_s.p99
    assert sum(worker.requests for worker in ours.workers) == ours.requests == random.requests
    assert sum(part.requests for part in ours.timeline) == ours.requests
    assert ours.unanswered == ours.refused == 0


def test_equal_specs_give_equal_figures() -> None:
    assert chat("random", seed=1) == chat("random", seed=1)
    assert chat("random", seed=1) != chat("random", seed=2)


def test_more_load_means_longer_waits() -> None:
    light, heavy = (chat("random", load=load).report.ttft_s.mean for load in (0.1, 10.0))
    assert heavy > 2 * light


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "sticky"}, "policy = sticky"),
        ({"load": 0.0}, "load = 0"),
        ({"source": {"chatbot": {"sessionz": 1}}}, "sessionz"),
        ({"source": {"scenario": {"name": "nothing"}}}, "scenario = nothing"),
        ({"source": {"mooncake": {}}}, "trace"),
        ({"options": Options(workers=0)}, "workers = 0"),
        ({"routers": 0}, "routers = 0"),
    ],
)
def test_what_cannot_be_simulated_is_named(change: dict[str, Any], words: str) -> None:
    fields = {"source": CHAT, "policy": "random"} | change
    with pytest.raises(trunkline.TrunklineError, match=words):
        run(Spec(**fields))


def test_prefix_aware_takes_its_parameters() -> None:
    strict = chat("prefix_aware", prefix_length=8192, concurrency_threshold=1).report
    loose = chat("prefix_aware", prefix_length=8192, concurrency_threshold=1024).report
    assert strict.hit_rate < loose.hit_rate
    with pytest.raises(trunkline.ConfigError, match="prefix_length = 5"):
        chat("prefix_aware", prefix_length=5)


def test_a_watch_ends_a_run_and_what_it_raises_is_raised() -> None:
    spec = Spec(source={"chatbot": {"sessions": 200_000, "sessions_per_s": 15.0}}, policy="random")
    seen: list[tuple[int, int]] = []

    def enough(answered: int, requests: int) -> bool:
        seen.append((answered, requests))
        return False

    stopped = run(spec, watch=enough).report
    assert len(seen) == 1
    assert 0 < stopped.requests < seen[0][1]
    assert stopped.requests + stopped.unanswered == seen[0][1]

    def broken(_answered: int, _requests: int) -> bool:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        run(spec, watch=broken)


def test_many_runs_come_back_in_order_and_none_begins_after_a_stop() -> None:
    jobs = [Job(Spec(source=CHAT, policy=policy)) for policy in ("random", "kv_aware", "random")]
    found = run_all(jobs, label="")
    assert found[0] == found[2] != found[1]
    stopped = Stopped()
    stopped.set()
    assert run_all(jobs, label="", stopped=stopped) == [None, None, None]


def test_an_estimate_is_the_mean_with_students_interval() -> None:
    assert Estimate.of([3.0]) == Estimate(3.0, None)
    estimate = Estimate.of([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.half_width == pytest.approx(4.303 / math.sqrt(3))


def test_every_generator_and_profile_can_be_run() -> None:
    for name in GENERATORS:
        source = Traffic(name, requests=40).source(1, None)
        for profile in profiles().values():
            assert run(Spec(source=source, policy="kv_aware", profile=profile)).report.requests > 0, name


def test_scenarios_name_the_trace_that_they_need(tmp_path: Path) -> None:
    assert scenarios()["conv@.95"] == "mooncake_conversation"
    assert scenarios()["long@40"] is None
    with pytest.raises(SourceError, match="mooncake_conversation"):
        Traffic("conv@.95").text()
    (tmp_path / "mooncake_conversation_w1.jsonl").write_text(mooncake(10))
    assert Traffic("conv@.5", traces_in=tmp_path).text() == mooncake(10)


def test_files_are_recognised_and_broken_lines_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(gzip.compress((mooncake(30) + "broken\n").encode()))
    done = json.loads(simulate(str(trace), "--seeds", "1", "--policy", "random", "--json").stdout)
    assert done["rows"][0]["requests"] == 30
    assert done["skipped_lines"]["count"] == 1
    assert done["skipped_lines"]["named"][0][0] == 31
    log = tmp_path / "requests.log"
    body = {"messages": [{"role": "user", "content": "Hello " * 100}], "max_tokens": 3}
    log.write_text("\n".join(json.dumps({"timestamp": at, "body": body}) for at in range(5)))
    done = json.loads(simulate(str(log), "--seeds", "1", "--policy", "kv_aware", "--json").stdout)
    assert done["rows"][0]["requests"] == 5
    assert done["rows"][0]["hit_rate"]["mean"] > 0.7


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--rate", "--load", "--gossip-ms"])
def test_what_is_no_number_is_refused(option: str, number: str) -> None:
    done = simulate("chat", option, number)
    assert done.exit_code == 2, done.output
    assert f"{number} is not finite" in done.output


@pytest.mark.parametrize("content", [b"", b"\x00\x01\xff" * 50, b"x" * 100_000, b"{}\n{}\n"])
def test_a_file_without_a_request_ends_with_2(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nothing.jsonl"
    path.write_bytes(content)
    done = simulate(str(path), "--seeds", "1")
    assert done.exit_code == 2, done.output
    assert "Error" in done.output


def test_a_cut_gzip_file_gives_its_whole_lines(tmp_path: Path) -> None:
    whole = gzip.compress(mooncake(3000).encode())
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    text = traces.read(path)
    assert text
    assert mooncake(3000).startswith(text)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(traces.TraceError):
        traces.read(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "none of aws-long"),
        (("chat", "--policy", "sticky", "--seeds", "1"), "policy = sticky"),
        (("chat", "--profile", "tpu"), "no profile 'tpu'"),
        (("chat", "--speeds", "fast"), "fast"),
        (("chat", "--plot", __file__), "not overwritten"),
        (("chat", "--lose", "5"), "not 2"),
        (("chat", "--set", "tenants"), "KEY=VALUE"),
        (("chat", "--set", "tenantz=5", "--seeds", "1"), "tenantz"),
        (("scale", "--sizes", "4,7"), "not 3"),
        (("scale", "--sizes", "0,1,1"), "at least one worker"),
        (("scale", "--profile", "tpu"), "no profile 'tpu'"),
        (("fit", "/no/such/page"), "No such file"),
        (("fit", "http://["), "no page from http://["),
        (("fit", "-", "--profile", "tpu"), "no profile 'tpu'"),
        (("chat", "--rate", "1e-308", "--seeds", "1"), "sessions_per_s"),
        (("chat", "--load", "1e-307", "--seeds", "1"), "load = 0.000"),
        (("chat", "--step-ms", "1e308", "--seeds", "1", "--requests", "5"), "too large to be told"),
        (("chat", "--kv-tokens", "128", "--seeds", "1", "--requests", "5"), "must fit a worker's cache"),
        (("chat", "--requests", "99999999999", "--seeds", "1"), "sessions = 33333333333"),
        (("chat", "--set", "turns=0", "--seeds", "1"), "turns = 0"),
        (("chat", "--set", "turns=x", "--seeds", "1"), "turns = x"),
        (("chat", "--set", "tenants=" + "[" * 100_000, "--seeds", "1"), "expected usize"),
        (("chat", "--set", "system_tokens=4294967295", "--seeds", "1"), "system_tokens = 4294967295"),
        (("chat", "--set", "think_s=-1", "--seeds", "1"), "think_s = -1"),
        (("agents", "--set", "rate_rps=-1", "--seeds", "1"), "rate_rps = -1"),
        (("agents", "--set", "duration_s=1e6", "--seeds", "1"), "rate_rps times duration_s"),
        (("agents", "--set", "tools=[]", "--seeds", "1"), "tools = 0"),
        (("bursts", "--set", "siblings=0", "--seeds", "1"), "siblings = 0"),
        (("aws-long", "--set", "prefixes=0", "--seeds", "1"), "prefixes = 0"),
        (("aws-long", "--set", "question=[300,0.6,1]", "--seeds", "1"), "question = 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = simulate(*arguments)
    assert done.exit_code in (1, 2), done.output
    assert words in done.output


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[" * 100_000, "neither JSON"),
        ('{"block_size": 1, "requests": [{"in": 1, "out": 1, "ids": [[0, 18446744073709551615]]}]}', "100 M tokens"),
        ('{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": []}', "empty prompt"),
    ],
)
def test_a_line_that_asks_for_too_much_is_left_out(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(line)
    done = simulate(str(file), "--seeds", "1")
    assert (done.exit_code, problem in done.output) == (2, True), done.output


def small(*loads: float) -> Comparison:
    asked = RunRequest(traffic="chat", requests=150, loads=loads, seeds=2, gpu_hour_price=3.0, workers=3)
    return run_request(asked)


def test_a_comparison_prints_every_policy_and_what_it_would_cost() -> None:
    comparison = small()
    text = report.as_text(comparison)
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["random", "kv_aware"]
    assert "money/1000" in text
    rows = report.as_dict(comparison)["rows"]
    seconds = rows[0]["gpu_s_per_request"]["mean"]
    assert rows[0]["money_per_1000_requests"] == pytest.approx(seconds * 3.0 / 3600 * 1000)
    assert rows[1]["hit_rate"]["mean"] > rows[0]["hit_rate"]["mean"]
    assert rows[0]["ttft_p50_ms"]["ci95"] >= 0


class Tags(html.parser.HTMLParser):
    """Counts tags, and notes what would be loaded from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect"):
            assert self.open.pop() == tag


def test_a_plot_is_one_page_that_loads_nothing(tmp_path: Path) -> None:
    comparison = small(0.5, 1.0)
    path = tmp_path / "plot.html"
    plot.draw(comparison, path)
    tags = Tags(path.read_text())
    assert (tags.open, tags.loaded) == ([], [])
    # Four charts over the load, three over time, one for each policy's workers.
    assert tags.count["svg"] == 9
    assert "nan" not in path.read_text()


def test_a_plot_may_be_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "plot.PNG"
    plot.draw(small(0.5, 1.0), path)
    image = path.read_bytes()
    assert image.startswith(b"\x89PNG\r\n")
    # Nine charts of 720 by 432 in two columns.
    assert (int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")) == (1440, 2160)


def test_a_picture_without_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "trunkline.simulate.picture", raising=False)
    command = ("simulate", "chat", "--requests", "200", "--seeds", "1", "--plot", str(tmp_path / "plot.png"))
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 2
    assert "kv_aware" in done.stdout
    assert "trunkline[plot]" in done.stderr


def test_names_in_a_plot_are_text() -> None:
    found = chat("random")
    page = plot.page(Comparison("<script>", 1, [Cell("<b>", 1.0, [found])]))
    assert "<script>" not in page
    assert "<b>" not in page


def test_a_chart_has_round_values_at_its_axes_and_a_legend_within_its_frame() -> None:
    series = [plot.Series(f"worker {number}", [(11.0, 0.0), (1_150_000.0, 0.58)]) for number in range(9)]
    drawn = plot.svg(plot.Chart("Hit rate", "tokens", "share", series, logarithmic=True))
    texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)</text>', drawn)
    names = [name for _, _, name in texts]
    assert [name for name in names if name[0].isdigit()] == [
        *("0", "0.2", "0.4", "0.6"),
        *("100", "1 k", "10 k", "100 k", "1 M"),
    ]
    width, height = map(int, re.findall(r'<svg width="(\d+)" height="(\d+)"', drawn)[0])
    legend = [(float(x), float(y)) for x, y, name in texts if name.startswith("worker")]
    assert len(set(legend)) == len(series)
    assert all(x + 7 * len("worker 0") <= width and y <= height for x, y in legend)


def test_whole_numbers_have_whole_numbers_at_their_axis() -> None:
    drawn = plot.svg(plot.Chart("Hit rate", "workers", "share", [plot.Series("kv_aware", [(4.0, 0.5), (6.0, 0.5)])]))
    assert [text for text in re.findall(r'text-anchor="middle">([^<]+)<', drawn) if text != "workers"] == [
        "4",
        "5",
        "6",
    ]


def test_a_single_point_is_seen() -> None:
    assert "<circle" in plot.svg(plot.Chart("Hit rate", "workers", "share", [plot.Series("kv_aware", [(4.0, 0.5)])]))


def metrics(scale: int) -> str:
    """Return a page of vLLM: 100 prefills of 1,000 uncached tokens in 0.1 s each, tokens 10 to 20 ms apart."""
    return f"""
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {200_000 * scale}
vllm:prefix_cache_hits_total{{engine="0"}} {100_000 * scale}
vllm:request_prefill_time_seconds_count{{engine="0"}} {100 * scale}
vllm:request_prefill_time_seconds_sum{{engine="0"}} {10 * scale}
vllm:inter_token_latency_seconds_bucket{{le="0.01"}} 0
vllm:inter_token_latency_seconds_bucket{{le="0.02"}} {1000 * scale}
vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {1000 * scale}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="5000"}} 1.0
nonsense here
"""


def test_a_profile_is_fitted_to_a_page() -> None:
    base = profile_of("llama-70b-8xh100")
    fitted = fit.fit(metrics(1), since=None, base=base)
    assert fitted.profile.kv_tokens == 80_000
    assert fitted.profile.step.step_s == pytest.approx(0.011)
    # 10 s of prefill, of which 100 times 6 ms are no arithmetic.
    assert fitted.profile.step.prefill_tokens_per_s == pytest.approx(100_000 / 9.4)
    assert fitted.profile.step.weight_read_s == pytest.approx(0.008 * 11 / 14)
    assert set(fitted.sources) == {"kv_tokens", "step_s", "prefill_tokens_per_s"}
    assert fit.fit(metrics(3), since=metrics(2), base=base) == fitted


@pytest.mark.parametrize("page", ["", "<html>", "process_cpu_seconds_total 5\n", "vllm:prompt_tokens_total 5\n"])
def test_a_page_that_tells_nothing_is_refused(page: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text(page)
    assert simulate("fit", str(path)).exit_code == 2


def test_a_fitted_profile_can_be_simulated(tmp_path: Path) -> None:
    page, profile = tmp_path / "metrics", tmp_path / "worker.json"
    page.write_text(metrics(1))
    done = CliRunner().invoke(cli, ("simulate", "fit", str(page)))
    profile.write_text(done.stdout)
    assert profile_of(str(profile)).kv_tokens == 80_000
    done = simulate("chat", "--profile", str(profile), "--requests", "50", "--seeds", "1", "--policy", "random")
    assert done.exit_code == 0, done.output


def test_the_metrics_of_a_mock_worker_tell_its_cache() -> None:
    with trunkline.MockWorker(kv_tokens=64_000) as worker:
        fitted = fit.fit(fit.read_page(f"{worker.url}/metrics"), since=None, base=profile_of("llama-70b-8xh100"))
    assert fitted.profile.kv_tokens == 64_000


def test_scaling_tells_what_moved() -> None:
    done = json.loads(simulate("scale", "--traffic", "chat", "--seeds", "1", "--policy", "kv_aware", "--json").stdout)
    out, back = done["rows"][0]["changes"]
    assert (out["workers_before"], out["workers_after"], back["workers_after"]) == (4, 7, 5)
    assert out["prefixes"] > 5
    assert out["forced"] == 0
    assert back["changed"] >= back["forced"] > 0
