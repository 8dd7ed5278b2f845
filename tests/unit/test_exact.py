"""The self-test of tokenizers: one that is what its table says is used, another one is left out and named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trunkline import Renderer, TokenizerError
from trunkline.config import ServeSettings, SettingsError
from trunkline.exact import TEXTS, checked, differing

WORKER = "http://10.0.0.1:8000"


def trained(directory: Path) -> Path:
    """Write a byte-level BPE tokenizer that was trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, "the ferry to the island " * 20], trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    return directory


def settings(*tokenizers: str, **flags: Any) -> ServeSettings:
    return ServeSettings.load(flags={"workers": (WORKER,), "tokenizers": tokenizers} | flags, environment={})[0]


def swapped(directory: Path) -> Path:
    """Make our table of a tokenizer another one than the real library's: two letters have changed places."""
    path = trained(directory) / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
    path.write_text(json.dumps(document), encoding="utf-8")
    return directory


def test_a_tokenizer_that_is_what_its_table_says_passes(tmp_path: Path) -> None:
    directory = trained(tmp_path)
    assert differing(directory, Renderer(directory)) is None
    said: list[str] = []
    assert checked(settings(str(directory), f"base={directory}"), say=said.append) == [
        (None, str(directory)),
        ("base", str(directory)),
    ]
    assert said == []


@pytest.mark.thread_unsafe(reason="it patches a module")
def test_a_tokenizer_whose_table_is_wrong_is_left_out_and_named(tmp_path: Path) -> None:
    right, wrong = trained(tmp_path / "right"), swapped(tmp_path / "wrong")
    table, real = Renderer(swapped(tmp_path / "table")), trained(tmp_path / "real")
    assert differing(real, table) == TEXTS[0]

    import trunkline.exact as module  # noqa: PLC0415 (patched below)

    with pytest.MonkeyPatch.context() as patch:
        # The directory is read twice, by us and by the real library; here these two see different files.
        patch.setattr(module, "differing", lambda directory, renderer: _against(real, directory, wrong, renderer))
        said: list[str] = []
        assert checked(settings(f"a={wrong}", f"b={right}"), say=said.append) == [("b", str(right))]
    assert len(said) == 1
    assert str(wrong) in said[0]
    assert "left out" in said[0]
    assert repr(TEXTS[0][:40]) in said[0]


def _against(real: Path, directory: str, wrong: Path, renderer: Renderer) -> str | None:
    return differing(real if directory == str(wrong) else directory, renderer)


def test_without_the_real_library_it_is_used_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = trained(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    said: list[str] = []
    assert checked(settings(str(directory)), say=said.append) == [(None, str(directory))]
    assert len(said) == 1
    assert "not tested" in said[0]


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path) -> None:
    path = trained(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(path))
    with pytest.raises(TokenizerError):
        checked(settings(str(tmp_path)), say=lambda _: None)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(TokenizerError):
        checked(settings(str(tmp_path)), say=lambda _: None)


def test_settings_of_tokenizers_and_events(tmp_path: Path) -> None:
    assert settings().events == "auto"
    assert settings(events="on").events == "on"
    assert settings(f"a={tmp_path}", str(tmp_path)).tokenizers == (f"a={tmp_path}", str(tmp_path))
    for flags in ({"events": "perhaps"}, {"tokenizers": ("-x",)}, {"tokenizers": ("a=b=c",)}, {"check_every": -1}):
        with pytest.raises(SettingsError) as refused:
            settings(**flags)
        assert next(iter(flags)) in str(refused.value)
