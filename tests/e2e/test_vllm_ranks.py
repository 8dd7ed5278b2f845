"""The rank picker of examples/ with vLLM's `AsyncLLM`, two data-parallel ranks on the CPU.

It runs in the environment that the engines of the other tests were set up in (see conftest.py).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VLLM = Path(os.environ.get("TRUNKLINE_VLLM_DIR", ROOT / ".cache" / "vllm"))
# The example as it is, but for what a machine without GPU and without weights needs.
PROGRAM = """
import asyncio, functools, sys
import vllm.engine.arg_utils as arguments
import vllm_ranks
arguments.AsyncEngineArgs = functools.partial(
    arguments.AsyncEngineArgs, load_format="dummy", dtype="float32", enforce_eager=True, max_model_len=2048,
    num_gpu_blocks_override=100, block_size=32, max_num_seqs=4)
if __name__ == "__main__":
    asyncio.run(vllm_ranks.main(sys.argv[1], 2))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not (VLLM / "venv").exists(), reason="no vLLM in TRUNKLINE_VLLM_DIR")
def test_questions_about_a_document_find_it_cached(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'examples'}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [VLLM / "venv" / "bin" / "python", program, VLLM / "models" / "small"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    found = re.findall(r"^document (\d): (\d+) of (\d+) tokens cached$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [int(number) for number, _, _ in found] == [0, 1, 2] * 4
    # All but the last, incomplete block.
    assert [int(cached) for _, cached, _ in found] == [0] * 3 + [192] * 9, done.stdout
