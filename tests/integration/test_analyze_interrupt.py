"""Ctrl-C during an analysis: what is known so far is shown as partial, whatever the input is doing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

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
