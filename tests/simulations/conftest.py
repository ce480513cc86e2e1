"""What the tests of the experiments share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet():
    """Let runs with a seed, of which each would warn, say nothing."""
    logging.getLogger("vfl_flower").setLevel(logging.ERROR)
    yield
    logging.getLogger("vfl_flower").setLevel(logging.NOTSET)
