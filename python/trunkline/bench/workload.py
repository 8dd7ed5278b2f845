"""Make the prompts of a benchmark from a seed, and say what is cached where.

Five classes of prompts, from 64 to 131,072 tokens, with a fifth of all blocks each. A class is made of groups: a
shared half and eight branches, each cached on one to three workers. One more prompt of each class is hot, on all
workers. A prompt is a fresh array whenever it is asked for, so it is in cache.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Tokens = NDArray[np.uint32]

BLOCK_SIZE = 16
PROMPT_TOKENS = (64, 512, 4096, 32768, 131072)
BRANCHES = 8
CACHED = ("full", "half", "miss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptClass:
    """Prompts of one length: number i is the shared half of group i // BRANCHES, then a half of its own."""

    prompt_tokens: int
    shared: NDArray[np.uint32]
    own: NDArray[np.uint32]
    holders: list[list[int]]
    hot: Tokens

    def __len__(self) -> int:
        return len(self.own)

    @property
    def blocks(self) -> int:
        """Whole blocks of one prompt."""
        return self.prompt_tokens // BLOCK_SIZE

    def prompt(self, number: int) -> Tokens:
        """Return a prompt that is cached whole."""
        return np.concatenate([self.shared[number // BRANCHES], self.own[number]])

    def prompts(self, cached: str, rng: np.random.Generator) -> Iterator[Tokens]:
        """Yield prompts without end, in an order in which none comes again before all have come."""
        half = self.prompt_tokens // 2
        for number in itertools.chain.from_iterable(rng.permutation(len(self)) for _ in itertools.count()):
            if cached == "full":
                yield self.prompt(number)
            elif cached == "half":
                yield np.concatenate([self.shared[number // BRANCHES], random_tokens(half, rng)])
            else:
                yield random_tokens(self.prompt_tokens, rng)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """All classes, for a fleet of `workers`."""

    workers: int
    classes: list[PromptClass]

    @classmethod
    def make(cls, *, blocks: int, workers: int, seed: int) -> Workload:
        """Make about `blocks` distinct blocks."""
        rng = np.random.default_rng(seed)
        classes = [_class(tokens, blocks // len(PROMPT_TOKENS), workers, rng) for tokens in PROMPT_TOKENS]
        return cls(workers=workers, classes=classes)

    def stores(self, seed: int) -> Iterator[tuple[int, Tokens]]:
        """Yield (worker, prompt) of all that is cached, classes mixed; hot prompts first."""
        for one in self.classes:
            yield from ((worker, one.hot) for worker in range(self.workers))
        order = [(one, number) for one in self.classes for number in range(len(one))]
        for at in np.random.default_rng(seed).permutation(len(order)):
            one, number = order[at]
            prompt = one.prompt(number)
            yield from ((worker, prompt) for worker in one.holders[number])


def random_tokens(count: int, rng: np.random.Generator) -> Tokens:
    """Return token ids of a large vocabulary."""
    return rng.integers(0, 128_000, size=count, dtype=np.uint32)


def as_text(tokens: Tokens) -> str:
    """Return text with four characters for each token, different where the tokens are."""
    return ((tokens.view(np.uint8) & 31) + ord("A")).tobytes().decode("ascii")


def groups_of(prompts: Iterator[Tokens], count: int) -> Callable[[], list[Tokens]]:
    """Return a function that takes the next `count` prompts."""
    return lambda: list(itertools.islice(prompts, count))


def _class(tokens: int, blocks: int, workers: int, rng: np.random.Generator) -> PromptClass:
    half = tokens // 2
    groups = max(1, round(blocks * BLOCK_SIZE / (half * (1 + BRANCHES))))
    return PromptClass(
        prompt_tokens=tokens,
        shared=random_tokens(groups * half, rng).reshape(groups, half),
        own=random_tokens(groups * BRANCHES * half, rng).reshape(groups * BRANCHES, half),
        holders=[
            sorted(rng.choice(workers, size=min(workers, int(rng.integers(1, 4))), replace=False).tolist())
            for _ in range(groups * BRANCHES)
        ],
        hot=random_tokens(tokens, rng),
    )
