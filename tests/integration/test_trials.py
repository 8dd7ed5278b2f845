"""Trials and shadows in a real gateway: who gets which arm, what is told of it, ramps and how they stop."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import MakeWorkers, Reply, Serve, Served, clean_environment, wait_for
from trunkline import MockWorker

# A ramp for tests: as many requests as an interval needs, and no time to wait for.
QUICK = {"stages": [0.2, 0.5, 1], "settle_s": 0, "stage_s": 0, "min_requests": 50, "ttft_margin": 0.5}


def trial(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.call("GET", "/admin/trial", admin=True).json()["trial"]
    return found


def change(served: Served, what: str, wanted: dict[str, Any] | None = None) -> Reply:
    return served.call("POST", f"/admin/trial/{what}", wanted, admin=True)


def arm(reply: Reply) -> str:
    return reply.headers["x-trunkline-decision"].rpartition(";arm=")[2]


def ask(served: Served, tenant: str, text: str = "hello") -> Reply:
    return served.chat(text, prompt_cache_key=tenant)


def trunkline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment())


def labelled(worker: MockWorker | str, pool: str) -> str:
    return f"{worker if isinstance(worker, str) else worker.url}#pool={pool}"


@contextmanager
def traffic(served: Served, *, threads: int = 8) -> Iterator[Counter[int]]:
    """Let tenants ask until the block ends; counts the statuses of their answers."""
    statuses: Counter[int] = Counter()
    ended = threading.Event()

    def run(number: int) -> None:
        turn = 0
        while not ended.is_set():
            statuses[ask(served, f"tenant-{number}-{turn % 40}", f"question {turn}").status] += 1
            turn += 1

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, number) for number in range(threads)]
        try:
            yield statuses
        finally:
            ended.set()
        for one in running:
            one.result()


@contextmanager
def failing_worker() -> Iterator[str]:
    """Run a worker that is healthy and answers every request with 500."""

    class Failing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200 if self.path == "/health" else 500)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = answer  # noqa: N815 (http.server)

        def log_message(self, *_arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_better_policy_shows_a_higher_hit_rate(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(6), "--policy", "random", "--trial-policy", "kv_aware", "--trial-share", "0.5")

    def talk(number: int) -> set[str]:
        prompt = f"You are the assistant of tenant {number}. " * 60
        return {arm(ask(served, f"tenant-{number}", f"{prompt} Question {turn}.")) for turn in range(6)}

    with ThreadPoolExecutor(8) as pool:
        arms = list(pool.map(talk, range(160)))
    assert all(len(found) == 1 for found in arms), "a tenant stays in its arm"
    sizes = Counter(name for found in arms for name in found)
    assert min(sizes["a"], sizes["b"]) >= 50, sizes

    found = trial(served)
    a, b = found["arms"]["a"], found["arms"]["b"]
    assert (a["policy"], b["policy"], found["state"], found["by"]) == ("random", "kv_aware", "split", "tenant")
    assert (a["requests"], b["requests"]) == (sizes["a"] * 6, sizes["b"] * 6)
    assert b["hit_rate"]["low"] > a["hit_rate"]["high"], (a["hit_rate"], b["hit_rate"])
    assert found["difference"]["hit_rate"]["low"] > 0
    assert a["errors"] == b["errors"] == 0
    assert a["ttft_p90_s"]["value"] > 0
    for name, arm_found in (("a", a), ("b", b)):
        assert served.metric(f'trunkline_trial_requests_total{{arm="{name}"}}') == arm_found["requests"]
        assert served.metric(f'trunkline_trial_cached_tokens_total{{arm="{name}"}}') == arm_found["cached_tokens"]
        assert served.metric(f'trunkline_trial_ttft_seconds_count{{arm="{name}"}}') == arm_found["requests"]

    shown = trunkline("ab", "--admin", served.admin_url)
    assert shown.returncode == 0, shown.stderr
    assert "the hit rate is higher" in shown.stdout
    as_json = json.loads(trunkline("ab", "--admin", served.admin_url, "--json").stdout)
    assert as_json["trial"]["arms"]["a"]["requests"] == a["requests"]


def test_turns_of_a_conversation_stay_in_one_arm(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(2), "--trial-policy", "random", "--trial-share", "0.5")
    system = {"role": "system", "content": "You are the assistant of all. " * 300}
    arms = []
    for number in range(40):
        messages = [system, {"role": "user", "content": f"I am number {number}."}]
        found = set()
        for turn in range(3):
            body = {"model": "mock", "messages": messages, "max_tokens": 2}
            found.add(arm(served.call("POST", "/v1/chat/completions", body)))
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {turn}?"}]
        arms.append(found)
    assert all(len(found) == 1 for found in arms)
    assert len({name for found in arms for name in found}) == 2, "one system prompt is no reason to be one arm"


def test_without_a_trial_nothing_is_said_of_one(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(1))
    assert "arm" not in served.chat("hello").headers["x-trunkline-decision"]
    assert served.call("GET", "/admin/trial", admin=True).json() == {"trial": None, "shadow": None}
    assert b"trunkline_trial" not in served.call("GET", "/metrics", admin=True).body
    assert change(served, "share", {"share": 0.5}).status == 409
    shown = trunkline("ab", "--admin", served.admin_url)
    assert (shown.returncode, "no trial and no shadow" in shown.stderr) == (1, True)


def test_a_share_that_grows_moves_tenants_one_way(serve: Serve, make_workers: MakeWorkers) -> None:
    old, new = make_workers(2)
    served = serve([old.url, labelled(new, "new")], "--trial-pool", "new")

    def arms() -> list[str]:
        found = []
        for number in range(60):
            reply = ask(served, f"tenant-{number}")
            found.append(arm(reply))
            assert reply.headers["x-trunkline-worker"] == (new.url if found[-1] == "b" else old.url)
        return found

    before = arms()
    assert set(before) == {"a"}, "naming a trial changes nothing"
    for share in (0.2, 0.6, 1.0):
        assert change(served, "share", {"share": share}).status == 200
        after = arms()
        assert all(now == "b" for now, then in zip(after, before, strict=True) if then == "b")
        assert after.count("b") > before.count("b")
        before = after
    assert before.count("b") == 60
    assert change(served, "stop").json()["trial"]["state"] == "off"
    assert set(arms()) == {"a"}


def test_a_pool_that_is_dead_costs_no_client_an_answer(serve: Serve, make_workers: MakeWorkers) -> None:
    old, new = make_workers(2)
    served = serve([old.url, labelled(new, "new")], "--trial-pool", "new", "--trial-share", "1")
    assert ask(served, "x").headers["x-trunkline-worker"] == new.url
    new.close()
    for number in range(40):
        reply = ask(served, f"tenant-{number}")
        assert (reply.status, reply.headers["x-trunkline-worker"], arm(reply)) == (200, old.url, "b")
    b = trial(served)["arms"]["b"]
    assert (b["requests"], b["errors"]) == (41, 40), "served by others is not served by b"
    assert b["crossed"] == 40


def test_a_worker_added_with_a_label_joins_its_pool(serve: Serve, make_workers: MakeWorkers) -> None:
    old, new = make_workers(2)
    served = serve([old.url], "--trial-pool", "new", "--trial-share", "1")
    assert ask(served, "x").headers["x-trunkline-worker"] == old.url, "an empty pool is no reason to fail"
    assert served.call("POST", "/admin/workers", {"url": labelled(new, "new")}, admin=True).status == 201
    wait_for(lambda: ask(served, "x").headers["x-trunkline-worker"] == new.url)
    table = [line.split() for line in trunkline("workers", "--admin", served.admin_url).stdout.splitlines()]
    assert [(row[1], row[-1]) for row in table] == [("url", "pool"), (old.url, "-"), (new.url, "new")]


def test_a_pool_of_nobody_or_of_everybody_is_said_at_the_start_and_at_a_reload(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    old, new = make_workers(2)
    in_pool = labelled(new, "new")
    file = tmp_path / "trunkline.toml"

    def configure(*workers: str) -> None:
        file.write_text(f'workers = {json.dumps(workers)}\ntrial_pool = "new"\ntrial_share = 0.1\n')

    configure(old.url)
    served = serve([], "--config", str(file))
    said = "arm b's share of the tenants, 0.1, is served by the other arm's workers, as errors of arm b"
    assert served.log[0].startswith(f"no configured worker is in trial pool new (#pool=new): {said}")
    configure(old.url, in_pool)
    assert "trial pool" not in served.wait_for_log("reloaded", f"added {new.url}")
    configure(in_pool)
    said = "; every configured worker is in trial pool new: arm a's share of the tenants, 0.9, is served by"
    served.wait_for_log("reloaded", f"removed {old.url}{said}")
    configure(in_pool, labelled(old, "newer"))
    assert "trial pool" not in served.wait_for_log("reloaded", f"added {old.url}")
    assert serve([old.url, in_pool], "--trial-pool", "new").log[0].startswith("trunkline")


def test_a_ramp_takes_a_good_pool_to_all_of_the_traffic(serve: Serve, make_workers: MakeWorkers) -> None:
    old, new = make_workers(2)
    served = serve([old.url, labelled(new, "new")], "--trial-pool", "new", "--trial-by", "request")
    with traffic(served) as statuses:
        wanted = QUICK | {"ttft_margin": 3}
        begun = change(served, "ramp", wanted).json()["trial"]
        assert (begun["state"], begun["share"], begun["ramp"]["stage"]) == ("ramping", 0.2, 0)
        watched = trunkline("ab", "--admin", served.admin_url, "--watch")
        wait_for(lambda: trial(served)["state"] == "done", deadline_s=30, what=str(trial(served)))
    assert (watched.returncode, "The ramp is done" in watched.stdout) == (0, True), watched.stdout
    assert set(statuses) == {200}
    found = trial(served)
    assert (found["share"], found["stage"]["stage"], found["stage"]["share"]) == (1, 2, 1)
    assert found["stage"]["a_of_stage"] == 1, "nobody is left in a"
    for name in ("a", "b"):
        of_stage, of_all = (figures["arms"][name]["requests"] for figures in (found["stage"], found))
        assert 50 <= of_stage < of_all
    assert "all shares" in watched.stdout
    assert {ask(served, str(number)).headers["x-trunkline-worker"] for number in range(20)} == {new.url}
    assert served.metric("trunkline_trial_share") == 1


@pytest.mark.parametrize("by", ["request", "tenant"])
def test_a_ramp_to_a_slow_pool_stops_by_itself(serve: Serve, make_workers: MakeWorkers, by: str) -> None:
    [old] = make_workers(1)
    [slow] = make_workers(1, time_scale=1.0)
    served = serve([old.url, labelled(slow, "new")], "--trial-pool", "new", "--trial-by", by)
    with traffic(served) as statuses:
        assert change(served, "ramp", QUICK).status == 200
        wait_for(lambda: trial(served)["state"] == "stopped", deadline_s=30, what=str(trial(served)))
    found = trial(served)
    assert (found["share"], "TTFT p90" in found["stopped"]["reason"]) == (0, True), found
    assert (found["stage"]["stage"], found["stage"]["share"]) == (0, 0.2)
    assert trial(served)["stage"] == found["stage"], "those of the time of the ramp"
    assert set(statuses) == {200}
    assert {ask(served, str(number)).headers["x-trunkline-worker"] for number in range(20)} == {old.url}
    assert served.metric("trunkline_trial_stopped") == 1

    shown = trunkline("ab", "--admin", served.admin_url)
    assert (shown.returncode, "STOPPED" in shown.stdout) == (1, True), shown.stdout
    again = trunkline("ab", "--admin", served.admin_url, "ramp")
    assert (again.returncode, "Reset the trial first" in again.stderr) == (1, True)
    assert change(served, "share", {"share": 0.1}).status == 409
    assert trunkline("ab", "--admin", served.admin_url, "reset").returncode == 0
    found = trial(served)
    assert (found["arms"]["b"]["requests"], found["stage"]) == (0, None)
    for line in (("--json", "share", "0.1"), ("share", "0.2", "--json")):
        told = json.loads(trunkline("ab", "--admin", served.admin_url, *line).stdout)
        assert told["trial"]["share"] == trial(served)["share"] == float(line[line.index("share") + 1])


def test_a_ramp_to_a_failing_pool_stops_by_itself(serve: Serve, make_workers: MakeWorkers) -> None:
    [old] = make_workers(1)
    with failing_worker() as url:
        served = serve([old.url, labelled(url, "new")], "--trial-pool", "new", "--trial-by", "request")
        with traffic(served) as statuses:
            assert change(served, "ramp", QUICK | {"stages": [0.1, 1]}).status == 200
            wait_for(lambda: trial(served)["state"] == "stopped", deadline_s=30, what=str(trial(served)))
        found = trial(served)
        assert (found["share"], "error rate" in found["stopped"]["reason"]) == (0, True), found
        assert set(statuses) == {200}, "another worker served them"
        assert {ask(served, str(number)).headers["x-trunkline-worker"] for number in range(20)} == {old.url}


def test_a_ramp_to_a_pool_that_hangs_stops_by_itself(serve: Serve, make_workers: MakeWorkers) -> None:
    [old] = make_workers(1)
    [hung] = make_workers(1, time_scale=1000.0, prefill_tokens_per_s=1)
    served = serve(
        [old.url, labelled(hung, "new")], "--trial-pool", "new", "--trial-by", "request", "--no-hang-detection"
    )
    assert change(served, "ramp", QUICK).status == 200
    # Who asks there gets no answer: each on a thread that nobody waits for.
    for number in range(240):
        threading.Thread(target=_ask_in_vain, args=(served, str(number)), daemon=True).start()
    wait_for(lambda: trial(served)["state"] == "stopped", deadline_s=30, what=str(trial(served)))
    assert {ask(served, str(number)).headers["x-trunkline-worker"] for number in range(10)} == {old.url}


def _ask_in_vain(served: Served, tenant: str) -> None:
    try:
        ask(served, tenant)
    except OSError:
        """The gateway ended before the worker answered."""


def test_a_shadow_routes_nothing_and_changes_no_choice(serve: Serve, make_workers: MakeWorkers) -> None:
    workers = make_workers(3)
    prompts = [f"Prompt {number % 20} of many. " * 40 + str(number) for number in range(120)]

    def choices(*arguments: str) -> tuple[list[str], Served]:
        for worker in workers:
            worker.clear_cache()
        served = serve(workers, *arguments)
        return [served.chat(prompt).headers["x-trunkline-worker"] for prompt in prompts], served

    alone, _ = choices()
    beside, served = choices("--shadow-policy", "random")
    assert beside == alone
    assert sum(worker.stats().requests for worker in workers) == 2 * len(prompts)
    found = served.call("GET", "/admin/trial", admin=True).json()["shadow"]
    assert found["requests"] == len(prompts)
    assert 0.1 < found["agreement"]["value"] < 0.8
    assert found["live"]["expected_hit"]["low"] > found["shadow"]["expected_hit"]["high"]
    assert found["difference"]["expected_hit"]["high"] < 0
    assert served.metric("trunkline_shadow_requests_total") == len(prompts)
    shown = trunkline("ab", "--admin", served.admin_url)
    assert (shown.returncode, "cannot be known" in shown.stdout) == (0, True), shown.stdout


def test_a_shadow_like_the_live_policy_agrees(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(3), "--shadow-policy", "kv_aware")
    for number in range(60):
        served.chat(f"Prompt {number % 10} of many. " * 40 + str(number))
    found = served.call("GET", "/admin/trial", admin=True).json()["shadow"]
    assert found["agreement"]["value"] == 1
    assert found["live"]["expected_hit"] == found["shadow"]["expected_hit"]
    assert found["live"]["load_spread"] == found["shadow"]["load_spread"]


def test_a_shadow_without_memory_for_it_is_refused_and_the_gateway_goes_on(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text("")
    served = serve(make_workers(2), "--config", str(file), "--memory-budget", "256MiB")
    size = int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(served.process.pid, resource.RLIMIT_AS, (size + (512 << 20), size + (512 << 20)))
    file.write_text('shadow_policy = "random"\n')
    served.signal(signal.SIGHUP)
    served.wait_for_log("reload refused", "memory_budget")
    assert ask(served, "x").status == 200


def test_a_reload_begins_a_changed_trial_anew_and_leaves_another_alone(
    serve: Serve, make_workers: MakeWorkers, tmp_path: Path
) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text('trial_policy = "random"\ntrial_share = 1.0\n')
    served = serve(make_workers(2), "--config", str(file))
    assert arm(ask(served, "x")) == "b"
    served.signal(signal.SIGHUP)
    served.wait_for_log("reloaded")
    assert trial(served)["arms"]["b"]["requests"] == 1, "nothing has changed"
    file.write_text('trial_policy = "random"\ntrial_share = 0.0\nshadow_policy = "round_robin"\n')
    wait_for(lambda: arm(ask(served, "x")) == "a")
    found = served.call("GET", "/admin/trial", admin=True).json()
    assert (found["trial"]["arms"]["b"]["requests"], found["shadow"]["shadow"]["policy"]) == (0, "round_robin")
    file.write_text("trial_share = 0.5\n")
    served.wait_for_log("reload refused", "trial_share")
    assert arm(ask(served, "x")) == "a"
    file.write_text("")
    wait_for(lambda: trial(served) is None)
    assert "arm" not in ask(served, "x").headers["x-trunkline-decision"]


def test_after_a_restart_the_settings_count(serve: Serve, make_workers: MakeWorkers) -> None:
    workers = make_workers(2)
    arguments = ("--trial-policy", "random", "--trial-share", "0.3")
    first = serve(workers, *arguments)
    before = [arm(ask(first, f"tenant-{number}")) for number in range(60)]
    assert change(first, "share", {"share": 0.9}).status == 200
    first.stop()
    second = serve(workers, *arguments)
    assert [arm(ask(second, f"tenant-{number}")) for number in range(60)] == before, "and replicas agree"
    assert trial(second)["state"] == "split"


@pytest.mark.parametrize(
    ("what", "wanted", "said"),
    [
        ("share", {"share": 2}, "0 to 1"),
        ("share", {}, "missing field"),
        ("share", {"share": 0.1, "by": "tenant"}, "unknown field"),
        ("ramp", {"stages": [0.5, 0.1]}, "ascending"),
        ("ramp", {"min_requests": 1}, "20 to"),
        ("ramp", {"ttft_margin": -1}, "0 to 10"),
        ("ramp", {"stage_s": 1e300}, "604800"),
    ],
)
def test_what_cannot_be_is_named(
    serve: Serve, make_workers: MakeWorkers, what: str, wanted: dict[str, Any], said: str
) -> None:
    served = serve(make_workers(1), "--trial-policy", "random")
    refused = change(served, what, wanted)
    assert (refused.status, said in refused.json()["error"]["message"]) == (400, True), refused.body
