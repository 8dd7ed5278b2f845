"""What the settings of every command do: they are read from all sources, the first that has a value wins."""

from __future__ import annotations

import os
import typing
from typing import Any, Self

import msgspec

from .field import Field, SettingsError
from .sources import config_file, read_environment, read_file

if typing.TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the settings of one command."""

    @classmethod
    def fields(cls) -> Iterator[Field]:
        """All settings of this command, in the order of the class."""
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            yield Field(name=field.name, type=hints[field.name], default=field.default)

    @classmethod
    def implied(cls, values: Mapping[str, object]) -> set[str]:
        """Keys that need no value because of these values."""
        del values
        return set()

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, object],
        environment: Mapping[str, str] = os.environ,
        file: Path | None = None,
    ) -> tuple[Self, dict[str, str]]:
        """Read every source; return the settings and, for each key, where its value came from.

        flags: keys and values of the command line, those given only.  file: TOML or YAML; without it, the one that
        TRUNKLINE_CONFIG names.  Raises SettingsError for the first unknown key or unfit value.
        """
        file = config_file(file, environment=environment)
        fields = {field.name: field for field in cls.fields()}
        values: dict[str, Any] = {}
        sources = dict.fromkeys(fields, "default")
        for source, found in (
            (str(file), read_file(file) if file else {}),
            ("environment", read_environment(environment)),
            ("command line", flags),
        ):
            for key, value in found.items():
                if key not in fields:
                    raise SettingsError(key, value, allowed=f"one of the keys {', '.join(fields)}", source=source)
                values[key] = fields[key].parse(value, source=source)
                sources[key] = source
        for key in fields.keys() - values.keys() - cls.implied(values):
            fields[key].parse(fields[key].default, source="default")
        return cls(**values), sources
