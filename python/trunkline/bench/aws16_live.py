"""The sixteen cells of AWS's benchmark, live: a closed loop of clients, the gateway's SageMaker API, mock workers.

It is the simulated benchmark at a tenth of the prefixes and of the KV cache: here too, a worker's cache holds about a
quarter of all prefixes. The model and the API are real: an endpoint of one model is a variant with seven workers; with
inference components they are seven copies of a component, on seven instances. Invoke is `/invocations` with a streamed
answer, OpenAI the endpoint's `/openai/v1/chat/completions`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trunkline.demo.fleet import Fleet
from trunkline.demo.replay import Outcome, Replay
from trunkline.demo.workload import BYTES_PER_TOKEN, Session, Turn

from .aws16 import APIS, MODELS, STRATEGIES, WARM_UP, WORKERS, Cell, Figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ENDPOINT, _COMPONENT = "aws16", "llama"
_STRATEGY_NAMES = {"random": "RANDOM", "kv_aware": "KV_AWARE"}
_PATHS = {
    "Invoke": f"/endpoints/{_ENDPOINT}/invocations",
    "OpenAI": f"/endpoints/{_ENDPOINT}/openai/v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class LiveContext:
    """One of the two data sets at live scale. Lengths are in tokens of the mock worker."""

    name: str
    clients: int
    requests: int
    kv_tokens: int
    time_scale: float
    """Of the modelled worker's times. The long prompts run at a quarter of them, to end in minutes."""
    prefixes: int
    prefix_tokens: int
    question_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    turns: tuple[int, ...]
    """Lengths of sessions, equally likely."""


LIVE_CONTEXTS = (
    LiveContext(
        "long", clients=28, requests=900, kv_tokens=130_000, time_scale=0.25, prefixes=60, prefix_tokens=8_000,
        question_tokens=(100, 300), answer_tokens=(8, 24), turns=(1,),
    ),
    LiveContext(
        "short", clients=28, requests=900, kv_tokens=130_000, time_scale=1.0, prefixes=400, prefix_tokens=64,
        question_tokens=(32, 96), answer_tokens=(16, 48), turns=(1, 3, 6, 10),
    ),
)  # fmt: skip
_QUICK = 5


class LiveError(Exception):
    """A cell cannot be judged: requests failed."""


def run_live(
    *, quick: bool, seed: int = 1, contexts: Sequence[LiveContext] = LIVE_CONTEXTS
) -> Iterator[tuple[Cell, Figures]]:
    """Run the cells one after the other, each on a fresh fleet; `quick` takes a fifth of the requests.

    Raises LiveError if requests fail, FleetError if a fleet does not start.
    """
    names = list(itertools.product(contexts, MODELS, APIS, STRATEGIES))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("aws16 live", total=len(names))
        for context, model, api, strategy in names:
            progress.update(task, description=f"live {context.name} {model} {api} {strategy}")
            yield (context.name, model, api, strategy), _cell(context, model, api, strategy, seed, quick=quick)
            progress.advance(task)


def sessions_of(context: LiveContext, requests: int, seed: int) -> list[Session]:
    """Return sessions with at least so many requests. Equal arguments give equal sessions."""
    rng = random.Random(seed)  # noqa: S311 (traffic, not secrets)
    systems = [_text(rng, context.prefix_tokens) for _ in range(context.prefixes)]
    sessions: list[Session] = []
    asked = 0
    while asked < requests:
        tenant, turns = rng.randrange(len(systems)), rng.choice(context.turns)
        sessions.append(Session(0.0, tenant, systems[tenant], escaped=False, turns=tuple(_turns(context, turns, rng))))
        asked += turns
    return sessions


def _turns(context: LiveContext, count: int, rng: random.Random) -> Iterator[Turn]:
    for _ in range(count):
        question = _text(rng, rng.randint(*context.question_tokens))
        yield Turn(question, max_tokens=rng.randint(*context.answer_tokens), think_s=0.0)


def _text(rng: random.Random, tokens: int) -> str:
    return rng.randbytes(tokens * BYTES_PER_TOKEN // 2).hex()


def _cell(context: LiveContext, model: str, api: str, strategy: str, seed: int, *, quick: bool) -> Figures:
    def settings(workers: list[str]) -> dict[str, Any]:
        return {"endpoints": [_endpoint(workers, _STRATEGY_NAMES[strategy], components=model == MODELS[1])]}

    headers = {"X-Amzn-SageMaker-Inference-Component": _COMPONENT} if model == MODELS[1] else {}
    sessions = sessions_of(context, context.requests // _QUICK if quick else context.requests, seed)
    with Fleet(
        "kv_aware", workers=WORKERS, time_scale=context.time_scale, kv_tokens=context.kv_tokens, settings=settings
    ) as fleet:
        replay = Replay(fleet.url, model="mock", on_outcome=_ignore, path=_PATHS[api], headers=headers)
        outcomes = asyncio.run(replay.run_closed(sessions, clients=context.clients))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise LiveError(f"{len(errors)} of {len(outcomes)} requests failed; the first: {errors[0]}")
    return _figures(outcomes)


def _endpoint(workers: list[str], strategy: str, *, components: bool) -> dict[str, Any]:
    copies = [
        {"url": url, "instance": f"i-{number}"} | ({"component": _COMPONENT} if components else {})
        for number, url in enumerate(workers)
    ]
    return {"name": _ENDPOINT, "variants": [{"name": "AllTraffic", "routing_strategy": strategy, "workers": copies}]}


def _figures(outcomes: list[Outcome]) -> Figures:
    """Return the figures of what was sent after the warm-up; at least two requests."""
    outcomes = sorted(outcomes, key=lambda outcome: outcome.sent_s)
    outcomes = outcomes[int(WARM_UP * len(outcomes)) :]
    ttft_ms = sorted(1e3 * outcome.ttft_s for outcome in outcomes)
    shares = [sum(outcome.worker == worker for outcome in outcomes) for worker in {o.worker for o in outcomes}]
    lasted_s = max(outcome.finished_s for outcome in outcomes) - outcomes[0].sent_s
    return Figures(
        hit_rate=sum(outcome.cached_tokens for outcome in outcomes) / sum(o.prompt_tokens for o in outcomes),
        ttft_p50_ms=ttft_ms[len(ttft_ms) // 2],
        ttft_p90_ms=ttft_ms[int(0.9 * len(ttft_ms))],
        throughput_rps=len(outcomes) / lasted_s,
        busiest_over_mean=max(shares) * WORKERS / len(outcomes),
    )


def _ignore(_: Outcome) -> None:
    """Progress is shown by cells."""
