"""Fixtures: a private cache, and a writer of party files."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("VFL_FLOWER_CACHE", str(folder))
    return folder


@pytest.fixture
def write(tmp_path):
    def write(text, name="airline.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)
        return path

    return write
