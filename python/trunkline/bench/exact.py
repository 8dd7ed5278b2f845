"""What it costs a request to be matched with workers' events by its text, beside tokenizing it.

A byte-level BPE of 8,192 tokens is trained on Python's own sources, so no vocabulary has to be fetched; `tokenizers`
and `tiktoken` get the same one. All figures are CPU time of the thread, medians, taken in turns.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import Renderer, Router

from .facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1_000, 10_000, 100_000)
BLOCK = 16
VOCABULARY = 8192
# Byte-level BPE of the GPT kind splits words so.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIALS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One size of prompt; times in microseconds."""

    tokens: int
    body_bytes: int
    render_us: float
    route_us: float
    tokenizers_us: float
    tiktoken_us: float

    @property
    def total_us(self) -> float:
        """All that a request pays: its text, both look-ups, the decision and its booking."""
        return self.render_us + self.route_us


def run(*, rounds: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure every size; return rows and facts as plain values.

    Raises ImportError without the packages `tokenizers` and `tiktoken`.
    """
    import tiktoken  # noqa: PLC0415 (an extra)
    from tokenizers import Tokenizer  # noqa: PLC0415

    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150]
    words = " ".join(path.read_text(encoding="utf-8", errors="replace") for path in sources).split(" ")
    with tempfile.TemporaryDirectory() as folder:
        progress("training a vocabulary")
        model = _train(Path(folder), sources)
        real = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        specials = {name: model[name] for name in SPECIALS}
        encoding = tiktoken.Encoding("own", pat_str=PATTERN, mergeable_ranks=_ranks(model), special_tokens=specials)
        bench = _Bench(words, seed, rounds, Renderer(folder), real, encoding)
        rows = []
        for size in SIZES:
            progress(f"{size:,} tokens")
            rows.append(bench.measure(size))
    about = facts("trunkline bench exact")
    about["versions"] |= {"tiktoken": tiktoken.__version__, "tokenizers": _version("tokenizers")}
    return {"facts": about, "rows": [dataclasses.asdict(row) | {"total_us": row.total_us} for row in rows]}


def table(found: dict[str, Any]) -> str:
    """Return the result as a table."""
    names = ("tokens", "bytes", "render", "route", "total")
    lines = [" ".join(f"{name:>8}" for name in names) + f" {'tokenizers':>11} {'tiktoken':>9}   ratios"]
    for row in found["rows"]:
        ratios = f"{row['tokenizers_us'] / row['total_us']:.0f}x, {row['tiktoken_us'] / row['total_us']:.0f}x"
        lines.append(
            f"{row['tokens']:>8} {row['body_bytes']:>8} {row['render_us']:>8.0f} {row['route_us']:>8.0f} "
            f"{row['total_us']:>8.0f} {row['tokenizers_us']:>11.0f} {row['tiktoken_us']:>9.0f}   {ratios}"
        )
    lines.append("us of CPU, medians. route: look-up by text and in the own view, decision, booking, completion.")
    return "\n".join(lines)


def _train(folder: Path, sources: list[Path]) -> dict[str, int]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, special_tokens=SPECIALS, initial_alphabet=alphabet
    )
    tokenizer.train([str(path) for path in sources], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def _ranks(vocabulary: dict[str, int]) -> dict[bytes, int]:
    """Return the vocabulary as tiktoken has it: bytes in place of the byte-level alphabet's letters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return {
        bytes(letters[letter] for letter in token): rank for token, rank in vocabulary.items() if token not in SPECIALS
    }


@dataclasses.dataclass(frozen=True)
class _Bench:
    words: list[str]
    seed: int
    rounds: int
    renderer: Renderer
    real: Any
    encoding: Any

    def measure(self, size: int) -> Row:
        """Measure prompts of about `size` tokens."""
        body = self._body(size)
        rendered = self.renderer.render(body)
        text = rendered.decode()
        ids = self.real.encode(text, add_special_tokens=False).ids
        if self.renderer.spell(ids) != rendered:
            raise AssertionError("the tokens do not spell the text")
        router = Router()
        for worker in range(8):
            router.add_worker(f"w{worker}")
            router.set_cache_view(f"w{worker}", "events")
            router.apply_events(f"w{worker}", _payload(ids), renderer=self.renderer)
        question = body[:-2] + b"," + json.dumps({"role": "user", "content": "And now?"}).encode() + b"]}"
        asked = self.renderer.render(question)
        # The last block may end in another way once something follows.
        decision = router.route(question, rendered=asked)
        if (decision.told_tokens or 0) < len(ids) // BLOCK * BLOCK - BLOCK:
            raise AssertionError(f"{decision.told_tokens} tokens told of {len(ids)}")
        router.complete(decision)

        calls: dict[str, Callable[[], Any]] = {
            "render": lambda: self.renderer.render(question),
            "route": lambda: router.complete(router.route(question, rendered=asked)),
            "tokenizers": lambda: self.real.encode(text, add_special_tokens=False),
            "tiktoken": lambda: self.encoding.encode(text, allowed_special="all"),
        }
        costs: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.rounds):
            for name, call in calls.items():
                repeats = 1 if name.startswith("t") else max(1, 200_000 // size)
                start = time.thread_time_ns()
                for _ in range(repeats):
                    call()
                costs[name].append((time.thread_time_ns() - start) / repeats / 1000)
        render, routed, slow, fast = (statistics.median(costs[name]) for name in calls)
        return Row(len(ids), len(body), render, routed, slow, fast)

    def _body(self, size: int) -> bytes:
        """Return a chat of about `size` tokens."""
        rng = random.Random(self.seed)  # noqa: S311 (no secret)
        messages: list[dict[str, str]] = []
        tokens = 0
        while tokens < size:
            start = rng.randrange(len(self.words))
            content = " ".join(self.words[start : start + max(40, size // 120)])
            messages.append({"role": "user" if len(messages) % 2 == 0 else "assistant", "content": content})
            tokens += len(self.real.encode(content, add_special_tokens=False).ids) + 2
        return json.dumps({"model": "m", "messages": messages}).encode()


def _payload(ids: list[int]) -> bytes:
    whole = len(ids) // BLOCK
    event = {
        "type": "BlockStored",
        "block_hashes": list(range(1, whole + 1)),
        "parent_block_hash": None,
        "token_ids": ids[: whole * BLOCK],
        "block_size": BLOCK,
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


def _version(package: str) -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return version(package)
