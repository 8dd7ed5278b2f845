"""The test at start of whether a tokenizer's text is what we think: the real tokenizer against our table of its tokens.

The tokenizer itself (the package `tokenizers`, extra ``trunkline[exact]``) is needed for this and nothing else.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from ._core import Renderer, TokenizerError, UnsupportedPromptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import ServeSettings

# What tokenizers are known to change: white space, case and width, composed letters, emoji, long runs.
TEXTS = (
    "The ferry leaves at 7:45 and costs 12,50 EUR; children under six travel free.",
    "def area(width: float, height: float) -> float:\n    return width * height\n\n\tx = {'a': 1}\r\n",
    "日本語の文章です。全角ＡＢＣと半角ｶﾅ。中文也一样。 한국어 문장.",
    "cafe\u0301 and caf\u00e9, A\u030angstrom, \ufb01ne print, \u2460 and \u00bd",
    "👩\u200d👩\u200d👧 and 🏳️\u200d🌈, then 🤷🏽\u200d♂️",
    "  leading, trailing  , and" + " " * 90 + "ninety spaces\n\n\n\n",
    "ภาษาไทยไม่มีช่องว่าง नमस्ते दुनिया مرحبا بالعالم",
    "\u2581a low line is no space\u2581",
    "-=" * 80 + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=" * 3,
    "",
    "x",
)


def differing(directory: str | Path, renderer: Renderer) -> str | None:
    """Return the first of `TEXTS` that the real tokenizer spells in another way, None if there is none.

    Raises ImportError without the package `tokenizers`.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 (an extra)

    tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if renderer.spell(ids) != renderer.canonical(text):
            return text
    return None


def checked(settings: ServeSettings, *, say: Callable[[str], None]) -> list[tuple[str | None, str]]:
    """Return the tokenizers of `settings` whose text is what we think, as (model or None, directory).

    say: prints a line to the log; one that is left out is named there, and so is one that could not be tested.  Raises
    TokenizerError for one that cannot be read or is of a kind whose text is not known to be exact.
    """
    passed = []
    for setting in settings.tokenizers:
        model, _, directory = setting.rpartition("=")
        renderer = Renderer(
            directory,
            time_zone=settings.time_zone,
            chat_template=settings.chat_template,
            chat_template_content_format=settings.chat_template_content_format,
            chat_template_kwargs=settings.chat_template_kwargs,
            exclude_unused_tools=settings.exclude_unused_tools,
        )
        has_tokenizers = importlib.util.find_spec("tokenizers") is not None
        if not has_tokenizers or not (Path(directory) / "tokenizer.json").exists():
            say(f"tokenizer {directory}: not tested against the real one (pip install 'trunkline[exact]' for that)")
        elif (text := _differing(directory, renderer)) is not None:
            say(f"tokenizer {directory}: left out, it spells {text[:40]!r} in another way than its table says")
            continue
        if (reason := _refusal(renderer)) is not None:
            say(f"tokenizer {directory}: chats go by the workers' own views, they cannot be rendered ({reason})")
        passed.append((model or None, directory))
    return passed


def _refusal(renderer: Renderer) -> str | None:
    """Return why a plain chat cannot be rendered, None if it can."""
    try:
        renderer.render(b'{"messages": [{"role": "user", "content": "Hello"}]}')
    except UnsupportedPromptError as refused:
        return str(refused.reason)
    return None


def _differing(directory: str, renderer: Renderer) -> str | None:
    try:
        return differing(directory, renderer)
    except Exception as failure:  # tokenizers raises bare Exception
        raise TokenizerError(f"tokenizer {directory}: {failure}") from failure
