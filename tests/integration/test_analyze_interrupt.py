"""Ctrl-C during an analysis: what is known so far is shown as partial, whatever the input is doing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support import wait_for


def test_an_interrupted_analysis_shows_what_it_knows() -> None:
    command = [sys.executable, "-m", "trunkline", "analyze", "-", "--no-forecast"]
    line = json.dumps({"prompt": "What is a trunk line? " * 40}) + "\n"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # The label of the progress bar: from here on Ctrl-C is a wish to stop. More than a pipe holds is read by then.
        wait_for(process.stderr.readline, deadline_s=30, what="a sign of life")
        process.stdin.write(line * 1000)
        process.stdin.flush()
        # The pipe stays open and silent: the analysis waits for more.
        process.send_signal(signal.SIGINT)
        out = process.stdout.read() if process.stdout else ""
        err = process.stderr.read()
        code = process.wait(timeout=60)
        process.stdin.close()
    assert code == 130, err
    assert "Traceback" not in err
    assert out.startswith("PARTIAL")


def test_what_came_in_small_pieces_is_known_too() -> None:
    command = [sys.executable, "-m", "trunkline", "analyze", "-", "--no-forecast", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        wait_for(process.stderr.readline, deadline_s=30, what="a sign of life")
        process.stdin.write((json.dumps({"prompt": "What is a trunk line?"}) + "\n") * 3)
        process.stdin.flush()
        waits = Path(f"/proc/{process.pid}/fd/0")
        wait_for(lambda: is_empty(waits), deadline_s=30, what="an empty pipe")
        process.send_signal(signal.SIGINT)
        found = json.loads(process.stdout.read())
    assert (found["partial"], found["requests"]) == (True, 3)


def is_empty(pipe: Path) -> bool:
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder) == 0
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", ["endless line", "nobody writes"])
def test_input_without_end_can_be_interrupted(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero")
    if kind == "nobody writes":
        path = tmp_path / "fifo"
        os.mkfifo(path)
    command = [sys.executable, "-m", "trunkline", "analyze", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        wait_for(process.stderr.readline, deadline_s=30, what="a sign of life")
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=60)
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
    assert code == 130
