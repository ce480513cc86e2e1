"""Features of a kernel model that is solved from sums of products.

The model has two kinds of features. *Joint* features are pairs of the cosine and the
sine of an angle, at one or several bandwidths; the angle is a sum over all parties.
*Local* features are derived by each party from its own columns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vfl_flower.numerics.random_features import Kernel, RandomFeatures, pair_distances
from vfl_flower.numerics.ridge.local_columns import (
    LocalColumns,
    local_columns,
    scaled_columns,
)
from vfl_flower.typing import Array

_LOCAL = "local_"
"""Prefix of the fields for local columns in a party's local model."""


def cumulants(X: Array, kernel: Kernel, rng: np.random.Generator) -> Array:
    """Return the mean, variance and third central moment of row distances, (3,).

    Distances are squared Euclidean for "gaussian" and L1 for "laplacian", between each
    row of the scaled columns X, (n, d), and another row chosen at random. If the
    parties' columns are independent of each other, the parties' cumulants add up to the
    cumulants of the distances over all columns.
    """
    order = rng.permutation(len(X))
    distances = pair_distances(X, np.stack([order, np.roll(order, 1)]), kernel)
    mean = distances.mean()
    centered = distances - mean
    return np.array([mean, (centered**2).mean(), (centered**3).mean()])


def median_of(cumulants: Array) -> float:
    """Return the median of distances, k_1 - k_3 / (6 k_2) by Cornish and Fisher.

    If the tail is so heavy that this formula fails, the result is a quarter of the
    mean.
    """
    mean, variance, third = cumulants.tolist()
    skew = third / (6 * variance) if variance > 0 else 0.0
    return float(max(mean - skew, mean / 4))


def joint_features(
    kernel: Kernel,
    d: int,
    bandwidths: Sequence[float],
    densities: Sequence[float],
    seed: int,
) -> list[RandomFeatures]:
    """Return a party's `RandomFeatures` for the joint features, one per bandwidth.

    `d` is the number of the party's scaled columns. `densities` are the probabilities
    that an angle uses a column. The seeds of all bandwidths follow from `seed`, the
    party's secret.
    """
    pairs = zip(bandwidths, densities, strict=True)
    return [
        RandomFeatures(kernel, d, bandwidth, (seed + k) % 2**128, density=density)
        for k, (bandwidth, density) in enumerate(pairs)
    ]


def joint_angles(
    joint: Sequence[RandomFeatures],
    counts: Sequence[int],
    X: Array,
    bits: int,
    multiple: int = 1,
) -> Array:
    """Return a party's terms of the angles of all joint features, (n, sum of counts).

    X, (n, d), are scaled columns; see :meth:`RandomFeatures.angles` for `bits`. Each
    angle is multiplied by `multiple`, as if the bandwidths were divided by this number.
    """
    pairs = zip(joint, counts, strict=True)
    angles = np.hstack([part.angles(X, 0, count, bits) for part, count in pairs])
    return np.asarray(angles * angles.dtype.type(multiple))


def joint_frequencies(joint: Sequence[RandomFeatures], counts: Sequence[int]) -> Array:
    """Return a party's frequencies times their bandwidths, (sum of counts, d).

    The result is in radians per unit of the scaled columns.
    """
    pairs = zip(joint, counts, strict=True)
    return np.vstack([part.bandwidth * part.weights(0, m)[0] for part, m in pairs])


def part_angles(
    part: Mapping[str, Any], fitted: LocalColumns, X: Array, bits: int
) -> Array:
    """Return a party's terms, (n, angles), of the angles of rows X, (n, d).

    `part` is the party's local model. Missing values of X are NaN; `fitted` is the map
    to the party's local columns.
    """
    Z, seed = scaled_columns(fitted, X), int(part["seed"], 16)
    settings = part["bandwidths"], part["densities"]
    joint = joint_features(part["kernel"], Z.shape[1], *settings, seed)
    Z = Z * part.get("relevance", 1.0)
    return joint_angles(joint, part["counts"], Z, bits, part.get("multiple", 1))


def pairs(turns: Array) -> Array:
    """Return the cosines of angles in turns, followed by their sines, (n, 2 A)."""
    angles = 2 * math.pi * turns
    return np.hstack([np.cos(angles), np.sin(angles)])


def pack_local(fitted: LocalColumns) -> dict[str, Any]:
    """Return the map to local columns as fields of a party's local model."""
    return {_LOCAL + name: value for name, value in vars(fitted).items()}


def unpack_local(part: Mapping[str, Any]) -> LocalColumns:
    """Return the map that :func:`pack_local` packed."""
    names = [f.name for f in dataclasses.fields(LocalColumns)]
    columns = {name: part[_LOCAL + name] for name in names if _LOCAL + name in part}
    return LocalColumns(**columns)


def decision_function(
    parts: Sequence[Mapping[str, Any]], blocks: Sequence[Array]
) -> Array:
    """Return the scores of rows, (n, K), in the unit of y, from all local models.

    `blocks` are the columns of each party, (n, d_j), in party order like `parts`.
    """
    holder = next(part for part in parts if "coef" in part)
    size = max(1, 2**19 // len(holder["coef"]))
    scores = []
    for start in range(0, max(len(blocks[0]), 1), size):
        columns, turns = [], np.zeros(0)
        for part, block in zip(parts, blocks, strict=True):
            X = np.asarray(block[start : start + size], dtype=np.float64)
            fitted = unpack_local(part)
            columns.append(local_columns(fitted, X))
            if part["n_features"]:
                angles = part_angles(part, fitted, X, 64)
                turns = turns + angles if turns.size else angles
        F = np.hstack([*columns, pairs(turns)] if turns.size else columns)
        scores.append(F @ holder["coef"] + holder["intercept"])
    return np.concatenate(scores)
