"""What the demo's client measures, and what it takes for an error, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from trunkline.demo.replay import WORKER_HEADER, Outcome, Replay
from trunkline.demo.workload import Session, Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = Callable[[web.Request, web.StreamResponse], Awaitable[None]]

USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 64}}


def session(*, turns: int = 1, escaped: bool = False) -> Session:
    asked = tuple(Turn(question=f"問い {turn}", max_tokens=2, think_s=0.0) for turn in range(turns))
    return Session(start_s=0.0, tenant=0, system="system", escaped=escaped, turns=asked)


def event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def replay(
    sessions: list[Session], script: Handler, headers: dict[str, str]
) -> tuple[list[Outcome], list[bytes]]:
    """Replay against a server that answers as the script says; return the outcomes and the bodies that came."""
    bodies = []

    async def handle(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await script(request, response)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        seen: list[Outcome] = []
        outcomes = await Replay(f"http://{host}:{port}", model="mock", on_outcome=seen.append).run(sessions)
        assert seen == outcomes
        return outcomes, bodies
    finally:
        await runner.cleanup()


def run(
    *parts: bytes, sessions: list[Session] | None = None, headers: dict[str, str] | None = None
) -> tuple[list[Outcome], list[bytes]]:
    async def script(_: web.Request, response: web.StreamResponse) -> None:
        for part in parts:
            await response.write(part)

    return asyncio.run(replay(sessions or [session()], script, {WORKER_HEADER: "w1"} if headers is None else headers))


GOOD = (
    event({"role": "assistant", "content": ""}),
    event({"content": "one "}),
    event({"content": "two"}, "length"),
    data({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
)


def test_an_answer_is_read_to_its_end() -> None:
    (outcome,), _ = run(*GOOD)
    assert outcome.error is None
    assert (outcome.text, outcome.worker) == ("one two", "w1")
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (100, 64, 2)
    assert 0 < outcome.ttft_s <= outcome.finished_s - outcome.sent_s


def test_events_may_be_cut_anywhere() -> None:
    stream = b"".join(GOOD)
    (outcome,), _ = run(*(stream[at : at + 1] for at in range(len(stream))))
    assert (outcome.error, outcome.text) == (None, "one two")


def test_comments_and_the_role_are_not_the_first_token() -> None:
    (outcome,), _ = run(b": keep-alive\n\n", GOOD[0], event({}, "stop"), *GOOD[3:])
    assert outcome.first_text_s is None
    assert "without text" in str(outcome.error)
    with pytest.raises(ValueError, match="no time to first token"):
        _ = outcome.ttft_s


def test_the_next_turn_carries_the_history() -> None:
    outcomes, bodies = run(*GOOD, sessions=[session(turns=2)])
    assert [outcome.error for outcome in outcomes] == [None, None]
    first, second = (json.loads(body)["messages"] for body in bodies)
    assert second == [*first, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "問い 1"}]


def test_clients_may_escape_or_not() -> None:
    _, (raw,) = run(*GOOD)
    _, (escaped,) = run(*GOOD, sessions=[session(escaped=True)])
    assert "問い".encode() in raw
    assert b"\\u554f" in escaped
    assert json.loads(raw) == json.loads(escaped)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (GOOD[:-1], "without [DONE]"),
        ((*GOOD[:2], *GOOD[3:]), "a finish reason, or usage"),
        ((*GOOD[:3], GOOD[4]), "a finish reason, or usage"),
        ((GOOD[0], data({"error": {"message": "lost"}}), GOOD[4]), "the stream failed"),
        ((GOOD[0], data({"choices": [{}]}), GOOD[4]), "another shape"),
        ((b"data: {\n\n", GOOD[4]), "another shape"),
    ],
    ids=["cut", "unfinished", "no usage", "error event", "no delta", "no JSON"],
)
def test_an_answer_that_is_not_whole_is_an_error_and_ends_its_session(parts: tuple[bytes, ...], error: str) -> None:
    outcomes, bodies = run(*parts, sessions=[session(turns=3)])
    assert len(outcomes) == len(bodies) == 1
    assert error in str(outcomes[0].error)


def test_an_answer_without_a_worker_is_an_error() -> None:
    (outcome,), _ = run(*GOOD, headers={})
    assert "names no worker" in str(outcome.error)


def test_a_status_other_than_200_is_an_error_with_its_text() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=503)

    async def call() -> list[Outcome]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", refuse)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address: Any = runner.addresses[0]
            replay = Replay(f"http://127.0.0.1:{address[1]}", model="mock", on_outcome=lambda _: None)
            return await replay.run([session()])
        finally:
            await runner.cleanup()

    (outcome,) = asyncio.run(call())
    assert "status 503" in str(outcome.error)
    assert "busy" in str(outcome.error)


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        replay = Replay(f"http://127.0.0.1:{silent.getsockname()[1]}", model="mock", on_outcome=lambda _: None)
        (outcome,) = asyncio.run(replay.run([session()]))
    assert "ClientConnectorError" in str(outcome.error)
