"""A page of docs/ that is written by hand but for one part, which `make docs` renders between two marks."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- rendered by make docs -->\n", "<!-- end -->\n"


def filled(page: str, part: str) -> str:
    """Return a page with `part` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"
