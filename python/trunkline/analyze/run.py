"""Reads files with a bar that says how far it is; Ctrl-C ends it with what is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trunkline._core import TrunklineError
from trunkline.simulate.runs import stop_on_interrupt

from .spec import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec import Findings, Options

_STEPS = 1000
# Of the bar; the rest is the forecast's.
_READING = 600
_MB = 1e6


def analyze(options: Options, paths: Sequence[str]) -> Findings:
    """Analyse files and show how far it is on standard error. Raises what `spec.run` raises."""
    sizes = [Path(path).stat().st_size if Path(path).is_file() else 0 for path in paths]
    total = sum(sizes) if all(sizes) else 0
    shown = 0
    # Elsewhere each label would be a line.
    shows_label = sys.stderr.isatty()
    with (
        stop_on_interrupt() as stopped,
        click.progressbar(length=_STEPS, label="reading", file=sys.stderr, show_pos=False) as bar,
    ):

        def watch(read_bytes: int, requests: int, forecast: float) -> bool:
            nonlocal shown
            if shows_label:
                bar.label = f"reading: {read_bytes / _MB:.0f} MB, {requests} requests" if not forecast else "simulating"
            share = _READING * read_bytes / total if total else 0.0
            now = int(_READING + (_STEPS - _READING) * forecast if forecast else min(share, _READING))
            bar.update(max(0, now - shown))
            shown = max(shown, now)
            return not stopped.is_set()

        try:
            return run(options, paths, watch=watch)
        except TrunklineError:
            if stopped.is_set():  # before the first request
                raise SystemExit(130) from None
            raise
