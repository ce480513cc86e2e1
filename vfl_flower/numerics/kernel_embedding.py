"""The embedding of any row in federated kernel k-means, computed by a single party."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NotRequired, TypedDict, get_args

import numpy as np

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kernel_kmeans import feature_range, gamma, variances
from vfl_flower.numerics.kmeans import assign
from vfl_flower.numerics.random_features import RandomFeatures, features
from vfl_flower.rows import ArrayRows, Rows, as_rows
from vfl_flower.typing import Array

Kernel = Literal["gaussian", "laplacian"]
"""exp(-gamma |x - x'|_2^2) or exp(-gamma |x - x'|_1)."""

BLOCK_BYTES = 2**25
"""Size of a block of features: large, because weights are drawn anew per block."""


class FeatureSetup(TypedDict):
    """The settings that determine the random features."""

    kernel: Kernel
    gamma: float
    seed: str
    """Hexadecimal seed of the features, a secret of the parties."""
    fill: NotRequired[Array]
    """Replacements for missing values, of shape (d,); default: `shift`."""
    shift: NotRequired[Array]
    """For standardised columns: rows x are replaced by (x - shift) * scale; (d,)."""
    scale: NotRequired[Array]


class EmbeddingPart(FeatureSetup):
    """A party's local model."""

    D: int
    D_1: int
    """Numbers of features: D_1 in the first iteration, D in each later iteration."""
    P: NotRequired[Array]
    """Map from the features of all iterations to the embedding, (D_1 + .. + D_T, s);
    absent if the paper's communication mechanism is not used."""
    centers: Array
    """Centres of the clusters in the space of the embedding, of shape (k, s)."""
    labels: Array
    """Clusters of the party's training rows, an int32 array of shape (n,)."""


def bandwidth(kernel: str, gamma: float) -> float:
    """Return the bandwidth of `RandomFeatures` for gamma."""
    return 1 / math.sqrt(2 * gamma) if kernel == "gaussian" else 1 / gamma


def default_gamma(
    kernel: Kernel, N: int, sum_x: Array, sum_squares: Array, shift: Array | float = 0.0
) -> float:
    """Return gamma, computed from sums over all rows, (d,), as in `variances`.

    For the Gaussian kernel, this is the paper's gamma (see `gamma`). For the Laplacian
    kernel, gamma is the inverse of the mean of |x - x'|_1 for normally distributed
    columns, which is 2 / sqrt(pi) standard deviations per column. Raises ValueError if
    the sums are not finite or no column varies.
    """
    gaussian = gamma(N, sum_x, sum_squares, shift)
    if kernel == "gaussian":
        return gaussian
    deviations = np.sqrt(variances(N, sum_x, sum_squares, shift))
    return 1 / float(2 / math.sqrt(math.pi) * deviations.sum())


def feature_blocks(
    setup: FeatureSetup, X: Array | Rows, start: int, stop: int
) -> Iterator[Array]:
    """Yield the random features start .. stop - 1 of rows X, (n, d), in blocks.

    A block, (b, stop - start), holds a_j(x), with E[a_j(x) a_j(x')] = K(x, x'). Raises
    ValueError if a feature is not finite, if the bandwidth for gamma is out of the
    range of float64, or if a value is missing (NaN) and the setup has no replacement
    for it.
    """
    rows = as_rows(X)
    for block in rows.blocks(feature_block_rows(setup, rows, start, stop)):
        yield features_of(setup, block, start, stop)


def feature_block_rows(setup: FeatureSetup, X: Rows, start: int, stop: int) -> int:
    """Return how many rows a block of features may have, to limit the extra memory."""
    copied = "scale" in setup or not isinstance(X, ArrayRows)
    widest = max(stop - start, X.shape[1] if copied else 1)
    return max(1, BLOCK_BYTES // (8 * widest))


def features_of(setup: FeatureSetup, X: Array, start: int, stop: int) -> Array:
    """Return the random features of one block of rows; see :func:`feature_blocks`.

    Raises ValueError if the setup's kernel is not in `Kernel`.
    """
    kernel, seed = setup["kernel"], int(setup["seed"], 16)
    if kernel not in (kernels := get_args(Kernel)):
        raise ValueError(
            f"the kernel of a model must be one of {kernels}, got {kernel!r}"
        )
    d, g = X.shape[1], float(setup["gamma"])
    X = _filled(setup, X)
    if "scale" in setup:
        X = (X - setup["shift"]) * setup["scale"]
    draws = RandomFeatures(kernel, d, bandwidth(kernel, g), seed, orthogonal=True)
    turns = draws.angles(X, start, stop, 64)
    return features(turns, out=turns)


def _filled(setup: FeatureSetup, rows: Array) -> Array:
    gaps = np.isnan(rows)
    if not gaps.any():
        return rows
    fill = setup.get("fill", setup.get("shift"))
    if fill is None:
        raise ValueError(
            "rows must have no missing value, since the training rows had none"
        )
    return np.where(gaps, fill, rows)


def embed_rows(part: EmbeddingPart, X: Array | Rows) -> Array:
    """Return h(x) = [a_1(x) .. a_T(x)] P, (n, s), for rows X, (n, d).

    The inner products of the embedded rows estimate K_s.
    """
    P, D, D_1 = part["P"], int(part["D"]), int(part["D_1"])
    H = np.zeros((len(X), P.shape[1]))
    seen, t = 0, 1
    while seen < len(P):
        start, stop = feature_range(t, D, D_1)
        P_t = P[seen : seen + stop - start]
        done = 0
        for A in feature_blocks(part, X, start, stop):
            H[done : done + len(A)] += A @ P_t
            done += len(A)
        seen, t = seen + stop - start, t + 1
    return H


def label_rows(part: EmbeddingPart, X: Array | Rows) -> Array:
    """Return the cluster that a party's local model assigns to each row, shape (n,)."""
    H = RowBlocks(embed_rows(part, X))
    return H.per_row(lambda rows: assign(rows, part["centers"])[0])
