"""The public surface of the package: every name with its signature, as stub and sources have them.

`docs/api.md` is rendered from it, and `surface.txt` beside this file is what the last release promised. What differs
from that must be named in CHANGELOG.md under Unreleased, so that nothing changes for users without a line for them. At
a release `make api-freeze` writes the file anew.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trunkline

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "trunkline"
FROZEN = Path(__file__).with_name("surface.txt")
CHANGELOG = ROOT / "CHANGELOG.md"

# Where the signatures of each public module are written.
SOURCES = {
    "trunkline": (PACKAGE / "_core.pyi", PACKAGE / "sidecar.py", PACKAGE / "_include.py"),
    "trunkline.testing": tuple(sorted((PACKAGE / "testing").glob("*.py"))),
    "trunkline.testing.strategies": (PACKAGE / "testing" / "strategies.py",),
    "trunkline.testing.pytest_plugin": (PACKAGE / "testing" / "pytest_plugin.py",),
}
# Methods that the language calls, where users rely on them: `with`, `async with`, `len`, `pickle`.
PROTOCOLS = {"__enter__", "__aenter__", "__len__", "__reduce__"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
HEADER = "# What trunkline {version} promises: each public name and its signature. Written by `make api-freeze`.\n"


@dataclass(frozen=True)
class Item:
    """A public name: how it is called, what it says of itself, and what belongs to it."""

    name: str
    kind: str  # class, def, property or attribute
    signature: str  # behind the name
    doc: str
    members: tuple[Item, ...] = ()

    @property
    def line(self) -> str:
        """The whole promise in one line."""
        return f"{self.kind} {self.name}{self.signature}"


def read(module: str, *, expand: bool = False) -> list[Item]:
    """Return the public names of a module; with `expand`, private aliases of types are written out."""
    names = list(importlib.import_module(module).__all__)
    prefix = module.removeprefix("trunkline").lstrip(".")
    found: dict[str, Item] = {}
    for path in SOURCES[module]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if expand:
            tree = _Expanded(tree).tree
        for node in tree.body:
            name = getattr(node, "name", "")
            if isinstance(node, ast.ClassDef | _Function) and name in names:
                live = getattr(importlib.import_module(module), name)
                found[name] = _item(node, f"{prefix}.{name}".lstrip("."), live)
    missing = [name for name in names if name not in found and name != "__version__"]
    if missing:
        raise LookupError(f"no source of {missing}: add it to SOURCES of {__file__}")
    return [found[name] for name in names if name in found]


def lines() -> dict[str, str]:
    """Return the promise of every public name and member, by name."""
    items = [item for module in SOURCES for item in read(module, expand=True)]
    return {item.name: item.line for top in items for item in (top, *top.members)}


def frozen() -> dict[str, str]:
    """Return the same as the last release had it."""
    text = FROZEN.read_text(encoding="utf-8").splitlines()
    return {line.split()[1].partition("(")[0].rstrip(":"): line for line in text if not line.startswith("#")}


def unnamed(before: dict[str, str], after: dict[str, str], changelog: str) -> list[str]:
    """Return what differs and is not named under Unreleased, each as a sentence.

    Names are looked for between backticks, all words of a dotted name in one entry.  A class that is new or gone stands
    for its members.
    """
    entries = _unreleased(changelog)
    faults = []
    for name in sorted(before.keys() | after.keys()):
        what, *sections = _change(name, before, after)
        words = set(name.split("."))
        if what and not any(words <= entry for section in sections for entry in entries.get(section, ())):
            faults.append(f"{name} {what}: name it in CHANGELOG.md under Unreleased, {' or '.join(sections)}")
    return faults


def _change(name: str, before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Return what became of a name, if users should hear of it, and the sections that may tell them."""
    owner = name.rpartition(".")[0]
    if name not in before:
        return ("",) if owner in after and owner not in before else ("is new", "Added")
    if name not in after:
        return ("",) if owner in before and owner not in after else ("is gone", "Removed")
    return ("",) if before[name] == after[name] else ("has another signature", "Changed", "Deprecated")


def main() -> int:
    """Write what the next release promises; refuse if the changelog does not tell what changed."""
    now = lines()
    before = frozen() if FROZEN.exists() else now
    if faults := unnamed(before, now, CHANGELOG.read_text(encoding="utf-8")):
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    text = HEADER.format(version=trunkline.__version__) + "".join(f"{now[name]}\n" for name in sorted(now))
    FROZEN.write_text(text, encoding="utf-8")
    return 0


def _unreleased(changelog: str) -> dict[str, list[set[str]]]:
    """Return the entries under Unreleased by section, each as the words that stand between backticks."""
    part = changelog.partition("## Unreleased\n")[2].split("\n## ")[0]
    found: dict[str, list[set[str]]] = {}
    for section in part.split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        entries = re.split(r"^- ", body, flags=re.MULTILINE)[1:]
        found[title] = [set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", entry)))) for entry in entries]
    return found


class _Expanded(ast.NodeTransformer):
    """A module in which private aliases of types stand for what they mean."""

    def __init__(self, tree: ast.Module) -> None:
        self.aliases = {
            node.target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and ast.unparse(node.annotation) == "TypeAlias"
            and node.value is not None
        }
        self.tree: ast.Module = self.visit(tree)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace an alias where it is used."""
        if isinstance(node.ctx, ast.Load) and node.id in self.aliases:
            replaced: ast.expr = self.visit(self.aliases[node.id])
            return replaced
        return node


def _item(node: ast.ClassDef | _Function, name: str, live: object) -> Item:
    """Return what a class or a function promises."""
    doc = inspect.getdoc(live) or ""
    if not isinstance(node, ast.ClassDef):
        return Item(name, "def", _signature(node), doc)
    members = tuple(_members(node, name, live))
    made = [item for item in members if item.name.endswith((".__new__", ".__init__"))]
    called = made[0].signature.rpartition(" -> ")[0] if made else ""
    bases = [base for base in map(ast.unparse, node.bases) if base not in {"Exception", "object"}]
    if bases and not made:
        called = f"({', '.join(bases)})"
    if made and made[0].doc and made[0].doc not in doc:
        doc = f"{doc}\n\n{made[0].doc}".strip()
    return Item(name, "class", called, doc, tuple(item for item in members if item not in made))


def _members(owner: ast.ClassDef, name: str, live: object) -> Iterator[Item]:
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not node.target.id.startswith("_"):
                member = f"{name}.{node.target.id}"
                yield Item(member, "attribute", f": {ast.unparse(node.annotation)}", _doc(live, node.target.id))
        elif isinstance(node, _Function) and _is_public(node.name):
            member, doc = f"{name}.{node.name}", _doc(live, node.name)
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if decorators & {"property", "functools.cached_property"}:
                returned = ast.unparse(node.returns) if node.returns else "None"
                yield Item(member, "property", f": {returned}", doc)
            else:
                yield Item(member, "def", _signature(node, bound="staticmethod" not in decorators), doc)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in PROTOCOLS or name in {"__new__", "__init__"}


def _doc(live: object, name: str) -> str:
    """Return what a member says of itself, not what the language says of its like."""
    member = getattr(live, name, None)
    if member is None or isinstance(member, str | int | float | tuple | dict):
        return ""
    doc = inspect.getdoc(member) or ""
    if doc.startswith("Alias for field number"):
        return ""
    return "" if doc in {inspect.getdoc(getattr(object, name, None)), inspect.getdoc(type(member))} else doc


def _signature(node: _Function, *, bound: bool = False) -> str:
    """Return arguments and answer as they are written, without `self`."""
    arguments = ast.arguments(**{field: getattr(node.args, field) for field in node.args._fields})
    if bound:
        first = "posonlyargs" if arguments.posonlyargs else "args"
        setattr(arguments, first, getattr(arguments, first)[1:])
    returned = ast.unparse(node.returns) if node.returns else "None"
    return f"({ast.unparse(arguments)}) -> {returned}"


def public(items: Iterable[Item]) -> Iterator[Item]:
    """Return names and the names in them."""
    for item in items:
        yield item
        yield from public(item.members)


if __name__ == "__main__":
    sys.exit(main())
