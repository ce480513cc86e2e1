"""Fixtures: a place for party files, and a server that asks although it is refused."""

from pathlib import Path

import pytest

from vfl_flower.server.greeting import Greeter


@pytest.fixture
def careless(monkeypatch) -> None:
    """Let the server ask on whatever the parties said that they refuse."""
    monkeypatch.setattr(Greeter, "_check_consent", lambda *_: None)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return an empty folder for party files."""
    (folder := tmp_path / "files").mkdir()
    return folder
