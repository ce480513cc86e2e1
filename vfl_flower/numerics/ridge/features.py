"""Features of a kernel model that is solved from sums of products.

Two kinds of features make the model: *joint* ones, pairs of a cosine and a sine of an
angle that is a sum over all parties, at one or several bandwidths; and *local* ones,
which each party makes of its own columns.
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
"""Before a field of the local columns: its name in a party's part."""


def cumulants(X: Array, kernel: Kernel, rng: np.random.Generator) -> Array:
    """Return the first three cumulants of a party's part of the distances of rows.

    They are mean, variance and third central moment, (3,), of squared Euclidean
    distances for "gaussian" and of L1 for "laplacian", where X, (n, d), are scaled
    columns and each row is paired with a random other one. Those of several parties add
    up to those of the distances, where the columns of parties are independent of each
    other.
    """
    order = rng.permutation(len(X))
    distances = pair_distances(X, np.stack([order, np.roll(order, 1)]), kernel)
    mean = distances.mean()
    centered = distances - mean
    return np.array([mean, (centered**2).mean(), (centered**3).mean()])


def median_of(cumulants: Array) -> float:
    """Return the median of a distribution of distances from its first three cumulants.

    The first terms of the expansion of Cornish and Fisher, k_1 - k_3 / (6 k_2); where
    the tail is so heavy that these fail, a quarter of the mean.
    """
    mean, variance, third = cumulants.tolist()
    skew = third / (6 * variance) if variance > 0 else 0.0
    return float(max(mean - skew, mean / 4))


def joint_angles(
    X: Array,
    kernel: Kernel,
    bandwidths: Sequence[float],
    counts: Sequence[int],
    densities: Sequence[float],
    seed: int,
    bits: int,
    multiple: int = 1,
) -> Array:
    """Return a party's part of the angles of all joint features, (n, sum of counts).

    X, (n, d), are scaled columns. For each of the `bandwidths`, in the unit of X,
    `counts` is the number of angles, and `densities` the probability with which an
    angle has a column; the seeds of all bandwidths follow from `seed`, the party's
    secret. `bits` is the type of the angles; see :meth:`RandomFeatures.angles`. Each
    angle is multiplied by `multiple`, as if the bandwidths were so many times smaller.
    """
    made = _random_features(kernel, X.shape[1], bandwidths, densities, seed)
    pairs = zip(made, counts, strict=True)
    angles = np.hstack([part.angles(X, 0, count, bits) for part, count in pairs])
    return np.asarray(angles * angles.dtype.type(multiple))


def joint_frequencies(
    d: int,
    kernel: Kernel,
    bandwidths: Sequence[float],
    counts: Sequence[int],
    densities: Sequence[float],
    seed: int,
) -> Array:
    """Return a party's part of the frequencies of all joint features.

    The result has the shape (sum of counts, d), in radians per unit of the scaled
    columns, times the bandwidth. The arguments are those of :func:`joint_angles`.
    """
    made = _random_features(kernel, d, bandwidths, densities, seed)
    pairs = zip(made, counts, strict=True)
    return np.vstack([part.bandwidth * part.weights(0, m)[0] for part, m in pairs])


def _random_features(
    kernel: Kernel,
    d: int,
    bandwidths: Sequence[float],
    densities: Sequence[float],
    seed: int,
) -> list[RandomFeatures]:
    pairs = zip(bandwidths, densities, strict=True)
    return [
        RandomFeatures(kernel, d, bandwidth, (seed + k) % 2**128, density=density)
        for k, (bandwidth, density) in enumerate(pairs)
    ]


def part_angles(
    part: Mapping[str, Any], fitted: LocalColumns, X: Array, bits: int
) -> Array:
    """Return the angles of rows X, (n, d), by a party's part of a model, (n, angles).

    Missing values of X are NaN; `fitted` are the party's local columns.
    """
    return joint_angles(
        scaled_columns(fitted, X) * part.get("relevance", 1.0),
        part["kernel"],
        part["bandwidths"],
        part["counts"],
        part["densities"],
        int(part["seed"], 16),
        bits,
        part.get("multiple", 1),
    )


def pairs(turns: Array) -> Array:
    """Return the cosines and then the sines of angles in turns, shape (n, 2 A)."""
    angles = 2 * math.pi * turns
    return np.hstack([np.cos(angles), np.sin(angles)])


def pack_local(fitted: LocalColumns) -> dict[str, Any]:
    """Return how local columns are made, for a party's part."""
    return {_LOCAL + name: value for name, value in vars(fitted).items()}


def unpack_local(part: Mapping[str, Any]) -> LocalColumns:
    """Return what :func:`pack_local` has packed."""
    names = [f.name for f in dataclasses.fields(LocalColumns)]
    kept = {name: part[_LOCAL + name] for name in names if _LOCAL + name in part}
    return LocalColumns(**kept)


def decision_function(
    parts: Sequence[Mapping[str, Any]], blocks: Sequence[Array]
) -> Array:
    """Return the scores of rows, (n, K), in the unit of y, from all parts of a model.

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
