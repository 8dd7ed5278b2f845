"""Hypothesis strategies for what goes through a router: prompts that share prefixes, fleets, and requests in time.

Prefixes are shared by construction: prompts are made of few different blocks, so that most pairs begin alike, part at a
block's edge, and come again; which is where routers go wrong.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as missing:
    message = "trunkline.testing.strategies needs hypothesis: pip install 'trunkline[testing]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Request", "prompts", "requests", "texts", "token_ids", "worker_ids"]

_WORDS = ("You are a helpful assistant. ", "Answer in one word. ", "日本語で。", "\\u0041 is\nA. ")


class Request(NamedTuple):
    """One request of a stream; times are seconds since the stream began.

    prompt: token ids, uint32.  start_s: when it is routed.  first_token_s: when its first token comes, None if it ends
    before.  end_s: when it is completed.
    """

    prompt: array[int]
    start_s: float
    first_token_s: float | None
    end_s: float


def token_ids(*, max_tokens: int = 100) -> SearchStrategy[array[int]]:
    """Prompts of any token ids, as a buffer of uint32.

    max_tokens: the longest one.
    """
    return st.lists(st.integers(0, 2**32 - 1), max_size=max_tokens).map(lambda ids: array("I", ids))


def prompts(
    *, max_blocks: int = 5, block_size: int = 16, kinds: int = 3, partial: bool = False
) -> SearchStrategy[array[int]]:
    """Prompts of token ids that share prefixes with each other, as a buffer of uint32.

    max_blocks: whole blocks of the longest one.  block_size: tokens per block, the router's.  kinds: different blocks;
    the fewer, the more is shared.  partial: whether a part of a block may follow the whole ones.
    """
    whole = st.lists(st.integers(0, kinds - 1), max_size=max_blocks)
    rest = st.integers(0, block_size - 1) if partial else st.just(0)

    def build(blocks: list[int], more: int) -> array[int]:
        return array("I", [block for block in blocks for _ in range(block_size)] + [kinds] * more)

    return st.builds(build, whole, rest)


def texts(*, max_parts: int = 8) -> SearchStrategy[str]:
    """Prompts of text that share prefixes with each other: escapes, scripts of several bytes and line ends among them.

    max_parts: sentences of the longest one.
    """
    return st.lists(st.sampled_from(_WORDS), max_size=max_parts).map("".join)


def worker_ids(*, min_size: int = 1, max_size: int = 8) -> SearchStrategy[list[str]]:
    """Fleets: different ids, of the form of URLs, in any order.

    min_size, max_size: number of workers, at most 250.
    """
    number = st.integers(1, 250)
    ids = st.lists(number, min_size=min_size, max_size=max_size, unique=True)
    return ids.map(lambda numbers: [f"http://10.0.0.{number}:8000" for number in numbers])


def requests(
    *, of: SearchStrategy[array[int]] | None = None, max_size: int = 20, duration_s: float = 10.0
) -> SearchStrategy[list[Request]]:
    """Streams of requests, ordered by when they start.

    of: their prompts; None takes those of `prompts`.  max_size: requests of the longest one.  duration_s: seconds in
    which all start and end.
    """
    times = st.lists(st.floats(0, duration_s), min_size=3, max_size=3).map(sorted)

    def build(prompt: array[int], when: list[float], *, answered: bool) -> Request:
        return Request(prompt, when[0], when[1] if answered else None, when[2])

    request = st.builds(build, prompts() if of is None else of, times, answered=st.booleans())
    return st.lists(request, max_size=max_size).map(lambda stream: sorted(stream, key=lambda each: each.start_s))
