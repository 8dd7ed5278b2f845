"""The wheel alone, in an environment that has nothing else: it imports, routes, pickles, and type-checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("sample.py")
COPY = """
import multiprocessing, pickle, trunkline
def held(router):
    return router.peek(range(64)).workers
if __name__ == "__main__":
    router = trunkline.Router()
    router.add_worker("a")
    router.complete(router.route(range(64)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(held, (router,)))
"""

pytestmark = pytest.mark.timeout(900)  # the first of them may have to compile


def run(*command: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_library_needs_no_other_package(clean: Path) -> None:
    done = run(clean / "python", "-I", SAMPLE)
    assert done.stdout == "only a http://10.0.0.1:8000 True True {'a': 64} 0 [(7, 256)] True\n", done.stderr
    assert not done.stderr


def test_routers_travel_between_processes(clean: Path, tmp_path: Path) -> None:
    script = tmp_path / "copy.py"
    script.write_text(COPY)
    done = run(clean / "python", script)
    assert done.stdout == "{'a': 64}\n", done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--worker", "http://127.0.0.1:1"]], ids=" ".join)
def test_the_command_says_what_it_needs(clean: Path, arguments: list[str]) -> None:
    done = run(clean / "trunkline", *arguments)
    assert done.returncode == 2
    assert done.stderr == "trunkline: the command line needs click: pip install 'trunkline[server]'\n"


def test_extras_that_tests_need_are_named(clean: Path) -> None:
    for module, package in (("strategies", "hypothesis"), ("pytest_plugin", "pytest")):
        done = run(clean / "python", "-c", f"import trunkline.testing.{module}")
        assert done.returncode == 1
        assert f"trunkline.testing.{module} needs {package}: pip install 'trunkline[testing]'" in done.stderr


@pytest.mark.parametrize(
    "checker",
    [
        ["mypy", "--strict", "--no-incremental", "--config-file=", "--python-executable"],
        ["basedpyright", "--pythonpath"],
    ],
    ids=lambda checker: checker[0],
)
def test_a_user_of_the_wheel_type_checks(clean: Path, tmp_path: Path, checker: list[str]) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    source = tmp_path / "sample.py"
    source.write_text(SAMPLE.read_text())
    command = [str(Path(sys.executable).with_name(checker[0])), *checker[1:], str(clean / "python"), source.name]

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    source.write_text(SAMPLE.read_text().replace("worker: str = decision.worker", "worker: int = decision.worker"))
    done = check()
    assert done.returncode == 1
    assert "sample.py:" in done.stdout
