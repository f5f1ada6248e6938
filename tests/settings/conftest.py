"""Fixtures and helpers for the tests of settings."""

import os
from pathlib import Path

import pytest
from argon2 import PasswordHasher

HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("a word")


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings file and the TRELLIS_ variables of this machine from the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "trellis.settings.loading.SEARCHED", (Path("broker.toml"), tmp_path / "etc.toml")
    )
    for name in [name for name in os.environ if name.startswith("TRELLIS_")]:
        monkeypatch.delenv(name)


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name
