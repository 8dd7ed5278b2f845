"""Trunkline before real vLLM workers, driven by the real openai client.

The share of cached prompt tokens is asserted; times are printed only, because machines are busy.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import Engines
from tests.support import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PREFIXES, REQUESTS, PREFIX_TOKENS, OWN_TOKENS = 10, 70, 960, 40
POLICIES = ("random", "kv_aware")
ROUNDS = 2


@dataclass(frozen=True)
class Answer:
    """What one request told."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Run:
    """One policy over all requests."""

    policy: str
    cached_share: float
    ttft_p50_s: float


@contextlib.contextmanager
def gateway(engines: Engines, *arguments: str) -> Iterator[tuple[OpenAI, str]]:
    """Start a gateway before the engines; yield a client of it and the engines' model."""
    served = Served(*[word for engine in engines.urls for word in ("--worker", engine)], *arguments)
    try:
        with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            yield client, client.models.list().data[0].id
    finally:
        served.stop()


def complete(client: OpenAI, model: str, prompt: list[int]) -> Answer:
    start, first, usage = time.perf_counter(), None, None
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        first = first or time.perf_counter()
        usage = chunk.usage or usage
    assert first is not None
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return Answer(first - start, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0)


def run(policy: str, engines: Engines, seed: int) -> Run:
    """Send the same requests through a fresh gateway before cold caches, one lane for each engine."""
    engines.clear_caches()
    rng = random.Random(seed)
    prefixes = [[rng.randrange(10, 8000) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]
    order = [number % PREFIXES for number in range(REQUESTS)]
    rng.shuffle(order)
    prompts = [prefixes[which] + [rng.randrange(10, 8000) for _ in range(OWN_TOKENS)] for which in order]
    with gateway(engines, "--policy", policy) as (client, model), ThreadPoolExecutor(len(engines.urls)) as lanes:
        answers = list(lanes.map(lambda prompt: complete(client, model, prompt), prompts))
    share = sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers)
    return Run(policy, share, statistics.median(answer.ttft_s for answer in answers))


def test_prefix_routing_raises_the_cached_share(engines: Engines) -> None:
    """Ten shared prefixes overfill one worker's cache and not two: by hand 47 % becomes 82 %."""
    runs: list[Run] = []
    for number in range(ROUNDS):
        for policy in POLICIES if number % 2 == 0 else reversed(POLICIES):
            runs.append(run(policy, engines, seed=100 + number))
            print(f"{runs[-1].policy:10} cached {runs[-1].cached_share:.3f}  TTFT p50 {runs[-1].ttft_p50_s:.3f} s")
    shares = {policy: [run.cached_share for run in runs if run.policy == policy] for policy in POLICIES}
    # Each prefix is computed once at least, so 1 - 10/70 of 96 % is the most that can be cached.
    assert min(shares["kv_aware"]) >= 0.70
    assert min(shares["kv_aware"]) >= max(shares["random"]) + 0.10


def test_chat_streams_and_plain_answers_pass_through(engines: Engines) -> None:
    with gateway(engines) as (client, model):
        messages: Any = [{"role": "system", "content": "You answer. " * 60}, {"role": "user", "content": "日本語で"}]
        plain = client.chat.completions.create(model=model, messages=messages, max_tokens=8)
        assert plain.usage is not None
        assert plain.usage.completion_tokens == 8
        chunks = list(client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length"
        again = client.chat.completions.create(model=model, messages=messages, max_tokens=1)
        assert again.usage is not None
        assert again.usage.prompt_tokens_details is not None
        assert again.usage.prompt_tokens_details.cached_tokens, "the same worker answered from its cache"
        with pytest.raises(Exception, match="No worker serves this model"):
            client.chat.completions.create(model="nope", messages=messages)
