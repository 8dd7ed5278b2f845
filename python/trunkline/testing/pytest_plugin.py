"""A gateway before simulated workers for each test that asks for one.

It is no entry point, which would be loaded by every run of pytest wherever Trunkline is installed. Say so in the
`conftest.py` at the root of your tests::

    pytest_plugins = ["trunkline.testing.pytest_plugin"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import pytest
except ModuleNotFoundError as missing:
    message = "trunkline.testing.pytest_plugin needs pytest: pip install 'trunkline[testing]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing

from .fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["trunkline_gateway"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "trunkline(**arguments): arguments of the Fleet behind `trunkline_gateway`")


@pytest.fixture
def trunkline_gateway(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Start a `Fleet` for one test: a gateway before two workers, or what ``@pytest.mark.trunkline(workers=3)`` says.

    request: of pytest.
    """
    marker = request.node.get_closest_marker("trunkline")
    with Fleet(**(marker.kwargs if marker else {})) as fleet:
        yield fleet
