"""docs/api.md is what the package says of itself; nothing public is undocumented, or changes unsaid."""

from __future__ import annotations

import ast
import re

import pytest

import trunkline
from tests.docs import api_reference, surface

ITEMS = {item.name: item for items in api_reference.chapters().values() for item in surface.public(items)}


def told(item: surface.Item) -> str:
    """Return what a reader of a docstring knows: its words, its class's, and those of the names that they point to."""
    owner = ITEMS.get(item.name.rpartition(".")[0])
    found = {item.name: item}
    if owner:
        found |= {owner.name: owner}
    for name in re.findall(r"`([\w.]+)`", "\n".join(each.doc for each in found.values())):
        for known in (name, f"{owner.name}.{name}" if owner else name):
            if known in ITEMS:
                found |= {each.name: each for each in surface.public([ITEMS[known]])}
    return "\n".join(each.doc for each in found.values())


def test_the_page_is_what_the_package_says() -> None:
    page = api_reference.PAGE.read_text(encoding="utf-8")
    assert page == api_reference.rendered(page), "run `make docs`"


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS.keys())
def test_every_name_and_argument_is_explained(item: surface.Item) -> None:
    name = item.name.rpartition(".")[2]
    if name in surface.PROTOCOLS:
        return
    if item.kind == "attribute":
        assert name in ITEMS[item.name.rpartition(".")[0]].doc
        return
    assert item.doc.endswith("."), "a docstring is made of sentences"
    if item.kind == "property" or not item.signature or ":" not in item.signature:
        return
    arguments = ast.parse(f"def f{item.signature.partition(' -> ')[0]}: ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    words = told(item)
    for argument in (*arguments.args.posonlyargs, *arguments.args.args, *arguments.args.kwonlyargs):
        assert re.search(rf"\b{argument.arg}\b", words), f"{item.name} says nothing of {argument.arg}"


def test_what_changed_is_in_the_changelog() -> None:
    changelog = surface.CHANGELOG.read_text(encoding="utf-8")
    assert not surface.unnamed(surface.frozen(), surface.lines(), changelog)


def test_the_frozen_surface_is_that_of_the_last_release() -> None:
    released = re.findall(r"^## \[?(\d+\.\d+\.\d+)", surface.CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    version = released[0] if released else trunkline.__version__
    assert surface.FROZEN.read_text(encoding="utf-8").startswith(surface.HEADER.format(version=version)), (
        "run `make api-freeze`"
    )


BEFORE = {"A": "class A", "A.go": "def A.go()", "b": "def b()"}


@pytest.mark.parametrize(
    ("after", "entry", "faults"),
    [
        (BEFORE, "", 0),
        (BEFORE | {"c": "def c()"}, "", 1),
        (BEFORE | {"c": "def c()"}, "### Added\n\n- `c` is new.\n", 0),
        (BEFORE | {"c": "def c()"}, "### Fixed\n\n- `c` is new.\n", 1),
        (BEFORE | {"c": "def c()"}, "### Added\n\n- c, not as code.\n", 1),
        (BEFORE | {"D": "class D", "D.x": "def D.x()"}, "### Added\n\n- Class\n  `D`.\n", 0),
        (BEFORE | {"A.x": "def A.x()"}, "### Added\n\n- `A.go`.\n- `x`.\n", 1),
        (BEFORE | {"A.x": "def A.x()"}, "### Added\n\n- `A.go` and `x`.\n", 0),
        (BEFORE | {"A.go": "def A.go(x)"}, "### Added\n\n- `A.go`.\n", 1),
        (BEFORE | {"A.go": "def A.go(x)"}, "### Changed\n\n- `A.go(x)`.\n", 0),
        ({"b": "def b()"}, "### Changed\n\n- `A`.\n", 1),
        ({"b": "def b()"}, "### Removed\n\n- `A`.\n", 0),
        ({"b": "def b()"}, "## 0.1.0\n\n### Removed\n\n- `A`.\n", 1),
    ],
)
def test_changes_must_be_named(after: dict[str, str], entry: str, faults: int) -> None:
    changelog = f"# Changelog\n\n## Unreleased\n\n{entry}"
    assert len(surface.unnamed(BEFORE, after, changelog)) == faults


def test_a_name_in_no_chapter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_reference, "CHAPTERS", {**api_reference.CHAPTERS, "Errors": ("TrunklineError",)})
    with pytest.raises(LookupError, match="SnapshotError"):
        api_reference.chapters()
