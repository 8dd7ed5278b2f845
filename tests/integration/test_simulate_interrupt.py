"""Ctrl-C during a simulation: what is known so far is shown, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support import wait_for


@pytest.mark.parametrize("command", ["policy", "aws16"])
def test_an_interrupted_bench_is_neither_passed_nor_missed(command: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "trunkline", "bench", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        wait_for(process.stderr.readline, deadline_s=30, what="a sign of life")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not {"Traceback", "missed"} & set(err.split())


def test_an_interrupted_simulation_shows_what_it_knows() -> None:
    command = [sys.executable, "-m", "trunkline", "simulate", "chat", "--requests", "2000000", "--seeds", "1"]
    with subprocess.Popen(
        [*command, "--policy", "random"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        # The label of the progress bar: from here on Ctrl-C is a wish to stop.
        wait_for(process.stderr.readline, deadline_s=30, what="a sign of life")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not out or "Stopped early" in out
