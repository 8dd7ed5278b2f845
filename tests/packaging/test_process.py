"""How the package behaves as a guest in other processes: import, fork, spawn, threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trunkline import Decision, Gateway, MockWorker, Router, Sidecar, UnknownWorkerError
from trunkline.testing import FakeWorker

pytestmark = pytest.mark.thread_unsafe(reason="it forks, and starts processes that are measured")

PROMPT = range(64)


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_import_is_quick() -> None:
    script = """
import os, time
start = time.process_time(); import trunkline; print(time.process_time() - start)
"""
    times = [float(python(script)) for _ in range(7)]
    assert statistics.median(times) < 0.030, times


def test_import_loads_no_other_package() -> None:
    script = """
import sys; before = set(sys.modules); import trunkline
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    assert set(python(script).split()) <= {"trunkline", "time"}


def test_import_starts_no_thread() -> None:
    script = """
import os, trunkline
router = trunkline.Router(); router.add_worker("w"); router.complete(router.route("x"))
print(len(os.listdir("/proc/self/task")))
"""
    assert int(python(script)) == 1


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_router_works_on_both_sides_of_a_fork(used_before: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    router = Router()
    router.add_worker("a")
    open_decision = router.route(PROMPT) if used_before else None
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            # The child has its own book from here on.
            closed = [router.complete(open_decision)] if open_decision else []
            for number in range(100):
                router.complete(router.route(range(number)))
            os.write(write, pickle.dumps((closed, router.stats().in_flight, router.peek(PROMPT).matched_tokens)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        closed, in_flight, matched = pickle.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    assert (closed, in_flight, matched) == ([True] * used_before, 0, 64)
    assert router.stats().in_flight == int(used_before)
    assert open_decision is None or router.complete(open_decision)
    assert router.complete(router.route(PROMPT))


@pytest.mark.parametrize(
    ("start", "address"),
    [
        (lambda _: MockWorker(), lambda mock: ("127.0.0.1", mock.port)),
        (lambda _: FakeWorker(), lambda fake: ("127.0.0.1", fake.port)),
        (lambda path: Gateway(Router(), listen=f"unix:{path}", admin_port=None), lambda gateway: gateway.url[5:]),
        (lambda path: Sidecar(Router(), path), lambda sidecar: str(sidecar.path)),
    ],
    ids=["mock worker", "fake worker", "gateway", "sidecar"],
)
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_cannot_end_what_its_parent_runs(
    start: Callable[[Path], Any], address: Callable[[Any], Any], tmp_path: Path
) -> None:
    with start(tmp_path / "socket") as running:
        if (child := os.fork()) == 0:
            try:
                running.close()
                del running
                os._exit(0)
            finally:
                os._exit(1)
        watch = threading.Timer(20, os.kill, (child, signal.SIGKILL))
        watch.start()
        assert os.waitpid(child, 0)[1] == 0
        watch.cancel()
        where = address(running)
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as client:
            client.connect(where)


def route_in_child(decision: Decision) -> tuple[Decision, str]:
    """Return the decision, and what a router of this process says to it."""
    router = Router()
    router.add_worker("a")
    try:
        router.complete(decision)
    except ValueError as refused:
        return decision, str(refused)
    return decision, ""


def test_decisions_travel_to_spawned_processes_and_back() -> None:
    router = Router()
    router.add_worker("a", url="http://a:1")
    decision = router.route(PROMPT)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back, refusal = pool.apply(route_in_child, (decision,))
    assert back == decision
    assert (back.url, back.matched_tokens) == ("http://a:1", 0)
    assert "another router" in refusal
    assert router.complete(back)


def route_with(router: Router) -> tuple[int, str, bool]:
    """Use a router that came from another process, and what is left of it in this one."""
    decision = router.route(PROMPT)
    return decision.matched_tokens, decision.worker, router.complete(decision)


def test_a_router_travels_to_a_spawned_process() -> None:
    router = Router()
    router.add_worker("a")
    router.add_worker("b")
    held = router.route(PROMPT, eligible=["b"])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(route_with, (router,)) == (64, "b", True)
    assert router.stats().in_flight == 1
    assert router.complete(held)


def test_errors_travel_with_their_data() -> None:
    with pytest.raises(UnknownWorkerError) as raised:
        Router().remove_worker("gone")
    back = pickle.loads(pickle.dumps(raised.value))
    assert (type(back), str(back), back.worker) == (UnknownWorkerError, str(raised.value), "gone")
