"""A fleet of worker processes that is killed piece by piece, and clients that note what that does to them.

The judge of a soak is this record, not the gateway's metrics: when each worker accepted connections, and how each
request ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support import clean_environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READY = re.compile(rb"mock worker on (http://127\.0\.0\.1:(\d+)),")
# Finite, so that the index is full of them after a while and memory has no reason to grow.
PREFIXES = [f"You are assistant number {number}. " + "Be brief, kind and right. " * 60 for number in range(48)]
TAILS = [f"Question {number}: " + "what is a trunk line? " * 8 for number in range(12)]
LEAVES = 0.1  # share of requests whose client leaves
PATIENCE_S = 30.0


class WorkerProcess:
    """One `trunkline mock-worker`: starts, dies by SIGKILL, comes back on its port."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self.port, self.url = 0, ""
        self.deaths: list[tuple[float, float]] = []  # from the kill until it listened again
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start, or start again, and wait until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trunkline", "mock-worker", "--port", str(self.port), "--time-scale", "2"),
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(),
        )
        assert self._process.stderr is not None
        line = await asyncio.wait_for(self._process.stderr.readline(), PATIENCE_S)
        found = READY.match(line)
        assert found, line
        self.url, self.port = found[1].decode(), int(found[2])
        if self.deaths:
            self.deaths[-1] = (self.deaths[-1][0], time.monotonic())

    async def kill(self) -> None:
        """Die as by `kill -9`."""
        assert self._process is not None
        self.deaths.append((time.monotonic(), float("inf")))
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def was_alive(self, since: float, until: float) -> bool:
        """Whether it listened all the time."""
        return not any(died < until and since < back for died, back in self.deaths)


@dataclass
class Record:
    """How requests ended."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[float, float, str]] = field(default_factory=list)  # before a first byte
    cuts: list[tuple[float, float]] = field(default_factory=list)  # after it


class AnswerError(Exception):
    """An answer that did not arrive; `begun` if its first byte did."""

    def __init__(self, what: str, *, begun: bool) -> None:
        """Keep both."""
        super().__init__(what)
        self.begun = begun


class Lane:
    """One client: a request at a time on a kept-alive connection, until it is told to stop."""

    def __init__(self, port: int, record: Record, seed: int) -> None:
        """Nothing is connected yet."""
        self._port, self._record, self._random = port, record, random.Random(seed)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, until: float) -> None:
        """Ask again and again."""
        while time.monotonic() < until:
            since = time.monotonic()
            leaves_after = self._random.uniform(0, 1) if self._random.random() < LEAVES else PATIENCE_S
            try:
                await asyncio.wait_for(self._ask(), leaves_after)
                self._record.ends["served"] += 1
            except TimeoutError:
                self._hang_up()
                if leaves_after == PATIENCE_S:
                    self._record.failures.append((since, time.monotonic(), "no end in sight"))
                self._record.ends["left"] += 1
            except (AnswerError, OSError, asyncio.IncompleteReadError) as error:
                self._hang_up()
                if isinstance(error, AnswerError) and error.begun:
                    self._record.cuts.append((since, time.monotonic()))
                else:
                    self._record.failures.append((since, time.monotonic(), repr(error)))
        self._hang_up()

    def _hang_up(self) -> None:
        if self._streams:
            self._streams[1].transport.abort()
            self._streams = None

    async def _ask(self) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        stream = self._random.random() < 0.6
        content = self._random.choice(PREFIXES) + self._random.choice(TAILS)
        body = json.dumps(
            {
                "model": "mock",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self._random.randrange(4, 40),
                "stream": stream,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer[9:12])
        begun, last = False, b""
        try:
            async for piece in pieces(reader, answer):
                if not begun and (status != 200 or piece.startswith(b'data: {"error"')):
                    raise AnswerError(f"{status} {piece!r}", begun=False)
                begun, last = True, piece
        except asyncio.IncompleteReadError as error:
            raise AnswerError("cut", begun=begun) from error
        if stream and not last.endswith(b"data: [DONE]\n\n"):
            raise AnswerError("no [DONE]", begun=begun)


async def pieces(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """Yield the body of an answer as it comes."""
    if b"transfer-encoding: chunked" not in head:
        found = re.search(rb"content-length: (\d+)", head)
        yield await reader.readexactly(int(found[1]) if found else 0)
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
