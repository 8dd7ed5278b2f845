"""Helpers for tests of what is built on Trunkline."""

from .mock_tokenizer import write_mock_tokenizer

__all__ = ["write_mock_tokenizer"]
