"""How `trunkline serve` starts, refuses to start, loses workers and stops."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import READY, MakeWorkers, Serve, Served, clean_environment, wait_for
from trunkline import Gateway, Router


def start_and_fail(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", "serve", "--port", "0", "--admin-port", "0", *arguments]
    env = clean_environment() | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)


WORKER = ("--worker", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["workers", "allowed is one or more of: a URL"]),
        ((*WORKER, "--port", "65536"), ["port = '65536'", "from 0 to 65535"]),
        ((*WORKER, "--policy", "best"), ["policy = 'best'", "kv_aware", "round_robin"]),
        ((*WORKER, "--memory-budget", "lots"), ["memory_budget = 'lots'", "256MiB"]),
        ((*WORKER, "--memory-budget", "5kB"), ["memory_budget = 5000", "1 MiB to 16 GiB"]),
        ((*WORKER, "--replicas", "0"), ["replicas = '0'", "from 1 to 1000"]),
        ((*WORKER, "--prefix-length", "10"), ["prefix_length = '10'", "from 1024 to 65536"]),
        ((*WORKER, "--threads", "two"), ["threads = 'two'", "from 0 to 256"]),
        (("--worker", "10.0.0.1:8000"), ["workers = ", "10.0.0.1:8000", "http[s]://host[:port]"]),
        ((*WORKER, "--config", "/no/such.toml"), ["config = '/no/such.toml'", "a readable file"]),
        ((*WORKER, *WORKER), ["http://127.0.0.1:1", "already in the fleet"]),
        ((*WORKER, "--no-such-flag"), ["--no-such-flag"]),
    ],
)
def test_bad_settings_stop_the_start_and_say_what_is_allowed(arguments: tuple[str, ...], words: list[str]) -> None:
    done = start_and_fail(*arguments)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_key_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.yaml"
    file.write_text("workers: [http://127.0.0.1:1]\npolicies: kv_aware\n")
    done = start_and_fail("--config", str(file))
    assert (done.returncode, "policies = 'kv_aware'" in done.stderr, str(file) in done.stderr) == (2, True, True)
    done = start_and_fail(*WORKER, TRUNKLINE_POLICIES="kv_aware")
    assert (done.returncode, "environment" in done.stderr) == (2, True)


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_used_port_is_said(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = start_and_fail(*WORKER, flag, port)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_configures_and_flags_win(serve: Serve, make_workers: MakeWorkers, tmp_path: Path) -> None:
    [worker] = make_workers(1)
    file = tmp_path / "trunkline.toml"
    file.write_text(f'workers = ["{worker.url}"]\npolicy = "random"\nreplicas = 2\n')
    served = serve([], "--config", str(file), "--policy", "round_robin")
    state = served.call("GET", "/admin/state", admin=True).json()
    assert state["policy"] == "round_robin"
    assert [row["url"] for row in state["workers"]] == [worker.url]


def test_a_killed_worker_costs_no_request(serve: Serve, make_workers: MakeWorkers) -> None:
    workers = make_workers(3)
    served = serve(workers)
    by_url = {worker.url: worker for worker in workers}
    victim = served.chat("the same prompt " * 50).headers["x-trunkline-worker"]
    by_url[victim].close()
    replies = [served.chat("the same prompt " * 50, n=1, user=str(number)) for number in range(20)]
    assert [reply.status for reply in replies] == [200] * 20
    assert victim not in {reply.headers["x-trunkline-worker"] for reply in replies}
    served.wait_for_log(victim, "out of rotation", "refuses connections")


@pytest.mark.parametrize("is_full", [False, True])
def test_a_gateway_whose_log_nobody_reads_goes_on(make_workers: MakeWorkers, *, is_full: bool) -> None:
    (worker,) = make_workers(1)
    command = [sys.executable, "-m", "trunkline", "serve", "--port", "0", "--admin-port", "0", "--worker", worker.url]
    read, write = os.pipe()
    with (
        os.fdopen(read) as log,
        os.fdopen(write, "wb", 0) as pipe,
        subprocess.Popen(command, stderr=pipe, env=clean_environment()) as process,
    ):
        ready = READY.match(log.readline())
        if is_full:
            os.set_blocking(write, False)
            for size in (1 << 16, 1 << 8, 1):
                while pipe.write(b"x" * size):
                    pass
            os.set_blocking(write, True)  # for the gateway, whose it is as well
        else:
            log.close()
        try:
            assert ready is not None

            def call(method: str, port: int, path: str, body: str | None = None) -> tuple[int, bytes]:
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                    connection.request(method, path, body, {"content-type": "application/json"})
                    answer = connection.getresponse()
                    return answer.status, answer.read()

            def status() -> int:
                body = json.dumps({"model": "mock", "prompt": "hello", "max_tokens": 1})
                return call("POST", int(ready[1].rpartition(":")[2]), "/v1/completions", body)[0]

            wait_for(lambda: status() == 200, what="an answer")
            worker.close()
            wait_for(lambda: status() == 503, what="the worker is out of rotation")
            make_workers(1, port=worker.port)
            wait_for(lambda: status() == 200, what="the worker is back in rotation")
            process.send_signal(signal.SIGHUP)
            reloaded = b'trunkline_config_reloads_total{result="ok"} 1'
            wait_for(lambda: reloaded in call("GET", int(ready[2]), "/metrics")[1], what="a reload")
            assert status() == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_without_any_worker_alive_the_refusal_is_openai_shaped(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1)
    served = serve([worker])
    worker.close()
    reply = served.chat("hello")
    assert reply.status in (502, 503)
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[" * 100_000,
        b'{"messages": 7}',
        b'{"model": 7, "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "mock", "messages": []}',
        b'{"model": "nobody-serves-this", "messages": [{"role": "user", "content": "hi"}]}',
        b'{"model": "mock", "messages": [{"role": "user", "content": {"a": 1}}]}',
        b"\xff\xfe",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_broken_body_gets_a_refusal_and_the_gateway_goes_on(
    serve: Serve, make_workers: MakeWorkers, body: bytes
) -> None:
    served = serve(make_workers(1))
    reply = served.call("POST", "/v1/chat/completions", body)
    assert 400 <= reply.status < 500
    assert reply.json()["error"]["message"]
    assert served.chat("hello").status == 200


def test_a_large_body_passes(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(1, kv_tokens=20_000_000))
    assert served.chat("word " * 4_000_000).status < 500
    assert served.chat("hello").status == 200


def test_a_body_above_the_limit_is_refused(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1)
    served = serve([worker], "--max-body", "4KiB")
    reply = served.chat("word " * 1000)
    assert (reply.status, "error" in reply.json()) == (413, True)
    assert worker.stats().requests == 0
    assert served.chat("hello").status == 200


def test_a_client_that_leaves_frees_its_worker(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1, time_scale=1.0)
    served = serve([worker])
    with stream(served, tokens=5000):
        pass
    wait_for(lambda: worker.stats().cancelled == 1, what="the worker to see the client leave")
    wait_for(lambda: served.call("GET", "/admin/workers", admin=True).json()["workers"][0]["in_flight"] == 0)


@contextlib.contextmanager
def stream(served: Served, *, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """Begin a streamed answer of so many tokens, 14 ms each on an unscaled worker, and see its first bytes."""
    body = {"model": "mock", "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens, "stream": True}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert answer.read1(10)
            yield answer


def test_sigterm_finishes_what_runs_and_takes_nothing_new(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(2, time_scale=1.0))
    ends: Counter[bool] = Counter()

    def finish(answer: http.client.HTTPResponse) -> None:
        ends[answer.read().endswith(b"data: [DONE]\n\n")] += 1

    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(stream(served, tokens=60)) for _ in range(4)]
        readers = [threading.Thread(target=finish, args=(answer,)) for answer in answers]
        for reader in readers:
            reader.start()
        served.signal(signal.SIGTERM)
        wait_for(lambda: any("draining" in line for line in served.log))
        assert is_refused(served)
        for reader in readers:
            reader.join(20)
    assert ends == {True: 4}
    assert served.wait() == 0
    assert "stopped" in served.log[-1]


def is_refused(served: Served) -> bool:
    """Whether a new request is turned away."""
    try:
        return served.chat("hello").status == 503
    except (ConnectionError, http.client.HTTPException):
        return True


def test_a_cap_makes_requests_wait_and_the_queue_has_an_end(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1, time_scale=1.0)
    served = serve([worker], "--worker-cap", f"{worker.url}=1", "--queue-timeout-s", "0.3")
    with stream(served, tokens=5000):
        reply = served.chat("hello")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        page = served.call("GET", "/metrics", admin=True).body.decode()
        assert 'trunkline_queue_refusals_total{reason="timeout"} 1' in page
        [row] = served.call("GET", "/admin/workers", admin=True).json()["workers"]
        assert (row["in_flight"], row["max_in_flight"], row["suspect"]) == (1, 1, False)
    wait_for(lambda: served.chat("hello").status == 200, what="the place to be free")
    served.stop()


def test_closing_frees_a_thread_that_waits_for_the_drain(make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1, time_scale=1.0)
    gateway = Gateway(Router(), port=0, admin_port=None, workers=[worker.url])
    with contextlib.closing(socket.create_connection(("127.0.0.1", gateway.port), timeout=10)) as client:
        body = b'{"model": "mock", "messages": [{"role": "user", "content": "go"}], "max_tokens": 5000}'
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n")
        client.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: worker.stats().running == 1, what="the request to run")
        gateway.drain()
        answers: list[bool] = []
        waiter = threading.Thread(target=lambda: answers.append(gateway.wait_drained(60)))
        waiter.start()
        gateway.close()
        waiter.join(10)
        assert answers == [False]


def test_a_drain_has_an_end(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(1, time_scale=1.0), "--drain-timeout-s", "0.2")
    with stream(served, tokens=5000):
        served.signal(signal.SIGTERM)
        assert served.wait() == 1
    assert "requests running after 0.2 s" in served.log[-1]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(serve: Serve, make_workers: MakeWorkers, second: signal.Signals) -> None:
    served = serve(make_workers(1, time_scale=1.0))
    with stream(served, tokens=5000):
        served.signal(signal.SIGINT)
        wait_for(lambda: any("draining" in line for line in served.log))
        served.signal(second)
        assert served.wait(timeout_s=5) == -second


def test_a_mock_worker_is_a_command() -> None:
    command = [sys.executable, "-m", "trunkline", "mock-worker", "--port", "0", "--model", "m", "--time-scale", "0.01"]
    # Settings of a gateway in the same shell are none of its business.
    env = clean_environment() | {"TRUNKLINE_PORT": "1", "TRUNKLINE_WORKERS": "http://a:1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(r"mock worker on http://127.0.0.1:(\d+), model m\n", line)
            assert found, line
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)) as connection:
                connection.request("GET", "/v1/models")
                assert [model["id"] for model in json.load(connection.getresponse())["data"]] == ["m"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_an_idle_gateway_stops_at_once(serve: Serve, make_workers: MakeWorkers) -> None:
    served = serve(make_workers(1))
    served.signal(signal.SIGINT)
    assert served.wait(timeout_s=5) == 0
