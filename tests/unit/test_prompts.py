"""What may be a prompt, and what is refused with which words."""

from __future__ import annotations

import array
import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest

from tests.support import MakeRouter
from trunkline import Router, TokenIdError

TOKENS = list(range(64))
TEXT = "日本語" * 100
UTF8 = TEXT.encode()


@pytest.fixture
def router(make_router: MakeRouter) -> Router:
    """Return a router that has seen TOKENS and a text."""
    router = make_router(1)
    router.complete(router.route(TOKENS))
    router.complete(router.route(TEXT))
    return router


@pytest.mark.parametrize(
    "prompt",
    [
        TOKENS,
        tuple(TOKENS),
        range(64),
        [np.int64(token) for token in TOKENS],
        np.arange(64, dtype=np.uint32),
        np.arange(64, dtype=np.int32),
        np.arange(64, dtype=np.int64),
        np.arange(64, dtype="<u4"),
        array.array("I", TOKENS),
        array.array("i", TOKENS),
        array.array("q", TOKENS),
        memoryview(array.array("I", TOKENS)),
        (ctypes.c_uint32 * 64)(*TOKENS),
        np.arange(128, dtype=np.uint32)[:64],
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_token_ids_of_every_width_are_one_prompt(router: Router, prompt: Any) -> None:
    found = router.peek(prompt)
    assert (found.matched_tokens, found.prompt_tokens) == (64, 64)


@pytest.mark.parametrize(
    "prompt", [TEXT, UTF8, bytearray(UTF8), memoryview(UTF8), np.frombuffer(UTF8, np.uint8)], ids=type
)
def test_text_is_its_utf8(router: Router, prompt: Any) -> None:
    found = router.peek(prompt)
    assert found.prompt_blocks == 900 // 64
    assert found.matched_tokens == 900 // 64 * 64 // 4


def test_text_and_token_ids_of_equal_bytes_are_different_prompts(router: Router) -> None:
    assert router.peek(np.arange(64, dtype=np.uint32).tobytes()).matched_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        (1.5, TypeError, "a float is no prompt: allowed are str, bytes"),
        (None, TypeError, "a NoneType is no prompt"),
        ({1, 2}, TypeError, "a set is no prompt"),
        ({1: 2}, TypeError, "a dict is no prompt"),
        (iter([1]), TypeError, "is no prompt"),
        (["a"], TypeError, "item 0 of the prompt, a str, is no token id"),
        ([1, 2.0], TypeError, "item 1 of the prompt, a float"),
        ([1, None], TypeError, "item 1 of the prompt, a NoneType"),
        (np.arange(4.0), TypeError, 'format "d"'),
        (np.arange(4, dtype=np.uint16), TypeError, 'format "H"'),
        (np.arange(4, dtype=np.uint64), TypeError, "no token ids"),
        (np.zeros(4, dtype=bool), TypeError, 'format "?"'),
        (np.arange(4, dtype=">u4"), TypeError, "native byte order"),
        (np.zeros((2, 2), dtype=np.uint32), ValueError, "2 dimensions: allowed is one"),
        (np.array(7, dtype=np.uint32), ValueError, "0 dimensions"),
        (np.arange(8, dtype=np.uint32)[::2], ValueError, "not contiguous"),
        (np.arange(8, dtype=np.uint32)[::-1], ValueError, "not contiguous"),
        (memoryview(b"abcdefghi")[1:].cast("I"), ValueError, "not aligned"),
        ("\ud800", ValueError, "surrogates"),
    ],
)
def test_what_is_no_prompt_is_refused_in_words(router: Router, prompt: Any, error: type[Exception], words: str) -> None:
    for call in (router.peek, router.route, router.explain):
        with pytest.raises(error, match=words):
            call(prompt)
    assert router.stats().in_flight == 0


@pytest.mark.parametrize("value", [-1, 1 << 32, 1 << 70, -(1 << 70)])
def test_a_list_names_the_token_id_that_is_out_of_range(router: Router, value: int) -> None:
    with pytest.raises(TokenIdError, match=f"token id {value} at position 1") as refused:
        router.peek([5, value])
    assert (refused.value.position, refused.value.value) == (1, value)


@pytest.mark.parametrize(
    "prompt", [np.array([3, -7], np.int32), np.array([3, -7], np.int64), array.array("q", [3, -7])], ids=str
)
def test_a_buffer_names_the_token_id_that_is_out_of_range(router: Router, prompt: Any) -> None:
    with pytest.raises(TokenIdError) as refused:
        router.peek(prompt)
    assert (refused.value.position, refused.value.value) == (1, -7)


def test_the_largest_token_id_is_allowed(router: Router) -> None:
    assert router.peek(np.array([0xFFFFFFFF], np.uint32)).prompt_tokens == 1
    assert router.peek([0xFFFFFFFF]).prompt_tokens == 1


@pytest.mark.parametrize(
    "empty", [[], (), "", b"", np.array([], np.uint32), array.array("q"), memoryview(b"")], ids=repr
)
def test_an_empty_prompt_is_a_prompt(router: Router, empty: Any) -> None:
    found = router.peek(empty)
    assert (found.matched_tokens, found.prompt_blocks) == (0, 0)


def test_buffers_are_given_back(router: Router) -> None:
    buffer = bytearray(b"x" * 256)
    router.peek(buffer)
    with pytest.raises(TypeError):
        router.peek(memoryview(buffer).cast("H"))
    gc.collect()
    buffer.extend(b"y")  # a bytearray refuses this while somebody looks into it


def test_no_reference_is_kept(router: Router) -> None:
    prompt = np.arange(64, dtype=np.uint32)
    before = sys.getrefcount(prompt)
    for _ in range(100):
        router.peek(prompt)
        router.complete(router.route(prompt))
    assert sys.getrefcount(prompt) == before


@pytest.mark.parametrize("salt", [1, 1.5, ["a"]])
def test_a_salt_is_text_or_bytes(router: Router, salt: Any) -> None:
    with pytest.raises(TypeError, match="salt"):
        router.peek(TOKENS, salt=salt)


def test_a_length_that_nobody_has_memory_for_is_no_end_of_the_process(router: Router) -> None:
    with pytest.raises(MemoryError):
        router.route(range(10**18))
    with pytest.raises(MemoryError):
        router.route([1], extras=range(10**18))
