"""Python in README and docs runs as written; `trunkline` commands in them exist with the flags that they show.

A block that cannot run by itself is marked: three backticks, then ``python notest``.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from _pytest.mark import ParameterSet

from trunkline.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.exists()
]
BLOCK = re.compile(r"^```(\w*)( notest)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(*languages: str) -> list[ParameterSet]:
    """Every code block in one of the languages, named by page and line."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block[1] in languages and not block[2]:
                line = text[: block.start()].count("\n") + 1
                found.append(pytest.param(block[3], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize("source", blocks("python"))
def test_python_runs(source: str) -> None:
    exec(compile(source, "<block>", "exec"), {"__name__": "__main__"})  # noqa: S102 (that is the test)


@pytest.mark.parametrize("source", blocks("", "sh", "bash", "console", "shell"))
def test_commands_exist(source: str) -> None:
    for line in source.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if not words or words[0] != "trunkline":
            continue
        command: click.Command = cli
        rest = words[1:]
        while isinstance(command, click.Group) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        if isinstance(command, click.Group):
            command = command.commands.get(getattr(command, "default", ""), command)
        assert command is not cli, line
        known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {
            "--help"
        }
        assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known, line


def test_there_are_pages_to_check() -> None:
    assert ROOT / "README.md" in PAGES
