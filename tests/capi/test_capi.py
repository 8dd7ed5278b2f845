"""The C API: a C program links the library, plain and under AddressSanitizer, and gets an answer to everything."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trunkline
from trunkline import _core

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="session")
def library() -> Path:
    """Build the static library, in the profile of tests: what the C tests are about is the boundary."""
    command = ["cargo", "build", "--locked", "--quiet", "--package", "trunkline-capi"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "debug" / "libtrunkline.a"


def compile_c(library: Path, source: Path, program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    include = f"-I{trunkline.get_include()}"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-g", *flags, include, str(source), str(library)]
    command += ["-o", str(program), "-lpthread", "-ldl", "-lm"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [[], SANITIZE], ids=["plain", "sanitized"])
def test_a_c_program_gets_an_answer_to_everything(library: Path, tmp_path: Path, flags: list[str]) -> None:
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if flags and compile_c(library, probe, tmp_path / "probe", *flags).returncode != 0:
        pytest.skip("this compiler has no AddressSanitizer")
    built = compile_c(library, Path(__file__).with_name("check.c"), tmp_path / "check", *flags)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "check"], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr


def test_the_header_is_c_plus_plus_too(library: Path, tmp_path: Path) -> None:
    source = tmp_path / "check.cpp"
    source.write_text('#include "trunkline.h"\nint main() { return trunkline_api(99) == nullptr ? 0 : 1; }\n')
    include = f"-I{trunkline.get_include()}"
    program = tmp_path / "check"
    command = [
        "c++",
        "-Wall",
        "-Werror",
        include,
        str(source),
        str(library),
        "-o",
        str(program),
        "-lpthread",
        "-ldl",
        "-lm",
    ]
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    subprocess.run(command, check=True, timeout=120)
    subprocess.run([program], check=True, timeout=20)


def test_the_capsule_is_the_table() -> None:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(_core._C_API, b"trunkline._core._C_API")
    version, size = (ctypes.c_uint32 * 2).from_address(table)
    assert (version, size) == (1, 8 + 14 * ctypes.sizeof(ctypes.c_void_p))


def test_a_handle_lives_as_long_as_its_router() -> None:
    script = """
import ctypes, trunkline
from trunkline import _core
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
table = pointer(_core._C_API, b"trunkline._core._C_API")
slots = (ctypes.c_void_p * 15).from_address(table)
remove_worker = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint32)(slots[4])
router = trunkline.Router()
handle = router.c_handle
assert handle == router.c_handle != trunkline.Router().c_handle
print(remove_worker(handle, 4711))
del router
print(remove_worker(handle, 4711))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["-6", "-2"]
