"""The demo itself, short: real workers, a real gateway process, real figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trunkline.demo.fleet import Fleet, FleetError


def demo(*arguments: str) -> subprocess.Popen[str]:
    # What a background job ignores, its children would ignore as well; a signal that is handled here is not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "trunkline", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(fields["PPid"]) == parent:
            found.append(int(status.parent.name))
    return found


def wait_for_children(process: subprocess.Popen[str]) -> list[int]:
    deadline = time.monotonic() + 30
    while not (found := children(process.pid)):
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it has started nothing"
        time.sleep(0.01)
    return found


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_prefix_aware_routing_wins() -> None:
    process = demo("--requests", "100", "--json")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    figures = json.loads(out)["policies"]
    assert figures["random"]["requests"] == figures["kv_aware"]["requests"] == 100
    assert figures["kv_aware"]["hit_rate"] > figures["random"]["hit_rate"] + 0.2
    assert figures["kv_aware"]["ttft_p50_ms"] < figures["random"]["ttft_p50_ms"]
    assert sum(figures["kv_aware"]["requests_per_worker"]) == 100


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_no_process(number: signal.Signals) -> None:
    process = demo("--requests", "5000")
    try:
        gateways = wait_for_children(process)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    assert process.returncode == 128 + number, err
    assert not any(map(is_alive, gateways))


def signalled_in_a_fleet(number: signal.Signals, gateways: list[int]) -> None:
    others = set(children(os.getpid()))
    with Fleet("random", workers=1, time_scale=1.0):
        gateways += set(children(os.getpid())) - others
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_process_ends_a_fleet_first(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    gateways: list[int] = []
    try:
        with pytest.raises(SystemExit) as raised:
            signalled_in_a_fleet(number, gateways)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert raised.value.code == 128 + number
    (gateway,) = gateways
    assert not is_alive(gateway)


def test_a_signal_while_the_gateway_is_started_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Fleet("random", workers=1, time_scale=1.0):
            pytest.fail("it went on")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        (gateway,) = started
        was_waited_for = gateway.returncode is not None
        gateway.kill()
        gateway.wait()
    assert was_waited_for


def test_a_gateway_that_cannot_start_is_an_error_with_its_words() -> None:
    with pytest.raises(FleetError, match="nonsense"), Fleet("nonsense", workers=1, time_scale=1.0):
        pass
