"""What the wheel holds, and that nothing else belongs to the package."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel from what is compiled already."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.timeout(900)
def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    info = f"trunkline-{trunkline.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"trunkline", info}
    suffixes = (".py", ".pyi", ".pxd", ".h")
    sources = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.*") if path.suffix in suffixes}
    assert {"trunkline/__init__.pxd", "trunkline/_capi.pxd", "trunkline/include/trunkline.h"} < sources
    shipped = {name for name in names if name.startswith("trunkline/") and not name.endswith("/")}
    assert shipped == sources | {"trunkline/py.typed", "trunkline/_core.abi3.so"}


def test_the_wheel_is_small_and_serves_every_later_python(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert "-cp311-abi3-" in wheel.filename
    assert Path(wheel.filename).stat().st_size < 8e6


def test_the_wheel_says_who_it_is(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(f"trunkline-{trunkline.__version__}.dist-info/METADATA").decode()
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
    scripts = wheel.read(f"trunkline-{trunkline.__version__}.dist-info/entry_points.txt").decode()
    assert "trunkline=trunkline.cli:main" in scripts.replace(" ", "")


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
