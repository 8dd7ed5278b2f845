"""What one call of `Router.peek` costs from Python when the index is full.

The index holds five classes of prompts, from 64 to 131,072 tokens, with a fifth of all blocks each. A class is made of
groups: a shared half and eight branches, each branch cached on one to three workers. One more prompt per class is hot,
on all workers. Of each class, prompts are looked up that are cached whole, half and not at all. Results are checked
before anything is timed. Times are CPU time of the thread, the loop included, medians of several rounds; on a busy
machine only their ratios to the floor mean something.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from trunkline._core import BUILD, Router, _hash_blocks, jump_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Tokens = NDArray[np.uint32]

BLOCK_SIZE = 16
PROMPT_TOKENS = (64, 512, 4096, 32768, 131072)
BRANCHES = 8
# Prompts of each kind that are looked up in turn: many enough for a cold index, few enough for warm prompts.
SAMPLE_TOKENS, SAMPLE_MAX = 1 << 18, 512
ROUND_S = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Nanoseconds of one class of prompts."""

    prompt_tokens: int
    full_ns: float
    half_ns: float
    miss_ns: float
    hash_ns: float

    @property
    def full_per_s(self) -> float:
        """Calls per second on a prompt that is cached whole."""
        return 1e9 / self.full_ns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured."""

    blocks: int
    workers: int
    bytes_per_block: float
    empty_call_ns: float
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        rows = [dataclasses.asdict(row) | {"full_per_s": row.full_per_s} for row in self.rows]
        return dataclasses.asdict(self) | {"rows": rows, "build": BUILD}

    def as_text(self) -> str:
        """Return it as a table."""
        lines = [
            f"Router.peek(uint32 array): {self.blocks:,} blocks, {self.workers} workers, {BUILD} build",
            f"{self.bytes_per_block:.1f} bytes per block; an empty call: {self.empty_call_ns:.0f} ns",
            "",
            f"{'tokens':>7} {'full ns':>9} {'half ns':>9} {'miss ns':>9} {'hash alone':>11} {'full M/s':>9}",
        ]
        lines += [
            f"{row.prompt_tokens:>7} {row.full_ns:>9.0f} {row.half_ns:>9.0f} {row.miss_ns:>9.0f} "
            f"{row.hash_ns:>11.0f} {row.full_per_s / 1e6:>9.2f}"
            for row in self.rows
        ]
        return "\n".join(lines)


def run(*, blocks: int, workers: int, rounds: int, seed: int) -> Report:
    """Fill an index with about `blocks` blocks, check it, measure it."""
    rng = np.random.default_rng(seed)
    router = Router(block_size=BLOCK_SIZE, memory_budget="4GiB")
    names = [f"w{number}" for number in range(workers)]
    for name in names:
        router.add_worker(name)
    classes = [_fill(router, names, tokens, blocks // len(PROMPT_TOKENS), rng) for tokens in PROMPT_TOKENS]
    stats = router.stats()
    return Report(
        blocks=stats.index_blocks,
        workers=workers,
        bytes_per_block=stats.index_bytes / stats.index_blocks,
        empty_call_ns=_median_ns(lambda key: jump_hash(key, 1), [1] * SAMPLE_MAX, rounds),
        rows=[_measure(router, sample, rounds) for sample in classes],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    """Prompts of one class, and what the index must say of them."""

    prompt_tokens: int
    full: list[Tokens]
    holders: list[set[str]]
    half: list[Tokens]
    miss: list[Tokens]


def _fill(router: Router, names: Sequence[str], tokens: int, blocks: int, rng: np.random.Generator) -> _Sample:
    """Cache one class of prompts of `tokens` tokens, about `blocks` blocks."""
    half = tokens // 2
    groups = max(1, round(blocks * BLOCK_SIZE / (half * (1 + BRANCHES))))
    wanted = max(8, min(SAMPLE_MAX, SAMPLE_TOKENS // tokens))
    every = max(1, groups * BRANCHES // wanted)
    full: list[Tokens] = []
    holders: list[set[str]] = []
    for number in range(groups * BRANCHES):
        if number % BRANCHES == 0:
            shared = _random_tokens(half, rng)
        prompt = np.concatenate([shared, _random_tokens(half, rng)])
        chosen = rng.choice(len(names), size=min(len(names), int(rng.integers(1, 4))), replace=False)
        for at in chosen:
            _cache(router, prompt, names[at])
        if number % every == 0:
            full.append(prompt)
            holders.append({names[at] for at in chosen})
    hot = _random_tokens(tokens, rng)
    for name in names:
        _cache(router, hot, name)
    order = rng.permutation(len(full))
    full, holders = [full[at] for at in order], [holders[at] for at in order]
    return _Sample(
        prompt_tokens=tokens,
        full=full,
        holders=holders,
        half=[np.concatenate([prompt[:half], _random_tokens(half, rng)]) for prompt in full],
        miss=[_random_tokens(tokens, rng) for _ in full],
    )


def _random_tokens(count: int, rng: np.random.Generator) -> Tokens:
    return rng.integers(0, 128_000, size=count, dtype=np.uint32)


def _cache(router: Router, prompt: Tokens, worker: str) -> None:
    router.complete(router.route(prompt, eligible=[worker]))


def _measure(router: Router, sample: _Sample, rounds: int) -> Row:
    tokens = sample.prompt_tokens
    for prompts, wanted in ((sample.full, tokens), (sample.half, tokens // 2), (sample.miss, 0)):
        found = {router.peek(prompt).matched_tokens for prompt in prompts}
        if found != {wanted}:
            raise AssertionError(f"peek found {found} tokens where {wanted} are cached")
    for prompt, holders in zip(sample.full, sample.holders, strict=True):
        found_on = {name for name, matched in router.peek(prompt).workers.items() if matched == tokens}
        if found_on != holders:
            raise AssertionError(f"peek found a prompt on {found_on} that is cached on {holders}")
    return Row(
        prompt_tokens=tokens,
        full_ns=_median_ns(router.peek, sample.full, rounds),
        half_ns=_median_ns(router.peek, sample.half, rounds),
        miss_ns=_median_ns(router.peek, sample.miss, rounds),
        hash_ns=_median_ns(_hash_blocks, sample.full, rounds),
    )


def _median_ns(call: Callable[[Any], object], arguments: Sequence[Any], rounds: int) -> float:
    """Return the CPU nanoseconds of a call, the median of `rounds` rounds of at least ROUND_S each."""
    passes = 1
    while _spent_ns(call, arguments, passes) < ROUND_S * 1e9:
        passes *= 2
    times = [_spent_ns(call, arguments, passes) for _ in range(rounds)]
    return statistics.median(times) / (passes * len(arguments))


def _spent_ns(call: Callable[[Any], object], arguments: Sequence[Any], passes: int) -> int:
    start = time.thread_time_ns()
    for _ in range(passes):
        for argument in arguments:
            call(argument)
    return time.thread_time_ns() - start
