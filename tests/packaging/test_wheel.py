"""What the wheel holds, and that nothing else belongs to the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import trunkline

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "trunkline"


@pytest.mark.timeout(900)  # it may have to compile
def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = f"trunkline-{trunkline.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"trunkline", info}
    suffixes = (".py", ".pyi", ".pxd", ".h")
    sources = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.*") if path.suffix in suffixes}
    assert {"trunkline/__init__.pxd", "trunkline/_capi.pxd", "trunkline/include/trunkline.h"} < sources
    shipped = {name for name in names if name.startswith("trunkline/") and not name.endswith("/")}
    [module] = shipped - sources - {"trunkline/py.typed"}
    assert re.fullmatch(r"trunkline/_core\.(abi3|cpython-314t-\w+-linux-gnu)\.so", module)
    assert f".{wheel.name.split('-')[3].replace('cp314t', 'cpython-314t')}" in module


def test_the_wheel_is_small_and_serves_every_later_python(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name or "-cp314-cp314t-" in wheel.name
    assert wheel.stat().st_size < 8e6


@pytest.mark.parametrize("tool", [["check-wheel-contents"], ["abi3audit", "--strict"]], ids=lambda tool: tool[0])
def test_tools_find_nothing_wrong_with_the_wheel(wheel: Path, tool: list[str]) -> None:
    if tool[0] == "abi3audit" and "-abi3-" not in wheel.name:
        pytest.skip("it keeps to no stable ABI")
    command = [str(Path(sys.executable).with_name(tool[0])), *tool[1:], str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_needs_no_newer_system_than_its_name_says(wheel: Path) -> None:
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    tag = re.search(r'platform tag: "(\w+)"', " ".join(shown.split()))
    assert tag, shown
    assert wheel.stem.endswith(tag[1]), shown
    assert tag[1].startswith(("manylinux", "musllinux")), "no library beside those that every system has"


def test_the_wheel_says_who_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(f"trunkline-{trunkline.__version__}.dist-info/METADATA").decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert [
        line.split(": ")[1]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    ] == [
        "click>=8.1",
        "msgspec>=0.19",
        "pyyaml>=6",
    ]
    extras = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Provides-Extra")}
    assert {"server", "exact", "demo", "bench", "testing"} <= extras
    scripts = archive.read(f"trunkline-{trunkline.__version__}.dist-info/entry_points.txt").decode()
    assert "trunkline=trunkline.__main__:main" in scripts.replace(" ", "")


@pytest.mark.skipif("TRUNKLINE_WHEEL" not in os.environ, reason="of wheels by `make wheel` or `make wheels`")
def test_the_wheel_brings_the_notices_of_what_is_linked_into_it(wheel: Path) -> None:
    archive, info = zipfile.ZipFile(wheel), f"trunkline-{trunkline.__version__}.dist-info"
    files = ["LICENSE", "notices/crates.txt", "notices/rust-library.html"]
    metadata = archive.read(f"{info}/METADATA").decode().splitlines()
    assert [line.split(": ")[1] for line in metadata if line.startswith("License-File")] == files
    crates, library = (archive.read(f"{info}/licenses/{file}").decode() for file in files[1:])
    target = "aarch64" if "aarch64" in wheel.name else "x86_64"
    tree = ["cargo", "tree", "--locked", "--package=trunkline-python", "--edges=normal,no-proc-macro", "--prefix=none"]
    found = subprocess.run(
        [*tree, f"--target={target}-unknown-linux-gnu"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    linked = {tuple(line.split()[:2]) for line in found.splitlines() if not line.startswith("trunkline-")}
    assert len(linked) > 50
    assert linked <= {(name, f"v{version}") for name, version in re.findall(r"^  (\S+) (\S+)", crates, re.MULTILINE)}
    assert "Copyright (c)" in crates
    assert "hashbrown" in library


def test_the_version_is_written_once() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert trunkline.__version__ == cargo["workspace"]["package"]["version"]
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]


def test_public_names_are_listed_and_documented() -> None:
    # Modules are there once somebody has imported them.
    public = {
        name for name, value in vars(trunkline).items() if not (name.startswith("_") or isinstance(value, ModuleType))
    }
    listed = set(trunkline.__all__) - {"__version__"}
    # These two are loaded when they are asked for.
    public |= {"SidecarError", "SidecarRouter"}
    assert public == listed
    for name in listed:
        thing = getattr(trunkline, name)
        assert thing.__doc__, name
        assert getattr(thing, "__module__", "trunkline").startswith("trunkline"), name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            assert member.startswith("_") or member == "REASONS" or value.__doc__, f"{name}.{member}"
