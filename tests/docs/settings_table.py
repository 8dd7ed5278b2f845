"""Writes the table of docs/settings.md from the settings of `trunkline serve`: `make docs`."""

from __future__ import annotations

import re

from tests.docs.page import DOCS, filled
from trunkline.config import Field, ServeSettings

PAGE = DOCS / "settings.md"


def main() -> None:
    """Put the table into the page."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(page: str) -> str:
    """Return the page with the table as it should be."""
    return filled(page, table())


def table() -> str:
    """Return a row for each setting."""
    rows = [("setting", "default", "allowed", "meaning"), ("---",) * 4]
    rows += [(f"`{field.name}`", _default(field), field.allowed, field.meaning) for field in ServeSettings.fields()]
    return "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _default(field: Field) -> str:
    """Return a default as a file of settings would have it, or the word for none."""
    if field.default in (None, ()):
        return field.shown_default
    return f"`{field.shown_default.lower() if field.is_switch else field.shown_default}`"


def _cell(text: str) -> str:
    """Return text that a cell of a table shows as it is: no border, link or emphasis within."""
    return re.sub(r"([|\[\]*<>])", r"\\\1", text)


if __name__ == "__main__":
    main()
