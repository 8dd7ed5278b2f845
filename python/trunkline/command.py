"""What the commands of the command line share: how they fail, and how they print."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click
from click.core import ParameterSource

from ._core import TrunklineError
from .config import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .admin import Admin

_P = ParamSpec("_P")


class Number(click.FloatRange):
    """A number in a range. Neither nan, which click takes for one in every range, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 (click)
        """Read it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not finite", param, ctx)
        return number


class Drawing(click.Path):
    """A file for a page or a picture: a new one, or one that holds such. Anything else is not overwritten.

    `--html *.jsonl` means the first of the logs.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 (click)
        """Look at what is there, before anything takes long."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_file():
            try:
                with path.open("rb") as file:
                    begins = file.read(14).lower()
            except OSError as error:
                self.fail(str(error), param, ctx)
            if begins and not begins.startswith((b"<!doctype html", b"\x89png")):
                self.fail(f"{path} holds something else, and is not overwritten", param, ctx)
        return path


class Failure(click.ClickException):
    """The command failed while running."""

    exit_code = 1


class Misuse(click.ClickException):
    """The command was told something it cannot do."""

    exit_code = 2


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn the errors that a user can cause into messages and exit codes."""
    from .admin import AdminError  # noqa: PLC0415 (see trunkline.cli)

    try:
        yield
    except (SettingsError, TrunklineError) as error:
        raise Misuse(str(error)) from error
    except (AdminError, OSError) as error:
        raise Failure(str(error)) from error


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> object:
    """Keep a group's option for its subcommand, whose own one wins if it was typed. Return the one that counts."""
    key = f"{__name__}.{parameter.name}"
    if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
        context.meta[key] = value
    return context.meta.setdefault(key, value)


json_option = click.option("--json", "as_json", is_flag=True, callback=_keep, help="Print figures as JSON.")


def _refuse_lost_options(context: click.Context) -> None:
    """Refuse what was typed before a subcommand and does nothing there."""
    for option in context.command.params:
        is_typed = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if is_typed and option.callback is not _keep:
            raise Misuse(f"{option.opts[0]} does not go with {context.invoked_subcommand}")


def pass_admin(command: Callable[Concatenate[Admin, _P], None]) -> Callable[_P, None]:
    """Give a command --admin and --admin-token-file, and as its first argument the admin port that they name.

    Those of a group may stand before its subcommand and after it; the group itself then does nothing.
    """

    @click.option(
        "--admin",
        "admin_url",
        default="http://127.0.0.1:8081",
        show_default=True,
        metavar="URL",
        expose_value=False,
        callback=_keep,
        help="Its admin port.",
    )
    @click.option(
        "--admin-token-file",
        "token_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="TRUNKLINE_ADMIN_TOKEN_FILE",
        expose_value=False,
        callback=_keep,
        help="File with its admin token.",
    )
    @functools.wraps(command)
    def ask(*arguments: _P.args, **options: _P.kwargs) -> None:
        from .admin import Admin  # noqa: PLC0415 (see trunkline.cli)

        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            _refuse_lost_options(context)
            return
        with failures():
            admin = Admin(context.meta[f"{__name__}.admin_url"], token_file=context.meta[f"{__name__}.token_file"])
        command(admin, *arguments, **options)

    return ask


def plain(value: object) -> str:
    """Show a value as a person writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def echo_table(columns: list[str] | tuple[str, ...], rows: list[Any]) -> None:
    """Print rows below their column names, aligned."""
    lines = [tuple(columns), *map(tuple, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
