"""One setting as the command line, the error messages and the documentation need it, and the error for an unfit one."""

from __future__ import annotations

import re
import reprlib
from typing import Any

import msgspec


class _Shown(reprlib.Repr):
    """Values as messages show them: however large they are, in a line or a few."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict = 3, 8, 8, 8
        self.maxstring = self.maxother = 200

    def repr_int(self, value: int, level: int) -> str:
        """Show digits, which Python refuses to do with thousands of them."""
        return super().repr_int(value, level) if value.bit_length() < 1000 else f"<{value.bit_length()} bits>"  # noqa: PLR2004


_shown = _Shown().repr


class SettingsError(Exception):
    """A setting cannot be used. Its data are attributes: key, value, allowed, and the source the value came from."""

    def __init__(self, key: str, value: object, *, allowed: str, source: str, flag: str = "") -> None:
        """Keep the data and phrase them; the flag is what to give if there is no value."""
        given = f"no {key} ({source}), give {flag}" if flag and not value else f"{key} = {_shown(value)} ({source})"
        super().__init__(f"{given}: allowed is {allowed}")
        self.key, self.value, self.allowed, self.source = key, value, allowed, source


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, as the command line and the error messages need it."""

    name: str
    type: Any
    default: Any

    @property
    def flag(self) -> str:
        """Its name on the command line; of a list, that of one item."""
        name = self.name.removesuffix("s") if self.is_list else self.name
        return "--" + name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for its value in help."""
        return _metavar(msgspec.inspect.type_info(self.type))

    @property
    def meaning(self) -> str:
        """What it means."""
        return str(next(meta.description for meta in reversed(self.type.__metadata__) if meta.description))

    @property
    def shown_default(self) -> str:
        """Its default, in words."""
        return str({None: "unset", (): "none"}.get(self.default, self.default))

    @property
    def help(self) -> str:
        """What it means, and its default."""
        return f"{self.meaning} [default: {self.shown_default}]"

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return isinstance(self.default, tuple)

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return isinstance(self.default, bool)

    @property
    def is_table(self) -> bool:
        """Whether its items are tables, which only a file can hold."""
        info = msgspec.inspect.type_info(self.type)
        kinds = msgspec.inspect
        while isinstance(info, kinds.Metadata):
            info = info.type
        return isinstance(info, kinds.VarTupleType) and isinstance(info.item_type, kinds.StructType)

    @property
    def allowed(self) -> str:
        """Its range, in words."""
        return _describe(msgspec.inspect.type_info(self.type))

    def parse(self, value: object, *, source: str) -> object:
        """Return the value in its type; text is read as a number or a switch where one is wanted."""
        if self.is_list and isinstance(value, str):
            value = [part for part in re.split(r"[,\s]+", value) if part]
        try:
            parsed = msgspec.convert(value, self.type, strict=False)
        except msgspec.ValidationError as refused:
            allowed = f"{self.allowed}; {refused}" if self.is_table else self.allowed
            flag = self.flag if self.is_list else ""
            raise SettingsError(self.name, value, allowed=allowed, source=source, flag=flag) from refused
        if not _is_text(msgspec.to_builtins(parsed)):
            raise SettingsError(self.name, value, allowed="UTF-8 without NUL", source=source)
        return parsed


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _is_text(value: object) -> bool:
    """Whether all text in it can be a file's name and be sent."""
    match value:
        case str():
            return not _NO_TEXT.search(value)
        case list() | tuple():
            return all(map(_is_text, value))
        case dict():
            return all(map(_is_text, value.values()))
    return True


def _describe(info: msgspec.inspect.Type) -> str:
    """Say in words what values a type allows."""
    kinds = msgspec.inspect
    match info:
        case kinds.Metadata(type=inner, extra=extra):
            text = str((extra or {}).get("allowed") or _describe(inner))
        case kinds.LiteralType(values=values):
            text = "one of " + ", ".join(map(str, values))
        case kinds.UnionType(types=types):
            text = " or ".join(map(_describe, types))
        case kinds.VarTupleType(item_type=item):
            text = "one or more of: " + _describe(item)
        case kinds.IntType():
            text = "a whole number" + _range(info)
        case kinds.FloatType():
            text = "a number" + _range(info)
        case kinds.BoolType():
            text = "true or false"
        case kinds.NoneType():
            text = "null"
        case kinds.StructType():
            text = f"a table with the keys {', '.join(field.name for field in info.fields)}"
        case _:
            text = "a text that is not empty"
    return text


def _metavar(info: msgspec.inspect.Type) -> str:
    """Say in one word what is wanted."""
    kinds = msgspec.inspect
    match info:
        case kinds.Metadata(type=inner, extra=extra):
            word = str((extra or {}).get("metavar") or _metavar(inner))
        case kinds.UnionType(types=types):
            word = _metavar(types[0])
        case kinds.VarTupleType(item_type=item):
            word = _metavar(item)
        case kinds.IntType() | kinds.FloatType():
            word = "N"
        case _:
            word = "TEXT"
    return word


def _range(info: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    bounds = (("from", info.ge), ("above", info.gt), ("to", info.le))
    return "".join(f" {word} {bound}" for word, bound in bounds if bound is not None)
