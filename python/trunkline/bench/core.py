"""What calls of a router cost from Python when its index is full, beside their floors.

Results are checked before anything is timed. Every prompt is made right before its group of calls is timed; "cold"
also walks through more memory than the caches hold in between.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from trunkline._core import PrefixIndex, Router, _hash_blocks

from . import floors
from .facts import facts
from .report import Call, Report, Target
from .timing import Group, Timing, measure, one_by_one
from .workload import BLOCK_SIZE, CACHED, PromptClass, Workload, as_text, groups_of, random_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from .workload import Tokens

    Progress = Callable[[str], None]
    Offsets = NDArray[np.int64]
    Batch = tuple[Tokens, Offsets]

# Tokens of the prompts that are made together: what the second level of cache holds, and enough calls that neither the
# clock nor the first, cold one counts. A batch may be longer.
GROUP_TOKENS, GROUP_MAX = 1 << 17, 256
BATCH_TOKENS, BATCH_MAX = 1 << 18, 1024
ROUND_TOKENS, ROUND_MAX = 1 << 18, 1024
DEFAULT_BUDGET, AMPLE_BYTES = 256 << 20, 64
COLD_GROUPS = 8
COLD_BYTES = 64 << 20
TEXT_BYTES = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What `trunkline bench core` was asked for."""

    blocks: int = 1_000_000
    workers: int = 64
    rounds: int = 7
    seed: int = 1

    @property
    def memory_budget(self) -> int:
        """Bytes for the index: the default, or more where blocks would be evicted."""
        return max(DEFAULT_BUDGET, self.blocks * AMPLE_BYTES)

    @property
    def fleets(self) -> list[int]:
        """Numbers of workers for which decisions are measured."""
        return sorted({8, self.workers, 1024})


def run(options: Options, *, command: str, progress: Progress) -> tuple[Report, Workload]:
    """Fill, check and measure. Returns the figures and what was cached, for peers."""
    rng = np.random.default_rng(options.seed)
    progress("making prompts")
    load = Workload.make(blocks=options.blocks, workers=options.workers, seed=options.seed)
    progress("filling the router")
    router = filled(load, options)
    stats = router.stats()
    setup = dataclasses.asdict(options) | {
        "blocks": stats.index_blocks,
        "pairs": sum(view.cached_blocks for view in router.workers),
        "block_size": BLOCK_SIZE,
    }
    report = Report(facts=facts(command, ("numpy",)), setup=setup)
    report.sizes["bytes per block, token ids"] = stats.index_bytes / stats.index_blocks
    progress("floors")
    report.floors += floors.measure_all(options.rounds, options.seed)
    for one in load.classes:
        progress(f"looking up prompts of {one.prompt_tokens:,} tokens")
        check(router, one)
        _look_up(report, router, one, options, rng)
    del router
    for workers in options.fleets:
        progress(f"deciding between {workers:,} workers")
        _decide(report, workers, options, rng)
    progress("inserting")
    report.sizes["worker-blocks/s inserted, in millions"] = _inserts(load, options)
    report.sizes[f"bytes per block, texts of {TEXT_BYTES:,} bytes"] = _text_size(options)
    report.targets += _targets(report)
    return report, load


def filled(load: Workload, options: Options) -> Router:
    """Return a router whose workers hold what the workload says."""
    router = Router(block_size=BLOCK_SIZE, memory_budget=options.memory_budget, seed=options.seed)
    names = [f"w{number}" for number in range(load.workers)]
    for name in names:
        router.add_worker(name)
    for worker, prompt in load.stores(options.seed):
        router.complete(router.route(prompt, eligible=[names[worker]]))
    return router


def check(router: Router, one: PromptClass) -> None:
    """Compare what `peek` and `match_batch` find with what was stored, for a sample of a class."""
    rng = np.random.default_rng(0)
    for number in range(0, len(one), max(1, len(one) // 64)):
        found = router.peek(one.prompt(number)).workers
        holders = {name for name, matched in found.items() if matched == one.prompt_tokens}
        if holders != {f"w{worker}" for worker in one.holders[number]}:
            raise AssertionError(f"a prompt that is cached on {one.holders[number]} was found on {holders}")
    for cached, wanted in zip(CACHED, (one.prompt_tokens, one.prompt_tokens // 2, 0), strict=True):
        prompts = list(itertools.islice(one.prompts(cached, rng), 16))
        singles = {router.peek(prompt).matched_tokens for prompt in prompts}
        batch = set(router.match_batch(*_batch(prompts)).matched_tokens.tolist())
        if not singles == batch == {wanted}:
            raise AssertionError(f"{singles} and {batch} tokens were found where {wanted} are cached")


def peek_group(router: Router, prompts: Iterator[Tokens], prompt_tokens: int) -> tuple[Group[list[Tokens]], int]:
    """Return how to time `peek`, and how many groups are a round."""
    calls = max(1, min(GROUP_MAX, GROUP_TOKENS // prompt_tokens))
    group = one_by_one(router.peek, groups_of(prompts, calls), calls)
    return group, _groups(prompt_tokens, calls)


def _groups(prompt_tokens: int, calls: int) -> int:
    """Return how many groups of `calls` prompts are a round."""
    return max(4, min(ROUND_MAX, ROUND_TOKENS // prompt_tokens) // calls)


def _batch(prompts: Sequence[Tokens]) -> Batch:
    return np.concatenate(prompts), np.cumsum([0, *map(len, prompts)], dtype=np.int64)


def _batches(prompts: Iterator[Tokens], count: int) -> Callable[[], Batch]:
    take = groups_of(prompts, count)
    return lambda: _batch(take())


def _starred(call: Callable[[Tokens, Offsets], object]) -> Callable[[Batch], object]:
    return lambda batch: call(*batch)


def _look_up(report: Report, router: Router, one: PromptClass, options: Options, rng: np.random.Generator) -> None:
    tokens = one.prompt_tokens

    def note(call: str, cached: str, timing: Timing) -> None:
        report.calls.append(
            Call(call=call, prompt_tokens=tokens, cached=cached, workers=options.workers, timing=timing)
        )

    for cached in CACHED:
        prompts = one.prompts(cached, rng)
        group, groups = peek_group(router, prompts, tokens)
        note("peek", cached, measure(group, groups=groups, rounds=options.rounds))
    # Walking through this much memory leaves nothing of prompts or index in any cache.
    wall = np.zeros(COLD_BYTES // 8, dtype=np.uint64)
    group, _ = peek_group(router, one.prompts("full", rng), tokens)

    def make_cold() -> list[Tokens]:
        made = group.make()
        np.add(wall, 1, out=wall)
        return made

    cold = dataclasses.replace(group, make=make_cold)
    note("peek", "cold", measure(cold, groups=COLD_GROUPS, rounds=options.rounds))
    for cached in CACHED:
        calls = max(1, min(BATCH_MAX, BATCH_TOKENS // tokens))
        batch = Group(make=_batches(one.prompts(cached, rng), calls), run=_starred(router.match_batch), calls=calls)
        note("match_batch", cached, measure(batch, groups=_groups(tokens, calls), rounds=options.rounds))
    calls = max(1, min(GROUP_MAX, GROUP_TOKENS // tokens))
    alone = one_by_one(_hash_blocks, groups_of(one.prompts("full", rng), calls), calls)
    note("hashing alone", "full", measure(alone, groups=_groups(tokens, calls), rounds=options.rounds))


def _decide(report: Report, workers: int, options: Options, rng: np.random.Generator) -> None:
    load = Workload.make(blocks=options.blocks, workers=workers, seed=options.seed)
    router = filled(load, options)

    def decide(prompts: list[Tokens]) -> None:
        for prompt in prompts:
            router.complete(router.route(prompt))

    for one in load.classes:
        if one.prompt_tokens not in (64, 4096):
            continue
        calls = max(1, min(GROUP_MAX, GROUP_TOKENS // one.prompt_tokens))
        for cached in ("full", "half"):
            group = Group(make=groups_of(one.prompts(cached, rng), calls), run=decide, calls=calls)
            timing = measure(group, groups=_groups(one.prompt_tokens, calls), rounds=options.rounds)
            row = Call(
                call="route + complete",
                prompt_tokens=one.prompt_tokens,
                cached=cached,
                workers=workers,
                timing=timing,
            )
            report.calls.append(row)


def _inserts(load: Workload, options: Options) -> float:
    """Return how many millions of worker-blocks a second of CPU inserts, hashing and the call included."""
    index = PrefixIndex(block_size=BLOCK_SIZE, memory_budget=options.memory_budget, seed=options.seed)
    stores = list(load.stores(options.seed))[len(load.classes) * load.workers :]
    per_round = max(1, len(stores) // options.rounds)
    rounds = []
    for start in range(0, per_round * options.rounds, per_round):
        batch = stores[start : start + per_round]
        started = time.thread_time_ns()
        for worker, prompt in batch:
            index.insert(worker, prompt)
        spent = time.thread_time_ns() - started
        rounds.append(sum(len(prompt) // BLOCK_SIZE for _, prompt in batch) * 1e3 / spent)
    return statistics.median(rounds)


def _text_size(options: Options) -> float:
    """Return the bytes per block of a router that saw short texts only, each once."""
    router = Router(memory_budget=options.memory_budget, seed=options.seed)
    for worker in range(options.workers):
        router.add_worker(f"w{worker}")
    rng = np.random.default_rng(options.seed)
    for _ in range(max(1, options.blocks * 64 // TEXT_BYTES)):
        router.complete(router.route(as_text(random_tokens(TEXT_BYTES // 4, rng))))
    stats = router.stats()
    return stats.index_bytes / stats.index_blocks


def _targets(report: Report) -> list[Target]:
    """Return the promises that this run can check."""

    def rate(call: str, tokens: int, wanted: float, workers: int | None = None, *, name: str = "") -> Target:
        measured = 1e3 / report.timing(call, tokens, "full", workers).ns
        figure = name or f"{call}, {tokens:,} tokens"
        return Target(figure=figure, unit="M/s", wanted=wanted, measured=measured, at_least=True, absolute=True)

    def at_most(figure: str, unit: str, wanted: float, measured: float, *, absolute: bool = False) -> Target:
        return Target(figure=figure, unit=unit, wanted=wanted, measured=measured, at_least=False, absolute=absolute)

    peeks = [rate("peek", tokens, wanted) for tokens, wanted in ((64, 2.5), (512, 1.0), (4096, 0.5))]
    batches = [rate("match_batch", tokens, wanted) for tokens, wanted in ((64, 5.0), (512, 2.0), (4096, 0.9))]
    decides = [rate("route + complete", 64, 1.0, 8, name="route + complete, 64 tokens, 8 workers")]
    for workers, wanted in ((8, 3.0), (64, 4.0), (1024, 8.0)):
        if workers in {row.workers for row in report.calls}:
            micros = report.timing("route + complete", 4096, "full", workers).ns / 1e3
            figure = f"route + complete, 4,096 tokens, {workers:,} workers (target is Rust's)"
            decides.append(at_most(figure, "us", wanted, micros, absolute=True))
    walks = [
        at_most(
            f"peek against hashing alone, {tokens:,} tokens",
            "x",
            1.8,
            report.timing("peek", tokens, "full").ns / report.timing("hashing alone", tokens, "full").ns,
        )
        for tokens in (32768, 131072)
    ]
    sizes = [
        at_most("bytes per block, token ids", "B", 24, report.sizes["bytes per block, token ids"]),
        at_most(
            f"bytes per block, texts of {TEXT_BYTES:,} bytes",
            "B",
            40,
            report.sizes[f"bytes per block, texts of {TEXT_BYTES:,} bytes"],
        ),
    ]
    inserts = Target(
        figure="inserts, hashing included",
        unit="M worker-blocks/s",
        wanted=5,
        measured=report.sizes["worker-blocks/s inserted, in millions"],
        at_least=True,
        absolute=True,
    )
    return [*peeks, *batches, *decides, *walks, *sizes, inserts]
