"""Fixtures: commands that take the place of a process."""

import os

import pytest

from vfl_flower.app.plan import progress


@pytest.fixture(autouse=True)
def _no_rehearsals(monkeypatch) -> None:
    """Let no run count its round trips beforehand, as plan/test_progress.py does."""
    monkeypatch.setattr(progress, "planned_trips", lambda *_: 0)


@pytest.fixture
def replaced(monkeypatch) -> list[tuple[str, list[str]]]:
    """Return which programs have taken the place of this process: it ends instead."""
    started: list[tuple[str, list[str]]] = []

    def execute(program, words):
        started.append((program, words))
        raise SystemExit

    monkeypatch.setattr(os, "execvp", execute)
    monkeypatch.setenv("PATH", "/bin")
    return started
