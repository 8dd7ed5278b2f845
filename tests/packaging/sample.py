"""What users write, for type checkers: tests/packaging/test_clean.py checks it against the wheel, and runs it."""

import asyncio
import pickle
from array import array

from trunkline import Decision, NoWorkerAvailableError, PrefixIndex, Router, WorkerView, jump_hash
from trunkline.testing import FakeWorker, Fleet

router = Router(policy="kv_aware", seed=1)
try:
    router.route("nobody is there")
except NoWorkerAvailableError as refused:
    known: int = refused.known

router.add_worker("a", url="http://10.0.0.1:8000", capacity_tokens=100_000)
prompt = array("I", range(64))
decision: Decision = router.route(prompt, model="llama", exclude=["b"])
worker: str = decision.worker
url: str | None = decision.url
first: bool = router.first_token(decision)
done: bool = router.complete(decision, cached_tokens=0)
views: tuple[WorkerView, ...] = router.workers
held: dict[str, int] = router.peek(prompt, model="llama").workers
copy: Router = pickle.loads(pickle.dumps(router))
slot: int = jump_hash(2**40, len(copy.workers))

index = PrefixIndex()
index.insert(7, b"text" * 64)
matches: list[tuple[int, int]] = index.match(b"text" * 64)


async def ask(text: str) -> str:
    """Book a request for as long as the block lasts."""
    async with router.lease(text) as leased:
        return leased.reason


def fleet() -> str:
    """Start a gateway before simulated workers."""
    with Fleet(workers=2) as running, FakeWorker() as another:
        running.add(another)
        return running.url


print(asyncio.run(ask("x")), worker, url, first, done, held, slot, matches, fleet().startswith("http://"))
