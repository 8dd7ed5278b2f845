"""PrefixIndex and jump_hash on their own."""

from __future__ import annotations

import pytest

from trunkline import ConfigError, PrefixIndex, TokenIdError, jump_hash

PROMPT = list(range(64))


def test_holders_are_listed_deepest_first() -> None:
    index = PrefixIndex(seed=1)
    index.insert(7, PROMPT[:32])
    index.insert(3, PROMPT)
    index.insert(5, PROMPT[:32])
    assert index.match(PROMPT) == [(3, 64), (5, 32), (7, 32)]
    assert index.match(PROMPT[:20]) == [(3, 16), (5, 16), (7, 16)]
    assert index.match([1, *PROMPT]) == []
    assert index.blocks == 4


def test_text_counts_in_bytes() -> None:
    index = PrefixIndex()
    index.insert(0, "x" * 200)
    assert index.match("x" * 1000) == [(0, 192)]


def test_block_size_is_the_grain() -> None:
    index = PrefixIndex(block_size=5)
    index.insert(0, PROMPT)
    assert index.match(PROMPT) == [(0, 60)]


def test_model_and_salt_part_entries() -> None:
    index = PrefixIndex()
    index.insert(0, PROMPT, model="a", salt="s")
    assert index.match(PROMPT) == []
    assert index.match(PROMPT, model="a") == []
    assert index.match(PROMPT, model="a", salt=b"s") == [(0, 64)]


def test_a_removed_worker_holds_nothing_and_may_return() -> None:
    index = PrefixIndex()
    index.insert(0, PROMPT)
    index.insert(1, PROMPT)
    index.remove_worker(0)
    index.remove_worker(99)
    assert index.match(PROMPT) == [(1, 64)]
    index.insert(0, PROMPT[:16])
    assert index.match(PROMPT) == [(1, 64), (0, 16)]


def test_capacity_evicts_what_was_used_longest_ago() -> None:
    index = PrefixIndex()
    index.set_capacity(0, 64)
    index.insert(0, PROMPT)
    index.insert(0, [token + 1000 for token in PROMPT[:32]])
    assert index.match([token + 1000 for token in PROMPT]) == [(0, 32)]
    assert index.match(PROMPT) == [(0, 32)]
    index.set_capacity(0, 0)
    assert index.match(PROMPT) == []
    index.set_capacity(0, None)
    index.insert(0, PROMPT)
    assert index.match(PROMPT) == [(0, 64)]


def test_bytes_stay_within_the_budget() -> None:
    index = PrefixIndex(memory_budget="1MiB")
    for number in range(60):
        index.insert(number % 3, range(number << 20, (number << 20) + 64_000))
        assert index.bytes <= 1 << 20
    assert index.match(range(59 << 20, (59 << 20) + 64_000)) == [(59 % 3, 64_000)]


@pytest.mark.parametrize(("key", "value"), [("block_size", 0), ("block_size", 257), ("memory_budget", "1kB")])
def test_settings_are_checked(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        PrefixIndex(**{key: value})  # type: ignore[arg-type]
    assert refused.value.key == key


def test_unfit_arguments_are_refused() -> None:
    index = PrefixIndex()
    with pytest.raises(OverflowError):
        index.insert(-1, PROMPT)
    for call in (lambda: index.insert(0, [-1]), lambda: index.match([-1])):
        with pytest.raises(TokenIdError):
            call()
    assert index.match([]) == []
    assert repr(index) == "PrefixIndex(workers=0, blocks=0, bytes=0)" or repr(index).startswith("PrefixIndex(workers=")


def test_jump_hash_follows_the_published_vectors() -> None:
    assert [jump_hash(*case) for case in ((1, 1), (42, 57), (0xDEAD10CC, 666), (256, 1024))] == [0, 43, 361, 520]
    assert jump_hash(key=1, slots=0) == 0


@pytest.mark.parametrize(("key", "slots"), [(-1, 4), (1 << 64, 4), (1, -1), (1, 1 << 32)])
def test_jump_hash_refuses_what_does_not_fit(key: int, slots: int) -> None:
    with pytest.raises(OverflowError):
        jump_hash(key, slots)


def test_jump_hash_moves_only_to_the_new_slot() -> None:
    for slots in range(1, 40):
        moved = [
            key
            for key in range(2000)
            if jump_hash(key * 0x9E3779B97F4A7C15 % 2**64, slots)
            != jump_hash(key * 0x9E3779B97F4A7C15 % 2**64, slots + 1)
        ]
        assert all(jump_hash(key * 0x9E3779B97F4A7C15 % 2**64, slots + 1) == slots for key in moved)
        assert abs(len(moved) / 2000 - 1 / (slots + 1)) < 0.04
