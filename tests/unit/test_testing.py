"""What `trunkline.testing` gives to users' tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from trunkline import ConfigError, DuplicateWorkerError, Router
from trunkline.testing import FakeWorker, Fleet, strategies

pytestmark = pytest.mark.thread_unsafe(reason="it starts fleets and counts this process's threads")

CHAT = "You are a helpful assistant. " * 20


def call(url: str, method: str, path: str, body: bytes | None = None) -> tuple[bytes, str | None]:
    """Return the body of an answer, and the worker that it names."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read(), answer.getheader("x-trunkline-worker")


def native_threads() -> int:
    """Count this process's threads, those of gateways and workers included, of which Python does not know."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def ask(url: str) -> Any:
    body = json.dumps({"model": "mock", "prompt": CHAT, "max_tokens": 2}).encode()
    answer, worker = call(url, "POST", "/v1/completions", body)
    return json.loads(answer) | {"worker": worker}


def cached(url: str) -> int:
    return int(ask(url)["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_worker_dies_and_comes_back_empty_on_its_port() -> None:
    with FakeWorker(kv_events=True) as worker:
        url, port = worker.url, worker.port
        assert cached(url) == 0
        assert cached(url) > 0
        worker.kill()
        worker.kill()
        assert not worker.is_running
        with pytest.raises(ConnectionRefusedError):
            ask(url)
        with pytest.raises(RuntimeError, match="closed"):
            worker.stats()
        worker.restart()
        assert (worker.is_running, worker.url, worker.port) == (True, url, port)
        assert cached(url) == 0, "its cache was lost"
        assert (worker.requests, worker.stats().requests) == (3, 1)
    assert worker.requests == 3, "counts outlive it"
    assert repr(worker) == f"FakeWorker({url!r}, is_running=False)"


def test_restarts_from_many_threads_leave_one_worker() -> None:
    with FakeWorker() as worker:
        threads = [threading.Thread(target=worker.restart) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert worker.is_running
        ask(worker.url)
    with pytest.raises(ConnectionRefusedError):
        ask(worker.url)


def test_a_wrong_argument_is_refused() -> None:
    with pytest.raises(ConfigError):
        FakeWorker(block_size=0)
    with pytest.raises(TypeError, match="no_such"):
        FakeWorker(no_such=1)


def test_a_fleet_routes_and_survives_a_death() -> None:
    router = Router()
    with Fleet(workers=2, router=router, annotate=True) as fleet:
        first = ask(fleet.url)["worker"]
        next(worker for worker in fleet.workers if worker.url == first).kill()
        assert ask(fleet.url)["worker"] != first
        added = fleet.add()
        assert (len(fleet.workers), len(router.workers)) == (3, 3)
        with pytest.raises(DuplicateWorkerError):
            fleet.add(added)
        assert added.url in call(fleet.admin_url, "GET", "/admin/workers")[0].decode()
    assert not any(worker.is_running for worker in fleet.workers)
    fleet.close()


def test_a_fleet_that_cannot_start_leaves_no_worker_behind() -> None:
    before = native_threads()
    with pytest.raises(ConfigError):
        Fleet(policy="no_such")
    with pytest.raises(TypeError):
        Fleet(no_such=1)
    assert native_threads() == before


def test_a_closed_fleet_takes_no_worker_and_leaves_none_behind() -> None:
    before = native_threads()
    with Fleet(workers=1) as fleet:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        fleet.add()
    assert len(fleet.workers) == 1
    assert native_threads() == before


def test_the_plugin_gives_each_test_a_gateway(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["trunkline.testing.pytest_plugin"]\n')
    (tmp_path / "test_sample.py").write_text("""
import pytest, urllib.request
seen = set()

def test_plain(trunkline_gateway):
    assert len(trunkline_gateway.workers) == 2
    assert urllib.request.urlopen(trunkline_gateway.url + "/v1/models").status == 200

@pytest.mark.trunkline(workers=3, policy="random")
def test_marked(trunkline_gateway):
    assert len(trunkline_gateway.workers) == 3
    assert trunkline_gateway.router.policy == "random"
""")
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@given(prompt=strategies.prompts(max_blocks=3, block_size=4, kinds=2, partial=True))
def test_prompts_are_whole_blocks_and_a_rest(prompt: array[int]) -> None:
    blocks = [prompt[at : at + 4] for at in range(0, len(prompt), 4)]
    whole = [block for block in blocks if len(block) == 4 and 2 not in block]
    assert prompt.itemsize == 4
    assert len(whole) <= 3
    assert all(len(set(block)) == 1 for block in blocks)
    assert len(blocks) - len(whole) <= 1


@given(ids=strategies.token_ids(max_tokens=9), text=strategies.texts(max_parts=2))
def test_anything_drawn_can_be_routed(ids: array[int], text: str) -> None:
    router = Router()
    router.add_worker("a")
    assert len(ids) <= 9
    assert router.complete(router.route(ids))
    assert router.complete(router.route(text))


@given(workers=strategies.worker_ids(min_size=2, max_size=4), stream=strategies.requests(duration_s=3.0))
def test_streams_are_in_order(workers: list[str], stream: list[strategies.Request]) -> None:
    assert 2 <= len(set(workers)) == len(workers) <= 4
    assert [each.start_s for each in stream] == sorted(each.start_s for each in stream)
    for each in stream:
        assert 0 <= each.start_s <= each.end_s <= 3
        assert each.first_token_s is None or each.start_s <= each.first_token_s <= each.end_s
