"""Where prompts that nobody holds go when the fleet changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trunkline import Router

KEYS = 300
POLICIES = st.sampled_from(["kv_aware", "prefix_aware"])


def prompts(seed: int) -> list[str]:
    return [f"{seed}/{number}/" + "x" * 80 for number in range(KEYS)]


def homes(router: Router, keys: list[str]) -> dict[str, str]:
    """Ask without booking, so that nothing gets warm and nobody gets load."""
    return {key: router.explain(key).worker for key in keys}


def fleet(policy: str, names: list[str]) -> Router:
    router = Router(policy=policy, prefix_length=1024)  # type: ignore[arg-type]
    for name in names:
        router.add_worker(name)
    # From the first decision on the slots are stable, whatever the order of arrival was.
    router.complete(router.route("warm-up"))
    return router


@given(policy=POLICIES, workers=st.integers(2, 12), seed=st.integers(0, 2**32), data=st.data())
def test_a_removal_moves_the_prompts_of_that_worker_only(
    policy: str, workers: int, seed: int, data: st.DataObject
) -> None:
    names = [f"http://10.0.0.{number}:8000" for number in range(workers)]
    router, keys = fleet(policy, names), prompts(seed)
    before = homes(router, keys)
    gone = data.draw(st.sampled_from(names))
    router.remove_worker(gone)
    after = homes(router, keys)
    moved = [key for key in keys if before[key] != after[key]]
    assert all(before[key] == gone for key in moved)
    # 1/n of 300 keys; six standard deviations above it happens once in a billion runs.
    share = 1 / workers
    assert len(moved) <= KEYS * share + 6 * (KEYS * share * (1 - share)) ** 0.5
    router.add_worker(gone)
    assert homes(router, keys) == before


@given(policy=POLICIES, workers=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_a_new_worker_takes_prompts_and_moves_no_other(policy: str, workers: int, seed: int) -> None:
    names = [f"http://10.0.0.{number}:8000" for number in range(workers)]
    router, keys = fleet(policy, names), prompts(seed)
    before = homes(router, keys)
    router.add_worker("new")
    after = homes(router, keys)
    assert all(after[key] in (before[key], "new") for key in keys)
    share = 1 / (workers + 1)
    moved = sum(after[key] == "new" for key in keys)
    assert abs(moved - KEYS * share) <= 6 * (KEYS * share * (1 - share)) ** 0.5


@given(policy=POLICIES, order=st.permutations([f"w{number}" for number in range(6)]), seed=st.integers(0, 2**32))
def test_replicas_agree_whatever_the_order_of_arrival(policy: str, order: list[str], seed: int) -> None:
    keys = prompts(seed)[:50]
    assert homes(fleet(policy, order), keys) == homes(fleet(policy, sorted(order)), keys)
