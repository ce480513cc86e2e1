"""A kernel model: each party's features and the label holders' coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

import numpy as np

from vfl_flower.numerics.kernel_solvers import LossName, sigmoid
from vfl_flower.numerics.random_features import Kernel, RandomFeatures, features, taken
from vfl_flower.rows import Rows, as_rows
from vfl_flower.typing import Array

Target = Literal["binary", "multiclass", "continuous"]
"""The type of labels: two values, several values, or real numbers."""

BLOCK_NUMBERS = 2**19
"""Number of values in a block of features: 4 MB."""


class KernelPart(TypedDict):
    """One party's local kernel model: its settings and arrays, by name."""

    kernel: Kernel
    bandwidth: float
    n_features: int
    n_columns: int
    n_parties: int
    index: int
    columns: list[str]
    seed: str
    """Hexadecimal seed of the party's own features, which is the party's secret."""
    holders: list[int]
    """The label holders, which hold the coefficients, in party order."""
    block: int
    """Feature j belongs to label holder number ``(j // block) % len(holders)``."""
    shared_seed: NotRequired[str]
    """With shared features: the hexadecimal seed that all parties know."""
    first_column: NotRequired[int]
    all_columns: NotRequired[int]
    """With shared features: the position of the party's first column among all columns,
    and the number of all columns."""
    kept: NotRequired[list[int]]
    """With shared features: for each label holder, the party whose phase is kept."""
    scale: NotRequired[float]
    """At a label holder in doubly stochastic training: the largest absolute label, as a
    power of two."""
    coef: NotRequired[Array]
    intercept: NotRequired[Array]
    """At a label holder, in the unit of y: the coefficients of its features, (M_l, C),
    and the intercept, (C,)."""
    target: NotRequired[Target]
    classes: NotRequired[Array]
    local: NotRequired[int]
    """With sums of products: number of local columns; see `numerics.ridge`."""
    multiple: NotRequired[int]
    """At a label holder that has chosen the bandwidth: the multiple; see `taken`."""
    loss: NotRequired[LossName]


def own_features(part: KernelPart) -> RandomFeatures:
    """Return the random features that only the party itself can compute."""
    # Not orthogonal: orthogonal blocks would reveal which party holds which column.
    seed = int(part["seed"], 16)
    return RandomFeatures(part["kernel"], part["n_columns"], part["bandwidth"], seed)


def partial_angles(
    part: KernelPart, X: Array | Rows, stop: int, bits: int, rows: Array | None = None
) -> Array:
    """Return a party's terms of the rows' angles (Algorithm 3, line 3), (m, stop).

    The arguments are those of `RandomFeatures.angles`. With shared features, the angles
    are float64 in turns, including whole turns, and `bits` is 64.
    """
    private = own_features(part)
    if "shared_seed" not in part:
        return private.angles(X, 0, stop, bits, rows)
    d, seed = part["all_columns"], int(part["shared_seed"], 16)
    shared = RandomFeatures(part["kernel"], d, part["bandwidth"], seed)
    omega, _ = shared.weights(0, stop)
    first = part["first_column"]
    W = omega[:, first : first + part["n_columns"]].T / (2 * np.pi)
    columns = as_rows(X)
    chosen = columns.take(np.arange(len(columns)) if rows is None else rows)
    return np.asarray(chosen @ W + private.weights(0, stop)[1])


def owned(part: KernelPart, stop: int, holder: int) -> Array:
    """Return which of the features 0 .. stop - 1 belong to a label holder, (stop,)."""
    turn = np.arange(stop) // part["block"] % len(part["holders"])
    return np.asarray(np.asarray(part["holders"])[turn] == holder)


def decision_function(parts: Sequence[KernelPart], blocks: Sequence[Array]) -> Array:
    """Return f(x) (eq. 7), (n, C), computed from the local models of all parties.

    `blocks` are the columns of each party, (n, d_l), in party order like `parts`.
    """
    M, n = parts[0]["n_features"], len(blocks[0])
    shared = "shared_seed" in parts[0]
    scores = []
    size = max(1, BLOCK_NUMBERS // M)
    for start in range(0, max(n, 1), size):
        rows = slice(start, min(start + size, n))
        turns: Array = sum(  # type: ignore[assignment]
            partial_angles(part, X[rows], M, 64)
            for part, X in zip(parts, blocks, strict=True)
        )
        total: float | Array = 0.0
        for place, holder in enumerate(parts[0]["holders"]):
            of_holder = owned(parts[0], M, holder)
            angles = turns[:, of_holder]
            if shared:
                for k, part in enumerate(parts):
                    if k != part["kept"][place]:
                        _, phases = own_features(part).weights(0, M)
                        angles = angles - phases[of_holder]
            angles = taken(angles % 1.0, parts[holder].get("multiple", 1))
            total = total + linear_scores(angles, parts[holder]["coef"])
            total = total + parts[holder]["intercept"]
        scores.append(total)
    return np.concatenate(scores)


def linear_scores(angles: Array, coef: Array) -> Array:
    """Return phi(x) coef, (n, C), from summed angles, (n, M), and `coef`, (M, C)."""
    size = max(1, BLOCK_NUMBERS // max(1, angles.shape[1]))
    scores = np.empty((len(angles), coef.shape[1]))
    for start in range(0, len(angles), size):
        rows = slice(start, start + size)
        scores[rows] = features(angles[rows]) @ coef
    return scores


def answers(scores: Array, target: Target, classes: Array) -> Array:
    """Return predictions, (n,): the labels of the top-scoring classes, or real values.

    `scores` are f(x), (n, C), and `classes`, (C,), are the labels of the columns; for
    "binary", they are the labels of -1 and +1, (2,).
    """
    if target == "continuous":
        return scores[:, 0]
    if target == "binary":
        return np.asarray(classes[(scores[:, 0] > 0).astype(int)])
    return np.asarray(classes[scores.argmax(axis=1)])


def probabilities(scores: Array) -> Array:
    """Return the probabilities of the classes according to the logistic loss.

    `scores` are f(x), (n, C). The result has the same shape, or (n, 2) if C is 1. The
    one-vs-rest probabilities are divided by their sum.
    """
    if scores.shape[1] == 1:
        return np.asarray(sigmoid(np.hstack([-scores, scores])))
    each = np.maximum(sigmoid(scores), np.finfo(np.float64).tiny)
    return np.asarray(each / each.sum(axis=1, keepdims=True))
