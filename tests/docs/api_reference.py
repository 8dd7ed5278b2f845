"""Writes docs/api.md from signatures and docstrings of the public names: `make docs`.

Signatures are those of the stub and the sources, words those of the built module: each is written once.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from tests.docs.page import DOCS, filled
from tests.docs.surface import PROTOCOLS, SOURCES, Item, public, read

PAGE = DOCS / "api.md"

# What belongs together, in the order in which a reader needs it. Every public name is in one of them.
CHAPTERS = {
    "The router": ("Router", "Decision", "Lease", "RouteBatch", "MatchBatch"),
    "Looking into it": ("Match", "Explanation", "Candidate", "WorkerView", "Stats"),
    "Workers' events": ("Applied", "Renderer", "extra_hash"),
    "Many processes": ("SidecarRouter", "Sidecar"),
    "The gateway": ("Gateway",),
    "Parts": ("PrefixIndex", "jump_hash", "get_include"),
    "Errors": (
        "TrunklineError",
        "ConfigError",
        "UnknownWorkerError",
        "DuplicateWorkerError",
        "NoWorkerAvailableError",
        "TokenIdError",
        "SnapshotError",
        "PayloadError",
        "TokenizerError",
        "UnsupportedPromptError",
        "SidecarError",
    ),
    "Simulated workers": ("MockWorker", "MockStats"),
}
TESTING = "For your tests"
_MARK = "# item "


def main() -> None:
    """Put the reference into the page."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(page: str) -> str:
    """Return the page with the reference as it should be."""
    return filled(page, reference())


def chapters() -> dict[str, list[Item]]:
    """Return the public names by chapter.  Raises LookupError for a name that is in none, or in none of the sources."""
    items = {item.name: item for item in read("trunkline")}
    told = [name for names in CHAPTERS.values() for name in names]
    if wrong := items.keys() ^ set(told):
        raise LookupError(f"public names and CHAPTERS of {__file__} differ: {sorted(wrong)}")
    found = {title: [items[name] for name in names] for title, names in CHAPTERS.items()}
    return found | {TESTING: [item for module in SOURCES if module != "trunkline" for item in read(module)]}


def reference() -> str:
    """Return all chapters as Markdown."""
    found = chapters()
    code = _formatted([item for items in found.values() for item in public(items)])
    text = []
    for title, items in found.items():
        text.append(f"## {title}\n")
        for item in items:
            text += _entry(item, code)
    return "\n".join(text)


def _entry(item: Item, code: dict[str, str]) -> Iterator[str]:
    """Yield the paragraphs of a public name and of what belongs to it."""
    module = "trunkline." if item.name.startswith("testing.") else ""
    yield f"### `{module}{item.name}`\n"
    if item.signature:
        yield f"```python notest\n{code[item.name]}\n```\n"
    yield f"{_prose(item.doc)}\n"
    fields = [member for member in item.members if member.kind in {"property", "attribute"}]
    if fields:
        yield "| attribute | type | |\n| --- | --- | --- |"
        yield from (f"| {' | '.join(map(_cell, _row(member)))} |" for member in fields)
        yield ""
    for member in item.members:
        if member.kind == "def" and member.name.rpartition(".")[2] not in PROTOCOLS:
            yield f"#### `{member.name.removeprefix('testing.')}`\n"
            yield f"```python notest\n{code[member.name]}\n```\n"
            yield f"{_prose(member.doc)}\n"


def _row(member: Item) -> tuple[str, str, str]:
    name, kind = member.name.rpartition(".")[2], member.signature.removeprefix(": ")
    return f"`{name}`", f"`{kind}`", " ".join(_prose(member.doc).split())


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _formatted(items: list[Item]) -> dict[str, str]:
    """Return signatures by name, laid out as the sources are."""
    stub = []
    for number, item in enumerate(items):
        if item.signature and item.kind in {"def", "class"}:
            name = item.name.rpartition(".")[2]
            stub.append(f"{_MARK}{number}\ndef {name}{item.signature}: ...\n")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=100", "--stdin-filename=a.pyi"]
    text = subprocess.run(command, input="".join(stub), capture_output=True, text=True, check=True).stdout
    found = {}
    for part in text.split(_MARK)[1:]:
        at, _, code = part.partition("\n")
        found[items[int(at)].name] = code.strip().removeprefix("def ").removesuffix(": ...")
    return found


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: signs outside of code are no emphasis, links or tags."""
    parts = re.split(r"(`+[^`]*`+)", doc)
    escaped = [part if at % 2 else re.sub(r"([*<\[\]])", r"\\\1", part) for at, part in enumerate(parts)]
    return "".join(escaped).replace("``", "`")


if __name__ == "__main__":
    main()
