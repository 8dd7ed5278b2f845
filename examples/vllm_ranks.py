"""vLLM inside this process with several data-parallel ranks, and Trunkline to pick the rank of each prompt.

vLLM balances its ranks by their queues; each has a KV cache of its own, so a prefix is computed on every rank. Here a
prompt goes where most of it is cached, unless that rank is busy. Prompts are token ids: nothing is tokenized twice.

pip install trunkline vllm && python examples/vllm_ranks.py Qwen/Qwen3-0.6B 2
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from array import array
from typing import TYPE_CHECKING, Any

from trunkline import Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class RankPicker:
    """Generates on the ranks of an `AsyncLLM`."""

    def __init__(self, engine: Any, ranks: int, *, block_size: int = 16) -> None:  # noqa: ANN401 (AsyncLLM)
        self.engine = engine
        self.router = Router(block_size=block_size)  # that of the engine
        for rank in range(ranks):
            self.router.add_worker(str(rank))

    async def generate(
        self, token_ids: Sequence[int], sampling: object, *, salt: str | None = None
    ) -> AsyncIterator[Any]:
        """Yield vLLM's outputs for a prompt; a caller that stops early releases its rank as well."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
        if salt is not None:
            prompt["cache_salt"] = salt
        decision = self.router.route(array("I", token_ids), salt=salt)
        cached = None
        try:
            outputs = self.engine.generate(prompt, sampling, uuid.uuid4().hex, data_parallel_rank=int(decision.worker))
            async for output in outputs:
                self.router.first_token(decision)  # the second time does nothing
                cached = output.num_cached_tokens
                yield output
        finally:
            self.router.complete(decision, cached_tokens=cached)


async def main(model: str, ranks: int) -> None:
    """Ask about three documents, four times each, and print where the questions went."""
    from vllm import SamplingParams  # noqa: PLC0415 (heavy, and not needed by those who import this)
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    arguments = AsyncEngineArgs(model=model, data_parallel_size=ranks, enable_prefix_caching=True)
    engine = AsyncLLM.from_engine_args(arguments)
    picker = RankPicker(engine, ranks, block_size=engine.vllm_config.cache_config.block_size)
    try:
        for question in range(4):
            for document in range(3):
                ids = [100 + document] * 200 + [500 + question] * 8
                async for output in picker.generate(ids, SamplingParams(max_tokens=4)):
                    last = output
                print(f"document {document}: {last.num_cached_tokens} of {len(ids)} tokens cached")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
