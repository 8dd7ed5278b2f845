"""The command line: help, exit codes, what it prints."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

import trunkline
from trunkline.cli import cli

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="trunkline")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", [(), *commands(cli)], ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    done = run(*path, "--help")
    assert done.exit_code == 0
    assert f"Usage: {' '.join(('trunkline', *path))}" in done.output
    leaf = len(path) == 1 and path != ("bench",)
    assert not leaf or f"\n  trunkline {path[0]}" in done.output


def test_the_version_is_the_package_version() -> None:
    assert run("--version").output == f"trunkline, version {trunkline.__version__}\n"


def test_python_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "trunkline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").output


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("serve", "--no-such-flag"), ("explain",), ("workers", "add")]
)
def test_misuse_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_config_shows_settings_and_sources() -> None:
    worker = ("--worker", "http://a:1", "--worker", "http://b:1")
    shown = json.loads(run("config", *worker, "--no-annotate", "--json").output)
    assert shown["workers"] == {"value": ["http://a:1", "http://b:1"], "source": "command line"}
    assert shown["annotate"] == {"value": False, "source": "command line"}
    assert shown["port"] == {"value": 8080, "source": "default"}
    table = run("config", *worker).output.splitlines()
    assert table[0].split() == ["key", "source", "value"]
    assert "workers command line http://a:1 http://b:1" in [" ".join(line.split()) for line in table]


def test_config_refuses_what_serve_would_refuse() -> None:
    done = run("config")
    assert (done.exit_code, "no workers (default), give --worker: allowed is" in done.output) == (2, True)
    done = run("config", "--worker", "http://a:1", "--port", "-1")
    assert (done.exit_code, "port = '-1'" in done.output) == (2, True)
