"""The command line: help, exit codes, what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import trunkline
from trunkline.cli import cli

pytestmark = pytest.mark.thread_unsafe(reason="click's runner swaps sys.stdout")


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="trunkline", env=env)


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


def test_a_closed_standard_stream_is_opened_to_nowhere() -> None:
    script = """
import os, sys
from trunkline.__main__ import _open_standard_streams
_open_standard_streams()
print("lost", file=sys.stderr)
print(*(os.readlink(f"/proc/self/fd/{number}") for number in (0, 2)))
"""
    shell = ["sh", "-c", 'exec "$0" -c "$1" 0<&- 2>&-', sys.executable, script]
    assert subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=True).stdout == "/dev/null /dev/null\n"


def test_what_cannot_be_printed_is_an_error_in_words() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trunkline", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_ctrl_c_while_the_command_is_loaded_needs_no_words(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here, a child would ignore
    try:
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "trunkline", "--version"]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


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


# Subcommands of the groups that talk to an admin port, each with what else it has to be told.
ADMIN = [
    (path, ["1" for parameter in command.params if isinstance(parameter, click.Argument)])
    for group in cli.commands.values()
    if isinstance(group, click.Group) and any(option.name == "admin_url" for option in group.params)
    for path, command in ((f"{group.name} {name}", command) for name, command in group.commands.items())
]
NOBODY, NOBODY_ELSE = "http://127.0.0.1:1", "http://127.0.0.1:2"


@pytest.mark.parametrize(("path", "arguments"), ADMIN)
def test_the_admin_port_may_stand_before_a_subcommand_and_after_it(path: str, arguments: list[str]) -> None:
    group, name = path.split()
    assert "--admin URL" in run(group, name, "--help").output
    for line in (
        (group, "--admin", NOBODY, name, *arguments),
        (group, name, *arguments, "--admin", NOBODY),
        (group, "--admin", NOBODY_ELSE, name, *arguments, "--admin", NOBODY),
    ):
        done = run(*line)
        assert (done.exit_code, f"no answer from {NOBODY}:" in done.output) == (1, True), (line, done.output)


def test_what_a_subcommand_would_lose_is_refused() -> None:
    done = run("ab", "--admin", NOBODY, "--watch", "share", "0.1")
    assert (done.exit_code, "--watch does not go with share" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    "line",
    [
        ("workers", "--admin-token-file", "/no/such/file", "add", "1"),
        ("workers", "add", "1", "--admin-token-file", "/no/such/file"),
        ("workers", "--admin-token-file", "/nor/this", "add", "1", "--admin-token-file", "/no/such/file"),
    ],
)
def test_a_token_file_that_was_typed_wins_over_the_environment(line: tuple[str, ...]) -> None:
    done = run(*line, env={"TRUNKLINE_ADMIN_TOKEN_FILE": "/nor/that"})
    assert (done.exit_code, "'/no/such/file'" in done.output) == (1, True), done.output
    done = run("workers", "add", "1", env={"TRUNKLINE_ADMIN_TOKEN_FILE": "/nor/that"})
    assert "'/nor/that'" in done.output


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answer the first connection with these bytes, and close it; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "no answer from"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}", "no answer from"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"[" * 100_000, "gave no JSON"),
        (b"HTTP/1.1 500 Odd\r\ncontent-length: 100\r\n\r\nx", "no answer from"),
        (b"HTTP/1.1 500 Odd\r\ncontent-length: 1\r\n\r\nx", "refused: x"),
    ],
)
def test_what_is_no_admin_port_is_told_so(answer: bytes, words: str) -> None:
    with answering(answer) as url:
        done = run("workers", "--admin", url)
    assert (done.exit_code, words in done.output) == (1, True), done.output


@pytest.mark.parametrize("url", ["http://[", "http://a b", "http://127.0.0.1:x"])
def test_what_is_no_url_is_told_so(url: str) -> None:
    done = run("ab", "--admin", url)
    assert (done.exit_code, f"no answer from {url}" in done.output) == (1, True), done.output


def test_what_is_no_token_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    done = run("workers", "--admin", NOBODY, "--admin-token-file", str(file))
    assert (done.exit_code, "holds no token" in done.output) == (1, True), done.output
