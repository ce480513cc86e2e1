"""Stub: columns that a party makes of its own columns alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vfl_flower.typing import Array


@dataclass(frozen=True)
class LocalColumns:
    """Stub."""

    center: Array
    scale: Array
    kept: Array


def fit_local_columns(
    X: Array,
    halves: Sequence[Array],
    *,
    most: int,
    least: int = 20,
    bins: int = 16,
    rng: np.random.Generator,
) -> LocalColumns:
    """Stub."""
    kept = [
        all(
            len(h) - np.unique(x[h], return_counts=True)[1].max() >= least
            for h in halves
        )
        for x in X.T
    ]
    scale = X.std(axis=0)
    return LocalColumns(
        X.mean(axis=0),
        np.where(scale > 0, scale, 1.0),
        np.flatnonzero(kept)[:most],
    )


def scaled_columns(fitted: LocalColumns, X: Array) -> Array:
    """Stub."""
    return np.clip((X - fitted.center) / fitted.scale, -8, 8)


def local_columns(fitted: LocalColumns, X: Array) -> Array:
    """Stub."""
    return scaled_columns(fitted, X)[:, fitted.kept]
