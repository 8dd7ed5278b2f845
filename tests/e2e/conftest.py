"""Real engines for the tests of this folder: two vLLM workers, given by URL or started by a helper script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_for

ROOT = Path(__file__).parents[2]


def _helper() -> Path:
    given = os.environ.get("TRUNKLINE_REAL_VLLM")
    return Path(given) if given else ROOT.parent / "shared" / "tools" / "real_vllm.py"


@dataclass(frozen=True)
class Engines:
    """Two vLLM workers in development mode (their caches can be cleared) that publish KV events."""

    urls: list[str]

    def _models(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.urls[0]}/v1/models", timeout=10) as answer:  # noqa: S310 (loopback)
            found: dict[str, Any] = json.load(answer)["data"][0]
            return found

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self._models()["id"])

    @property
    def model_directory(self) -> Path:
        """Where its tokenizer and its chat template are, on this machine."""
        return Path(self._models()["root"])

    def clear_caches(self) -> None:
        """Clear all caches; the engines tell of it with their next step only."""
        for url in self.urls:

            def cleared(url: str = url) -> bool:
                request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")  # noqa: S310 (loopback)
                with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                    return bool(json.load(answer)["success"])

            wait_for(cleared, deadline_s=20, what=f"{url} clears its cache")


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    """Two vLLM workers.

    TRUNKLINE_E2E_WORKERS names running ones, by commas. Otherwise the script in TRUNKLINE_REAL_VLLM (its place beside
    the checkout by default) sets vLLM up in TRUNKLINE_VLLM_DIR and starts them; the first time takes minutes and
    6.5 GB.
    """
    if given := os.environ.get("TRUNKLINE_E2E_WORKERS"):
        yield Engines(given.split(","))
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
        yield Engines([worker["url"] for worker in fleet["workers"]])
    finally:
        helper("stop")
