"""Router against a model of its book: who is in the fleet, what is in flight where, what is still queued."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline import Decision, DuplicateWorkerError, NoWorkerAvailableError, Router, UnknownWorkerError
from trunkline.testing import strategies

POLICIES = ("kv_aware", "prefix_aware", "least_outstanding", "round_robin", "random")
NAMES = st.sampled_from([f"w{number}" for number in range(6)])
PROMPTS = strategies.prompts(max_blocks=6, kinds=2) | st.text("abé", max_size=200)


@dataclass
class Worker:
    """One stay of a worker in the fleet; who leaves and returns begins anew."""

    draining: bool = False
    healthy: bool = True

    @property
    def is_live(self) -> bool:
        return self.healthy and not self.draining


@dataclass
class Booking:
    """A decision and what it still holds."""

    decision: Decision
    worker: Worker
    tokens: int
    is_queued: bool = True


class RouterModel(RuleBasedStateMachine):
    """Random requests on a random fleet."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet: dict[str, Worker] = {}
        self.open: list[Booking] = []
        self.closed: list[Decision] = []
        self.now = 0.0

    @initialize(policy=st.sampled_from(POLICIES), seed=st.integers(0, 2**64 - 1), replicas=st.integers(1, 3))
    def make(self, policy: str, seed: int, replicas: int) -> None:
        self.router = Router(policy=policy, seed=seed, replicas=replicas)  # type: ignore[arg-type]

    @rule(name=NAMES, capacity_tokens=st.none() | st.integers(0, 200), weight=st.integers(1, 3))
    def add(self, name: str, capacity_tokens: int | None, weight: int) -> None:
        if name in self.fleet:
            with pytest.raises(DuplicateWorkerError):
                self.router.add_worker(name)
            return
        self.router.add_worker(name, capacity_tokens=capacity_tokens, weight=weight)
        self.fleet[name] = Worker()

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name not in self.fleet:
            with pytest.raises(UnknownWorkerError):
                self.router.remove_worker(name)
            return
        self.router.remove_worker(name)
        del self.fleet[name]

    @rule(name=NAMES, draining=st.booleans())
    def drain(self, name: str, draining: bool) -> None:  # noqa: FBT001 (hypothesis gives keywords)
        if name in self.fleet:
            self.router.drain_worker(name, draining=draining)
            self.fleet[name].draining = draining

    @rule(name=NAMES, healthy=st.booleans())
    def set_health(self, name: str, healthy: bool) -> None:  # noqa: FBT001 (hypothesis gives keywords)
        if name in self.fleet:
            self.router.set_load(name, healthy=healthy)
            self.fleet[name].healthy = healthy

    @rule(name=NAMES)
    def reset(self, name: str) -> None:
        if name in self.fleet:
            self.router.reset_worker(name)

    @rule(prompt=PROMPTS, eligible=st.none() | st.sets(NAMES), exclude=st.sets(NAMES, max_size=2))
    def route(self, prompt: array[int] | str, eligible: set[str] | None, exclude: set[str]) -> None:
        allowed = {name for name, worker in self.fleet.items() if worker.is_live} - exclude
        if eligible is not None:
            allowed &= eligible
        route = partial(self.router.route, prompt, eligible=eligible, exclude=exclude, now=self.now)
        explain = partial(self.router.explain, prompt, eligible=eligible, exclude=exclude, now=self.now)
        if not allowed:
            for call in (route, explain):
                with pytest.raises(NoWorkerAvailableError):
                    call()
            return
        held = self.router.peek(prompt).workers
        explained = explain()
        assert {candidate.worker for candidate in explained.candidates} == allowed
        decision = route()
        assert decision.worker in allowed
        assert (decision.worker, decision.reason) == (explained.worker, explained.reason)
        assert decision.matched_tokens == held.get(decision.worker, 0)
        assert decision.matched_tokens <= decision.prompt_tokens
        queued = max(1, decision.prompt_tokens - decision.matched_tokens)
        self.open.append(Booking(decision, self.fleet[decision.worker], queued))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        booking = data.draw(st.sampled_from(self.open))
        assert self.router.first_token(booking.decision, now=self.now) == booking.is_queued
        booking.is_queued = False

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cached_tokens=st.none() | st.integers(0, 100))
    def complete(self, data: st.DataObject, cached_tokens: int | None) -> None:
        booking = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        assert self.router.complete(booking.decision, cached_tokens=cached_tokens, now=self.now)
        self.closed.append(booking.decision)

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def complete_again(self, data: st.DataObject) -> None:
        decision = data.draw(st.sampled_from(self.closed))
        assert not self.router.complete(decision)
        assert not self.router.first_token(decision)

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_book_is_the_model(self) -> None:
        views = {view.id: view for view in self.router.workers}
        assert views.keys() == self.fleet.keys()
        for name, worker in self.fleet.items():
            mine = [booking for booking in self.open if booking.worker is worker]
            view = views[name]
            assert (view.draining, view.healthy) == (worker.draining, worker.healthy)
            assert view.in_flight == len(mine)
            assert view.queued_tokens == sum(booking.tokens for booking in mine if booking.is_queued)
        stats = self.router.stats()
        assert stats.in_flight == len(self.open)
        assert stats.live_workers == sum(worker.is_live for worker in self.fleet.values())
        assert sum(stats.decisions.values()) == len(self.open) + len(self.closed)

    def teardown(self) -> None:
        for booking in self.open:
            self.router.complete(booking.decision)
        assert all(view.in_flight == view.queued_tokens == 0 for view in self.router.workers)


# Hypothesis parses sources while it runs a machine, and CPython 3.11's `ast` is not safe from threads.
TestRouterModel = pytest.mark.thread_unsafe(reason="ast in CPython 3.11")(RouterModel.TestCase)
