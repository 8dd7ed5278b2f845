"""The demo's traffic: made from a seed, shaped so that placement decides what hits."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from trunkline.demo.workload import Session, WorkloadSpec, count_requests, expected_hit_rate, make_workload

SPEC = WorkloadSpec(seed=7, requests=500, rate_rps=20.0)


def mock_tokens(text: str) -> int:
    """Count tokens as the mock worker does for text whose characters are all of 1 or all of 3 bytes."""
    return -(-len(text) // 4) if text.isascii() else len(text)


def test_equal_seeds_make_equal_sessions_and_others_do_not() -> None:
    assert make_workload(SPEC) == make_workload(SPEC)
    other = WorkloadSpec(seed=8, requests=500, rate_rps=20.0)
    assert make_workload(other) != make_workload(SPEC)


@pytest.mark.parametrize("requests", [500, 501, 1])
def test_all_requests_of_a_tenant_are_made(requests: int) -> None:
    sessions = make_workload(WorkloadSpec(seed=7, requests=requests, rate_rps=20.0))
    assert requests <= count_requests(sessions) < requests + 6
    uses = Counter[int]()
    for session in sessions:
        uses[session.tenant] += len(session.turns)
    assert set(uses.values()) <= {5, 6}


def test_system_prompts_are_long_and_part_early() -> None:
    systems = {session.tenant: session.system for session in make_workload(SPEC)}
    assert {mock_tokens(system) for system in systems.values() if system.isascii()} == {3000}
    assert {len(system) for system in systems.values() if not system.isascii()} == {3000}
    assert len({system[:64] for system in systems.values()}) == len(systems)


def test_sessions_come_in_order_at_the_rate() -> None:
    sessions = make_workload(WorkloadSpec(seed=7, requests=5000, rate_rps=20.0))
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert count_requests(sessions) / starts[-1] == pytest.approx(20.0, rel=0.1)


def test_some_tenants_write_japanese_and_some_of_their_clients_escape_it() -> None:
    sessions = make_workload(SPEC)
    japanese = [session for session in sessions if not session.system.isascii()]
    assert 0.1 < len(japanese) / len(sessions) < 0.3
    assert all(not turn.question.isascii() for session in japanese for turn in session.turns)
    assert {session.escaped for session in japanese} == {True, False}
    assert not any(session.escaped for session in sessions if session.system.isascii())


def test_some_sessions_have_several_turns_after_a_pause() -> None:
    sessions = make_workload(SPEC)
    assert {len(session.turns) for session in sessions} == {1, 2, 3}
    assert all(session.turns[0].think_s == 0 for session in sessions)
    assert all(turn.think_s > 0 for session in sessions for turn in session.turns[1:])


def system_prompt_hits(sessions: list[Session], workers: int, seed: int) -> float:
    """Share of the requests that find their system prompt under random placement, with caches that never evict."""
    rng = random.Random(seed)
    holders: defaultdict[int, set[int]] = defaultdict(set)
    hits = 0
    for session in sessions:
        for _ in session.turns:
            worker = rng.randrange(workers)
            hits += worker in holders[session.tenant]
            holders[session.tenant].add(worker)
    return hits / count_requests(sessions)


@pytest.mark.parametrize("seed", range(5))
def test_placement_decides_what_hits(seed: int) -> None:
    spec = WorkloadSpec(seed=seed, requests=1000, rate_rps=20.0)
    sessions = make_workload(spec)
    for workers, expected in ((4, 0.42), (1, 0.82)):
        assert expected_hit_rate(spec, workers=workers) == pytest.approx(expected, abs=0.005)
        assert system_prompt_hits(sessions, workers, seed) == pytest.approx(expected, abs=0.04)
