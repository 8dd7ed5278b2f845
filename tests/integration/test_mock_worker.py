"""The mock worker as Python sees it, through the real `openai` client and raw HTTP."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import NotFoundError, OpenAI

from trunkline import ConfigError
from trunkline._core import MockWorker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import ChatCompletion, ChatCompletionChunk

SYSTEM = "You are the assistant of a shop. " * 40


@pytest.fixture
def worker() -> Iterator[MockWorker]:
    with MockWorker(time_scale=0.01) as started:
        yield started


@pytest.fixture
def client(worker: MockWorker) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{worker.url}/v1", api_key="unused", max_retries=0, timeout=20) as opened:
        yield opened


def ask(client: OpenAI, question: str) -> ChatCompletion:
    return client.chat.completions.create(
        model="mock",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        max_completion_tokens=8,
    )


def tokens(answer: ChatCompletion | ChatCompletionChunk) -> tuple[int, int]:
    """Return the tokens of the prompt, and those of them that were cached."""
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens


def test_a_shared_system_prompt_is_cached(worker: MockWorker, client: OpenAI) -> None:
    cold, warm = tokens(ask(client, "one")), tokens(ask(client, "two"))
    assert cold[1] == 0
    assert warm[1] >= len(SYSTEM) // 4 // 16 * 16
    stats = worker.stats()
    assert (stats.requests, stats.prompt_tokens, stats.cached_tokens) == (2, cold[0] + warm[0], warm[1])


def test_a_reset_worker_is_as_new(worker: MockWorker, client: OpenAI) -> None:
    ask(client, "one")
    worker.reset()
    assert (worker.stats().requests, worker.stats().prompt_tokens) == (0, 0)
    assert tokens(ask(client, "one"))[1] == 0


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    whole = ask(client, "one")
    stream = client.chat.completions.create(
        model="mock",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": "one"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert len(text.split()) == 8
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 8 + ["length"]
    prompt_tokens, _ = tokens(whole)
    assert tokens(last) == (prompt_tokens, (prompt_tokens - 1) // 16 * 16)


def test_the_other_routes_fit_the_client(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mock"]
    completion = client.completions.create(model="mock", prompt=["one", "two"], max_tokens=3)
    assert [choice.index for choice in completion.choices] == [0, 1]
    first, second = client.embeddings.create(model="mock", input=["one", "two"], encoding_format="float").data
    assert first.embedding != second.embedding
    with pytest.raises(NotFoundError, match="`other` does not exist"):
        client.completions.create(model="other", prompt="x")


def test_several_workers_live_side_by_side_and_keep_their_own_cache() -> None:
    with MockWorker(time_scale=0.01) as one, MockWorker(time_scale=0.01) as two:
        assert one.port != two.port
        for worker, repeats in ((one, 2), (two, 1)):
            for _ in range(repeats):
                complete(worker, {"prompt": "x" * 400, "max_tokens": 1})
        assert (one.stats().requests, two.stats().requests) == (2, 1)
        assert (one.stats().cached_tokens, two.stats().cached_tokens) == (96, 0)


def test_settings_shape_the_worker() -> None:
    with MockWorker(model="llama", block_size=32, kv_tokens=3200, default_output_tokens=3, time_scale=0.01) as worker:
        assert complete(worker, {"prompt": "x"})["usage"]["completion_tokens"] == 3
        assert 'model_name="llama"' in get(worker, "/metrics")
        assert 'block_size="32"' in get(worker, "/metrics")
        assert 'num_gpu_blocks="100"' in get(worker, "/metrics")


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        MockWorker(block_size=0)


def test_a_closed_worker_is_gone_and_stays_so() -> None:
    worker = MockWorker(time_scale=0.01)
    worker.close()
    worker.close()
    with pytest.raises(ConnectionRefusedError):
        get(worker, "/health")
    with pytest.raises(RuntimeError):
        worker.stats()


def test_a_used_port_is_an_os_error(worker: MockWorker) -> None:
    with pytest.raises(OSError, match=str(worker.port)):
        MockWorker(port=worker.port)


def complete(worker: MockWorker, body: dict[str, object]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=20)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def get(worker: MockWorker, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
