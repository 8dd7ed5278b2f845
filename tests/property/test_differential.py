"""Fast ways against plain ways: batches are loops, buffers are lists, text is its bytes, peek is the index."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trunkline import PrefixIndex, Router
from trunkline.testing import strategies

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)
BLOCKY = strategies.prompts()
PROMPTS = st.lists(BLOCKY, max_size=12)
SEED = 7


def make(**arguments: Any) -> Router:
    router = Router(**{"seed": SEED} | arguments)
    for number in range(4):
        router.add_worker(f"w{number}")
    return router


def ragged(prompts: list[array[int]], dtype: str) -> tuple[Any, Any]:
    flat = np.array([token for prompt in prompts for token in prompt], dtype=dtype)
    return flat, np.cumsum([0, *map(len, prompts)], dtype=np.int64)


@given(prompts=PROMPTS, dtype=st.sampled_from(["u4", "i4", "i8"]), policy=st.sampled_from(["kv_aware", "round_robin"]))
def test_route_batch_is_a_loop_of_route(prompts: list[array[int]], dtype: str, policy: str) -> None:
    one, many = make(policy=policy), make(policy=policy)
    batch = many.route_batch(*ragged(prompts, dtype), now=1.0)
    decisions = [one.route(prompt, now=1.0) for prompt in prompts]
    assert batch.worker_ids == [decision.worker for decision in decisions]
    assert batch.matched_tokens.tolist() == [decision.matched_tokens for decision in decisions]
    assert batch.decision.tolist() == [decision.id for decision in decisions]
    assert [batch.REASONS[reason] for reason in batch.reason] == [decision.reason for decision in decisions]
    assert many.first_token_batch(batch.decision) == sum(one.first_token(decision) for decision in decisions)
    assert many.complete_batch(batch.decision) == sum(one.complete(decision) for decision in decisions)
    assert many.stats().index_blocks == one.stats().index_blocks


@given(cached=PROMPTS, prompts=PROMPTS, dtype=st.sampled_from(["u4", "i4", "i8"]))
def test_match_batch_is_a_loop_of_peek(cached: list[array[int]], prompts: list[array[int]], dtype: str) -> None:
    router = make()
    for prompt in cached:
        router.complete(router.route(prompt))
    batch = router.match_batch(*ragged(prompts, dtype))
    found = [router.peek(prompt) for prompt in prompts]
    assert batch.matched_tokens.tolist() == [match.matched_tokens for match in found]
    slots = {worker.slot: worker.id for worker in router.workers}
    for slot, match in zip(batch.worker.tolist(), found, strict=True):
        assert (slot == -1) == (not match.workers)
        assert slot == -1 or match.workers[slots[slot]] == match.matched_tokens


@given(tokens=TOKENS, cut=st.integers(0, 70))
def test_every_kind_of_token_ids_is_one_prompt(tokens: list[int], cut: int) -> None:
    router = make()
    router.complete(router.route(tokens[:cut]))
    want = router.peek(tokens)
    kinds: list[Any] = [tuple(tokens), *(np.array(tokens, dtype) for dtype in ("u4", "i4", "i8", "<u4", "<i8"))]
    for prompt in kinds:
        got = router.peek(prompt)
        assert (got.workers, got.prompt_tokens) == (want.workers, want.prompt_tokens)


@given(text=st.text(max_size=300), cut=st.integers(0, 300))
def test_text_is_its_bytes(text: str, cut: int) -> None:
    router = make()
    router.complete(router.route(text[:cut]))
    want = router.peek(text)
    for prompt in (text.encode(), bytearray(text.encode()), memoryview(text.encode())):
        assert router.peek(prompt).workers == want.workers


@given(prompts=st.lists(st.tuples(BLOCKY, st.integers(0, 3)), max_size=12), asked=BLOCKY)
def test_a_router_knows_what_its_index_alone_would_know(
    prompts: list[tuple[array[int], int]], asked: array[int]
) -> None:
    router, index = make(), PrefixIndex(seed=SEED)
    for prompt, worker in prompts:
        router.complete(router.route(prompt, eligible=[f"w{worker}"]))
        index.insert(worker, prompt)
    assert router.peek(asked).workers == {f"w{worker}": matched for worker, matched in index.match(asked)}


@given(prompts=PROMPTS, seeds=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_the_index_seed_changes_no_decision_of_kv_aware(prompts: list[array[int]], seeds: tuple[int, int]) -> None:
    routers = [make(seed=seed) for seed in seeds]
    for prompt in prompts:
        one, other = (router.route(prompt, now=1.0) for router in routers)
        assert (one.worker, one.reason, one.matched_tokens) == (other.worker, other.reason, other.matched_tokens)
