"""The simulated fleet beside a live one: the same requests to a gateway before mock workers, and to the simulator.

All workers run at half the modelled speed, so that what HTTP and a busy machine add is small beside their times. The
simulator gets the requests when they were really sent. round_robin stands for the
policies without prefixes: unlike random it sends equal arrivals to equal workers.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import dataclass, replace

import pytest

from trunkline.demo.fleet import Fleet
from trunkline.demo.replay import Outcome, Replay
from trunkline.demo.workload import Session, WorkloadSpec, make_workload
from trunkline.simulate.spec import Options, Spec, run

WORKERS = 4
TIME_SCALE = 2.0
# Of what random routing sustains, about 70 %: queues matter, and none runs away.
RATE_RPS = 15.0
HIT_RATE_POINTS = 0.02
RATIO = 0.15


@dataclass(frozen=True)
class Figures:
    """What is compared."""

    hit_rate: float
    ttft_p50_s: float


def live(policy: str, sessions: list[Session]) -> tuple[Figures, list[Session]]:
    """Send the sessions; return what was measured, and the sessions as they were sent."""
    with Fleet(policy, workers=WORKERS, time_scale=TIME_SCALE) as fleet:
        outcomes: list[Outcome] = asyncio.run(Replay(fleet.url, model="mock", on_outcome=lambda _: None).run(sessions))
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    cached = sum(outcome.cached_tokens for outcome in outcomes)
    figures = Figures(
        hit_rate=cached / sum(outcome.prompt_tokens for outcome in outcomes),
        ttft_p50_s=statistics.median(outcome.ttft_s for outcome in outcomes),
    )
    if policy == "round_robin":
        outcomes = in_turn(outcomes, fleet.workers)
    else:
        outcomes.sort(key=lambda outcome: outcome.sent_s)
    times = sorted(outcome.sent_s for outcome in outcomes)
    sent = {outcome.due_s: at_s for outcome, at_s in zip(outcomes, times, strict=True)}
    return figures, [replace(session, start_s=sent[session.start_s]) for session in sessions]


def in_turn(outcomes: list[Outcome], workers: list[str]) -> list[Outcome]:
    """Return outcomes of round_robin in the order of its decisions: each worker had its turn once a round."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.sent_s)
    start = workers.index(ordered[0].worker)
    rounds = dict.fromkeys(workers, 0)
    turns = []
    for outcome in ordered:
        place = (workers.index(outcome.worker) - start) % len(workers)
        turns.append((rounds[outcome.worker], place, outcome))
        rounds[outcome.worker] += 1
    return [outcome for _, _, outcome in sorted(turns, key=lambda turn: turn[:2])]


def simulated(policy: str, sessions: list[Session]) -> Figures:
    lines = []
    for session in sessions:
        (turn,) = session.turns
        messages = [{"role": "system", "content": session.system}, {"role": "user", "content": turn.question}]
        body = {"messages": messages, "max_tokens": turn.max_tokens}
        lines.append(json.dumps({"timestamp": session.start_s, "body": body}))
    spec = Spec(source={"log": {}}, policy=policy, options=Options(workers=WORKERS, speeds=[1 / TIME_SCALE] * WORKERS))
    report = run(spec, trace="\n".join(lines)).report
    assert report.requests == len(sessions)
    return Figures(hit_rate=report.hit_rate, ttft_p50_s=report.ttft_s.p50)


@pytest.mark.timeout(180)
def test_the_simulator_agrees_with_gateway_and_mock_workers() -> None:
    traffic = WorkloadSpec(seed=5, requests=260, rate_rps=RATE_RPS, turn_weights=(1.0,), japanese_share=0.0)
    sessions = make_workload(traffic)
    found = {}
    for policy in ("round_robin", "kv_aware"):
        real, sent = live(policy, sessions)
        model = simulated(policy, sent)
        assert model.hit_rate == pytest.approx(real.hit_rate, abs=HIT_RATE_POINTS), (policy, real, model)
        found[policy] = (real, model)
    (real, model), (baseline, modelled) = found["kv_aware"], found["round_robin"]
    ratio, expected = model.ttft_p50_s / modelled.ttft_p50_s, real.ttft_p50_s / baseline.ttft_p50_s
    print(found, ratio, expected)
    assert ratio == pytest.approx(expected, rel=RATIO), found
