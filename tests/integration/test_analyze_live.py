"""The forecast beside a live gateway: a log of what one policy served, with a planted divergence, and both live.

Chats of several turns go to a gateway before mock workers under random routing, and what was sent is the planner's log.
The forecast from it is then held against that run, and against the same chats under kv_aware.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trunkline.analyze.spec import Findings, ForecastOptions, Options, run
from trunkline.demo.fleet import Fleet
from trunkline.demo.replay import Outcome, Replay
from trunkline.demo.workload import Session, Turn, WorkloadSpec, make_workload
from trunkline.simulate.spec import Profile, profiles

WORKERS = 4
POINTS = 0.03
# With so many requests chance moves random's hit rate by 0.8 points. Workers are twice as fast as their model, so that
# they come in good time; the forecast is told.
REQUESTS = 1000
RATE_RPS = 60.0
TIME_SCALE = 0.5


class Recorded(Replay):
    """Keeps what it sends, as a log would."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url, model="mock", on_outcome=lambda _: None)
        self.lines: list[str] = []

    def _body(self, session: Session, turn: Turn, messages: list[dict[str, str]]) -> bytes:
        body = super()._body(session, turn, messages)
        self.lines.append(json.dumps({"timestamp": self._now_s(), "body": json.loads(body)}))
        return body


def sessions() -> list[Session]:
    """Make chats of tenants, a third of whom write a time before what their users share."""
    traffic = WorkloadSpec(
        seed=11,
        requests=REQUESTS,
        rate_rps=RATE_RPS,
        system_tokens=700,
        answer_tokens=(60, 140),
        uses_per_prompt=(5, 9),
    )

    def planted(number: int, session: Session) -> Session:
        if session.tenant % 3:
            return session
        time = f"Current time: 2026-11-30 {number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}."
        return replace(session, system=f"{time} {session.system}")

    return [planted(number, session) for number, session in enumerate(make_workload(traffic))]


def worker() -> Profile:
    """Return a worker as fast as the live ones."""
    base = profiles()["llama-70b-8xh100"]
    times: dict[str, Any] = {key: value * TIME_SCALE for key, value in msgspec.structs.asdict(base.step).items()}
    times["prefill_tokens_per_s"] = base.step.prefill_tokens_per_s / TIME_SCALE
    return msgspec.structs.replace(base, step=msgspec.structs.replace(base.step, **times))


def forecast(path: Path) -> Findings:
    fleet = ForecastOptions(workers=[WORKERS], policies=["random", "kv_aware"], profile=worker())
    return run(Options(memory_bytes=256 << 20, forecast=fleet), [str(path)])


def live(policy: str, made: list[Session]) -> tuple[float, list[str]]:
    """Send the chats; return the hit rate that the workers report, and the log."""
    with Fleet(policy, workers=WORKERS, time_scale=TIME_SCALE) as fleet:
        replay = Recorded(fleet.url)
        outcomes: list[Outcome] = asyncio.run(replay.run(made))
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    cached = sum(outcome.cached_tokens for outcome in outcomes)
    return cached / sum(outcome.prompt_tokens for outcome in outcomes), replay.lines


@pytest.mark.timeout(180)
def test_the_forecast_is_what_the_gateway_then_gets(tmp_path: Path) -> None:
    made = sessions()
    real = {}
    real["random"], lines = live("random", made)
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines))
    found = forecast(path)
    real["kv_aware"], _ = live("kv_aware", made)
    assert found.advice[0].kind == "timestamp"
    for row in found.forecast[0].policies:
        print(f"{row.policy}: {row.hit_rate:.3f} forecast, {real[row.policy]:.3f} live")
        assert row.hit_rate == pytest.approx(real[row.policy], abs=POINTS), row.policy
