"""Minutes of everything at once: many connections, streams and not, clients that leave, workers that are killed.

`make soak` runs ten minutes, `SOAK_SECONDS=60 make soak` one. No request may fail before its first byte as long as
another worker lives, nothing may be booked at the end, and memory must not grow in the second half.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from pathlib import Path

import pytest

from tests.soak.load import Lane, Record, WorkerProcess
from tests.support import Served, wait_for

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
CONNECTIONS = 256
WORKERS = 4
KILL_EVERY_S = 20.0
DOWN_S = 5.0
GROWTH = 1.05  # of the median RSS at the end over that at the half


def rss_mb(served: Served) -> float:
    """Resident memory of the gateway's process."""
    status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


async def kill_in_turn(workers: list[WorkerProcess], until: float) -> None:
    """Kill one worker after the other, never two at once; start each again, cold. The pauses are the schedule."""
    number = 0
    while time.monotonic() + KILL_EVERY_S / 2 + DOWN_S < until:
        await asyncio.sleep(KILL_EVERY_S / 2)
        worker = workers[number % WORKERS]
        await worker.kill()
        await asyncio.sleep(DOWN_S)
        await worker.start()
        await asyncio.sleep(max(0.0, min(KILL_EVERY_S / 2 - DOWN_S, until - time.monotonic())))
        number += 1


async def watch_memory(served: Served, memory: list[float], until: float) -> None:
    """Note its memory every half second."""
    while time.monotonic() < until:
        memory.append(rss_mb(served))
        await asyncio.sleep(0.5)


async def soak(workers: list[WorkerProcess], served: Served) -> tuple[Record, list[float]]:
    """Run the whole load; return how requests ended, and memory over time."""
    record, memory, until = Record(), list[float](), time.monotonic() + SECONDS
    lanes = [Lane(served.port, record, seed).run(until) for seed in range(CONNECTIONS)]
    await asyncio.gather(kill_in_turn(workers, until), watch_memory(served, memory, until), *lanes)
    return record, memory


async def start_soak_and_stop() -> tuple[Record, list[float], list[WorkerProcess]]:
    """Own the processes."""
    workers = [WorkerProcess() for _ in range(WORKERS)]
    try:
        for worker in workers:
            await worker.start()
        flags = [word for worker in workers for word in ("--worker", worker.url)]
        served = await asyncio.to_thread(Served, *flags)
        try:
            record, memory = await soak(workers, served)
            await asyncio.to_thread(wait_for, lambda: is_empty(served), what="every gauge to be 0")
        finally:
            served.stop()
    finally:
        for worker in workers:
            await worker.kill()
    return record, memory, workers


def is_empty(served: Served) -> bool:
    """Whether the gateway books nothing: gauges of requests in flight and in the queue."""
    page = served.call("GET", "/metrics", admin=True).body.decode()
    gauges = re.findall(r"^trunkline_(?:in_flight\{.*\}|queue_length) (\d+)$", page, re.MULTILINE)
    assert len(gauges) == WORKERS + 1
    return set(gauges) == {"0"}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_nothing_is_lost_but_what_a_killed_worker_had_begun() -> None:
    record, memory, workers = asyncio.run(start_soak_and_stop())
    deaths = sum(len(worker.deaths) - 1 for worker in workers)  # the last one is the end of the test
    half, tenth = len(memory) // 2, max(1, len(memory) // 10)
    before, after = statistics.median(memory[half : half + tenth]), statistics.median(memory[-tenth:])
    print(
        f"{SECONDS:.0f} s: {dict(record.ends)}, {len(record.cuts)} answers cut by {deaths} kills, "
        f"{len(record.failures)} failures; RSS {memory[0]:.1f} MB at first, {before:.1f} half-way, {after:.1f} at last"
    )
    assert record.ends["served"] > SECONDS * 10
    assert record.ends["left"] > SECONDS / 2
    assert deaths >= SECONDS // KILL_EVERY_S - 1
    avoidable = [
        failure for failure in record.failures if any(worker.was_alive(failure[0], failure[1]) for worker in workers)
    ]
    assert not avoidable, avoidable[:5]
    unexplained = [cut for cut in record.cuts if all(worker.was_alive(*cut) for worker in workers)]
    assert not unexplained, unexplained[:5]
    assert after <= before * GROWTH, memory
