"""What all tests share: hypothesis profiles and routers with workers."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support import MakeRouter
from trunkline import Router

# `dev` for people, `ci` for the gate, `nightly` for the night. A failure prints the seed that repeats it.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON, max_examples=50, stateful_step_count=30)
settings.register_profile("ci", _COMMON, max_examples=200, stateful_step_count=50)
settings.register_profile("nightly", _COMMON, max_examples=5000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture
def make_router() -> MakeRouter:
    """Make a router with workers w0, w1, ...; keyword arguments are the router's."""

    def make(workers: int, **arguments: object) -> Router:
        router = Router(**{"seed": 1} | arguments)  # type: ignore[arg-type]
        for number in range(workers):
            router.add_worker(f"w{number}", url=f"http://10.0.0.{number}:8000")
        return router

    return make
