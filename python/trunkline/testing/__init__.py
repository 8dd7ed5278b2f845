"""Helpers for tests of what is built on Trunkline; they need no other package.

Beside them, for those who have the extra ``trunkline[testing]``: `trunkline.testing.strategies` makes prompts, fleets
and requests for hypothesis, `trunkline.testing.pytest_plugin` starts a gateway for a test.
"""

from .fake_worker import FakeWorker
from .fleet import Fleet
from .mock_tokenizer import write_mock_tokenizer

__all__ = ["FakeWorker", "Fleet", "write_mock_tokenizer"]
