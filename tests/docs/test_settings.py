"""docs/settings.md says what the settings are, and the configuration files in docs can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.settings_table import PAGE, rendered
from tests.docs.test_code_blocks import blocks
from trunkline.config import ServeSettings


def test_the_table_is_that_of_the_settings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rendered(page), "run `make docs`"
    for field in ServeSettings.fields():
        assert f"| `{field.name}` |" in page


@pytest.mark.parametrize("text", blocks("toml"))
def test_configuration_files_load(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    ServeSettings.load(flags={}, environment={}, file=file)
