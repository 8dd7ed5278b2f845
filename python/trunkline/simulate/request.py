"""From what a user asked for to runs, and from runs to a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .runs import Job, run_all, stop_on_interrupt
from .sources import SourceError, Traffic
from .spec import Loss, Options, Profile, Spec, profiles

if TYPE_CHECKING:
    from .spec import Found

_DEFAULT_POLICIES = ("random", "kv_aware")
_FLEET = ("workers", "speeds", "clients", "losses", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a user asked for; None and empty are what nobody said."""

    traffic: str
    policies: tuple[str, ...] = ()
    workers: int | None = None
    speeds: tuple[float, ...] | None = None
    routers: int | None = None
    gossip_ms: float | None = None
    events: bool = False
    event_delay_ms: float = 20.0
    poll_ms: float = 50.0
    prefix_length: int | None = None
    concurrency_threshold: int | None = None
    clients: int | None = None
    losses: tuple[tuple[float, float], ...] = ()
    scale: tuple[tuple[float, float], ...] = ()
    profile: str | None = None
    kv_tokens: int | None = None
    host_tokens: int | None = None
    prefill_tokens_per_s: float | None = None
    step_ms: float | None = None
    max_sequences: int | None = None
    step_token_budget: int | None = None
    preemption: bool | None = None
    gpus: int | None = None
    rate_rps: float | None = None
    requests: int | None = None
    loads: tuple[float, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    kind: str | None = None
    traces_in: Path | None = None
    seeds: int = 3
    gpu_hour_price: float | None = None

    def worker(self) -> Profile | None:
        """Return the profile with the user's changes; None if the scenario's own is meant."""
        changes: dict[str, Any] = {
            key: getattr(self, key)
            for key in ("kv_tokens", "host_tokens", "max_sequences", "step_token_budget", "preemption", "gpus")
            if getattr(self, key) is not None
        }
        step = {}
        if self.prefill_tokens_per_s is not None:
            step["prefill_tokens_per_s"] = self.prefill_tokens_per_s
        if self.step_ms is not None:
            step["step_s"] = self.step_ms / 1e3
        if self.profile is None and not changes and not step:
            return None
        base = profile_of(self.profile or "llama-70b-8xh100")
        if "step_s" in step:
            # The part that reads weights stays the same share of it.
            step["weight_read_s"] = base.step.weight_read_s * step["step_s"] / base.step.step_s
        return msgspec.structs.replace(base, step=msgspec.structs.replace(base.step, **step), **changes)

    def fleet(self) -> Options | None:
        """Return the fleet; None if the scenario's own is meant."""
        if not any(getattr(self, key) for key in _FLEET):
            return None
        return Options(
            workers=self.workers or 7,
            speeds=list(self.speeds or ()),
            clients=self.clients,
            losses=[Loss(down_s=down, up_s=up) for down, up in self.losses],
            scale=[(at_s, int(workers)) for at_s, workers in self.scale],
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A policy at a load, and what its runs found, one for each seed."""

    policy: str
    load: float
    found: list[Found]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was asked for, as far as it was run."""

    traffic: str
    seeds: int
    cells: list[Cell]
    gpu_hour_price: float | None = None
    stopped: bool = False


def profile_of(name: str) -> Profile:
    """Return the profile of this name or in this file. Raises SourceError if there is none."""
    known = profiles()
    if name in known:
        return known[name]
    path = Path(name)
    if not path.exists():
        raise SourceError(f"no profile {name!r}: allowed are {', '.join(known)} and files")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except msgspec.MsgspecError as error:
        raise SourceError(f"{path} holds no profile: {error}") from error


def run_request(asked: RunRequest) -> Comparison:
    """Run all of it; Ctrl-C ends it early with what is known then.

    Raises SourceError for traffic or a profile that does not exist, OSError for a file, TrunklineError for what the
    simulation refuses.
    """
    traffic = Traffic(asked.traffic, asked.rate_rps, asked.requests, asked.kind, asked.traces_in, changes=asked.changes)
    text = traffic.text()
    worker, fleet = asked.worker(), asked.fleet()
    keys = [(policy, load) for load in asked.loads or (1.0,) for policy in asked.policies or _DEFAULT_POLICIES]
    jobs = [
        Job(
            Spec(
                source=traffic.source(seed, text),
                policy=policy,
                load=load,
                profile=worker,
                options=fleet,
                routers=asked.routers,
                gossip_s=None if asked.gossip_ms is None else asked.gossip_ms / 1e3,
                events=asked.events,
                event_delay_s=asked.event_delay_ms / 1e3,
                poll_s=asked.poll_ms / 1e3,
                prefix_length=asked.prefix_length,
                concurrency_threshold=asked.concurrency_threshold,
                seed=seed,
            ),
            text,
        )
        for policy, load in keys
        for seed in range(1, asked.seeds + 1)
    ]
    with stop_on_interrupt() as stopped:
        found = run_all(jobs, label=asked.traffic, stopped=stopped)
        cells = []
        for at, (policy, load) in enumerate(keys):
            runs = [one for one in found[at * asked.seeds : (at + 1) * asked.seeds] if one and one.report.requests]
            if runs:
                cells.append(Cell(policy, load, runs))
        return Comparison(asked.traffic, asked.seeds, cells, asked.gpu_hour_price, stopped.is_set())
