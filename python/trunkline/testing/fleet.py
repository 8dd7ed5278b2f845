"""A whole fleet for a test: the gateway before workers that can be killed, all in this process, on free ports."""

from __future__ import annotations

import contextlib
from typing import Any

from trunkline._core import Gateway, Router

from ._closes import Closes
from .fake_worker import FakeWorker


class Fleet(Closes):
    """A gateway before simulated workers, on free ports of loopback.

    workers: how many `FakeWorker` it starts.  policy: as for `Router`.  router: the one that decides; None makes one.
    gateway: further arguments of `Gateway`.

    Attributes: router, gateway; url, admin_url: where clients and admins connect; workers: the workers, in the order in
    which they came.

    It accepts connections when the constructor returns, until `close`: use it as a context manager. All methods may be
    called from any thread; it does not survive a fork.  Raises ConfigError, OSError.
    """

    router: Router
    gateway: Gateway
    workers: list[FakeWorker]
    url: str
    admin_url: str

    def __init__(
        self,
        *,
        workers: int = 2,
        policy: str = "kv_aware",
        router: Router | None = None,
        **gateway: Any,  # noqa: ANN401 (checked by Gateway)
    ) -> None:
        with contextlib.ExitStack() as stack:
            self.workers = [stack.enter_context(FakeWorker()) for _ in range(workers)]
            self.router = Router(policy=policy) if router is None else router  # type: ignore[arg-type]
            settings = {"port": 0, "admin_port": 0, "workers": [worker.url for worker in self.workers], **gateway}
            self.gateway = stack.enter_context(Gateway(self.router, **settings))
            self._stack = stack.pop_all()
        self.url = self.gateway.url
        self.admin_url = f"http://127.0.0.1:{self.gateway.admin_port}"

    def __repr__(self) -> str:
        return f"Fleet({self.url!r}, workers={self.workers!r})"

    def add(self, worker: FakeWorker | None = None) -> FakeWorker:
        """Add a worker and return it.

        worker: who closes it is its owner; None starts one that ends with the fleet.  Raises DuplicateWorkerError.
        """
        with contextlib.ExitStack() as stack:
            if worker is None:
                worker = stack.enter_context(FakeWorker())
            self.gateway.add_worker(worker.url)
            self._stack.push(stack.pop_all())
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        """End gateway and workers, cutting what still runs. The second time does nothing."""
        self._stack.close()
