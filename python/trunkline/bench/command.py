"""Run a benchmark as the command line asks for it, and show how far it is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from . import core, peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .core import Progress
    from .report import Report


def run_core(*, with_peers: bool, **numbers: int) -> Report:
    """Run `trunkline bench core`. numbers: the fields of `core.Options`."""
    options, plain = core.Options(**numbers), core.Options()
    asked = ["--peers"] if with_peers else []
    asked += [f"--{name} {value}" for name, value in numbers.items() if value != getattr(plain, name)]
    with _progress() as progress:
        report, load = core.run(options, command=" ".join(["trunkline bench core", *asked]), progress=progress)
        if with_peers:
            peers.run(report, load, options, progress)
    return report


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Say on standard error what is being done: in place if rich is installed, else line by line."""
    try:
        from rich.console import Console  # noqa: PLC0415 (rich is optional)
    except ImportError:
        yield lambda step: click.echo(f"{step} ...", err=True)
        return
    with Console(stderr=True).status("") as status:
        yield status.update
