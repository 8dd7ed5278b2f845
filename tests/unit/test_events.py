"""Events from Python: payloads as engines pack them, what the router makes of them, and rendered prompts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import MakeRouter
from trunkline import (
    ConfigError,
    PayloadError,
    Renderer,
    Router,
    TokenizerError,
    UnknownWorkerError,
    UnsupportedPromptError,
    extra_hash,
)
from trunkline.testing import write_mock_tokenizer

one_router = pytest.mark.thread_unsafe(reason="what it tells counts once, and threads would share the fixture's router")
BLOCK = 4
TAIL = [9_999]


def pack(*events: Any, ts: float = 0.0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), 0])


def stored(handles: list[Any], tokens: list[int], *, parent: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": handles,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | fields


def removed(*handles: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(handles), "medium": "GPU"}


@pytest.fixture
def router(make_router: MakeRouter) -> Router:
    router = make_router(2)
    for worker in ("w0", "w1"):
        router.set_cache_view(worker, "events")
    return router


def told(router: Router, prompt: list[int] | str, **arguments: Any) -> dict[str, int]:
    """Tokens that events told of the prompt; a last token is put behind it, for that is never cached."""
    matched = router.peek(prompt + TAIL if isinstance(prompt, list) else prompt, **arguments).workers
    return {worker: tokens for worker, tokens in matched.items() if tokens}


@one_router
def test_blocks_count_from_when_they_are_stored_until_they_are_removed(router: Router) -> None:
    tokens = list(range(8))
    applied = router.apply_events("w0", pack(stored([1, 2**64 - 1], tokens)))
    assert (applied.stored, applied.removed, applied.orphans, applied.refused, applied.cleared) == (2, 0, 0, 0, False)
    assert repr(applied) == "Applied(stored=2, removed=0, orphans=0, refused=0, cleared=False)"
    assert told(router, tokens) == {"w0": 8}
    assert router.stats().events_blocks == 2
    assert router.apply_events("w0", pack(removed(2**64 - 1))).removed == 1
    assert told(router, tokens) == {"w0": 4}
    assert router.apply_events("w0", pack({"type": "AllBlocksCleared"})).cleared
    assert told(router, tokens) == {}


@one_router
def test_all_shapes_on_the_wire_say_the_same(router: Router) -> None:
    tokens = list(range(4))
    shapes = [
        stored([7], tokens),
        ["BlockStored", [7], None, tokens, BLOCK, None, "GPU", None],
        ["BlockStored", [7], None, tokens, BLOCK, None],
        stored([b"\x07" * 32], tokens),
    ]
    for event in shapes:
        for batch in ([0.0, [event], 0], [0.0, [event]], {"ts": 0.0, "events": [event], "data_parallel_rank": 0}):
            assert router.apply_events("w0", msgspec.msgpack.encode(batch)).stored == 1
            assert told(router, tokens) == {"w0": 4}
            router.forget_events("w0")
            assert told(router, tokens) == {}


@one_router
def test_a_block_whose_parent_is_unknown_waits_for_it(router: Router) -> None:
    applied = router.apply_events("w0", pack(stored([2], [4, 5, 6, 7], parent=1)))
    assert (applied.stored, applied.orphans) == (0, 1)
    assert told(router, list(range(8))) == {}
    assert router.apply_events("w0", pack(stored([1], [0, 1, 2, 3]))).stored == 2
    assert told(router, list(range(8))) == {"w0": 8}


def test_salts_and_adapters_part_equal_tokens(router: Router) -> None:
    tokens = list(range(4))
    router.apply_events("w0", pack(stored([1], tokens, extra_keys=[["tenant"]])))
    router.apply_events("w1", pack(stored([1], tokens, lora_name="adapter", lora_id=1, extra_keys=[["adapter"]])))
    assert told(router, tokens) == {}
    assert told(router, tokens, salt="tenant") == {"w0": 4}
    assert told(router, tokens, lora="adapter") == {"w1": 4}
    assert told(router, tokens, lora="adapter", salt="tenant") == {}


def test_images_are_part_of_their_blocks(router: Router) -> None:
    tokens = list(range(8))
    router.apply_events("w0", pack(stored([1, 2], tokens, extra_keys=[None, [["image", -1]]])))
    assert told(router, tokens) == {"w0": 4}
    assert told(router, tokens, extras=[0, extra_hash("image", -1)]) == {"w0": 8}
    assert told(router, tokens, extras=[0, extra_hash("image", 0)]) == {"w0": 4}
    assert len({extra_hash(name, at) for name in ("a", "b") for at in (-1, 0, 1)}) == 6
    assert 0 < extra_hash("", 0) < 2**64
    with pytest.raises(TypeError):
        extra_hash(b"image", 0)  # type: ignore[arg-type]


def test_a_view_counts_when_it_is_said_to(make_router: MakeRouter) -> None:
    router = make_router(1)
    tokens = list(range(16))
    router.apply_events("w0", pack(stored([1, 2, 3, 4], tokens)))
    assert [worker.cache_view for worker in router.workers] == ["own"]
    assert told(router, tokens) == {}
    router.set_cache_view("w0", "events")
    assert told(router, tokens) == {"w0": 16}
    decision = router.route(tokens + TAIL)
    assert (decision.told_tokens, decision.matched_tokens) == (16, 16)
    router.complete(decision)
    router.set_cache_view("w0", "none")
    assert told(router, tokens) == {}
    assert router.route(tokens + TAIL).told_tokens is None


def test_what_was_just_sent_counts_until_it_had_time_to_be_told(make_router: MakeRouter) -> None:
    router = make_router(1)
    router.set_cache_view("w0", "events")
    router.apply_events("w0", pack(), now=0.0)
    prompt = list(range(64))
    decision = router.route(prompt, now=1.0)
    assert decision.told_tokens == 0
    assert router.route(prompt, now=1.0).matched_tokens > 0
    router.first_token(decision, now=1.1)
    later = router.route(prompt, now=120.0)
    assert later.told_tokens == 0


@one_router
def test_what_is_no_payload_is_refused(router: Router) -> None:
    for payload in (b"", b"\xff", b"\xc1\x00", msgspec.msgpack.encode("no"), pack(stored([1], [0, 1, 2, 3]))[:-9]):
        with pytest.raises(PayloadError) as refused:
            router.apply_events("w0", payload)
        assert isinstance(refused.value, ValueError)
    applied = router.apply_events("w0", pack(stored([1, 2], [0, 1, 2]), {"type": "Unheard"}, stored([3], [0, 1, 2, 3])))
    assert applied.stored == 1
    assert applied.refused >= 1


def test_workers_and_views_that_are_not_known_are_named(router: Router) -> None:
    for call in (
        lambda: router.apply_events("w9", pack()),
        lambda: router.set_cache_view("w9", "own"),
        lambda: router.forget_events("w9"),
    ):
        with pytest.raises(UnknownWorkerError) as unknown:
            call()
        assert unknown.value.worker == "w9"
    with pytest.raises(ConfigError) as wrong:
        router.set_cache_view("w0", "guessed")  # type: ignore[arg-type]
    assert (wrong.value.key, wrong.value.value) == ("view", "guessed")


@pytest.fixture
def renderer(tmp_path: Path) -> Renderer:
    return Renderer(write_mock_tokenizer(tmp_path))


def test_a_chat_is_rendered_as_its_template_says(renderer: Renderer) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d"}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}], "tools": [tool]}
    assert renderer.render(json.dumps(body).encode()).decode() == (
        "<|message|>tools<|content|>f\nd\n<|end|><|message|>user<|content|>a\né<|end|><|message|>assistant<|content|>"
    )
    assert renderer.render(b'{"prompt": "a\\u00e9"}', kind="completion") == "aé".encode()
    assert renderer.render(b'{"prompt": [97, 98]}', kind="completion") == b"ab"


def test_tokens_are_spelled_and_text_is_made_canonical(renderer: Renderer) -> None:
    assert renderer.spell([97, 0xC3, 0xA9, 256]) == "aé<|message|>".encode()
    assert renderer.spell([]) == b""
    with pytest.raises(ValueError, match="token"):
        renderer.spell([97, 260])
    assert renderer.canonical("aé <|end|>") == "aé <|end|>".encode()


def test_prompts_that_are_not_known_to_be_exact_are_refused(renderer: Renderer) -> None:
    for kind, body in (("chat", b"no json"), ("chat", b"{}"), ("completion", b'{"prompt": [260]}')):
        with pytest.raises(UnsupportedPromptError) as refused:
            renderer.render(body, kind=kind)  # type: ignore[arg-type]
        assert refused.value.reason
    with pytest.raises(ConfigError):
        renderer.render(b"{}", kind="song")  # type: ignore[arg-type]


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        Renderer(tmp_path)
    with pytest.raises(ConfigError):
        Renderer(write_mock_tokenizer(tmp_path), chat_template_content_format="any")  # type: ignore[arg-type]


@one_router
def test_rendered_text_is_matched_with_what_tokens_spell(router: Router, renderer: Renderer) -> None:
    text = "<|message|>user<|content|>where is the ferry<|end|>"
    tokens = [256, *b"user", 257, *b"where is the ferry", 258]
    blocks = len(tokens) // BLOCK
    event = stored(list(range(1, blocks + 1)), tokens[: blocks * BLOCK])
    assert router.apply_events("w0", pack(event, ts=time.time()), renderer=renderer).stored == blocks
    assert told(router, text, rendered=text + "and more") == {"w0": told(router, text, rendered=text + "!")["w0"]}
    assert told(router, text, rendered=text.encode() + b"!") != {}
    assert told(router, text, rendered=text[1:] + "!") == {}
    unknown = router.apply_events("w0", pack(stored([90], [0, 1, 2, 999_999])), renderer=renderer)
    assert (unknown.stored, unknown.refused) == (0, 1)
