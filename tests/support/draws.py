"""Draws in tests: the same each time, or new each time."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

FAILED = DirectoryBasedExampleDatabase(Path(__file__).parents[2] / ".hypothesis")
"""Examples on which a law has failed; they are tried first the next time."""


def law(test: Callable[..., None]) -> Callable[..., None]:
    """Put a test into the second stage: hypothesis draws new examples each time."""
    return pytest.mark.second(settings(derandomize=False, database=FAILED)(test))


@contextmanager
def repeated_draws(seed: int) -> Iterator[None]:
    """Draw from a generator instead of the operating system.

    So a run without a seed gives the same result each time, for assertions that need
    it. Masks and the dealer's values still differ.
    """
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_bytes", rng.bytes)
        patch.setattr(
            "secrets.randbits", lambda bits: int(rng.integers(2 ** (bits - 1)))
        )
        yield


def stream(seed: int, *names: int | str) -> np.random.Generator:
    """Return a generator of a seeded run, for a party or for the server."""
    entropy = [n if isinstance(n, int) else zlib.crc32(n.encode()) for n in names]
    return np.random.default_rng(np.random.SeedSequence([seed, *entropy]))
