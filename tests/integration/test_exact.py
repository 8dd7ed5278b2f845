"""The exact view before mock workers that publish KV events: what events told of a prompt, and what was then cached.

`told` is what events alone said of the chosen worker before the request was sent; the answer's usage is the truth.
Faults of feeds, workers and caches follow, each until the view is right again or says that it is not.
"""

from __future__ import annotations

import http.server
import itertools
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from tests.support import MakeWorkers, Reply, Serve, Served, wait_for
from trunkline import MockWorker
from trunkline.testing import FakeWorker, write_mock_tokenizer
from trunkline.testing.mock_tokenizer import CHAT_TEMPLATE

BLOCK = 16
RIGHT_AGAIN_S = 3.0
WORDS = Path(__file__).read_text(encoding="utf-8").split()
ODD = ("日本語の質問です。", "çà et là", "👩\u200d👩\u200d👧", "  \n\n\t ", "مرحبا", "e\u0301", '"\\', "<|end|>")
TOOL = {"type": "function", "function": {"name": "find_ferry", "description": "Find the next ferry", "parameters": {}}}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(write_mock_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def pair(make_workers: MakeWorkers) -> list[MockWorker]:
    return make_workers(2, kv_events=True)


@pytest.fixture
def served(serve: Serve, pair: list[MockWorker], tokenizer: str) -> Served:
    return live(serve(pair, "--tokenizer", tokenizer))


def rows(served: Served) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = served.call("GET", "/admin/workers", admin=True).json()["workers"]
    return workers


def views(served: Served) -> set[str]:
    return {row["cache_view"] for row in rows(served)}


def live(served: Served) -> Served:
    wait_for(lambda: views(served) == {"events"}, deadline_s=20, what="all feeds are live")
    return served


def told_of(reply: Reply) -> int | None:
    parts = dict(part.split("=") for part in reply.headers["x-trunkline-decision"].split(";")[2:])
    return int(parts["told"]) if "told" in parts else None


def cached_of(reply: Reply) -> int:
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def settled(served: Served, workers: list[MockWorker]) -> None:
    """Wait until all that workers have sent is applied."""

    def is_applied() -> bool:
        sent = sum(worker.stats().event_messages for worker in workers)
        return served.metric_sum("trunkline_events_batches_total") >= sent

    wait_for(is_applied, what="all messages are applied")


def ask(served: Served, path: str, body: dict[str, Any]) -> tuple[int, int]:
    """Send a request; return what was told of it, which must be known, and what was cached."""
    reply = served.call("POST", path, {"model": "mock", "max_tokens": 2} | body)
    assert reply.status == 200, reply.body
    told = told_of(reply)
    assert told is not None, reply.headers["x-trunkline-decision"]
    return told, cached_of(reply)


def chat(served: Served, text: str, **fields: Any) -> tuple[int, int]:
    return ask(served, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]} | fields)


def completion(served: Served, prompt: str | list[int], **fields: Any) -> tuple[int, int]:
    return ask(served, "/v1/completions", {"prompt": prompt} | fields)


def right_again(served: Served, text: str) -> None:
    """Wait until the view of whoever gets this prompt is right about it."""

    def is_right() -> bool:
        reply = served.chat(text)
        return told_of(reply) == cached_of(reply) > 0

    wait_for(is_right, deadline_s=RIGHT_AGAIN_S, what="the view is right again")


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(ODD) if rng.random() < 0.08 else rng.choice(WORDS) for _ in range(count))


def test_what_is_told_is_what_is_cached(serve: Serve, make_workers: MakeWorkers, tokenizer: str) -> None:
    """Chats of several turns, completions, token ids, salts and tools, on caches that are too small for them."""
    workers = make_workers(2, kv_events=True, kv_tokens=12_000)
    served = live(serve(workers, "--tokenizer", tokenizer))
    rng = random.Random(4)
    systems = [words(rng, 60) for _ in range(4)]
    pairs: list[tuple[int, int]] = []
    for number in range(24):
        messages: list[dict[str, Any]] = [{"role": "system", "content": rng.choice(systems)}]
        body: dict[str, Any] = {"messages": messages, "max_tokens": rng.randrange(1, 40)}
        if number % 4 == 0:
            body["cache_salt"] = f"tenant {number % 3}"
        if number % 5 == 0:
            body["tools"] = [TOOL]
        for _ in range(3):
            question: Any = words(rng, rng.randrange(3, 30))
            if rng.random() < 0.3:
                question = [{"type": "text", "text": question[:9]}, {"type": "text", "text": question[9:]}]
            messages.append({"role": "user", "content": question})
            reply = served.call("POST", "/v1/chat/completions", {"model": "mock"} | body)
            pairs.append((told_of(reply) or 0, cached_of(reply)))
            messages.append(reply.json()["choices"][0]["message"])
            settled(served, workers)
        prompt = rng.choice(systems) + words(rng, 5)
        pairs.append(completion(served, prompt, **({"cache_salt": "s"} if number % 3 == 0 else {})))
        settled(served, workers)
        pairs.append(completion(served, list((rng.choice(systems) + words(rng, 3)).encode())))
        settled(served, workers)
    assert sum(worker.stats().evicted_blocks for worker in workers) > 100
    counted = [(told, cached) for told, cached in pairs if told or cached]
    assert len(counted) > 60, pairs
    assert all(told == cached for told, cached in counted), [(t, c) for t, c in counted if t != c]


def test_token_ids_are_matched_without_a_tokenizer(serve: Serve, pair: list[MockWorker]) -> None:
    served = live(serve(pair, "--events", "on"))
    rng = random.Random(3)
    prefixes = [[rng.randrange(1 << 20) for _ in range(rng.randrange(40, 200))] for _ in range(4)]
    pairs = []
    for _ in range(40):
        pairs.append(completion(served, rng.choice(prefixes) + [rng.randrange(1 << 20) for _ in range(20)]))
        settled(served, pair)
    assert all(told == cached for told, cached in pairs), pairs
    assert sum(cached > 0 for _, cached in pairs) > 30
    reply = served.chat("text goes by the own view")
    assert told_of(reply) is None or told_of(reply) == 0


def test_a_feed_that_ends_is_said_and_its_end_heals(served: Served, pair: list[MockWorker]) -> None:
    text = "A question about ferries. " * 30
    chat(served, text)
    right_again(served, text)
    for worker in pair:
        worker.pause_events()
    wait_for(lambda: views(served) == {"own"}, deadline_s=RIGHT_AGAIN_S, what="no view is called exact")
    page = served.call("GET", "/metrics", admin=True).body.decode()
    found = re.findall(r'^trunkline_worker_view\{worker="[^"]*",view="own",reason="([^"]+)"\} 1$', page, re.MULTILINE)
    assert len(found) == 2, page
    assert all(reason not in {"live", "no events"} for reason in found)
    other = "Asked while nobody listened. " * 30
    reply = served.chat(other)
    assert reply.status == 200
    for worker in pair:
        worker.pause_events(paused=False)
    wait_for(lambda: views(served) == {"events"}, deadline_s=RIGHT_AGAIN_S, what="the feeds are live again")
    told, cached = chat(served, other)
    assert told == cached > 0, "the replay told what was missed"


@pytest.mark.parametrize(
    ("faults", "within_s"),
    [
        ({"drop_events": 0.05}, RIGHT_AGAIN_S),
        ({"duplicate_events": 0.5}, RIGHT_AGAIN_S),
        ({"reorder_events": 0.1}, RIGHT_AGAIN_S),
        # Faults that follow each other: replays are spaced by up to 1.3 s then, and the view is its own meanwhile.
        ({"drop_events": 0.3}, 5 * RIGHT_AGAIN_S),
        ({"drop_events": 0.05, "duplicate_events": 0.2, "reorder_events": 0.2}, 5 * RIGHT_AGAIN_S),
    ],
    ids=["drop 5 %", "duplicate", "reorder", "drop 30 %", "all"],
)
def test_faults_of_the_feed_heal(
    serve: Serve, make_workers: MakeWorkers, tokenizer: str, faults: dict[str, float], within_s: float
) -> None:
    workers = make_workers(2, kv_events=True, kv_tokens=12_000, **faults)
    served = live(serve(workers, "--tokenizer", tokenizer))
    rng = random.Random(1)
    systems = [words(rng, 40) for _ in range(6)]
    with ThreadPoolExecutor(4) as pool:
        texts = [rng.choice(systems) + words(rng, 4) for _ in range(200)]
        replies = list(pool.map(served.chat, texts))
    assert {reply.status for reply in replies} == {200}
    for _ in range(4):

        def is_right() -> bool:
            # Its message shows whether one before it was lost.
            reply = served.chat(rng.choice(systems) + words(rng, 2))
            return told_of(reply) == cached_of(reply) > 0

        wait_for(is_right, deadline_s=within_s, what="a prompt whose view is right")
    if not faults.keys() <= {"duplicate_events"}:
        assert served.metric_sum("trunkline_events_gaps_total") > 0
    assert served.metric_sum("trunkline_events_restarts_total") == 0


def test_a_worker_that_restarts_in_place_is_empty(serve: Serve, tokenizer: str) -> None:
    text = "A question about ferries. " * 30
    with FakeWorker(kv_events=True) as worker:
        served = live(serve([worker.url], "--tokenizer", tokenizer))
        for number in range(5):
            chat(served, f"{number} {text}")
        right_again(served, text)
        worker.restart()
        wait_for(lambda: served.call("GET", "/readyz", admin=True).status == 200)

        def is_right() -> bool:
            reply = served.chat(text)
            return reply.status == 200 and told_of(reply) == cached_of(reply) and cached_of(reply) > 0

        def answered() -> Reply | None:
            reply = served.chat("0 " + text)
            return reply if reply.status == 200 else None

        first = wait_for(answered)
        assert cached_of(first) == 0
        assert told_of(first) in {0, None}, "nothing that was told before the restart counts"
        wait_for(is_right, deadline_s=2 * RIGHT_AGAIN_S, what="the view is right after the restart")


def test_a_router_that_restarts_learns_what_is_cached(serve: Serve, pair: list[MockWorker], tokenizer: str) -> None:
    text = "A question about ferries. " * 30
    first = live(serve(pair, "--tokenizer", tokenizer))
    chat(first, text)
    right_again(first, text)
    first.stop()
    told, cached = chat(live(serve(pair, "--tokenizer", tokenizer)), text)
    assert told == cached > 0


def test_a_cache_that_is_wiped_while_idle_is_known_after_one_round(served: Served, pair: list[MockWorker]) -> None:
    text = "A question about ferries. " * 30
    chat(served, text)
    right_again(served, text)
    for worker in pair:
        assert worker.clear_cache()
    told, cached = chat(served, text)
    assert (told > 0, cached) == (True, 0), "the engine tells of the clearing with its next step only"
    settled(served, pair)
    told, cached = chat(served, text)
    assert told == cached > 0


def test_another_template_is_noticed_and_switched_off(serve: Serve, pair: list[MockWorker], tmp_path: Path) -> None:
    wrong = write_mock_tokenizer(tmp_path / "wrong", chat_template=CHAT_TEMPLATE.replace("<|content|>", "<|content|> "))
    served = live(serve(pair, "--tokenizer", str(wrong)))
    text = "A question about ferries. " * 30

    def is_off() -> bool:
        # What was sent a moment ago explains what is cached; each of these comes again after longer than that.
        for number in range(60):
            served.chat(f"{number} {text}")
        return served.metric_sum("trunkline_exact_switched_off_total") > 0

    wait_for(is_off, deadline_s=20, what="the answers show it")
    assert served.metric('trunkline_exact_on{model=""}') == 0
    reply = served.chat("0 " + text)
    assert told_of(reply) in {None, 0}
    assert cached_of(reply) > 0, "requests go by the own view meanwhile"


def test_a_sample_names_the_first_byte_that_differs(serve: Serve, pair: list[MockWorker], tmp_path: Path) -> None:
    wrong = write_mock_tokenizer(
        tmp_path / "wrong", chat_template=CHAT_TEMPLATE.replace("<|content|>{{", "<|content|>_{{")
    )
    served = live(serve(pair, "--tokenizer", str(wrong), "--check-every", "1"))
    assert served.chat("abc").status == 200
    at = len("<|message|>user<|content|>")
    line = served.wait_for_log("rendered in another way", f"number {at}, 0x5f instead of 0x61")
    assert "abc" not in line, "no prompt is logged"
    assert served.metric('trunkline_exact_samples_total{result="different"}') == 1
    assert served.metric_sum("trunkline_exact_switched_off_total") == 1


def test_samples_of_a_right_template_are_equal(serve: Serve, pair: list[MockWorker], tokenizer: str) -> None:
    served = live(serve(pair, "--tokenizer", tokenizer, "--check-every", "1"))
    for text in ("abc", *ODD):
        assert served.chat(text, tools=[TOOL]).status == 200
        completion(served, text)
    equal = 'trunkline_exact_samples_total{result="equal"}'
    wait_for(lambda: served.metric(equal) == 2 * (1 + len(ODD)), what="all samples are equal")


class Recorder(http.server.BaseHTTPRequestHandler):
    """A worker that notes the ranks that it is asked for."""

    ranks: list[str | None]

    def do_GET(self) -> None:
        self._answer(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.ranks.append(self.headers.get("x-data-parallel-rank"))
        self._answer(b'{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[str | None]]]:
    ranks: list[str | None] = []
    handler = type("Handler", (Recorder,), {"ranks": ranks})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", ranks
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_rank_is_asked_for_by_its_header(serve: Serve, recorder: tuple[str, list[str | None]]) -> None:
    url, ranks = recorder
    served = serve([f"{url}#rank=1"])
    wait_for(lambda: served.call("GET", "/readyz", admin=True).status == 200)
    assert served.chat("abc").status == 200
    assert ranks[-1] == "1"


def test_events_are_followed_from_where_the_url_says(serve: Serve, pair: list[MockWorker], tokenizer: str) -> None:
    """The other worker's ports: what is followed is what the URL says, and not what the worker says of itself."""
    worker, other = pair
    ports = other.event_ports()
    assert ports is not None
    source = f"events=tcp://127.0.0.1:{ports[0]}&replay=tcp://127.0.0.1:{ports[1]}"
    served = live(serve([f"{worker.url}#{source}"], "--tokenizer", tokenizer))
    text = "A question about ferries. " * 30
    chat(live(serve([other], "--tokenizer", tokenizer)), text)
    wait_for(lambda: chat(served, text)[0] > 0, what="what the other worker holds is told of this one")


def test_events_without_a_replay_are_not_called_exact(serve: Serve, pair: list[MockWorker], tokenizer: str) -> None:
    worker = pair[0]
    ports = worker.event_ports()
    assert ports is not None
    served = serve([f"{worker.url}#events=tcp://127.0.0.1:{ports[0]}"], "--tokenizer", tokenizer)
    wait_for(lambda: rows(served)[0]["cache_view_reason"] == "no replay")
    assert served.chat("A question about ferries. " * 30).status == 200
    assert views(served) == {"own"}


def test_a_publisher_of_garbage_harms_nobody(serve: Serve, pair: list[MockWorker], tokenizer: str) -> None:
    done = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    rng = random.Random(2)

    def spew() -> None:
        while not done.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            with peer:
                try:
                    peer.sendall(bytes([0xFF, *[0] * 8, 0x7F, 3, 0]) + b"NULL".ljust(52, b"\0"))
                    peer.sendall(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"[: 2 + 26])
                    for _ in range(200):
                        peer.sendall(rng.randbytes(500))
                except OSError:
                    continue

    thread = threading.Thread(target=spew)
    thread.start()
    try:
        mad, good = pair
        url = f"{mad.url}#events=tcp://127.0.0.1:{listener.getsockname()[1]}"
        served = serve([url, good.url], "--tokenizer", tokenizer)
        wait_for(lambda: {row["url"]: row["cache_view"] for row in rows(served)}.get(good.url) == "events")
        text = "A question about ferries. " * 30
        hosts = set()
        for number in range(40):
            reply = served.chat(f"{number} {text}")
            assert reply.status == 200
            hosts.add(reply.headers["x-trunkline-worker"])
        assert len(hosts) == 2, "both get requests"
        by_url = {row["url"]: row["cache_view"] for row in rows(served)}
        assert by_url.pop(good.url) == "events"
        assert set(by_url.values()) == {"own"}
    finally:
        done.set()
        thread.join()
        listener.close()


def hit_rate(serve: Serve, make_workers: MakeWorkers, tokenizer: str, delay_s: float) -> float:
    """Bursts of requests that share new prefixes; return the share of prompt tokens that was cached."""
    workers = make_workers(3, kv_events=True, event_delay_s=delay_s, time_scale=0.001)
    served = live(serve(workers, "--tokenizer", tokenizer))
    rng = random.Random(8)
    for _ in range(6):
        prefixes = [words(rng, 120) for _ in range(5)]
        texts = [prefix + words(rng, 3) for prefix in prefixes for _ in range(8)]
        rng.shuffle(texts)
        assert {served.chat(text).status for text in texts} == {200}
    assert served.metric_sum("trunkline_exact_switched_off_total") == 0, "late is not wrong"
    served.stop()
    stats = [worker.stats() for worker in workers]
    return sum(one.cached_tokens for one in stats) / sum(one.prompt_tokens for one in stats)


def test_late_events_cost_no_hits(serve: Serve, make_workers: MakeWorkers, tokenizer: str) -> None:
    """One request after the other, each much sooner than the events of the one before: load plays no part."""
    on_time = hit_rate(serve, make_workers, tokenizer, 0.0)
    late = hit_rate(serve, make_workers, tokenizer, 1.0)
    print(f"hit rate {on_time:.4f} on time, {late:.4f} one second late")
    assert on_time > 0.8
    assert late >= on_time - 0.01


def test_the_tokenizer_is_what_the_real_library_reads(tokenizer: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    real = tokenizers.Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    for text in ("abc", "日本語 é", "\n\t "):
        assert real.encode(text, add_special_tokens=False).ids == list(text.encode())
    assert real.encode("<|message|>a<|end|>", add_special_tokens=False).ids == [256, 97, 258]
    assert json.loads((Path(tokenizer) / "tokenizer_config.json").read_text(encoding="utf-8"))


def test_a_view_that_cannot_use_what_it_is_told_does_not_count(
    serve: Serve, make_workers: MakeWorkers, tokenizer: str
) -> None:
    [worker] = make_workers(1)
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        served = serve([f"{worker.url}#events=tcp://127.0.0.1:{port}"], "--tokenizer", tokenizer)
        event = {
            "type": "BlockStored",
            "block_hashes": [1],
            "parent_block_hash": None,
            "token_ids": [1 << 20] * 16,
            "block_size": 16,
        }
        # A cleared cache is a known one, whatever was missed before.
        payload = msgspec.msgpack.encode([time.time(), [{"type": "AllBlocksCleared"}, event], 0])
        sequence = itertools.count()

        def is_refused() -> bool:
            publisher.send_multipart([b"", next(sequence).to_bytes(8, "big"), payload])
            return served.metric_sum("trunkline_events_refused_total") > 0

        wait_for(is_refused, deadline_s=20, what="a token that the tokenizer does not have")

        def told() -> list[tuple[str, str]]:
            return [(row["cache_view"], row["cache_view_reason"]) for row in rows(served)]

        wait_for(lambda: told() == [("own", "refused")], what="its own view counts")
        assert worker.url in served.wait_for_log("could not be used")
