"""What several test files need by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from trunkline import Router

MakeRouter: TypeAlias = Callable[..., Router]
T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], *, deadline_s: float = 10.0, what: str = "") -> T:
    """Return the first truthy value of `condition`; fail after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s} s: {what or condition}")
        time.sleep(0.01)  # between two looks, not instead of one
    return value
