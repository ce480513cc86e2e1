"""Fixtures: a place for party files."""

from pathlib import Path

import pytest


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> Path:
    """Return an empty folder for party files, which has a cache beside it."""
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(tmp_path / "cache"))
    (folder := tmp_path / "files").mkdir()
    return folder
