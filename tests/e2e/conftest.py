"""Real engines for the tests of this folder: two vLLM workers, given by URL or started by a helper script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _helper() -> Path:
    given = os.environ.get("TRUNKLINE_REAL_VLLM")
    return Path(given) if given else ROOT.parent / "shared" / "tools" / "real_vllm.py"


@pytest.fixture(scope="session")
def engines() -> Iterator[list[str]]:
    """URLs of two vLLM workers in development mode (their caches can be cleared) that serve a small model.

    TRUNKLINE_E2E_WORKERS names running ones, by commas. Otherwise the script in TRUNKLINE_REAL_VLLM (its place beside
    the checkout by default) sets vLLM up in TRUNKLINE_VLLM_DIR and starts them; the first time takes minutes and
    6.5 GB.
    """
    if given := os.environ.get("TRUNKLINE_E2E_WORKERS"):
        yield given.split(",")
        return
    script = _helper()
    if not script.exists():
        pytest.skip("no engines: set TRUNKLINE_E2E_WORKERS=URL,URL or TRUNKLINE_REAL_VLLM=real_vllm.py")
    folder = os.environ.get("TRUNKLINE_VLLM_DIR", str(ROOT / ".cache" / "vllm"))

    def helper(command: str, *options: str) -> str:
        words = [sys.executable, str(script), command, "--dir", folder, *options]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

    helper("setup")
    try:
        fleet = json.loads(helper("start", "-n", "2", "--model", "small", "--num-blocks", "200"))
        yield [worker["url"] for worker in fleet["workers"]]
    finally:
        helper("stop")
