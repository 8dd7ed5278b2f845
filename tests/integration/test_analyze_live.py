"""The forecast beside a live gateway: a log with a planted divergence, and the same requests sent through it.

The planner reads the log before anything is deployed; then the requests go to a gateway before mock workers, under
both policies that were forecast. Chats have one turn: a log does not tell which answers come back.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from trunkline.analyze.spec import Findings, ForecastOptions, Options, run
from trunkline.demo.fleet import Fleet
from trunkline.demo.replay import Replay
from trunkline.demo.workload import Session, WorkloadSpec, make_workload
from trunkline.simulate.spec import Profile, profiles

WORKERS = 4
POINTS = 0.03
# With so many requests chance moves random's hit rate by 0.8 points. Workers are twice as fast as their model, so that
# they come in good time; the forecast is told.
REQUESTS = 1000
RATE_RPS = 60.0
TIME_SCALE = 0.5


def sessions() -> list[Session]:
    """Make one-turn chats of tenants, a third of whom write a time before what their users share."""
    traffic = WorkloadSpec(seed=11, requests=REQUESTS, rate_rps=RATE_RPS, turn_weights=(1.0,), system_tokens=700)

    def planted(number: int, session: Session) -> Session:
        if session.tenant % 3:
            return session
        time = f"Current time: 2026-11-30 {number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}."
        return replace(session, system=f"{time} {session.system}")

    return [planted(number, session) for number, session in enumerate(make_workload(traffic))]


def log(made: list[Session], path: Path) -> Path:
    lines = []
    for session in made:
        (turn,) = session.turns
        messages = [{"role": "system", "content": session.system}, {"role": "user", "content": turn.question}]
        body = {"model": "mock", "messages": messages, "max_tokens": turn.max_tokens}
        lines.append(json.dumps({"timestamp": session.start_s, "body": body}))
    path.write_text("\n".join(lines))
    return path


def worker() -> Profile:
    """Return a worker as fast as the live ones."""
    base = profiles()["llama-70b-8xh100"]
    times = {key: value * TIME_SCALE for key, value in msgspec.structs.asdict(base.step).items()}
    times["prefill_tokens_per_s"] = base.step.prefill_tokens_per_s / TIME_SCALE
    return msgspec.structs.replace(base, step=msgspec.structs.replace(base.step, **times))


def forecast(path: Path) -> Findings:
    fleet = ForecastOptions(workers=[WORKERS], policies=["random", "kv_aware"], profile=worker())
    return run(Options(memory_bytes=256 << 20, forecast=fleet), [str(path)])


def live(policy: str, made: list[Session]) -> float:
    """Send the requests; return the hit rate that the workers report."""
    with Fleet(policy, workers=WORKERS, time_scale=TIME_SCALE) as fleet:
        outcomes = asyncio.run(Replay(fleet.url, model="mock", on_outcome=lambda _: None).run(made))
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    return sum(outcome.cached_tokens for outcome in outcomes) / sum(outcome.prompt_tokens for outcome in outcomes)


@pytest.mark.timeout(180)
def test_the_forecast_is_what_the_gateway_then_gets(tmp_path: Path) -> None:
    made = sessions()
    found = forecast(log(made, tmp_path / "requests.jsonl"))
    assert found.advice[0].kind == "timestamp"
    assert found.advice[0].requests == pytest.approx(sum(session.tenant % 3 == 0 for session in made), rel=0.05)
    for row in found.forecast[0].policies:
        real = live(row.policy, made)
        print(f"{row.policy}: {row.hit_rate:.3f} forecast, {real:.3f} live")
        assert row.hit_rate == pytest.approx(real, abs=POINTS), row.policy
