"""The mock worker as Python sees it, through the real `openai` client and raw HTTP."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from openai import NotFoundError, OpenAI

from tests.support import wait_for
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


def test_kv_events_are_vllms() -> None:
    """Read with ZeroMQ's own library: a chat is stored, told again by a replay, cleared with the next step."""
    with MockWorker(time_scale=0.01, kv_events=True, buffer_steps=100) as worker, zmq.Context() as context:
        source = json.loads(fetch(worker, "GET", "/kv_event_sources"))["0"]
        assert source["enable_kv_cache_events"] is True
        assert source["buffer_steps"] == 100
        ports = [int(source[name].removeprefix("tcp://*:")) for name in ("endpoint", "replay_endpoint")]
        assert tuple(ports) == worker.event_ports()
        prompt = list(b"The ferry leaves at eight, it is said.")
        body = {"model": "mock", "prompt": prompt, "max_tokens": 1, "cache_salt": "s", "return_token_ids": True}
        answer = json.loads(fetch(worker, "POST", "/v1/completions", body))
        assert answer["choices"][0]["prompt_token_ids"] == prompt
        assert worker.clear_cache()
        fetch(worker, "POST", "/v1/completions", {"model": "mock", "prompt": prompt, "max_tokens": 1})
        assert worker.clear_cache(silent=True)
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVTIMEO, 5000)
            dealer.connect(f"tcp://127.0.0.1:{ports[1]}")
            dealer.send_multipart([b"", bytes(8)])
            messages = []
            while (frames := dealer.recv_multipart())[2] != b"\xff" * 8:
                messages.append(frames)
        assert [(frames[1].decode(), int.from_bytes(frames[2])) for frames in messages] == [
            (source["topic"], 0),
            (source["topic"], 1),
        ]
        assert worker.stats().event_messages == 2
        (_, [stored], rank), (_, [cleared, again], _) = (msgspec.msgpack.decode(frames[3]) for frames in messages)
        assert rank == 0
        assert (stored["type"], stored["parent_block_hash"], stored["block_size"]) == ("BlockStored", None, 16)
        assert stored["token_ids"] == prompt[:32]
        assert stored["extra_keys"] == [["s"], None]
        assert cleared == {"type": "AllBlocksCleared"}
        assert "extra_keys" not in again
        assert not set(stored["block_hashes"]) & set(again["block_hashes"])
        with context.socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.connect(f"tcp://127.0.0.1:{ports[0]}")
            subscriber.subscribe(source["topic"])

            def heard() -> list[bytes] | None:
                # A subscription takes a moment to arrive; each of these is a prompt of its own.
                text = f"{worker.stats().requests} is the number of this prompt."
                fetch(worker, "POST", "/v1/completions", {"model": "mock", "prompt": text, "max_tokens": 1})
                return subscriber.recv_multipart() if subscriber.poll(20) else None

            topic, _, payload = wait_for(heard)
            assert topic.decode() == source["topic"]
            assert msgspec.msgpack.decode(payload)[1][0]["type"] == "BlockStored"


def test_a_worker_without_kv_events_says_so(worker: MockWorker) -> None:
    assert json.loads(fetch(worker, "GET", "/kv_event_sources"))["0"]["enable_kv_cache_events"] is False
    assert worker.event_ports() is None
    assert worker.stats().event_messages == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop_events": 1.5},
        {"duplicate_events": -0.1},
        {"reorder_events": 2.0},
        {"event_delay_s": -1.0},
        {"buffer_steps": 0},
        {"dialect": "tgi"},
    ],
)
def test_settings_of_kv_events_have_ranges(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        MockWorker(kv_events=True, **wrong)
    assert refused.value.key in wrong


def fetch(worker: MockWorker, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=20)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()
    finally:
        connection.close()
