"""The life of `trunkline serve` and `trunkline mock-worker`: start, say so, wait for a signal, finish what runs, stop.

SIGINT and SIGTERM are blocked before any thread exists and taken with `sigwait`, so no handler interrupts anything and
no thread of the data plane is woken by them. After the first one both have their default effect again: a second Ctrl-C
ends the process at once.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from typing import TYPE_CHECKING

from ._core import Gateway, MockWorker, Router, __version__

if TYPE_CHECKING:
    from .config import MockWorkerSettings, ServeSettings

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(settings: ServeSettings) -> int:
    """Run a gateway until a signal comes, then drain it; return the exit code.

    0: everything that ran was finished.  1: the drain time-out cut requests.  Raises ConfigError for settings that fit
    their type but not each other, OSError if an address cannot be listened on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    _raise_descriptor_limit()
    router = Router(
        policy=settings.policy,
        memory_budget=settings.memory_budget,
        replicas=settings.replicas,
        prefix_length=settings.prefix_length,
        concurrency_threshold=settings.concurrency_threshold,
    )
    gateway = Gateway(
        router,
        host=settings.host,
        port=settings.port,
        admin_host=settings.admin_host,
        admin_port=settings.admin_port,
        workers=settings.workers,
        threads=settings.threads,
        max_body=settings.max_body,
        connect_timeout_s=settings.connect_timeout_s,
        first_byte_timeout_s=settings.first_byte_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        max_in_flight=settings.max_in_flight,
        worker_caps=[_cap(text) for text in settings.worker_caps],
        max_queued=settings.max_queued,
        queue_timeout_s=settings.queue_timeout_s,
        retry_budget=settings.retry_budget,
        hang_detection=settings.hang_detection,
        slow_start_s=settings.slow_start_s,
        probe_interval_s=settings.probe_interval_s,
        annotate=settings.annotate,
    )
    with gateway:
        _say(
            f"trunkline {__version__} on {_url(gateway.host, gateway.port)} for {len(settings.workers)} workers, "
            f"policy {settings.policy}, admin on {_url(settings.admin_host, gateway.admin_port)}"
        )
        _wait_for_signal()
        _say("draining; once more to stop at once")
        gateway.drain()
        drained = gateway.wait_drained(settings.drain_timeout_s)
    _say("stopped" if drained else f"stopped with requests running after {settings.drain_timeout_s:g} s")
    return 0 if drained else 1


def serve_mock_worker(settings: MockWorkerSettings) -> int:
    """Run a mock worker until a signal comes; return the exit code 0.

    Raises ConfigError for settings that fit their type but not each other, OSError if the port is taken.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    with MockWorker(
        host=settings.host,
        port=settings.port,
        model=settings.model,
        block_size=settings.block_size,
        kv_tokens=settings.kv_tokens,
        prefill_tokens_per_s=settings.prefill_tokens_per_s,
        step_s=settings.step_s,
        per_sequence_s=settings.per_sequence_s,
        per_kv_token_s=settings.per_kv_token_s,
        max_sequences=settings.max_sequences,
        step_token_budget=settings.step_token_budget,
        default_output_tokens=settings.default_output_tokens,
        time_scale=settings.time_scale,
    ) as worker:
        _say(f"mock worker on {worker.url}, model {settings.model}")
        _wait_for_signal()
    return 0


def _cap(text: str) -> tuple[str, int]:
    """Take URL=N apart."""
    url, _, number = text.rpartition("=")
    return url, int(number)


def _raise_descriptor_limit() -> None:
    """Allow as many open connections as the system does; the usual soft limit is for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _wait_for_signal() -> None:
    signal.sigwait(_STOP_SIGNALS)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _url(host: str, port: int | None) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(line: str) -> None:
    """Print a line to the log, now."""
    print(line, file=sys.stderr, flush=True)
