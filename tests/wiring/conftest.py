"""Flower itself, as organisations run it."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project() -> Path:
    """Return the folder of this project's ``pyproject.toml``."""
    return Path(__file__).parents[2]
