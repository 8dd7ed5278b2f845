"""What a question of `SidecarRouter` costs beside a bare echo from Python on such a socket: `make bench-sidecar`.

Both are answered by the process of `rust/sidecar/examples/round_trip.rs`. Wall time: a round trip is mostly waiting.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline import SidecarRouter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS, CALLS = 9, 1500


def main() -> None:
    """Print a row for each length of a prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", type=Path, help="the built example round_trip")
    with serving(parser.parse_args().server) as folder, socket.socket(socket.AF_UNIX) as echo:
        echo.connect(str(folder / "echo"))
        router = SidecarRouter(folder / "sidecar")
        print("| tokens | bare echo, us | peek, us | route + complete, us per call | peek / echo | route / echo |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for tokens in (64, 512, 4096):
            measure(router, echo, tokens)


def measure(router: SidecarRouter, echo: socket.socket, tokens: int) -> None:
    """Ask in turns; print the medians."""
    prompt = array.array("I", range(tokens))
    frame = struct.pack("<I", 8 + 4 * tokens) + bytes(8 + 4 * tokens)
    assert router.complete(router.route(prompt))
    assert router.peek(prompt).matched_tokens == tokens

    def bare() -> None:
        echo.sendall(frame)
        echo.recv(4096)

    def whole() -> None:
        router.complete(router.route(prompt))

    calls: tuple[tuple[Callable[[], object], int], ...] = ((bare, 1), (lambda: router.peek(prompt), 1), (whole, 2))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for (call, questions), found in zip(calls, times, strict=True):
            found.append(median_us(call) / questions)
    floor, peek, route = (statistics.median(found) for found in times)
    print(f"| {tokens} | {floor:.1f} | {peek:.1f} | {route:.1f} | {peek / floor:.2f} | {route / floor:.2f} |")


def median_us(call: Callable[[], object]) -> float:
    """Return the median of the calls of a round."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


@contextlib.contextmanager
def serving(server: Path) -> Iterator[Path]:
    """Run the server; yield the folder of its sockets."""
    with tempfile.TemporaryDirectory() as name, subprocess.Popen([server, name]) as process:
        try:
            folder, deadline = Path(name), time.monotonic() + 20
            # The second one that is made.
            while not (folder / "sidecar").exists():
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.01)
            yield folder
        finally:
            process.kill()


if __name__ == "__main__":
    main()
