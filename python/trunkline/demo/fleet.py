"""What a run of the demo needs: mock workers in this process, and ``trunkline serve`` before them as a process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

from trunkline._core import MockWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

HOST = "127.0.0.1"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05


class FleetError(Exception):
    """The gateway did not start; the message holds what it said."""


class Fleet:
    """Fresh workers and a fresh gateway with one policy; a context manager that stops all of them."""

    def __init__(
        self,
        policy: str,
        *,
        workers: int,
        time_scale: float,
        kv_tokens: int | None = None,
        settings: Callable[[list[str]], dict[str, Any]] | None = None,
    ) -> None:
        """Say what to start; nothing is running yet.

        kv_tokens: the size of a worker's cache, if not the mock worker's default.  settings: makes what the gateway's
        configuration file says from the workers' URLs.
        """
        self.policy = policy
        self.workers: list[str] = []
        self.url = ""
        self.admin_url = ""
        self._count = workers
        self._time_scale = time_scale
        self._kv_tokens = kv_tokens
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything; return when the gateway is ready. Raises FleetError.

        Called in the main thread, SIGTERM and SIGHUP raise SystemExit until the end, unless somebody has set them.
        """
        with ExitStack() as stack:
            stack.enter_context(_ends_on_signals())
            for _ in range(self._count):
                mock = MockWorker(host=HOST, port=0, time_scale=self._time_scale, kv_tokens=self._kv_tokens)
                self.workers.append(stack.enter_context(mock).url)
            port, admin_port = _free_ports(2)
            self.url, self.admin_url = f"http://{HOST}:{port}", f"http://{HOST}:{admin_port}"
            log = stack.enter_context(tempfile.TemporaryFile())
            arguments = ["--policy", self.policy, "--port", str(port), "--admin-port", str(admin_port)]
            for url in self.workers:
                arguments += ["--worker", url]
            if self._settings is not None:
                config = Path(stack.enter_context(tempfile.TemporaryDirectory()), "trunkline.yaml")
                # JSON is YAML.
                config.write_text(json.dumps(self._settings(self.workers)), encoding="utf-8")
                arguments += ["--config", str(config)]
            with _stop_signals_wait():
                gateway = _start_gateway(arguments, log)
                stack.callback(_stop, gateway)
            _wait_until_ready(gateway, admin_port, log)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the gateway, then the workers."""
        self._stack.__exit__(kind, error, traceback)


def _start_gateway(arguments: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trunkline", "serve", "--host", HOST, *arguments]
    # Settings of a gateway that the user runs elsewhere are not ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    # A group of its own: Ctrl-C reaches the demo alone, which then stops the gateway.
    return subprocess.Popen(  # noqa: S603 (our own module with our own arguments)
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
    )


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """Let what ends this process end the gateway before it, which runs in a group of its own."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()  # only there may handlers be set
    for number in numbers:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def _stop_signals_wait() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back until the block ends.

    A process that was started but is not yet written down would outlive an exception that a signal's handler raises in
    between. A signal mask would not do: a worker's thread may take the signal, and Python then runs its handler here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    came: list[int] = []
    # SIGINT comes last where handlers are set back: its own raises there.
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
    finally:
        process.kill()  # does nothing once it has ended, which another Ctrl-C did not wait for
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
