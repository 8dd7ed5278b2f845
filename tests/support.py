"""What several test files need by name."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from trunkline import MockWorker, Router

MakeRouter: TypeAlias = Callable[..., Router]
T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], *, deadline_s: float = 10.0, what: str = "") -> T:
    """Return the first truthy value of `condition`; fail after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}")
        time.sleep(0.01)  # between two looks, not instead of one
    return value


READY = re.compile(r"trunkline \S+ on (\S+) for .* admin on http://127\.0\.0\.1:(\d+)")


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}


class Served:
    """A running `trunkline serve`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "trunkline", "serve", "--port", "0", "--admin-port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url, self.admin_port = wait_for(self._ready, deadline_s=30, what=f"the ready line of {command}")
        except BaseException:
            self.stop()  # nobody else knows of it yet
            raise
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"

    @property
    def port(self) -> int:
        """Its data port."""
        return int(self.url.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def _ready(self) -> tuple[str, int] | None:
        """Read where it listens from the ready line, once it is there."""
        if self.process.poll() is not None:
            raise AssertionError(f"exit code {self.process.returncode}: {''.join(self.log)}")
        found = next(filter(None, map(READY.match, self.log[:])), None)
        return (found[1], int(found[2])) if found else None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 15) -> int:
        """Return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def wait_for_log(self, *words: str) -> str:
        """Return the first line of its log with all these words, once it is there."""

        def found() -> str | None:
            return next((line for line in self.log[:] if all(word in line for word in words)), None)

        return wait_for(found, what=str(words))

    def metric(self, series: str) -> float:
        """Return the value of one series; 0 if it is not there."""
        page = self.call("GET", "/metrics", admin=True).body.decode()
        found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def metric_sum(self, name: str) -> float:
        """Return the sum over all series of a metric."""
        page = self.call("GET", "/metrics", admin=True).body.decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE))

    def stop(self) -> None:
        """End it, whatever it does."""
        self.process.kill()  # does nothing once it has ended
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        admin: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Ask it once, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port if admin else self.port, timeout=30)
        with contextlib.closing(connection):
            payload = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, payload, {"content-type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def chat(self, text: str, **fields: Any) -> Reply:
        """Send one chat message."""
        body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 2} | fields
        return self.call("POST", "/v1/chat/completions", body)


class Reply:
    """An answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


Serve: TypeAlias = Callable[..., Served]
MakeWorkers: TypeAlias = Callable[..., list[MockWorker]]
