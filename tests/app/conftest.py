"""Fixtures: brief runs, and commands that take the place of a process."""

import os

import pytest
from results import undrawn

from vfl_flower.app.plan import progress
from vfl_flower.app.report import figures


@pytest.fixture(autouse=True)
def _brief(request, monkeypatch) -> None:
    """Let no run count its round trips beforehand, or draw, where neither is tested."""
    monkeypatch.setattr(progress, "planned_trips", lambda *_: 0)
    if request.path.parent.name != "report":
        monkeypatch.setattr(figures, "make_figure", undrawn)


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
