"""`cimport trunkline`: the Cython example compiles against the package and decides as Python does, without the GIL."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import trunkline
from trunkline import Router

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def compile_cython(source: Path, folder: Path) -> ModuleType:
    """Compile a module of Cython as its users would, and load it."""
    name = source.stem
    c_file = folder / f"{name}.c"
    package = Path(trunkline.__file__).parent.parent
    command = [sys.executable, "-m", "cython", "-3", "-I", str(package), str(source), "-o", str(c_file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    library = folder / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    include = [f"-I{sysconfig.get_path('include')}", f"-I{trunkline.get_include()}"]
    command = ["cc", "-shared", "-fPIC", "-O2", *include, str(c_file), "-o", str(library)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return compile_cython(ROOT / "examples" / "cython" / "gateway.pyx", tmp_path_factory.mktemp("cython"))


def prompts(count: int, length: int = 64) -> np.ndarray:
    return (
        np.random.default_rng(1).integers(0, 50, size=(count, length), dtype=np.uint32).cumsum(axis=1, dtype=np.uint32)
    )


@pytest.mark.timeout(600)
def test_it_decides_as_python_does(gateway: ModuleType) -> None:
    compiled, plain = Router(seed=1), Router(seed=1)
    for router in (compiled, plain):
        for number in range(4):
            router.add_worker(f"w{number}")
    asked = np.concatenate([prompts(50), prompts(50)])
    workers = np.zeros(len(asked), dtype=np.uint32)
    cached = gateway.send_all(compiled, asked, workers)
    decisions = []
    for prompt in asked:
        decisions.append(plain.route(prompt))
        plain.first_token(decisions[-1])
        plain.complete(decisions[-1])
    assert [f"w{number}" for number in workers] == [decision.worker for decision in decisions]
    assert cached == sum(decision.matched_tokens for decision in decisions) > 0
    assert compiled.stats().decisions == plain.stats().decisions
    assert compiled.stats().in_flight == 0


def test_other_threads_run_meanwhile(gateway: ModuleType) -> None:
    router = Router()
    router.add_worker("a")
    asked = np.tile(prompts(200, 512), (50, 1))
    workers = np.zeros(len(asked), dtype=np.uint32)
    thread = threading.Thread(target=gateway.send_all, args=(router, asked, workers))
    thread.start()
    seen = 0
    while thread.is_alive():
        seen = max(seen, sum(router.stats().decisions.values()) % len(asked))
    assert seen > 0, "this thread had to wait for the end"
    assert sum(router.stats().decisions.values()) == len(asked)


def test_errors_are_told(gateway: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="no worker can take the request"):
        gateway.send_all(Router(), prompts(1), np.zeros(1, dtype=np.uint32))
