"""What parties and server draw without a seed, the same each time."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest


@contextmanager
def repeated_draws(seed: int) -> Iterator[None]:
    """Draw from a generator in the place of the operating system.

    So a run without a seed gives the same result each time, for an assertion that
    hangs on it. Masks and what is dealt are other ones still.
    """
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_bytes", rng.bytes)
        patch.setattr(
            "secrets.randbits", lambda bits: int(rng.integers(2 ** (bits - 1)))
        )
        yield


def stream(seed: int, *names: int | str) -> np.random.Generator:
    """Return a generator of a run with a seed: of a party, or of the server."""
    entropy = [n if isinstance(n, int) else zlib.crc32(n.encode()) for n in names]
    return np.random.default_rng(np.random.SeedSequence([seed, *entropy]))
