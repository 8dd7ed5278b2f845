"""What route + complete cost from Cython without the GIL, beside the same from Python: `make bench-cython`."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.capi.test_cython import compile_cython
from trunkline import Router

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 15, 20_000


def main() -> None:
    """Print a line for each length of a prompt."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_cython(Path(__file__).with_suffix(".pyx"), Path(folder))
    router = Router()
    for worker in range(8):
        router.add_worker(f"w{worker}")
    for tokens in (64, 512, 4096):
        ids = np.arange(tokens, dtype=np.uint32)

        def cython(ids: np.ndarray = ids) -> None:
            assert compiled.route_and_complete(router.c_handle, ids, CALLS) == 0

        def python(ids: np.ndarray = ids) -> None:
            for _ in range(CALLS):
                router.complete(router.route(ids))

        times: dict[Callable[[], None], list[float]] = {cython: [], python: []}
        for _ in range(ROUNDS):
            for call, taken in times.items():
                start = time.thread_time()
                call()
                taken.append((time.thread_time() - start) * 1e9 / CALLS)
        print(f"{tokens} tokens: Cython {statistics.median(times[cython]):.0f} ns, ", end="")
        print(f"Python {statistics.median(times[python]):.0f} ns")


if __name__ == "__main__":
    main()
