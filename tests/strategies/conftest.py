"""Fixtures: a place for party files, and a server that asks although it is refused."""

from pathlib import Path

import pytest

from vfl_flower.server.greeting import Greeter


@pytest.fixture
def careless(monkeypatch) -> None:
    """Let the server ask on whatever the parties said that they refuse."""
    monkeypatch.setattr(Greeter, "_check_consent", lambda *_: None)


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> Path:
    """Return an empty folder for party files, which has a cache beside it."""
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(tmp_path / "cache"))
    (folder := tmp_path / "files").mkdir()
    return folder
