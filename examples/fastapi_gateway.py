"""A gateway in FastAPI and httpx2 that sends each chat to the worker that holds most of its prefix.

TRUNKLINE_EXAMPLE_WORKERS=http://10.0.0.1:8000,http://10.0.0.2:8000 uvicorn --app-dir examples fastapi_gateway:app

With several uvicorn workers (`--workers 4`) run `trunkline sidecar --socket trunkline.sock` beside them and set
TRUNKLINE_EXAMPLE_SOCKET=trunkline.sock: then all processes share one view of load and caches.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import httpx2
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from trunkline import Decision, DuplicateWorkerError, NoWorkerAvailableError, Router, SidecarRouter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOCKET = os.environ.get("TRUNKLINE_EXAMPLE_SOCKET")
POLICY: Any = os.environ.get("TRUNKLINE_EXAMPLE_POLICY", "kv_aware")
router: Router | SidecarRouter = SidecarRouter(SOCKET) if SOCKET else Router(policy=POLICY)
client = httpx2.AsyncClient(timeout=httpx2.Timeout(5, read=None), limits=httpx2.Limits(max_connections=None))


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Tell the router who works, and close what is open at the end."""
    for url in os.environ["TRUNKLINE_EXAMPLE_WORKERS"].split(","):
        with contextlib.suppress(DuplicateWorkerError):  # another process was quicker
            router.add_worker(url)
    async with client:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions", response_model=None)
async def chat(request: Request) -> StreamingResponse | JSONResponse:
    """Forward a chat and stream the answer, byte for byte."""
    body = await request.json()
    prompt = "\n".join(f"{message['role']}\n{message['content']}" for message in body["messages"])
    try:
        decision = router.route(prompt, model=body.get("model"))  # microseconds: nothing to await
    except NoWorkerAvailableError as nobody:
        return JSONResponse({"error": {"message": str(nobody), "type": "overloaded"}}, 503, {"retry-after": "1"})
    try:
        sent = client.build_request(
            "POST", f"{decision.worker}/v1/chat/completions", content=await request.body(), headers=JSON
        )
        answer = await client.send(sent, stream=True)
    except BaseException:
        router.complete(decision)
        raise
    kind = answer.headers.get("content-type")
    return StreamingResponse(relay(answer, decision), answer.status_code, media_type=kind)


JSON = {"content-type": "application/json"}


async def relay(answer: httpx2.Response, decision: Decision) -> AsyncIterator[bytes]:
    """Pass the answer on; whatever ends it ends the booking as well."""
    try:
        async for chunk in answer.aiter_raw():
            router.first_token(decision)  # the second time does nothing
            yield chunk
    finally:
        router.complete(decision)
        await answer.aclose()
