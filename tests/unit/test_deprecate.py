"""Deprecations warn where the caller stands, and end when they said they would."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline
from trunkline._deprecate import deprecated, warn_deprecated

PACKAGE = Path(trunkline.__file__).parent


def version(text: str) -> tuple[int, ...]:
    """Return a version so that versions compare."""
    return tuple(map(int, text.split(".")))


def promises(source: str) -> Iterator[tuple[str, str]]:
    """Yield `since` and `removed_in` of each deprecation in a module.  Raises ValueError for what is no literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            told = {word.arg: word.value for word in node.keywords if word.arg}
            if node.func.id in {"deprecated", "warn_deprecated"} and told:
                yield ast.literal_eval(told["since"]), ast.literal_eval(told["removed_in"])


def overdue(source: str, current: str) -> list[tuple[str, str]]:
    """Return the deprecations of a module that are over in this version, or too short."""
    return [
        (since, removed_in)
        for since, removed_in in promises(source)
        if version(current) >= version(removed_in) or version(removed_in)[:2] <= version(since)[:2]
    ]


@deprecated(since="0.2.0", removed_in="0.4.0", instead="new(x)")
def old(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_a_deprecated_function_warns_and_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"old\(\) is deprecated since trunkline 0\.2\.0") as seen:
        assert old(21) == 42
    assert str(seen[0].message) == "old() is deprecated since trunkline 0.2.0 and goes in 0.4.0; use new(x)"
    assert seen[0].filename == __file__, "the caller is told, not the helper"
    assert (old.__name__, old.__doc__) == ("old", "Double a number.")


def test_a_deprecated_argument_warns_its_caller() -> None:
    def call() -> None:
        warn_deprecated("retries=", since="0.2.0", removed_in="0.3.0", instead="retry_budget=")

    with pytest.warns(DeprecationWarning, match=r"retries= is deprecated .* use retry_budget=") as seen:
        call()
    assert seen[0].filename == __file__


def test_what_is_overdue_is_found() -> None:
    source = 'deprecated(since="0.2.0", removed_in="0.4.0", instead="x")(f)\n'
    assert overdue(source, "0.3.9") == []
    assert overdue(source, "0.4.0") == [("0.2.0", "0.4.0")]
    assert overdue(source.replace("0.4.0", "0.2.1"), "0.2.0"), "a patch version is too soon"
    with pytest.raises(ValueError, match="malformed"):
        overdue(source.replace('"0.4.0"', "LATER"), "0.3.0")


@pytest.mark.parametrize(
    "path",
    [path for path in PACKAGE.rglob("*.py") if path.name != "_deprecate.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_deprecation_is_overdue(path: Path) -> None:
    assert not overdue(path.read_text(encoding="utf-8"), trunkline.__version__), "remove it, with a changelog line"
