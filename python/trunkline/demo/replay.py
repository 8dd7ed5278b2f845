"""Sends a workload to a gateway as streaming chats, and measures what a user would see.

One asyncio task per session, or per client of a closed loop. TTFT runs from the moment a request is handed to the
client to the first event that holds text (a role or a comment is not an answer yet). Hit rates come from the workers'
own count of cached tokens.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from .workload import Session, Turn

WORKER_HEADER = "x-trunkline-worker"
# Longest wait for a connection, and between two pieces of an answer.
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=60.0)
_HTTP_OK = 200


class ReplayError(Exception):
    """An answer is not what a client could use."""


@dataclass(slots=True)
class Outcome:
    """One request as its client saw it. Times are seconds since the replay began."""

    due_s: float
    """When it was to be sent."""
    sent_s: float
    worker: str = ""
    """Which worker answered, as the gateway says."""
    first_text_s: float | None = None
    finished_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    text: str = field(default="", repr=False)
    finished: bool = False
    """Whether the worker has said that the answer is whole."""
    error: str | None = None
    """What went wrong, if something did; the rest is as far as it came."""

    @property
    def ttft_s(self) -> float:
        """Time to the first text; only for requests without error."""
        if self.first_text_s is None:
            raise ValueError("a request without an answer has no time to first token")
        return self.first_text_s - self.sent_s


class Replay:
    """One run of a workload."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        on_outcome: Callable[[Outcome], None],
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a run against ``path`` below ``base_url``; ``on_outcome`` is called after every request."""
        self._url = base_url + path
        self._headers = {"content-type": "application/json"} | dict(headers or {})
        self._model = model
        self._on_outcome = on_outcome
        self._began = 0.0

    async def run(self, sessions: list[Session]) -> list[Outcome]:
        """Send everything; return the outcomes in order of completion. A session ends with its first error."""
        outcomes: list[Outcome] = []
        async with _http() as http, asyncio.TaskGroup() as tasks:
            self._began = time.monotonic()
            for session in sessions:
                tasks.create_task(self._converse(http, session, outcomes))
        return outcomes

    async def run_closed(self, sessions: list[Session], *, clients: int) -> list[Outcome]:
        """Send everything from so many clients, each of which begins a session when its last one has ended.

        The times at which sessions are to start do not count. Returns and errors are those of ``run``.
        """
        outcomes: list[Outcome] = []
        left = iter(sessions)
        async with _http() as http, asyncio.TaskGroup() as tasks:
            self._began = time.monotonic()
            for _ in range(clients):
                tasks.create_task(self._work_off(http, left, outcomes))
        return outcomes

    async def _work_off(self, http: aiohttp.ClientSession, left: Iterator[Session], outcomes: list[Outcome]) -> None:
        for session in left:
            await self._converse(http, replace(session, start_s=self._now_s()), outcomes)

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    async def _converse(self, http: aiohttp.ClientSession, session: Session, outcomes: list[Outcome]) -> None:
        messages = [{"role": "system", "content": session.system}]
        due_s = session.start_s
        for turn in session.turns:
            due_s += turn.think_s
            await asyncio.sleep(due_s - self._now_s())
            messages.append({"role": "user", "content": turn.question})
            body = self._body(session, turn, messages)
            outcome = Outcome(due_s=due_s, sent_s=self._now_s())
            try:
                await self._ask(http, body, outcome)
            except (aiohttp.ClientError, TimeoutError, ReplayError) as fault:
                outcome.error = f"{type(fault).__name__}: {fault}"
            except (LookupError, TypeError, ValueError) as fault:
                outcome.error = f"an event has another shape: {fault!r}"
            outcome.finished_s = self._now_s()
            outcomes.append(outcome)
            self._on_outcome(outcome)
            if outcome.error:
                return
            messages.append({"role": "assistant", "content": outcome.text})
            due_s = outcome.finished_s

    def _body(self, session: Session, turn: Turn, messages: list[dict[str, str]]) -> bytes:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": turn.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body, ensure_ascii=session.escaped).encode()

    async def _ask(self, http: aiohttp.ClientSession, body: bytes, outcome: Outcome) -> None:
        async with http.post(self._url, data=body, headers=self._headers) as response:
            if response.status != _HTTP_OK:
                raise ReplayError(f"status {response.status}: {(await response.text())[:200]}")
            outcome.worker = response.headers.get(WORKER_HEADER, "")
            if not outcome.worker:
                raise ReplayError(f"the answer names no worker in {WORKER_HEADER}")
            async for event in _events(response.content):
                self._count(event, outcome)
            if outcome.first_text_s is None or not outcome.finished or not outcome.prompt_tokens:
                raise ReplayError("the stream ended without text, a finish reason, or usage")

    def _count(self, event: dict[str, Any], outcome: Outcome) -> None:
        """Add one event of a stream to what is known of its request."""
        if error := event.get("error"):
            raise ReplayError(f"the stream failed: {error}")
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                if outcome.first_text_s is None:
                    outcome.first_text_s = self._now_s()
                outcome.text += text
            outcome.finished = outcome.finished or choice["finish_reason"] is not None
        if usage := event.get("usage"):
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.completion_tokens = usage["completion_tokens"]
            outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]


def _http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=_TIMEOUT)


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the data of each event up to ``[DONE]``; ignore comments. Raises ReplayError if the stream is cut."""
    async for line in stream:
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise ReplayError("the stream ended without [DONE]")
