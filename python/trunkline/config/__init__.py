"""Typed settings: one table per command, from which flags, environment and file are all read.

A field of a settings class is everything that is known about a setting: its name, type, range, default and meaning. The
command line takes it as ``--memory-budget``, the environment as ``TRUNKLINE_MEMORY_BUDGET``, a file as
``memory_budget``. The first of these that has a value wins, in that order. A key that is not in the table, or a value
outside its range, stops the start: see `SettingsError`.
"""

from .field import Field, SettingsError
from .mock_worker import MockWorkerSettings
from .serve import FILES, TRIAL, Endpoint, ServeSettings, Variant, VariantWorker
from .settings import Settings
from .sidecar import SidecarSettings
from .sources import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, config_file

__all__ = [
    "CONFIG_VARIABLE",
    "ENVIRONMENT_PREFIX",
    "FILES",
    "TRIAL",
    "Endpoint",
    "Field",
    "MockWorkerSettings",
    "ServeSettings",
    "Settings",
    "SettingsError",
    "SidecarSettings",
    "Variant",
    "VariantWorker",
    "config_file",
]
