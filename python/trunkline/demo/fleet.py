"""What a run of the demo needs: mock workers in this process, and ``trunkline serve`` before them as a process."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Self

from trunkline._core import MockWorker

if TYPE_CHECKING:
    from types import TracebackType

HOST = "127.0.0.1"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05


class FleetError(Exception):
    """The gateway did not start; the message holds what it said."""


class Fleet:
    """Fresh workers and a fresh gateway with one policy; a context manager that stops all of them."""

    def __init__(self, policy: str, *, workers: int, time_scale: float) -> None:
        """Say what to start; nothing is running yet."""
        self.policy = policy
        self.workers: list[str] = []
        self.url = ""
        self.admin_url = ""
        self._count = workers
        self._time_scale = time_scale
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything; return when the gateway is ready. Raises FleetError."""
        with ExitStack() as stack:
            for _ in range(self._count):
                worker = stack.enter_context(MockWorker(host=HOST, port=0, time_scale=self._time_scale))
                self.workers.append(worker.url)
            port, admin_port = _free_ports(2)
            self.url, self.admin_url = f"http://{HOST}:{port}", f"http://{HOST}:{admin_port}"
            log = stack.enter_context(tempfile.TemporaryFile())
            gateway = _start_gateway(self.policy, port, admin_port, self.workers, log)
            stack.callback(_stop, gateway)
            _wait_until_ready(gateway, admin_port, log)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the gateway, then the workers."""
        self._stack.__exit__(kind, error, traceback)


def _start_gateway(
    policy: str, port: int, admin_port: int, workers: list[str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trunkline", "serve", "--host", HOST, "--port", str(port)]
    command += ["--admin-port", str(admin_port), "--policy", policy]
    for url in workers:
        command += ["--worker", url]
    # Settings of a gateway that the user runs elsewhere are not ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    # A group of its own: Ctrl-C reaches the demo alone, which then stops the gateway.
    return subprocess.Popen(  # noqa: S603 (our own module with our own arguments)
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(gateway: subprocess.Popen[bytes], admin_port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if gateway.poll() is not None:
            raise FleetError(f"the gateway ended with code {gateway.returncode}:\n{_tail(log)}")
        if _is_ready(admin_port):
            return
        time.sleep(_POLL_S)
    raise FleetError(f"the gateway was not ready within {_START_TIMEOUT_S:.0f} s:\n{_tail(log)}")


def _is_ready(admin_port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, admin_port, timeout=1.0)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: IO[bytes], *, size_bytes: int = 4096) -> str:
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - size_bytes))
    return log.read().decode(errors="replace")


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; they are held together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind((HOST, 0))
        return [held.getsockname()[1] for held in sockets]
