"""Training and test rows, the same at every party and at the server."""

from __future__ import annotations

import zlib

import numpy as np

from vfl_flower.typing import Array


def split_rows(n: int, test_fraction: float, seed: int) -> tuple[Array | None, Array]:
    """Split rows 0 .. n - 1 at random; whoever knows (n, fraction, seed) agrees.

    Parameters
    ----------
    n : int
        Number of rows.
    test_fraction : float
        Share of the rows held out, in [0, 1).
    seed : int
        Seed of the run.

    Returns
    -------
    train : Array or None
        Sorted numbers of the training rows; None: all rows.
    test : Array
        Sorted numbers of the others.
    """
    n_test = round(test_fraction * n)
    if n_test == 0:
        return None, np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(b"split")]))
    order = rng.permutation(n)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def training_rows(n: int, test_fraction: float, rows: int, seed: int) -> Array:
    """Draw some of the training rows; whoever knows the arguments agrees.

    Parameters
    ----------
    n, test_fraction, seed : int, float, int
        As for :func:`split_rows`.
    rows : int
        Number of rows, at least 2.

    Returns
    -------
    Array
        Their sorted numbers.

    Raises
    ------
    ValueError
        There are not so many training rows, or fewer than 2.
    """
    train = split_rows(n, test_fraction, seed)[0]
    train = np.arange(n) if train is None else train
    if not 2 <= rows <= len(train):
        raise ValueError(f"rows must be from 2 to {len(train)}, got {rows}")
    rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(b"rows")]))
    return np.sort(rng.permutation(train)[:rows])
