"""What the commands of the command line share: how they fail, and how they print."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._core import TrunklineError
from .config import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

admin_option = click.option(
    "--admin", "admin_url", default="http://127.0.0.1:8081", show_default=True, metavar="URL", help="Its admin port."
)
admin_token_option = click.option(
    "--admin-token-file",
    "token_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TRUNKLINE_ADMIN_TOKEN_FILE",
    help="File with its admin token.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")


class Number(click.FloatRange):
    """A number in a range. Neither nan, which click takes for one in every range, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 (click)
        """Read it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not finite", param, ctx)
        return number


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
