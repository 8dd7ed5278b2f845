"""The rank picker of examples/ before a stand-in for `AsyncLLM`: one cache per rank. The real one: tests/e2e."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm_ranks.py"
BLOCK_TOKENS = 16


@dataclass
class Output:
    """Of vLLM's outputs, the field that is read."""

    num_cached_tokens: int


@dataclass
class Ranks:
    """What `AsyncLLM.generate` does as far as the picker sees it."""

    count: int
    held: list[set[tuple[Any, ...]]] = field(init=False)
    asked: list[int] = field(default_factory=list)
    fails: bool = False

    def __post_init__(self) -> None:
        self.held = [set() for _ in range(self.count)]

    async def generate(
        self, prompt: dict[str, Any], sampling: object, request_id: str, *, data_parallel_rank: int
    ) -> AsyncIterator[Output]:
        assert request_id
        assert sampling is None
        self.asked.append(data_parallel_rank)
        if self.fails:
            raise RuntimeError("the engine is dead")
        held, ids = self.held[data_parallel_rank], prompt["prompt_token_ids"]
        ends = range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS)
        prefixes = [(prompt.get("cache_salt"), *ids[:end]) for end in ends]
        cached = BLOCK_TOKENS * sum(prefix in held for prefix in prefixes)
        held.update(prefixes)
        for _ in range(3):
            await asyncio.sleep(0)
            yield Output(cached)


def picker(engine: Ranks) -> Any:
    spec = importlib.util.spec_from_file_location("vllm_ranks", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RankPicker(engine, engine.count, block_size=BLOCK_TOKENS)


async def cached_tokens(picker: Any, ids: list[int], **arguments: Any) -> int:
    return int([output.num_cached_tokens async for output in picker.generate(ids, None, **arguments)][-1])


def document(number: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + 320))


def test_questions_about_a_document_go_to_the_rank_that_has_it() -> None:
    async def run() -> None:
        ranks = Ranks(4)
        pick = picker(ranks)
        for question in range(3):
            # At once, so that new documents spread.
            found = await asyncio.gather(*(cached_tokens(pick, [*document(each), question]) for each in range(8)))
            assert found == [320 if question else 0] * 8
        assert set(ranks.asked[:8]) == {0, 1, 2, 3}
        assert ranks.asked[8:16] == ranks.asked[16:] == ranks.asked[:8]
        assert await cached_tokens(pick, document(0), salt="tenant") == 0
        assert pick.router.stats().in_flight == 0

    asyncio.run(run())


def test_a_caller_that_stops_and_an_engine_that_fails_leave_no_booking() -> None:
    async def run() -> None:
        ranks = Ranks(2)
        pick = picker(ranks)
        outputs = pick.generate(document(1), None)
        await anext(outputs)
        assert pick.router.stats().in_flight == 1
        await outputs.aclose()
        assert pick.router.stats().in_flight == 0
        ranks.fails = True
        with pytest.raises(RuntimeError, match="dead"):
            await cached_tokens(pick, document(1))
        assert pick.router.stats().in_flight == 0

    asyncio.run(run())
