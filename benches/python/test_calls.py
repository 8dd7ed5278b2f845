"""What a call from Python costs, beside a call that does nothing: `make bench-python`.

The index is small and in cache: this is about the boundary. `trunkline bench core` measures full indexes.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trunkline import Decision, Router, jump_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

TOKENS = (64, 512, 4096)

AS: dict[str, Callable[[NDArray[np.uint32]], Any]] = {
    "numpy": lambda prompt: prompt,
    "numpy_int64": lambda prompt: prompt.astype(np.int64),
    "memoryview": lambda prompt: prompt.data,
    "array": lambda prompt: array.array("I", prompt.tobytes()),
    "list": lambda prompt: prompt.tolist(),
    "bytes": lambda prompt: prompt.tobytes(),
    "str": lambda prompt: "four" * len(prompt),
}


@pytest.fixture(scope="module")
def router() -> Router:
    """Return a router that knows every prompt in every form."""
    made = Router(seed=1)
    for worker in range(8):
        made.add_worker(f"w{worker}")
    for tokens in TOKENS:
        for change in AS.values():
            made.complete(made.route(change(prompt(tokens))))
    return made


def prompt(tokens: int) -> NDArray[np.uint32]:
    """Return a prompt."""
    return np.random.default_rng(tokens).integers(0, 128_000, size=tokens, dtype=np.uint32)


@pytest.mark.benchmark(group="floor")
def test_empty_call(benchmark: BenchmarkFixture) -> None:
    """Call into the extension and do nothing there."""
    assert benchmark(jump_hash, 1, 1) == 0


@pytest.mark.benchmark(group="peek")
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("form", AS)
def test_peek(benchmark: BenchmarkFixture, router: Router, form: str, tokens: int) -> None:
    """Look up each form of a prompt."""
    found = benchmark(router.peek, AS[form](prompt(tokens)))
    assert found.matched_tokens == found.prompt_tokens > 0


@pytest.mark.benchmark(group="route + complete")
@pytest.mark.parametrize("tokens", TOKENS)
def test_route_and_complete(benchmark: BenchmarkFixture, router: Router, tokens: int) -> None:
    """Decide, book and release."""
    ids = prompt(tokens)

    def decide() -> Decision:
        decision = router.route(ids)
        router.complete(decision)
        return decision

    assert benchmark(decide).matched_tokens == tokens


@pytest.mark.benchmark(group="match_batch of 64")
@pytest.mark.parametrize("tokens", TOKENS)
def test_match_batch(benchmark: BenchmarkFixture, router: Router, tokens: int) -> None:
    """Look 64 prompts up in one call."""
    flat, offsets = np.tile(prompt(tokens), 64), np.arange(65, dtype=np.int64) * tokens
    assert (benchmark(router.match_batch, flat, offsets).matched_tokens == tokens).all()


@pytest.mark.benchmark(group="reading a decision")
def test_decision_fields(benchmark: BenchmarkFixture, router: Router) -> None:
    """Read what a caller needs of a decision."""
    decision = router.route(prompt(64))
    router.complete(decision)
    worker, matched = benchmark(lambda: (decision.worker, decision.matched_tokens))
    assert (worker[0], matched) == ("w", 64)
