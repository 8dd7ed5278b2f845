"""How a public name says that it will go: one warning, in one form, with a date.

A name is deprecated for at least one minor version before it is removed (docs/embedding.md). `removed_in` is kept by a
test: once the package has that version, the suite fails until the name and its warning are gone.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def warn_deprecated(what: str, *, since: str, removed_in: str, instead: str, stacklevel: int = 2) -> None:
    """Warn with DeprecationWarning that `what` will go; for arguments and values.

    since, removed_in: versions, as literals.  instead: what to write, as code.  stacklevel: 2 blames the caller of who
    warns, as for `warnings.warn`.
    """
    message = f"{what} is deprecated since trunkline {since} and goes in {removed_in}; use {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated(*, since: str, removed_in: str, instead: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function or method warn at each call; its arguments are those of `warn_deprecated`."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def warned(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            warn_deprecated(f"{function.__qualname__}()", since=since, removed_in=removed_in, instead=instead)
            return function(*arguments, **keywords)

        return warned

    return decorate
