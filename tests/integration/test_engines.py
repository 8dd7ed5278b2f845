"""Engines and request shapes: one gateway before workers of every dialect, and one prompt in every spelling."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import MakeWorkers, Serve, Served, wait_for
from trunkline import ConfigError, MockWorker

DIALECTS = ("vllm", "sglang", "trtllm", "tgi")
SYSTEM = "あなたは小包サービスの忍耐強いアシスタントです。"


def workers_of(served: Served) -> dict[str, dict[str, Any]]:
    document = served.call("GET", "/admin/workers", admin=True).json()
    return {worker["url"]: worker for worker in document["workers"]}


def test_a_mixed_fleet_is_recognised_and_serves(serve: Serve, make_workers: MakeWorkers) -> None:
    fleet = {dialect: make_workers(1, dialect=dialect)[0] for dialect in DIALECTS}
    served = serve(list(fleet.values()))
    engines = {worker.url: dialect for dialect, worker in fleet.items()}
    # An engine is known before the size of its cache is: a page tells the one, some ask another page for the other.
    sizes = dict.fromkeys(DIALECTS, 1_300_000) | {"trtllm": None}
    expected = {url: (dialect, sizes[dialect]) for url, dialect in engines.items()}

    def all_told() -> bool:
        return {url: (row["engine"], row["capacity_tokens"]) for url, row in workers_of(served).items()} == expected

    wait_for(all_told)
    hosts = {served.chat(f"{number} " * 80).headers["x-trunkline-worker"] for number in range(40)}
    assert hosts == set(engines)


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("sglang", "/generate", lambda text: {"text": text, "sampling_params": {"max_new_tokens": 2}}),
        ("sglang", "/generate", lambda text: {"text": text, "sampling_params": {"max_new_tokens": 2}, "stream": True}),
        ("sglang", "/generate", lambda text: {"input_ids": list(text.encode()), "sampling_params": {}}),
        ("tgi", "/generate", lambda text: {"inputs": text, "parameters": {"max_new_tokens": 2}}),
        ("tgi", "/generate_stream", lambda text: {"inputs": text, "parameters": {"max_new_tokens": 2}}),
        ("trtllm", "/v1/completions", lambda text: {"model": "alias", "prompt": text, "max_tokens": 2}),
        ("vllm", "/invocations", lambda text: {"prompt": text, "max_tokens": 2}),
    ],
)
def test_native_routes_reach_the_cache(
    serve: Serve, make_workers: MakeWorkers, dialect: str, path: str, body: Callable[[str], dict[str, Any]]
) -> None:
    workers = make_workers(3, dialect=dialect)
    served = serve(workers)
    for group in range(6):
        prefix = f"{group} {SYSTEM}" * 30
        replies = [
            served.call("POST", path, body(f"{prefix}{question}")) for question in ("いつですか。", "どこですか。")
        ]
        assert [reply.status for reply in replies] == [200, 200]
        assert replies[0].headers["x-trunkline-worker"] == replies[1].headers["x-trunkline-worker"]
    stats = [worker.stats() for worker in workers]
    assert sum(one.requests > 0 for one in stats) >= 2
    assert sum(one.cached_tokens for one in stats) > 0.4 * sum(one.prompt_tokens for one in stats)


def test_sglangs_own_usage_is_counted(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1, dialect="sglang")
    served = serve([worker])
    for _ in range(2):
        served.call("POST", "/generate", {"text": SYSTEM * 40, "sampling_params": {"max_new_tokens": 2}})
    row = workers_of(served)[worker.url]
    assert row["reported_cached_tokens"] == worker.stats().cached_tokens > 0
    assert row["reported_prompt_tokens"] == worker.stats().prompt_tokens


# A chat in every spelling that means the same prompt: (path, body in bytes).
Spelling = Callable[[str, str], tuple[str, bytes]]


def messages(system: object, question: object) -> list[dict[str, object]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def parts(text: str) -> list[dict[str, str]]:
    half = len(text) // 2
    return [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]


def encoded(body: dict[str, object], **options: Any) -> bytes:
    return json.dumps({"model": "mock", "max_tokens": 1} | body, **options).encode()


SPELLINGS: dict[str, Spelling] = {
    "plain": lambda s, q: ("/v1/chat/completions", encoded({"messages": messages(s, q)}, ensure_ascii=False)),
    "escaped": lambda s, q: ("/v1/chat/completions", encoded({"messages": messages(s, q)})),
    "parts": lambda s, q: ("/v1/chat/completions", encoded({"messages": messages(parts(s), parts(q))})),
    "other order": lambda s, q: (
        "/v1/chat/completions",
        json.dumps(
            {"max_tokens": 1, "messages": [{"content": c["content"], "role": c["role"]} for c in messages(s, q)]}
            | {"model": "mock"},
            indent=2,
        ).encode(),
    ),
    "invocations": lambda s, q: ("/invocations", encoded({"messages": messages(s, q)}, ensure_ascii=False)),
    "invoke": lambda s, q: ("/endpoints/any/invocations", encoded({"messages": messages(s, q)})),
    "invoke stream": lambda s, q: (
        "/endpoints/any/invocations-response-stream",
        encoded({"messages": messages(s, parts(q)), "stream": True}),
    ),
    "endpoint": lambda s, q: (
        "/endpoints/any/openai/v1/chat/completions",
        encoded({"messages": messages(s, q)}, ensure_ascii=False),
    ),
}


def test_a_prompt_keeps_its_worker_however_it_is_written(serve: Serve, make_workers: MakeWorkers) -> None:
    workers = make_workers(4)
    served = serve(workers)
    homes: dict[int, set[str]] = {}
    for name, spell in SPELLINGS.items():
        for group in range(12):
            path, body = spell(f"{group} {SYSTEM}" * 25, f"質問 {name}")
            reply = served.call("POST", path, body)
            assert reply.status == 200, (name, reply.body)
            homes.setdefault(group, set()).add(reply.headers["x-trunkline-worker"])
    assert all(len(found) == 1 for found in homes.values()), homes
    assert len(set.union(*homes.values())) >= 3
    cached = sum(worker.stats().cached_tokens for worker in workers)
    wanted = sum(worker.stats().prompt_tokens for worker in workers)
    assert cached > 0.8 * wanted, "the workers found what the gateway expected"


def test_several_models_behind_one_gateway(serve: Serve, make_workers: MakeWorkers) -> None:
    fleet = {model: make_workers(2, model=model) for model in ("base", "coder")}
    served = serve([worker for workers in fleet.values() for worker in workers])
    listed = wait_for(
        lambda: [model["id"] for model in served.call("GET", "/v1/models").json()["data"]] == ["base", "coder"]
    )
    assert listed
    for model, workers in fleet.items():
        urls = {worker.url for worker in workers}
        replies = [served.chat(f"{number} " * 80, model=model) for number in range(12)]
        assert {reply.json()["model"] for reply in replies} == {model}
        assert {reply.headers["x-trunkline-worker"] for reply in replies} == urls
    unknown = wait_for(lambda: reply if (reply := served.chat("x", model="nobody")).status == 404 else None)
    assert unknown.json()["error"]["code"] == "model_not_found"
    assert "x-trunkline-worker" not in unknown.headers


def test_an_engine_may_be_told(serve: Serve, make_workers: MakeWorkers) -> None:
    [worker] = make_workers(1)
    served = serve([f"{worker.url}#engine=sglang"])
    assert workers_of(served)[worker.url]["engine"] == "sglang"
    assert served.chat("hello", model="alias").status == 404, "the worker's own refusal"


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ConfigError, match="dialect = llama"):
        MockWorker(dialect="llama.cpp")  # type: ignore[arg-type]
