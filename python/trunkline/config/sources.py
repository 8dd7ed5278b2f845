"""Where values come from beside the command line: a TOML or YAML file, and the environment."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from .field import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "TRUNKLINE_"
CONFIG_VARIABLE = "TRUNKLINE_CONFIG"


def config_file(given: Path | None, *, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file with settings: the one that is given, else the one that TRUNKLINE_CONFIG names, if any."""
    if given is None and CONFIG_VARIABLE in environment:
        return Path(environment[CONFIG_VARIABLE])
    return given


def read_file(path: Path) -> dict[str, object]:
    """Read a TOML or YAML file of top-level keys."""
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("config", source, allowed=f"a readable file ({error})", source="file") from error
    match path.suffix.lower():
        case ".toml":
            language, read = "TOML", _read_toml
        case ".yaml" | ".yml":
            language, read = "YAML", _read_yaml
        case other:
            raise SettingsError("config", source, allowed="a file that ends in .toml, .yaml or .yml", source=other)
    try:
        found = read(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("config", source, allowed=f"valid {language} ({error})", source="file") from error
    if not isinstance(found, dict):
        raise SettingsError("config", source, allowed="a table of keys and values", source="file")
    return {str(key): value for key, value in found.items()}


def _read_toml(text: str) -> object:
    return tomllib.loads(text)


def _read_yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 (20 ms that only users of YAML pay)

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(error) from error


# What Kubernetes puts into every container beside a Service named `trunkline`: TRUNKLINE_PORT=tcp://10.0.0.1:8080, ...
_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")


def read_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Take the settings out of the environment, as text."""
    found: dict[str, object] = {}
    for name, value in environment.items():
        key = name.removeprefix(ENVIRONMENT_PREFIX)
        if name in (key, CONFIG_VARIABLE) or _SERVICE_LINK.fullmatch(key):
            continue
        if key.endswith("PORT") and re.match(r"(tcp|udp|sctp)://", value):
            continue
        found[key.lower()] = value
    return found
