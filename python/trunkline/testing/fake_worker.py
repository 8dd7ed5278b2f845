"""A simulated worker that a test can kill and restart: `MockWorker` on a port that stays."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from trunkline._core import MockStats, MockWorker

from ._closes import Closes


class FakeWorker(Closes):
    """A simulated vLLM worker with a prefix cache, in this process, that can be killed and restarted.

    It speaks OpenAI's API over HTTP, answers after the time that a real one would take, times `time_scale`, and reports
    what it found cached. time_scale: 0.01 is a hundred times faster than the modelled hardware.  arguments: those of
    `MockWorker` (model, block_size, kv_tokens, dialect, kv_events, ...).

    Attributes: url: its endpoint, http://127.0.0.1:port; port: where it listens, in all its lives.

    It accepts connections when the constructor returns, until `close`: use it as a context manager. All methods may be
    called from any thread; it does not survive a fork.  Raises ConfigError, OSError if it cannot listen.
    """

    url: str
    port: int

    def __init__(self, *, time_scale: float = 0.01, **arguments: Any) -> None:  # noqa: ANN401 (checked by MockWorker)
        self._arguments = {"time_scale": time_scale, **arguments}
        self._lock = threading.RLock()  # `restart` kills
        self._worker = MockWorker(**self._arguments)
        self._running = True
        self._earlier = 0
        self._arguments["port"] = self._worker.port
        if ports := self._worker.event_ports():
            self._arguments["events_port"], self._arguments["replay_port"] = ports
        self.url = self._worker.url
        self.port = self._worker.port

    def __repr__(self) -> str:
        return f"FakeWorker({self.url!r}, is_running={self._running})"

    @property
    def is_running(self) -> bool:
        """Whether it accepts connections: not between `kill` and `restart`, and not after `close`."""
        return self._running

    @property
    def requests(self) -> int:
        """Sequences received since it was made, over all its lives; a request with several prompts is several."""
        with self._lock:
            return self._earlier + (self._worker.stats().requests if self._running else 0)

    def stats(self) -> MockStats:
        """Return the counters of this life: prompt tokens, those of them found cached, what runs and waits.

        Raises RuntimeError while it is killed.
        """
        return self._worker.stats()

    def kill(self) -> None:
        """Die at once, as by SIGKILL: connections are cut, new ones refused. The second time does nothing."""
        with self._lock:
            if self._running:
                with contextlib.suppress(RuntimeError):  # in a forked child, whose worker it is not
                    self._earlier += self._worker.stats().requests
                self._worker.close()
                self._running = False

    def restart(self) -> None:
        """Come back on the same ports with an empty cache and no counters; one that runs is killed first.

        Raises OSError if another process has taken the port meanwhile.
        """
        with self._lock:
            self.kill()
            self._worker = MockWorker(**self._arguments)
            self._running = True

    def close(self) -> None:
        """End it. The second time does nothing."""
        self.kill()
