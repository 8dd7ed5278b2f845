"""Runs every check in order, whatever fails, and prints how many passed as its last line.

A lint counts as one check, a test as one. `--lint` runs the lints alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LINTS = {
    "rustfmt": ["cargo", "fmt", "--all", "--check"],
    "clippy": ["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "--deny", "warnings"],
    # They run only by `make fuzz`, with a nightly compiler; that they build is checked here.
    "fuzz targets": [
        "env",
        "RUSTFLAGS=--cfg fuzzing",
        "cargo",
        "clippy",
        "--manifest-path=rust/fuzz/Cargo.toml",
        "--target-dir=target/fuzz",
        "--locked",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ],
    "rustdoc": [
        "env",
        "RUSTDOCFLAGS=--deny warnings",
        "cargo",
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--quiet",
    ],
    "ruff check": ["ruff", "check"],
    "ruff format": ["ruff", "format", "--check"],
    "mypy": ["mypy"],
    "stubtest": [sys.executable, "-m", "mypy.stubtest", "trunkline._core"],
}
CARGO_TEST = ["cargo", "test", "--workspace", "--locked", "--no-fail-fast"]
# Each test by eight threads at a time: what can be done in a few seconds; `make test-parallel` has the rest.
PARALLEL = ["--parallel-threads=8", "-m", "not slow and not thread_unsafe", "tests/unit", "tests/concurrency"]
CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


class Tally:
    """Counts of all checks so far."""

    def __init__(self) -> None:
        """Nothing was run yet."""
        self.passed = self.failed = self.skipped = 0

    def add(self, passed: int, failed: int, skipped: int) -> None:
        """Count some more."""
        self.passed += passed
        self.failed += failed
        self.skipped += skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def main(arguments: list[str]) -> int:
    """Run what was asked for; return the exit code."""
    os.chdir(ROOT)
    tally = Tally()
    for name, command in LINTS.items():
        code, _ = _run(name, command)
        tally.add(code == 0, code != 0, 0)
    if arguments != ["--lint"]:
        _cargo_test(tally)
        _pytest(tally, "pytest")
        _pytest(tally, "pytest, eight threads", *PARALLEL)
    print(tally, flush=True)
    return 1 if tally.failed else 0


def _cargo_test(tally: Tally) -> None:
    code, output = _run("cargo test", CARGO_TEST)
    counts = [tuple(map(int, found)) for found in CARGO_RESULT.findall(output)]
    for passed, failed, ignored in counts:
        tally.add(passed, failed, ignored)
    if code != 0 and not any(failed for _, failed, _ in counts):
        tally.add(0, 1, 0)  # it did not compile


def _pytest(tally: Tally, name: str, *arguments: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code, _ = _run(name, [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments])
        if not report.exists():
            tally.add(0, 1, 0)
            return
        suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 (written a moment ago)
        assert suite is not None
        total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        tally.add(total - failed - skipped, max(failed, int(code != 0)), skipped)


def _run(name: str, command: list[str]) -> tuple[int, str]:
    """Run a command, show its output as it comes, and return its exit code and output."""
    print(f"== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            output.append(line)
    print(f"== {name}: exit code {process.returncode} after {time.monotonic() - started:.0f} s", flush=True)
    return process.returncode, "".join(output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
