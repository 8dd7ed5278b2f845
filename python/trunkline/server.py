"""The life of `trunkline serve` and `trunkline mock-worker`: start, say so, wait for a signal, finish what runs, stop.

SIGINT, SIGTERM and SIGHUP are blocked before any thread exists and taken with `sigtimedwait`, so no handler interrupts
anything and no thread of the data plane is woken by them. SIGHUP reloads, and so does a changed file (see `reload`).
After the first of the others both have their default effect again: a second Ctrl-C ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from . import exact
from ._core import Gateway, MockWorker, Router, Sidecar, __version__
from .reload import Reloader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .config import MockWorkerSettings, ServeSettings, SidecarSettings

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Between two looks at the files of the configuration. A look is a few stat calls.
_LOOK_S = 1.0


def serve(settings: ServeSettings, *, again: Callable[[], ServeSettings], config_file: Path | None = None) -> int:
    """Run a gateway until a signal comes, then drain it; return the exit code.

    again: reads the settings anew from where they came; it is called at SIGHUP, and when `config_file` or a file that
    the settings name has changed.

    0: everything that ran was finished.  1: the drain time-out cut requests.  Raises ConfigError for settings that fit
    their type but not each other, OSError if an address cannot be listened on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGHUP))
    _raise_descriptor_limit()
    router = Router(
        policy=settings.policy,
        memory_budget=settings.memory_budget,
        events_budget=settings.events_budget,
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
        log=True,
        endpoints=msgspec.to_builtins(settings.endpoints),
        listen=settings.listen,
        worker_protocol=settings.worker_protocol,
        max_header=settings.max_header,
        max_headers=settings.max_headers,
        max_connections_per_client=settings.max_connections_per_client,
        header_timeout_s=settings.header_timeout_s,
        client_idle_timeout_s=settings.client_idle_timeout_s,
        max_streams=settings.max_streams,
        files=settings.files,
        events=settings.events,
        tokenizers=exact.checked(settings, say=_say),
        time_zone=settings.time_zone,
        chat_template=settings.chat_template,
        chat_template_content_format=settings.chat_template_content_format,
        chat_template_kwargs=settings.chat_template_kwargs,
        exclude_unused_tools=settings.exclude_unused_tools,
        check_every=settings.check_every,
        load_signals=settings.load_signals,
        trial=settings.trial,
    )
    with gateway:
        reloader = Reloader(gateway, router, settings, again=again, config_file=config_file)
        if settings.pool_warning:
            _say(settings.pool_warning)
        _say(
            f"trunkline {__version__} on {gateway.url} for {len(router.workers)} workers, "
            f"policy {settings.policy}, admin on {_url(settings.admin_host, gateway.admin_port)}"
        )
        while (number := _wait_for_signal(signal.SIGHUP, timeout_s=_LOOK_S)) not in _STOP_SIGNALS:
            if number == signal.SIGHUP or reloader.has_news():
                _say(reloader.reload())
        _default_signals()
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
        dialect=settings.dialect,
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
        kv_events=settings.kv_events,
        events_port=settings.events_port,
        replay_port=settings.replay_port,
        buffer_steps=settings.buffer_steps,
        event_delay_s=settings.event_delay_s,
    ) as worker:
        _say(f"mock worker on {worker.url}, model {settings.model}")
        _wait_for_signal()
        _default_signals()
    return 0


def serve_sidecar(settings: SidecarSettings) -> int:
    """Run a decision service until a signal comes; return the exit code 0.

    Raises ConfigError for settings out of range, OSError if the socket cannot be listened on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    _raise_descriptor_limit()
    router = Router(policy=settings.policy, memory_budget=settings.memory_budget, replicas=settings.replicas)
    for worker in settings.workers:
        router.add_worker(worker)
    with Sidecar(
        router,
        settings.socket,
        max_connections=settings.max_connections,
        frame_timeout_s=settings.frame_timeout_s,
        grace_s=settings.grace_s,
    ):
        _say(f"trunkline {__version__} sidecar on {settings.socket} for {len(settings.workers)} workers")
        _wait_for_signal()
        _default_signals()
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


def _wait_for_signal(*others: signal.Signals, timeout_s: float | None = None) -> int | None:
    """Return the next of the signals that stop us, or of `others`; None after the time-out."""
    wanted = (*_STOP_SIGNALS, *others)
    if timeout_s is None:
        return signal.sigwait(wanted)
    found = signal.sigtimedwait(wanted, timeout_s)
    return None if found is None else found.si_signo


def _default_signals() -> None:
    """Let the next signal that stops us end the process."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _url(host: str, port: int | None) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(line: str) -> None:
    """Print a line to the log, now; what nobody takes is lost. Whoever serves neither waits for it nor ends with it."""
    text = line.encode(errors="backslashreplace")[: select.PIPE_BUF - 1] + b"\n"
    ready = select.poll()
    with contextlib.suppress(OSError):
        ready.register(sys.stderr, select.POLLOUT)
        if ready.poll(0):
            os.write(sys.stderr.fileno(), text)
