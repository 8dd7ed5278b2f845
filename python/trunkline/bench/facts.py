"""Say what was measured: on what machine, from what commit, with what versions. No names of hosts or folders."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from trunkline._core import BUILD, __version__

REPOSITORY = Path(__file__).resolve().parents[3]


def facts(command: str, packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return date, commit, machine, command and versions, for a result."""
    versions = {"trunkline": f"{__version__} ({BUILD} build)", "python": platform.python_version()}
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit(REPOSITORY),
        "command": command,
        "machine": machine(),
        "versions": versions | {package: version for package in packages if (version := version_of(package))},
    }


def machine() -> dict[str, Any]:
    """Return what the machine is, and how busy it is with other things."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 1),
    }


def version_of(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(repository: Path) -> str | None:
    """Return the commit of a checkout, with a plus if files differ from it; None where there is no checkout."""
    if not (repository / "Cargo.toml").exists():
        return None
    try:
        found = subprocess.run(  # noqa: S603 (no part of it is given from outside)
            ["git", "-C", str(repository), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _cpu() -> str:
    """Return the model of the processor as Linux tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
