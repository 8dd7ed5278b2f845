"""The analysis' Python side: the report in its three forms, the command line, input that is no log."""

from __future__ import annotations

import gzip
import html.parser
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trunkline
from trunkline.analyze import page, report
from trunkline.analyze.spec import Findings, ForecastOptions, Options, run
from trunkline.analyze.words import quoted
from trunkline.cli import cli
from trunkline.simulate.plot import svg
from trunkline.simulate.spec import profiles

WORDS = "account address billing contact delivery invoice parcel refund service ticket update warranty".split()  # noqa: SIM905
PROFILE = "llama-70b-8xh100"
pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")


def analyze(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ("analyze", *arguments), prog_name="trunkline")


def words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(100)}" for _ in range(count))


def body(number: int, *, early: bool = False, tenants: int = 8) -> dict[str, Any]:
    """Make a request: the system prompt of one of the tenants, with a time before it or behind it, and a question."""
    time = f"Current time: 2026-11-30T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    shared = words(number * 7919 % tenants, 300)
    system, question = (f"{time}\n{shared}", "") if early else (shared, f"{time}\n")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question + words(1000 + number, 30)}]
    return {"model": "m", "messages": messages, "max_tokens": 20}


def log(path: Path, requests: int = 200, **kind: Any) -> Path:
    lines = [json.dumps({"timestamp": 1.7e9 + at / 10, "body": body(at, **kind)}) for at in range(requests)]
    path.write_text("\n".join(lines))
    return path


def options(**changes: Any) -> Options:
    forecast = ForecastOptions(workers=[2, 4], policies=["random", "kv_aware"], profile=profiles()[PROFILE], seeds=1)
    fields: dict[str, Any] = {"memory_bytes": 32 << 20, "forecast": forecast, "cache_tokens": [10_000]}
    return Options(**(fields | changes))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return run(options(), [str(log(tmp_path_factory.mktemp("logs") / "early.jsonl", early=True))])


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Analyse the same requests with the time behind what is shared."""
    return run(options(), [str(log(tmp_path_factory.mktemp("logs") / "late.jsonl"))])


def test_the_planted_divergence_is_found_and_said_in_words(findings: Findings) -> None:
    (advice,) = findings.advice
    assert (advice.kind, advice.templates, advice.requests) == ("timestamp", 8, 200)
    assert advice.before.endswith("Current time: ")
    text = report.as_text(findings, PROFILE)
    assert "1. a time parts 200 requests of 8 templates at token" in text
    assert "put it behind the shared text" in text
    assert "[2026-11-30T00:00:" in text
    assert "which may be private" in text


def test_moving_it_brings_what_was_promised(findings: Findings, late: Findings) -> None:
    assert late.advice == []
    gained = late.ideal_hit_rate - findings.ideal_hit_rate
    assert findings.advice[0].share == pytest.approx(gained, abs=0.03)
    random_, aware = late.forecast[-1].policies
    assert random_.hit_rate + 0.05 < aware.hit_rate <= late.ideal_hit_rate + 1e-9


def test_the_forms_of_the_report_agree(findings: Findings) -> None:
    as_dict = report.as_dict(findings, PROFILE)
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert as_dict["requests"] == 200
    assert as_dict["advice"][0]["remedy"] in report.as_text(findings, PROFILE)
    text = page.page(findings, PROFILE)
    assert all(sentence in text for sentence in as_dict["verdict"])
    # Hit rate and TTFT over two fleets, hit rates over time, advice. Nothing is shared: no curve, no prefixes.
    assert text.count("<svg") == 4


def test_the_page_is_well_formed_and_loads_nothing(findings: Findings) -> None:
    open_tags: list[str] = []

    class Checker(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag not in {"meta", "line", "rect"}:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in {"line", "rect"}:
                assert open_tags.pop() == tag

    Checker().feed(page.page(findings, PROFILE))
    assert open_tags == []


def test_what_is_drawn_stays_in_its_frame(late: Findings) -> None:
    drawn = [svg(chart) for chart in page.charts(late)]
    assert len(drawn) == 5
    for chart in drawn:
        lines = re.findall(r'points="([^"]+)"', chart)
        assert lines
        for x, y in (point.split(",") for line in lines for point in line.split()):
            assert 0 <= float(x) <= 520
            assert 0 <= float(y) <= 300


def test_prompts_can_be_kept_out(tmp_path: Path) -> None:
    path, out = log(tmp_path / "early.jsonl", early=True), tmp_path / "report.html"
    for form in ((), ("--json",)):
        done = analyze(str(path), "--no-text", "--no-forecast", "--html", str(out), *form)
        assert done.exit_code == 0, done.output
        for text in (done.stdout, out.read_text()):
            assert "a time" in text
            assert "Current time" not in text
            assert WORDS[0] not in text


def test_a_log_is_not_overwritten_by_the_page(tmp_path: Path) -> None:
    first, second = (log(tmp_path / name, early=True) for name in ("a.jsonl", "b.jsonl"))
    before = first.read_bytes()
    done = analyze("--no-forecast", "--html", str(first), str(second))  # --html *.jsonl
    assert (done.exit_code, "not overwritten" in done.output, first.read_bytes()) == (2, True, before), done.output
    page = tmp_path / "report.html"
    for _ in range(2):
        assert analyze("--no-forecast", "--html", str(page), str(second)).exit_code == 0


def test_a_page_that_cannot_be_written_costs_no_report(tmp_path: Path) -> None:
    path = log(tmp_path / "early.jsonl", early=True)
    done = analyze(str(path), "--no-forecast", "--html", str(tmp_path / "missing" / "report.html"))
    assert (done.exit_code, "Prompt advice" in done.stdout, "No such file" in done.stderr) == (1, True, True)


def test_control_characters_are_shown_and_do_nothing() -> None:
    assert quoted("system\x1fBe\nkind\x1e\x1b[31m") == r"system: Be\nkind | \x1b[31m"


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    path = log(tmp_path / "odd\x1b[31m\udcff", 3)
    done = analyze(str(path), "--no-forecast")
    assert done.exit_code == 0, done.output
    assert "odd\\x1b[31m" in done.stdout
    assert "\x1b" not in done.output


def test_files_are_added_up_and_read_as_they_are(tmp_path: Path) -> None:
    plain = log(tmp_path / "a.jsonl", 50)
    packed = tmp_path / "b"
    packed.write_bytes(gzip.compress(plain.read_bytes()) + gzip.compress(b"\n" + plain.read_bytes()))
    done = analyze(str(plain), str(packed), "--no-forecast", "--json")
    found = json.loads(done.stdout)
    assert [file["requests"] for file in found["files"]] == [50, 100]
    assert found["ideal_hit_rate"] > 0.9


def test_standard_input_is_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trunkline", "analyze", "-", "--workers", "2", "--seeds", "1", "--json"]
    text = log(tmp_path / "log", 40).read_bytes()
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    assert json.loads(done.stdout)["requests"] == 40


def test_lines_that_make_no_sense_are_named_in_the_report(tmp_path: Path) -> None:
    path = log(tmp_path / "log.jsonl", 20)
    path.write_text(path.read_text() + '\n{"broken\nINFO 11-30 12:00:00 [x.py:1] started\nwhat?\n')
    done = analyze(str(path), "--no-forecast")
    assert done.exit_code == 0, done.output
    assert "2 lines were left out; the first:" in done.stdout
    assert f"{path}:21: EOF" in done.stdout
    assert f"{path}:23: neither JSON nor" in done.stdout
    assert "1 lines of servers' logs are no requests" in done.stdout


def test_a_line_of_200_mb_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        file.write(json.dumps(body(1)) + "\n")
        file.write('{"prompt": "')
        for _ in range(200):
            file.write("x" * 1_000_000)
        file.write('"}\n' + json.dumps(body(2)) + "\n")
    found = run(options(forecast=ForecastOptions(workers=[], policies=[], profile=profiles()[PROFILE])), [str(path)])
    assert (found.requests, found.skipped[0].line) == (2, 2)
    assert "longer than 32 MiB" in found.skipped[0].problem


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\x00\x01\xff\n" * 50, b"x" * 100_000, b"{}\n{}\n", b"\x1f\x8b\x08cut"]
)
def test_a_file_without_a_request_ends_with_2(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nothing.jsonl"
    path.write_bytes(content)
    done = analyze(str(path))
    assert done.exit_code == 2, done.output
    assert "Error: " in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "words_said"),
    [
        (("/no/such/log",), "does not exist"),
        (("LOG", "--policy", "sticky"), "policy = sticky"),
        (("LOG", "--profile", "tpu"), "no profile 'tpu'"),
        (("LOG", "--memory-mib", "1"), "memory-mib"),
        (("LOG", "--memory-mib", "17592186044415"), "memory-mib"),
        (("LOG", "--rate", "nan"), "not finite"),
        (("LOG", "--rate", "inf"), "not finite"),
        (("LOG", "--bytes-per-token", "nan"), "not finite"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, arguments: tuple[str, ...], words_said: str) -> None:
    path = log(tmp_path / "log", 3)
    done = analyze(*(str(path) if argument == "LOG" else argument for argument in arguments))
    assert done.exit_code == 2, done.output
    assert words_said in done.output


def test_a_watch_ends_it_and_what_it_raises_is_raised(tmp_path: Path) -> None:
    paths = [str(log(tmp_path / "log", 400))] * 40
    found = run(options(), paths, watch=lambda *_: False)
    assert found.partial
    assert found.requests < 400 * 40

    def broken(*_: object) -> bool:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        run(options(), paths, watch=broken)
    with pytest.raises(trunkline.ConfigError, match="memory_bytes"):
        run(options(memory_bytes=5), paths)
    with pytest.raises(trunkline.ConfigError, match="memory_bytes"):
        run(options(memory_bytes=1 << 62), paths)
