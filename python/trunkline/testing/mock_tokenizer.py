"""The tokenizer of a mock worker that publishes KV events, as the directory that `trunkline serve --tokenizer` reads.

A token is a byte of UTF-8, and its id the byte's value; four more mark the structure of a chat. The chat template
writes what the worker (`rust/sim/src/api/prompt.rs`) makes of a chat: of tools their names and descriptions, of tool
calls the names.
"""

from __future__ import annotations

import json
from pathlib import Path

MARKERS = ("<|message|>", "<|content|>", "<|end|>", "<|item|>")

CHAT_TEMPLATE = """\
{%- if tools -%}
<|message|>tools<|content|>
{%- for tool in tools -%}
{{ tool.function.name + "\\n" + (tool.function.description or "") + "\\n" }}
{%- endfor -%}
<|end|>
{%- endif -%}
{%- for message in messages -%}
<|message|>{{ message.role }}<|content|>{{ message.content or "" }}
{%- for call in message.tool_calls or [] -%}
<|item|>{{ call.function.name }}
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|message|>assistant<|content|>
{%- endif -%}
"""


def write_mock_tokenizer(directory: str | Path, *, chat_template: str = CHAT_TEMPLATE) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `directory`, which is made; return it.

    chat_template: another one than the worker's, for tests of what happens then.  Raises OSError.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    letters = byte_letters()
    tokens = [
        {
            "id": 256 + at,
            "content": marker,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for at, marker in enumerate(MARKERS)
    ]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": split,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(letters)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return folder


def byte_letters() -> list[str]:
    """Return the letter of each byte in vocabularies of byte-level BPE.

    Printable characters of Latin-1 stand for themselves, the others follow from U+0100 on.  Source: GPT-2's encoder.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
