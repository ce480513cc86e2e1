"""Training and test rows, the same at every party and at the server."""

from __future__ import annotations

import zlib

import numpy as np

from vfl_flower.typing import Array


def split_rows(n: int, test_fraction: float, seed: int) -> tuple[Array | None, Array]:
    """Split rows 0 .. n - 1 at random, identically for equal arguments.

    Returns the sorted numbers of the training rows (None for all rows) and of the test
    rows.
    """
    n_test = round(test_fraction * n)
    if n_test == 0:
        return None, np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(b"split")]))
    order = rng.permutation(n)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def training_rows(n: int, test_fraction: float, rows: int, seed: int) -> Array:
    """Draw `rows` of the training rows of `split_rows`; return their sorted numbers.

    Raises ValueError if `rows` is below 2 or above the number of training rows.
    """
    train = split_rows(n, test_fraction, seed)[0]
    train = np.arange(n) if train is None else train
    if not 2 <= rows <= len(train):
        raise ValueError(f"rows must be from 2 to {len(train)}, got {rows}")
    rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(b"rows")]))
    return np.sort(rng.permutation(train)[:rows])
