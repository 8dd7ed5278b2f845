"""Other libraries that find prefixes or place keys, on the same prompts in the same run.

Each is measured by what a caller needs for one of our calls, and ours right after it. A peer is imported when it is
asked for; one that is not installed is reported, never skipped in silence. What favours a peer is left to it: Dynamo
gets lists of int, which it reads faster than arrays, and on its own threads only its CPU time is counted; pygtrie
gets hashes for nothing; Ray's tree and pygtrie hold fewer blocks, because filling them takes minutes.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import json
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trunkline._core import Router, jump_hash

from .core import filled, peek_group
from .facts import version_of
from .report import Target, Versus
from .timing import Group, Timing, measure, one_by_one
from .workload import BLOCK_SIZE, Workload, as_text, groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .core import Options, Progress
    from .report import Report
    from .workload import Tokens

DYNAMO, JUMP, RAY, PYGTRIE = "ai-dynamo-runtime", "jump-consistent-hash", "ray", "pygtrie"
PEERS = (DYNAMO, JUMP, RAY, PYGTRIE)

EVENT_BLOCKS = 64
SMALL_BLOCKS = 300_000
GROUPS, CALLS = 8, 4
KEYS, BUCKETS = 4096, (8, 64, 1024)
TRIE_PROMPTS, TRIE_TOKENS = 6000, 4096

# How many times cheaper we want to be: by our call, tokens and how much is cached.
DYNAMO_TARGETS = {
    ("peek(array)", 512, "full"): 20.0,
    ("peek(array)", 4096, "full"): 20.0,
    ("peek(list)", 4096, "full"): 3.0,
}
RAY_TARGETS = {512: 50.0, 4096: 150.0}
JUMP_TARGETS = {64: 1 / 1.5}


def run(report: Report, load: Workload, options: Options, progress: Progress) -> None:
    """Measure every peer that is installed and note every one that is not."""
    small = Workload.make(blocks=min(options.blocks, SMALL_BLOCKS), workers=options.workers, seed=options.seed)
    measures: dict[str, Callable[[], list[Versus]]] = {
        DYNAMO: lambda: _dynamo(load, options),
        JUMP: lambda: _jump(options),
        RAY: lambda: _ray(small, options),
        PYGTRIE: lambda: _pygtrie(small, options),
    }
    for peer, compare in measures.items():
        progress(f"peer: {peer}")
        report.peers[peer] = None
        try:
            rows = compare()
        except ImportError:
            continue
        report.peers[peer] = version_of(peer) or "of unknown version"
        report.versus += rows
        report.targets += [_target(row) for row in rows if row.target is not None]


def _target(row: Versus) -> Target:
    tokens = f", {row.prompt_tokens:,} tokens" if row.prompt_tokens else ""
    return Target(
        figure=f"{row.our_call} against {row.peer}{tokens}",
        unit="x",
        wanted=row.target or 0,
        measured=row.ratio,
        at_least=True,
        absolute=False,
    )


def _dynamo(load: Workload, options: Options) -> list[Versus]:
    """Compare `RadixTree.find_matches` of `compute_block_hash_for_seq`: all that its users call for one look-up."""
    llm = importlib.import_module("dynamo.llm")
    tree, hash_blocks = llm.RadixTree(), llm.compute_block_hash_for_seq
    for number, (worker, event) in enumerate(_dynamo_events(load, options.seed, hash_blocks)):
        tree.apply_event(worker, json.dumps({"event_id": number, "data": {"stored": event}, "dp_rank": 0}).encode())
    router = filled(load, options)
    rng = np.random.default_rng(options.seed)
    rows = []
    for one in load.classes:
        for cached, wanted in (("full", one.blocks), ("half", one.blocks // 2), ("miss", 0)):
            sample = itertools.islice(one.prompts(cached, rng), 8)
            found = {_deepest(tree.find_matches(hash_blocks(prompt.tolist(), BLOCK_SIZE))) for prompt in sample}
            if found != {wanted}:
                raise AssertionError(f"{DYNAMO} found {found} blocks where {wanted} are cached")
            take = _mapped(one.prompts(cached, rng), lambda prompt: prompt.tolist())
            lists = one_by_one(lambda ids: hash_blocks(ids, BLOCK_SIZE), take, CALLS)
            take = _mapped(one.prompts(cached, rng), lambda prompt: hash_blocks(prompt.tolist(), BLOCK_SIZE))
            finds = one_by_one(tree.find_matches, take, CALLS)
            both = _sum(
                measure(lists, groups=GROUPS, rounds=options.rounds),
                # The tree lives on a thread of its own.
                measure(finds, groups=GROUPS, rounds=options.rounds, clock=time.process_time_ns),
            )
            group, groups = peek_group(router, one.prompts(cached, rng), one.prompt_tokens)
            ours = {"peek(array)": measure(group, groups=groups, rounds=options.rounds)}
            if cached == "full":
                take = _mapped(one.prompts(cached, rng), lambda prompt: prompt.tolist())
                group = one_by_one(router.peek, take, CALLS)
                ours["peek(list)"] = measure(group, groups=GROUPS, rounds=options.rounds)
            rows += [
                Versus(
                    peer=DYNAMO,
                    peer_call="hash + find_matches",
                    our_call=call,
                    prompt_tokens=one.prompt_tokens,
                    cached=cached,
                    peer_timing=both,
                    our_timing=timing,
                    target=DYNAMO_TARGETS.get((call, one.prompt_tokens, cached)),
                )
                for call, timing in ours.items()
            ]
    return rows


def _dynamo_events(load: Workload, seed: int, hash_blocks: Any) -> Iterator[tuple[int, dict[str, Any]]]:  # noqa: ANN401
    """Yield the workload as the events that engines publish: at most EVENT_BLOCKS blocks each."""
    mask = (1 << 63) - 1
    for worker, prompt in load.stores(seed):
        parent: int | None = None
        hashes = hash_blocks(prompt.tolist(), BLOCK_SIZE)
        for start in range(0, len(hashes), EVENT_BLOCKS):
            before: int | None = parent
            blocks = []
            for tokens_hash in hashes[start : start + EVENT_BLOCKS]:
                parent = hash((parent, tokens_hash)) & mask
                blocks.append({"block_hash": parent, "tokens_hash": tokens_hash})
            yield worker, {"parent_hash": before, "blocks": blocks}


def _deepest(found: Any) -> int:  # noqa: ANN401 (a peer's type)
    return max(found.scores.values(), default=0)


def _jump(options: Options) -> list[Versus]:
    """Compare one placement of a key."""
    jump = importlib.import_module("jump")
    rng = np.random.default_rng(options.seed)
    rows = []
    for buckets in BUCKETS:
        keys = [int(key) for key in rng.integers(0, 1 << 63, size=KEYS)]
        if [jump.hash(key, buckets) for key in keys] != [jump_hash(key, buckets) for key in keys]:
            raise AssertionError(f"{JUMP} places keys elsewhere")
        theirs, ours = (
            measure(_placing(call, keys, buckets), groups=4, rounds=options.rounds) for call in (jump.hash, jump_hash)
        )
        rows.append(
            Versus(
                peer=JUMP,
                peer_call=f"hash(key, {buckets})",
                our_call=f"jump_hash(key, {buckets})",
                prompt_tokens=0,
                cached="-",
                peer_timing=theirs,
                our_timing=ours,
                target=JUMP_TARGETS.get(buckets),
            )
        )
    return rows


def _placing(call: Callable[[int, int], int], keys: list[int], buckets: int) -> Group[list[int]]:
    def place(keys: list[int]) -> None:
        for key in keys:
            call(key, buckets)

    return Group(make=lambda: keys, run=place, calls=len(keys))


def _ray(load: Workload, options: Options) -> list[Versus]:
    """Compare `prefix_match` of the tree behind Ray Serve's prefix-aware router, on text."""
    tree = _ray_module().PrefixTree()
    router = Router(memory_budget=options.memory_budget, seed=options.seed)
    names = [f"w{worker}" for worker in range(load.workers)]
    for name in names:
        router.add_worker(name)
    tree.add_tenants(names, 0)
    for at, (worker, prompt) in enumerate(load.stores(options.seed)):
        text = as_text(prompt)
        tree.insert(text, names[worker], float(at))
        router.complete(router.route(text, eligible=[names[worker]]))
    rng = np.random.default_rng(options.seed)
    rows = []
    for one in load.classes:
        text = as_text(one.prompt(0))
        matched, holders = tree.prefix_match(text)
        if matched != text or not set(holders) <= {names[worker] for worker in one.holders[0]}:
            raise AssertionError(f"{RAY} found {len(matched)} of {len(text)} cached characters on {holders}")
        theirs, ours = (
            measure(
                one_by_one(call, _mapped(one.prompts("full", rng), as_text), CALLS),
                groups=GROUPS,
                rounds=options.rounds,
            )
            for call in (tree.prefix_match, router.peek)
        )
        rows.append(
            Versus(
                peer=RAY,
                peer_call="PrefixTree.prefix_match",
                our_call="peek(str)",
                prompt_tokens=one.prompt_tokens,
                cached="full",
                peer_timing=theirs,
                our_timing=ours,
                target=RAY_TARGETS.get(one.prompt_tokens),
            )
        )
    return rows


def _ray_module() -> types.ModuleType:
    """Load Ray's prefix tree from the installed package without starting Ray: it uses only the name of a logger."""
    found = importlib.util.find_spec(RAY)
    if found is None or not found.submodule_search_locations:
        raise ImportError(RAY)
    folder = Path(found.submodule_search_locations[0])
    path = folder / "llm/_internal/serve/routing_policies/prefix_aware/prefix_tree.py"
    stand_ins = {name: types.ModuleType(name) for name in ("ray", "ray.serve", "ray.serve._private")}
    constants = types.ModuleType("ray.serve._private.constants")
    vars(constants)["SERVE_LOGGER_NAME"] = "ray.serve"
    vars(stand_ins["ray"])["remote"] = lambda actor: actor
    stand_ins[constants.__name__] = constants
    kept = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        spec = importlib.util.spec_from_file_location("ray_prefix_tree", path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(RAY)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, module_before in kept.items():
            del sys.modules[name]
            if module_before is not None:
                sys.modules[name] = module_before
    return module


def _pygtrie(load: Workload, options: Options) -> list[Versus]:
    """Compare `longest_prefix` of block hashes that were made before, with `peek`, which hashes."""
    pygtrie = importlib.import_module("pygtrie")
    trie, router = pygtrie.Trie(), filled(load, options)
    short = [one for one in load.classes if one.prompt_tokens <= TRIE_TOKENS]
    for one in short:
        for number in range(min(len(one), TRIE_PROMPTS)):
            trie[_block_keys(one.prompt(number))] = one.holders[number][0]
    rng = np.random.default_rng(options.seed)
    rows = []
    for one in short:
        if len(trie.longest_prefix(_block_keys(one.prompt(0))).key) != one.blocks:
            raise AssertionError(f"{PYGTRIE} did not find a prompt of {one.prompt_tokens} tokens")
        known = dataclasses.replace(one, own=one.own[:TRIE_PROMPTS])
        trie_group = one_by_one(trie.longest_prefix, _mapped(known.prompts("full", rng), _block_keys), CALLS)
        theirs = measure(trie_group, groups=GROUPS, rounds=options.rounds)
        group, groups = peek_group(router, known.prompts("full", rng), one.prompt_tokens)
        rows.append(
            Versus(
                peer=PYGTRIE,
                peer_call="longest_prefix of hashes",
                our_call="peek(array)",
                prompt_tokens=one.prompt_tokens,
                cached="full",
                peer_timing=theirs,
                our_timing=measure(group, groups=groups, rounds=options.rounds),
            )
        )
    return rows


def _block_keys(prompt: Tokens) -> list[int]:
    """Return a number for each block: any would do, so its first two tokens."""
    pairs = prompt.reshape(-1, BLOCK_SIZE)[:, :2].astype(np.int64)
    keys: list[int] = (pairs[:, 0] << 32 | pairs[:, 1]).tolist()
    return keys


def _mapped(prompts: Iterator[Tokens], change: Callable[[Tokens], Any]) -> Callable[[], list[Any]]:
    take = groups_of(prompts, CALLS)
    return lambda: [change(prompt) for prompt in take()]


def _sum(first: Timing, second: Timing) -> Timing:
    return Timing(ns=first.ns + second.ns, low_ns=first.low_ns + second.low_ns, high_ns=first.high_ns + second.high_ns)
