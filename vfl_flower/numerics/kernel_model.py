"""A kernel model in parts: each party's features, and what the label holders hold.

A part is a mapping from names to settings and arrays:

==================  ====================================================================
``kernel``, ..      ``kernel``, ``bandwidth``, ``n_features``, ``n_columns``: the model
``n_parties``       how many parties trained it
``seed``            of the party's own features, hexadecimal; its secret
``holders``         the parties with coefficients, in party order
``block``           feature j belongs to holder number ``(j // block) % len(holders)``
``shared_seed``     only with shared features: the seed that all parties know, with
                    ``first_column`` and ``all_columns``, where the party's columns are,
                    and ``kept``, whose phase stays, for each holder
``coef``            only at a holder, shape (M_l, C): of its own features, unit of y
``intercept``       only at a holder, shape (C,), in the unit of y
``target``          only at a holder: ``binary``, ``multiclass``, ``continuous``
``classes``         only at a holder: the label of each class
``scale``           only at one of several holders: size of its labels, a power of two
==================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.typing import Array

BLOCK_NUMBERS = 2**19
"""Numbers of a block of features: 4 MB."""


def own_features(part: Mapping[str, Any]) -> RandomFeatures:
    """Return the random features that the party alone can compute."""
    return RandomFeatures(
        part["kernel"],
        part["n_columns"],
        part["bandwidth"],
        int(part["seed"], 16),
        orthogonal=False,  # blocks would tell one party's columns from another's
    )


def partial_angles(
    part: Mapping[str, Any],
    X: Array,
    stop: int,
    bits: int,
    rows: Array | None = None,
) -> Array:
    """Return a party's part of the angles of rows (line 3 of Algorithm 3).

    Parameters
    ----------
    part : mapping
        The party's part of the model.
    X : Array, shape (n, d_l)
        Its columns.
    stop : int
        Features 0 to stop - 1.
    bits : {16, 32, 64}
        Type of the angles; see :meth:`RandomFeatures.angles`. With shared features
        they are real turns, whole turns included, and `bits` is 64.
    rows : Array of int, shape (m,), optional
        Rows of `X`; default: all.

    Returns
    -------
    Array, shape (m, stop)
        Fractions of a turn, or turns.
    """
    own = own_features(part)
    if "shared_seed" not in part:
        return own.angles(X, 0, stop, bits, rows)
    every = RandomFeatures(
        part["kernel"],
        part["all_columns"],
        part["bandwidth"],
        int(part["shared_seed"], 16),
        orthogonal=False,
    )
    omega, _ = every.weights(0, stop)
    first = part["first_column"]
    X = X if rows is None else X[rows]
    turns = X @ (omega[:, first : first + part["n_columns"]].T / (2 * np.pi))
    return np.asarray(turns + own.weights(0, stop)[1])


def owned(part: Mapping[str, Any], stop: int, holder: int) -> Array:
    """Return which of the features 0 .. stop - 1 belong to a holder, shape (stop,)."""
    turn = np.arange(stop) // part["block"] % len(part["holders"])
    return np.asarray(np.asarray(part["holders"])[turn] == holder)


def decision_function(
    parts: Sequence[Mapping[str, Any]], blocks: Sequence[Array]
) -> Array:
    """Return f(x), eq. 7, where all parts of a model are in one place.

    Parameters
    ----------
    parts : sequence of mapping
        One a party, in party order.
    blocks : sequence of Array, shape (n, d_l)
        The columns of each party.

    Returns
    -------
    Array, shape (n, C)
        Scores of the classes, or the predicted value; in the unit of y.
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
            mine = owned(parts[0], M, holder)
            own = turns[:, mine]
            if shared:
                others = [p for k, p in enumerate(parts) if k != p["kept"][place]]
                for part in others:
                    own = own - own_features(part).weights(0, M)[1][mine]
            total = total + linear_scores(own % 1.0, parts[holder]["coef"])
            total = total + parts[holder]["intercept"]
        scores.append(total)
    return np.concatenate(scores)


def linear_scores(angles: Array, coef: Array) -> Array:
    """Return phi(x) coef of rows, by blocks.

    Parameters
    ----------
    angles : Array, shape (n, M)
        Summed angles, fractions of a turn or turns.
    coef : Array, shape (M, C)
        Coefficients, in the unit of y.

    Returns
    -------
    Array, shape (n, C)
        In the unit of y.
    """
    size = max(1, BLOCK_NUMBERS // max(1, angles.shape[1]))
    found = np.empty((len(angles), coef.shape[1]))
    for start in range(0, len(angles), size):
        rows = slice(start, start + size)
        found[rows] = features(angles[rows]) @ coef
    return found


def answers(scores: Array, target: str, classes: Array) -> Array:
    """Return labels of the classes with the largest scores, or the values.

    Parameters
    ----------
    scores : Array, shape (n, C)
        f(x), in the unit of y.
    target : {"binary", "multiclass", "continuous"}
        What the labels are.
    classes : Array, shape (2,) or (C,)
        Labels of the classes, in the order of the columns; binary: of -1 and +1.

    Returns
    -------
    Array, shape (n,)
        In the unit of y.
    """
    if target == "continuous":
        return scores[:, 0]
    if target == "binary":
        return np.asarray(classes[(scores[:, 0] > 0).astype(int)])
    return np.asarray(classes[scores.argmax(axis=1)])
