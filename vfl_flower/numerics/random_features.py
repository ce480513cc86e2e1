r"""Random features of a kernel over split columns; each party draws from its own seed.

The symbols are those of [1]. Let k(x - x') be a kernel with k(0) = 1, and let the
frequencies omega_j be drawn from its Fourier transform, and the phases b_j uniformly
from a full turn. Eq. 2 and 3 are then

    phi_j(x) = sqrt(2) cos(omega_j^T x + b_j),    E[phi_j(x) phi_j(x')] = k(x - x').

Both kernels here are products over the columns, so party l draws the components of
omega_j for its own columns, and its own b_j. The parties' angles, as fractions of a
full turn, add up modulo 1 to the angle of the row.

[1] B. Gu, Z. Dang, X. Li and H. Huang, "Federated Doubly Stochastic Kernel Learning for
Vertically Partitioned Data", KDD 2020.
[2] F. Yu, A. T. Suresh, K. Choromanski, D. Holtmann-Rice and S. Kumar, "Orthogonal
Random Features", NeurIPS 2016.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.random import Philox

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.rows import Rows
from vfl_flower.typing import Array

Kernel = Literal["gaussian", "laplacian"]
"""exp(-|x - x'|_2^2 / (2 s^2)) and exp(-|x - x'|_1 / s) with bandwidth s."""

CHUNK = 64
"""Number of features generated together. If it changes, so do each seed's features."""

TILE = 2**20
"""Number of values in a tile of partial products; smaller tiles are no faster."""

DTYPES: dict[int, np.dtype[Any]] = {
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.float64),
}
"""Type of an angle, by its number of bits."""

ROUND = {4: 1.5 * 2.0**23, 8: 1.5 * 2.0**52}
"""Indexed by the byte size of a float p: the low bits of p + ROUND are rint(p), in
two's complement."""


@dataclass(repr=False, eq=False)
class RandomFeatures:
    """A party's omega_j and b_j for random features phi_j (eq. 2 and 3 of [1]).

    Frequencies omega_j are Gaussian or Cauchy (see `Kernel`) for the party's d
    columns. The bandwidth s, in the unit of the columns, is the same at all parties.
    Whoever knows the seed, from 0 to 2^128 - 1, knows the party's omega_j and b_j. With
    `orthogonal`, the Gaussian omega_j are drawn in blocks of min(d, 64) orthogonal
    directions [2]; each single omega_j is still N(0, I / s^2). `density` is the
    probability, in (0, 1], that a frequency uses a column; the feature ignores all
    other columns. The kernel k of one column becomes ``1 - density + density k``, and
    the kernel of all columns is still the product of these kernels. Raises ValueError
    if the bandwidth is not positive and finite.

    Features 64 c to 64 c + 63 come from the Philox generator with the seed as its key
    and c in the second word of its counter. So ranges of features can be generated in
    any order. Normal and Cauchy numbers are computed here from the generator's raw
    words: NumPy guarantees the stream of raw words, but not the stream of its own
    normal numbers, and a model outlives a NumPy version.
    """

    kernel: str
    n_columns: int
    bandwidth: float
    seed: int
    _: KW_ONLY
    orthogonal: bool = False
    density: float = 1.0

    def __post_init__(self) -> None:
        """Check the bandwidth."""
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(
                f"bandwidth must be positive and finite, got {self.bandwidth}"
            )

    def weights(self, start: int, stop: int) -> tuple[Array, Array]:
        """Return omega_j, (stop - start, d), and b_j, (stop - start,), float64.

        Frequencies are in radians per unit of a column; phases are in full turns, in
        [0, 1). Raises ValueError if the range is empty or starts below 0.
        """
        _check_range(start, stop)
        first, last = start // CHUNK, -(-stop // CHUNK)
        d = self.n_columns
        p = min(d, CHUNK) if self.orthogonal and self.kernel == "gaussian" else 1
        rows = -(-CHUNK // p) * p  # whole blocks; rows beyond the chunk are dropped
        count = rows * d + rows * d % 2
        words = count + (CHUNK * d if self.density < 1 else 0)
        streams = [Philox(key=self.seed, counter=c << 64) for c in range(first, last)]
        raw = np.stack([stream.random_raw(CHUNK + words) for stream in streams])
        b = (raw[:, :CHUNK] >> 11) * 2.0**-53
        uniform = ((raw[:, CHUNK:] >> 12) + 0.5) * 2.0**-52  # 0 < u < 1
        uniform, choices = np.split(uniform, [count], axis=1)
        if self.kernel == "laplacian":
            omega = np.tan(np.pi * (uniform - 0.5))
        else:
            omega = _normal(uniform)[:, : rows * d]
        if p > 1:
            omega = _orthogonal(omega.reshape(-1, p, d))
        omega = omega.reshape(last - first, rows, d)[:, :CHUNK].reshape(-1, d)
        if self.density < 1:
            omega = omega * (choices.reshape(-1, d) < self.density)
        wanted = slice(start - first * CHUNK, stop - first * CHUNK)
        return omega[wanted] / self.bandwidth, b.ravel()[wanted]

    def angles(
        self,
        X: Array | Rows,
        start: int,
        stop: int,
        bits: int,
        rows: Array | None = None,
    ) -> Array:
        """Return the partial angles omega_j^T x + b_j as fractions of a full turn.

        X, (n, d), are the party's columns. `rows`, (m,), holds the numbers of the rows
        to use, in order and possibly with repeats; by default, all rows are used. The
        result has the shape (m, stop - start). With 8, 16 or 32 `bits`, the result
        contains unsigned integers of that size: the angles rounded to units of 2^-bits
        of a turn, whose sums wrap around. With 64 bits, it contains float64 fractions
        of a turn in [0, 1). Raises ValueError if an argument is not as described above,
        or if X or its product with the frequencies contains a value that is not finite.

        At 8 and 16 bits, the products are computed in float32 if the largest product of
        the block cannot exceed 2^20 units (16 turns at 16 bits). For standardised
        columns, the error of an angle is then at most slightly above half a unit, and
        the angles of a row can change by one unit if the row is computed together with
        different rows. All other products are computed in float64. Above 2^51 units
        (2^35 turns at 16 bits, 2^19 turns at 32 bits) the angle is computed from the
        rounded product.
        """
        if bits not in DTYPES:
            raise ValueError(f"bits must be 8, 16, 32 or 64, got {bits}")
        if len(X.shape) != 2 or X.shape[1] != self.n_columns:
            raise ValueError(
                f"X must be a real matrix with {self.n_columns} columns, got shape "
                f"{X.shape}"
            )
        chosen, d = RowBlocks(X, rows=rows), self.n_columns
        _check_range(start, stop)
        n = len(chosen)
        unit = 1.0 if bits == 64 else 2.0**bits  # units of an angle per turn
        limit = TILE // 4 // (d + 1)  # rows of X, or features, in 2 MiB
        r = max(1, min(2048, limit, n))
        c = max(1, min(TILE // r, limit) // CHUNK) * CHUNK
        buffers = [
            (np.ones((r, d + 1), dtype=real), np.empty(r * c, dtype=real))
            for real in (np.float32, np.float64)
        ]
        largest = np.append(np.zeros(d), 1.0)
        for block in chosen.blocks(r):
            np.maximum(largest[:d], np.abs(block).max(axis=0), out=largest[:d])
        if not np.isfinite(largest).all():
            raise ValueError("X must be finite")
        out = np.empty((n, stop - start), dtype=DTYPES[bits])
        for low in range(start - start % CHUNK, stop, c):
            low, high = max(low, start), min(low + c, stop)
            omega, b = self.weights(low, high)
            W = np.empty((d + 1, high - low))  # the last row multiplies the ones in A
            np.multiply(omega.T, unit / (2 * np.pi), out=W[:d])
            np.multiply(b, unit, out=W[d])
            with np.errstate(over="ignore"):
                bound = (largest * np.abs(W.T)).sum(axis=1).max()
            if not bound < math.inf:
                raise ValueError(
                    "X is too large: products with the frequencies are not finite"
                )
            # No factor may leave the range of float32, even if products are small.
            factors = max(largest.max(), np.abs(W).max())
            single = bits <= 16 and bound < 2**20 and factors < 2**60
            A, P = buffers[0 if single else 1]
            W = W.astype(A.dtype, copy=False)
            done = 0
            for tile in chosen.blocks(r):
                block = A[: len(tile)]
                block[:, :d] = tile
                product = P[: len(block) * (high - low)].reshape(len(block), -1)
                np.matmul(block, W, out=product)
                part = slice(done, done := done + len(tile))
                _wrap(product, out[part, low - start : high - start], bound < 2**51)
        return out


def features(angles: Array, *, out: Array | None = None) -> Array:
    """Return phi_j(x) = sqrt(2) cos(2 pi angle) (eq. 2 and 3 of [1]).

    The angles, of any shape, are those of `RandomFeatures.angles`, summed over the
    parties; the features lack the factor 1 / sqrt(M) of a mean over M features. Raises
    ValueError if the angles have a different type.
    """
    if angles.dtype not in DTYPES.values():
        raise ValueError(
            "angles must be of type uint8, uint16, uint32 or float64, got "
            f"{angles.dtype}"
        )
    if out is None:
        out = np.empty(angles.shape)
    if angles.dtype.itemsize <= 2:
        # All indices are within the table; the mode "clip" does not check them.
        np.take(_table(angles.dtype.itemsize), angles, out=out, mode="clip")
        return out
    turn = 1.0 if angles.dtype.kind == "f" else 2.0**32
    np.multiply(angles, 2 * np.pi / turn, out=out)
    np.cos(out, out=out)
    out *= math.sqrt(2)
    return out


def draw_pairs(n: int, count: int, rng: np.random.Generator) -> Array:
    """Return P = `count` pairs of different row numbers, of shape (2, P).

    Raises ValueError if `n` is below 2.
    """
    if n < 2:
        raise ValueError(f"n must be at least 2 to make a pair of rows, got {n}")
    i, j = rng.integers(n, size=count), rng.integers(n - 1, size=count)
    return np.stack([i, j + (j >= i)])


def pair_distances(X: Array | Rows, pairs: Array, kernel: str) -> Array:
    """Return a party's contributions to the distances of row pairs, float64, (P,).

    A contribution is the sum over the party's columns, (n, d), of (x - x')^2 for
    "gaussian", or of |x - x'| for "laplacian". `pairs`, (2, P), are row numbers. Raises
    ValueError if X is not a real matrix, `pairs` does not fit X, or a distance is not
    finite.
    """
    power = 2 if kernel == "gaussian" else 1
    first, second = RowBlocks(X, rows=pairs[0]), RowBlocks(X, rows=pairs[1])
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = zip(first, second, strict=True)
        parts = [(np.abs(a - b) ** power).sum(axis=1) for a, b in blocks]
        distances = np.concatenate([np.zeros(0), *parts])
    if not np.isfinite(distances).all():
        raise ValueError(
            "distances between rows of X must be finite: standardise the columns, or "
            "set a bandwidth"
        )
    return distances


def median_bandwidth(distances: Array, kernel: str, resolution: float = 0.0) -> float:
    """Return the bandwidth according to the median heuristic.

    For the Gaussian kernel, s = sqrt(median / 2), so that k = exp(-|x - x'|^2 /
    median); for the Laplacian kernel, s = median. The distances, (P,), are summed over
    the parties; `resolution` is the step between distances if they come from a
    fixed-point sum. Raises ValueError if the median is 0, not finite, or below 2^20
    steps.
    """
    median = float(np.median(distances))
    if median < (least := 2**20 * resolution):
        raise ValueError(
            f"bandwidth 'median' needs distances above {least:.1e}: standardise the "
            "columns, or set a bandwidth"
        )
    if not 0 < median < math.inf:
        raise ValueError(
            "the median distance between rows must be positive and finite, got "
            f"{median:g}: set a bandwidth"
        )
    return math.sqrt(median / 2) if kernel == "gaussian" else median


def _check_range(start: int, stop: int) -> None:
    if not 0 <= start < stop:
        raise ValueError(f"range must satisfy 0 <= start < stop, got {start} to {stop}")


def _normal(uniform: Array) -> Array:
    """Convert uniform to normal numbers, (chunks, m) with m even, by Box-Muller."""
    half = uniform.shape[1] // 2
    radius = np.sqrt(-2 * np.log(uniform[:, :half]))
    turn = 2 * np.pi * uniform[:, half:]
    return np.concatenate([radius * np.cos(turn), radius * np.sin(turn)], axis=1)


def _orthogonal(G: Array) -> Array:
    """Return blocks of orthogonal rows, where each row keeps its original length.

    The length of a row g of G, (blocks, p, d), is independent of its direction, and the
    Gram-Schmidt process uses only directions. So |g| q is N(0, I), like g. QR gives the
    same result as this process if the diagonal of R is positive; otherwise signs
    differ.
    """
    Q, R = np.linalg.qr(G.transpose(0, 2, 1))
    signs = np.sign(np.diagonal(R, axis1=1, axis2=2))
    lengths = np.linalg.norm(G, axis=2) * signs
    return np.asarray((Q * lengths[:, None, :]).transpose(0, 2, 1))


def _wrap(product: Array, out: Array, small: bool) -> None:
    """Round products to whole units modulo a full turn, or reduce turns to [0, 1).

    If `small` is true, all products are below 2^51 in absolute value (2^22 for
    float32). `product` is overwritten.
    """
    if out.dtype.kind == "f":
        np.floor(product, out=out)
        np.subtract(product, out, out=out)
        out[out == 1] = 0  # from a product just below 0
    elif small:
        product += ROUND[product.itemsize]
        integers = product.view(f"i{product.itemsize}")
        np.copyto(out, integers, casting="unsafe")  # keeps the low bits
    else:
        np.rint(product, out=product)
        out[...] = np.remainder(product, 2.0 ** (8 * out.itemsize))


@cache
def _table(itemsize: int) -> Array:
    """Return a table of sqrt(2) cos for all angles of one or two bytes."""
    count = 2 ** (8 * itemsize)
    turns = np.arange(count) / count
    return np.asarray(math.sqrt(2) * np.cos(2 * np.pi * turns))


def taken(angles: Array, multiple: int) -> Array:
    """Return each angle times `multiple`, modulo a full turn.

    The results are the angles for a bandwidth of ``bandwidth / multiple``. Their
    quantisation errors are also multiplied.
    """
    if multiple == 1:
        return angles
    product = np.asarray(angles * angles.dtype.type(multiple))
    return np.asarray(product % 1.0) if angles.dtype.kind == "f" else product
