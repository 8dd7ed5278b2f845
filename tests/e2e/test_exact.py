"""The exact view before real vLLM workers: what events and text say of a prompt, and what was then cached.

Chats of several turns with evictions in between: unicode, tools, salts, shared system prompts. `told` is what events
alone said of the chosen worker before the request was sent; the answer's usage is the truth.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Engines
from tests.support import Served, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BLOCK = 32
CHATS, TURNS = 100, 3
# Who asks takes a moment to read; an engine tells of its last step some milliseconds after it answered.
READ_S = 0.3
WORDS = (Path(__file__).read_text(encoding="utf-8") + Path(json.__file__).read_text(encoding="utf-8")).split()
ODD = (
    "日本語の質問です。",
    "çà et là, naïve œuvre",
    "👩\u200d👩\u200d👧 🏳️\u200d🌈",
    "   \n\n\t ",
    "مرحبا",
    "e\u0301e\u0301",
    "x" * 90,
)
TOOL = {
    "type": "function",
    "function": {
        "name": "find_ferry",
        "description": "Find the next ferry",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    },
}


@dataclass
class Counted:
    """What was told and what was cached, request by request."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, told: int, cached: int) -> None:
        with self.lock:
            self.pairs.append((told, cached))

    def report(self, name: str) -> tuple[float, float, float, int]:
        """Print and return: equal share, share within a block, error over cached tokens, requests that count."""
        counted = [(told, cached) for told, cached in self.pairs if told or cached]
        errors = [told - cached for told, cached in counted]
        equal = sum(error == 0 for error in errors) / len(counted)
        near = sum(abs(error) <= BLOCK for error in errors) / len(counted)
        wrong = sum(map(abs, errors)) / max(1, sum(cached for _, cached in counted))
        print(
            f"\n{name}: {len(counted)} of {len(self.pairs)} count, equal {equal:.4f}, within a block {near:.4f}, "
            f"sum of errors {wrong:.4f} of the cached tokens; errors {sorted(error for error in errors if error)}"
        )
        return equal, near, wrong, len(counted)


@pytest.fixture
def served(engines: Engines) -> Iterator[Served]:
    gateway = Served(
        *[word for url in engines.urls for word in ("--worker", url)], "--tokenizer", str(engines.model_directory)
    )
    try:
        wait_for(lambda: views(gateway) == {"events"}, deadline_s=30, what="both feeds are live")
        yield gateway
    finally:
        gateway.stop()


def views(gateway: Served) -> set[str]:
    document = gateway.call("GET", "/admin/workers", admin=True).json()
    return {worker["cache_view"] for worker in document["workers"]}


def told_of(headers: Any) -> int | None:
    parts = dict(part.split("=") for part in headers["x-trunkline-decision"].split(";")[2:])
    return int(parts["told"]) if "told" in parts else None


def ask(gateway: Served, path: str, body: dict[str, Any], counted: Counted) -> dict[str, Any]:
    """Send a request; note what was told of it and what was cached."""
    reply = gateway.call("POST", path, body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json()
    told = told_of(reply.headers)
    assert told is not None, reply.headers["x-trunkline-decision"]
    counted.note(told, answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return answer


def text(rng: random.Random, words: int) -> str:
    chosen = [rng.choice(ODD) if rng.random() < 0.06 else rng.choice(WORDS) for _ in range(words)]
    return " ".join(chosen)


def talk(gateway: Served, model: str, number: int, systems: list[str], counted: Counted) -> None:
    """One conversation of several turns."""
    rng = random.Random(number)
    messages: list[dict[str, Any]] = [{"role": "system", "content": rng.choice(systems)}]
    for _ in range(TURNS):
        question = text(rng, rng.randrange(5, 60))
        if rng.random() < 0.3:
            half = len(question) // 2
            parts = [{"type": "text", "text": question[:half]}, {"type": "text", "text": question[half:]}]
            messages.append({"role": "user", "content": parts})
        else:
            messages.append({"role": "user", "content": question})
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "max_tokens": rng.randrange(1, 12),
            "seed": number,
        }
        if number % 5 == 0:
            body["cache_salt"] = f"tenant {number % 3}"
        if number % 7 == 0:
            # The engines run without a parser of tool calls, so they only read about the tool.
            body |= {"tools": [TOOL], "tool_choice": "none"}
        answer = ask(gateway, "/v1/chat/completions", body, counted)
        time.sleep(READ_S)  # part of the workload, not a wait for something
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})


@pytest.mark.usefixtures("engines")
def test_text_alone_tells_what_is_cached(served: Served, engines: Engines) -> None:
    rng = random.Random(5)
    systems = [text(rng, 90) for _ in range(6)]
    counted, looks, done = Counted(), [], threading.Event()

    def look() -> None:
        while not done.wait(0.5):
            looks.append(views(served) == {"events"})

    watcher = threading.Thread(target=look)
    watcher.start()
    start = time.monotonic()
    try:
        # One at a time: what is still under way no engine has told of.
        for number in range(CHATS):
            talk(served, engines.model, number, systems, counted)
    finally:
        done.set()
        watcher.join()
    equal, near, wrong, requests = counted.report("text")
    share = sum(looks) / len(looks)
    evicted = served.metric_sum("trunkline_events_blocks_removed_total")
    print(f"{time.monotonic() - start:.0f} s, {evicted:.0f} blocks evicted, {share:.3f} of the time by events")
    assert evicted > 200
    assert requests >= 200
    assert equal >= 0.97
    assert near >= 0.99
    assert wrong <= 0.015
    assert share >= 0.95


def test_token_ids_tell_what_is_cached(engines: Engines) -> None:
    rng, counted = random.Random(9), Counted()
    gateway = Served(*[word for url in engines.urls for word in ("--worker", url)], "--events", "on")
    prefixes = [[rng.randrange(300, 8000) for _ in range(rng.randrange(100, 500))] for _ in range(12)]

    def one(number: int) -> None:
        own = random.Random(number)
        prompt = own.choice(prefixes) + [own.randrange(300, 8000) for _ in range(own.randrange(1, 90))]
        body = {"model": engines.model, "prompt": prompt, "max_tokens": own.randrange(1, 8), "ignore_eos": True}
        ask(gateway, "/v1/completions", body, counted)

    try:
        wait_for(lambda: views(gateway) == {"events"}, deadline_s=30, what="both feeds are live")
        for number in range(300):
            one(number)
    finally:
        gateway.stop()
    equal, _, _, requests = counted.report("token ids")
    assert requests >= 200
    assert equal >= 0.99


def test_the_view_follows_what_happens_to_workers(served: Served, engines: Engines) -> None:
    """A cache that is cleared while its worker is idle, and one that was filled while nobody listened."""
    body = {
        "model": engines.model,
        "messages": [{"role": "user", "content": "Once more: " + "the same long question again and again " * 20}],
        "max_tokens": 2,
    }

    def told() -> tuple[int, int]:
        reply = served.call("POST", "/v1/chat/completions", body)
        return told_of(reply.headers) or 0, reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    told()
    wait_for(lambda: (pair := told())[0] == pair[1] > 0, what="the second time it is cached, and told")
    engines.clear_caches()
    told()
    # The engine tells of the clearing with its next step only.
    wait_for(lambda: (pair := told())[0] == pair[1] > 0, what="told again after the cache was cleared")
    other = Served(
        *[word for url in engines.urls for word in ("--worker", url)], "--tokenizer", str(engines.model_directory)
    )
    try:
        wait_for(lambda: views(other) == {"events"}, deadline_s=30, what="a router that starts late")
        reply = other.call("POST", "/v1/chat/completions", body)
        cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert told_of(reply.headers) == cached > 0
    finally:
        other.stop()
