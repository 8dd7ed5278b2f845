"""The gateways in examples/ before simulated workers: they route by prefix, stream, and release what they booked."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import clean_environment, wait_for
from trunkline import MockWorker, Router, Sidecar

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LITELLM = EXAMPLES.parent / ".cache" / "litellm" / "bin" / "litellm"
CALLED = {"name": "number", "arguments": "{}"}
CHATS = [f"You are the assistant of shop {number}. " * 60 for number in range(7)]


@pytest.fixture
def workers() -> Iterator[list[MockWorker]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(MockWorker(time_scale=0.01)) for _ in range(3)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[None]:
    """Run a gateway until the block ends."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=clean_environment() | environment, stdout=log, stderr=log, start_new_session=True
        )

        def answers() -> bool:
            if process.poll() is not None:
                log.seek(0)
                pytest.fail(log.read())
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        try:
            wait_for(answers, deadline_s=60, what=f"{command} listens")
            yield
        finally:
            # Its workers as well.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ask(port: int, chat: str, **fields: Any) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        body = {"model": "mock", "messages": [{"role": "user", "content": chat}], "max_tokens": 3} | fields
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()


def hit_rate(port: int, workers: list[MockWorker]) -> float:
    """Replay chats of a few turns, interleaved; return the cached share of the prompts as the workers counted it."""
    for worker in workers:
        worker.reset()
    for turn in range(4):
        for number, chat in enumerate(CHATS):
            ask(port, f"{chat} turn {turn} of {number}")
    stats = [worker.stats() for worker in workers]
    return sum(each.cached_tokens for each in stats) / sum(each.prompt_tokens for each in stats)


def uvicorn(port: int) -> list[str]:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port)]
    return [*command, "--log-level", "warning", "fastapi_gateway:app"]


def test_the_fastapi_gateway_finds_more_in_the_caches_than_taking_turns(workers: list[MockWorker]) -> None:
    rates = {}
    for policy in ("round_robin", "kv_aware"):
        port = free_port()
        urls = ",".join(worker.url for worker in workers)
        with running(uvicorn(port), port, TRUNKLINE_EXAMPLE_WORKERS=urls, TRUNKLINE_EXAMPLE_POLICY=policy):
            rates[policy] = hit_rate(port, workers)
            if policy == "kv_aware":
                lines = ask(port, CHATS[0], stream=True).decode().split("\n\n")
                assert lines[-2] == "data: [DONE]"
                assert all(line.startswith("data: ") for line in lines[:-1])
    print(rates)  # for docs/embedding.md: pytest -s
    assert rates["kv_aware"] > 0.65, rates
    assert rates["round_robin"] < 0.5, rates


def test_fastapi_processes_share_a_sidecar(workers: list[MockWorker], tmp_path: Path) -> None:
    router, path, port = Router(), tmp_path / "socket", free_port()
    urls = ",".join(worker.url for worker in workers)
    command = [*uvicorn(port)[:-1], "--workers", "2", "fastapi_gateway:app"]
    with (
        Sidecar(router, path),
        running(command, port, TRUNKLINE_EXAMPLE_WORKERS=urls, TRUNKLINE_EXAMPLE_SOCKET=str(path)),
    ):
        wait_for(lambda: len(router.workers) == len(workers), deadline_s=60)
        assert hit_rate(port, workers) > 0.65
        wait_for(lambda: router.stats().in_flight == 0, what="what was booked is released")


def test_gunicorn_forks_the_fastapi_gateway_with_its_connection_to_a_sidecar(
    workers: list[MockWorker], tmp_path: Path
) -> None:
    router, path, port = Router(), tmp_path / "socket", free_port()
    urls = ",".join(worker.url for worker in workers)
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--bind", f"127.0.0.1:{port}"]
    command += ["--worker-class", "uvicorn_worker.UvicornWorker", "--chdir", str(EXAMPLES), "fastapi_gateway:app"]
    with (
        Sidecar(router, path),
        running(command, port, TRUNKLINE_EXAMPLE_WORKERS=urls, TRUNKLINE_EXAMPLE_SOCKET=str(path)),
    ):
        wait_for(lambda: len(router.workers) == len(workers), deadline_s=60)
        assert hit_rate(port, workers) > 0.65
        wait_for(lambda: router.stats().in_flight == 0, what="what was booked is released")


def test_the_aiohttp_gateway_streams_and_routes_by_prefix(workers: list[MockWorker]) -> None:
    port = free_port()
    command = [sys.executable, str(EXAMPLES / "aiohttp_gateway.py"), str(port), *[worker.url for worker in workers]]
    with running(command, port):
        assert hit_rate(port, workers) > 0.65
        assert ask(port, CHATS[0], stream=True).endswith(b"data: [DONE]\n\n")


@contextlib.contextmanager
def litellm(workers: list[MockWorker], folder: Path, **environment: str) -> Iterator[int]:
    """Run LiteLLM's proxy before the workers, with the example's strategy if it has an environment; yield its port."""
    port = free_port()
    config: dict[str, Any] = {
        "model_list": [
            {
                "model_name": "mock",
                "litellm_params": {"model": "openai/mock", "api_base": f"{worker.url}/v1", "api_key": "none"},
            }
            for worker in workers
        ]
    }
    if environment:
        shutil.copy(EXAMPLES / "litellm" / "prefix_aware.py", folder)
        config["litellm_settings"] = {"callbacks": "prefix_aware.handler"}
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))
    local = {
        "PYTHONPATH": str(EXAMPLES.parent / "python"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    command = [str(LITELLM), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
    with running(command, port, **local, **environment):
        yield port


@pytest.mark.skipif(not LITELLM.exists(), reason="make .cache/litellm/installed")
def test_litellm_finds_more_in_the_caches_with_our_strategy_than_with_its_own(
    workers: list[MockWorker], tmp_path: Path
) -> None:
    with litellm(workers, tmp_path) as port:
        shuffled = hit_rate(port, workers)
    router, path = Router(), tmp_path / "socket"
    with Sidecar(router, path), litellm(workers, tmp_path, TRUNKLINE_EXAMPLE_SOCKET=str(path)) as port:
        aware = hit_rate(port, workers)
        print({"simple-shuffle": shuffled, "trunkline": aware})  # for docs/embedding.md: pytest -s
        assert aware > 0.65
        assert shuffled < 0.5
        assert ask(port, CHATS[0], stream=True).endswith(b"data: [DONE]\n\n")
        called = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": CALLED}]}
        ask(port, "", messages=[called, {"role": "tool", "tool_call_id": "1", "content": "7"}])
        for metadata in (None, {}, {"trunkline_tried": "odd"}):
            ask(port, CHATS[0], metadata=metadata)
        workers[0].close()
        for number in range(12):
            ask(port, f"{number} to whom? " * 100)
        wait_for(lambda: router.stats().in_flight == 0, what="what was booked is released")


def test_examples_are_short() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) >= 4
    for path in files:
        assert len(path.read_text().splitlines()) < 80, path


def test_the_documented_commands_name_files_that_are_there() -> None:
    page = (EXAMPLES.parent / "docs" / "embedding.md").read_text(encoding="utf-8")
    named = set(re.findall(r"examples/[\w/.]+\.\w+", page))
    assert named
    assert all((EXAMPLES.parent / name).exists() for name in named), named
