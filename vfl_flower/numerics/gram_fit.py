"""Stub: least squares from the Gram matrices of two halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vfl_flower.typing import Array


@dataclass(frozen=True)
class Block:
    """Stub."""

    name: str
    columns: Array


@dataclass(frozen=True)
class GramFit:
    """Stub."""

    coef: Array
    intercept: Array
    regularization: float
    score: float


def fit_grams(grams: Sequence[Array], blocks: Sequence[Block], kind: str) -> GramFit:
    """Stub."""
    M = sum(len(b.columns) for b in blocks)

    def solve(G: Array, lam: float) -> Array:
        A = np.vstack([G[:M], G[-1:]])
        A = np.hstack([A[:, :M], A[:, -1:]])
        A = A + lam * np.diag([1.0] * M + [1e-9])
        return np.linalg.solve(A, np.vstack([G[:M, M:-1], G[-1:, M:-1]]))

    def loss(G: Array, w: Array) -> float:
        v = np.vstack([w[:-1], -np.eye(w.shape[1]), w[-1:]])
        return float(np.trace(v.T @ G @ v))

    lams = 10.0 ** np.arange(-2, 5)
    errors = [
        sum(loss(grams[1 - i], solve(grams[i], lam)) for i in (0, 1)) for lam in lams
    ]
    best = int(np.argmin(errors))
    w = solve(grams[0] + grams[1], 2 * lams[best])
    n = grams[0][-1, -1] + grams[1][-1, -1]
    return GramFit(w[:-1], w[-1], float(lams[best]), errors[best] / n)
