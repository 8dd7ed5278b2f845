"""Traffic by name: the study's scenarios, generators with a rate and a number of requests, and files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import traces
from .spec import scenarios


class SourceError(ValueError):
    """There is no such traffic."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Made traffic, and how much of it there is unless somebody says otherwise."""

    kind: str
    about: str
    rate_rps: float
    parameters: dict[str, Any] = field(default_factory=dict)
    requests: int = 4000
    rush: float = 0.0
    """Share of the new sessions that go to one new tenant in the middle third."""

    def source(
        self, seed: int, rate_rps: float | None, requests: int | None, changes: dict[str, Any]
    ) -> dict[str, Any]:
        """Describe it for a spec."""
        rate, count = rate_rps or self.rate_rps, requests or self.requests
        parameters = self.parameters | changes
        if self.kind == "chatbot":
            turns = parameters.get("turns", 3.0)
            if not isinstance(turns, int | float) or not turns >= 1:
                raise SourceError(f"turns = {turns}: must be a number from 1")
            amount: dict[str, Any] = {"sessions": max(1, round(count / turns)), "sessions_per_s": rate / turns}
            if self.rush:
                duration_s = count / rate
                amount["spike"] = {"from_s": 0.35 * duration_s, "to_s": 0.7 * duration_s, "share": self.rush}
        else:
            amount = {"rate_rps": rate, "duration_s": count / rate}
        return {self.kind: amount | parameters | {"seed": seed}}


GENERATORS = {
    "aws-long": Generator(
        "shared", "8,000-token prefixes that many users share, as in AWS's long-context benchmark", 10.0,
        {"prefixes": 600, "prefix_tokens": 8000},
    ),
    "aws-short": Generator(
        "chatbot", "conversations of short messages, as in AWS's short-context benchmark", 30.0,
        {"tenants": 4000, "system_tokens": 64, "turns": 3.5},
    ),
    "tenants": Generator(
        "chatbot", "single questions of tenants with long system prompts", 45.0, {"tenants": 400, "turns": 1.0}
    ),
    "chat": Generator("chatbot", "chats of several turns, 200 tenants of uneven popularity", 45.0),
    "header": Generator(
        "chatbot", "the same behind a head that all prompts share", 45.0,
        {"tenants": 400, "skew": 0.8, "header_tokens": 1024},
    ),
    "agents": Generator("agents", "agent loops over three tool prompts, a history that grows", 30.0),
    "bursts": Generator("bursts", "eight equal new prompts at once", 35.0),
    "spike": Generator(
        "chatbot", "90 % of the new sessions suddenly go to one new tenant", 45.0,
        {"tenants": 1500, "skew": 0.3, "turns": 1.0}, rush=0.9,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of the fleet, for any seed."""

    name: str
    rate_rps: float | None = None
    requests: int | None = None
    format: str | None = None
    """Of a file; None to find out."""
    traces_in: Path | None = None
    """Where the traces of scenarios are."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Parameters of the generator or reader, in place of their defaults."""

    def text(self) -> str | None:
        """Return the text of the file that it needs, if any. Raises SourceError if it is not there."""
        if self.name in GENERATORS:
            return None
        if not self._is_scenario():
            if not Path(self.name).is_file():
                names = ", ".join(GENERATORS)
                raise SourceError(f"{self.name!r} is no file, no scenario (aws5@.95, long@40, ...) and none of {names}")
            return traces.read(Path(self.name))
        needs = scenarios().get(self.name) or _needs_of(self.name)
        if needs is None:
            return None
        path = self.traces_in and traces.find(self.traces_in, needs)
        if not path:
            raise SourceError(f"the scenario {self.name} replays {needs}.jsonl: tell its folder with --traces")
        return traces.read(path)

    def source(self, seed: int, text: str | None) -> dict[str, Any]:
        """Describe it for a spec."""
        if generator := GENERATORS.get(self.name):
            return generator.source(seed, self.rate_rps, self.requests, self.changes)
        if self._is_scenario():
            return {"scenario": {"name": self.name, "seed": seed} | self.changes}
        kind = self.format or _kind_of(text or "")
        amount: dict[str, Any] = {"seed": seed}
        if kind == "agentic":
            if self.rate_rps:
                amount["sessions_per_s"] = self.rate_rps
        else:
            amount |= {"rate_rps": self.rate_rps, "limit": self.requests}
        return {kind: amount | self.changes}

    def _is_scenario(self) -> bool:
        base = self.name.partition("@")[0]
        return base in {name.partition("@")[0] for name in scenarios()} and not Path(self.name).exists()


def _needs_of(name: str) -> str | None:
    """Return the trace that a scenario of this family replays."""
    base = name.partition("@")[0]
    return next((needs for other, needs in scenarios().items() if other.partition("@")[0] == base), None)


def _kind_of(text: str) -> str:
    """Guess the format of a file from its first line that is JSON."""
    for line in text.splitlines()[:100]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            if "hash_ids" in row:
                return "mooncake"
            if "requests" in row and "block_size" in row:
                return "agentic"
            break
    return "log"
