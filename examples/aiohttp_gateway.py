"""A gateway in aiohttp that sends each request to the worker that holds most of its prefix.

python examples/aiohttp_gateway.py 8080 http://10.0.0.1:8000 http://10.0.0.2:8000
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aiohttp import ClientSession, ClientTimeout, web

from trunkline import NoWorkerAvailableError, Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROUTER = web.AppKey("router", Router)
SESSION = web.AppKey("session", ClientSession)


def text_of(body: dict[str, object]) -> str:
    """Return what the worker's cache depends on: the messages, or the prompt."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return "\n".join(f"{message['role']}\n{message['content']}" for message in messages)
    return str(body.get("prompt", ""))


async def forward(request: web.Request) -> web.StreamResponse:
    """Forward a request and stream the answer, byte for byte."""
    router, payload = request.app[ROUTER], await request.read()
    body = await request.json()
    try:
        lease = router.lease(text_of(body), model=body.get("model"))
        # The booking ends with this block: answered, failed, or left by the client.
        async with (
            lease as decision,
            request.app[SESSION].post(
                decision.worker + request.path_qs, data=payload, headers={"content-type": "application/json"}
            ) as answer,
        ):
            reply = web.StreamResponse(status=answer.status, headers={"x-worker": decision.worker})
            reply.content_type = answer.content_type
            await reply.prepare(request)
            async for chunk in answer.content.iter_any():
                router.first_token(decision)  # the second time does nothing
                await reply.write(chunk)
            await reply.write_eof()
            return reply
    except NoWorkerAvailableError as nobody:
        return web.json_response({"error": {"message": str(nobody)}}, status=503, headers={"retry-after": "1"})


def make_app(workers: list[str]) -> web.Application:
    """Return the gateway in front of these workers."""
    app = web.Application(client_max_size=64 << 20)
    app[ROUTER] = Router()
    for url in workers:
        app[ROUTER].add_worker(url)

    async def session(app: web.Application) -> AsyncIterator[None]:
        async with ClientSession(timeout=ClientTimeout(total=None, connect=5)) as app[SESSION]:
            yield

    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/{tail:.*}", forward)
    return app


if __name__ == "__main__":
    web.run_app(make_app(sys.argv[2:]), host="127.0.0.1", port=int(sys.argv[1]))
