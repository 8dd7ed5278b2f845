"""The black-box acceptance suite, where it is: beside the checkout, or where TRUNKLINE_ACCEPTANCE says.

It belongs to another repository. The promises behind its cases are also tested here and in the crates.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clean_environment

# All but T15, which compares milliseconds beside whatever else this machine does.
CASES = "T1,T2,T3,T5,T8,T9,T10,T11,T12,T13,T14,T16,T17,T18,T19,T20,T21,T22,T23,T24"
ADMIN = "http://127.0.0.1:{spare}/admin/workers"
PLACE = Path(os.environ.get("TRUNKLINE_ACCEPTANCE", Path(__file__).resolve().parents[3] / "shared"))


def run() -> tuple[set[str], str]:
    """Run the cases; return those that passed, and what the suite said."""
    start = f"{sys.executable} -m trunkline serve --host 127.0.0.1 --port {{port}} --admin-port {{spare}} {{workers}}"
    options = ["--start", start, "--worker-arg", "--worker {url}", "--metrics-url", "http://127.0.0.1:{spare}/metrics"]
    options += ["--memory-arg=--memory-budget={mib}MiB"]
    options += ["--add", f"""curl -sf -X POST {ADMIN} -H content-type:application/json -d '{{{{"url":"{{url}}"}}}}'"""]
    options += ["--remove", f"curl -sf -X DELETE {ADMIN}?url={{url}}"]
    done = subprocess.run(
        [sys.executable, "-m", "acceptance", *options, "--only", CASES],
        env=clean_environment() | {"PYTHONPATH": str(PLACE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=590,
        check=False,
    )
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("PASS ")}, done.stdout


@pytest.mark.skipif(not (PLACE / "acceptance").is_dir(), reason=f"no acceptance suite in {PLACE}")
@pytest.mark.timeout(900)
def test_the_acceptance_suite_passes_with_default_settings() -> None:
    passed, said = run()
    assert passed == set(CASES.split(",")), said
