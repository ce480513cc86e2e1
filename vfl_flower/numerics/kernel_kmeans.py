r"""The numerics of federated kernel k-means: DSPGD with its communication mechanism.

The symbols are those of [1], whose *users* are our parties: N rows in all, D random
features per iteration, a(x) with E[a(x)^T a(x')] / D = K(x, x'); iteration t = 1 .. T
has the step eta_t = 1 / t and

    W_t = [sqrt(eta_t / D) A_t, sqrt(1 - eta_t) B_t],    B_1 empty   (line 8),
    W_t^T W_t = V diag(lambda_i) V^T                                 (line 10),
    B_{t+1} = [sqrt(lambda_i - eta_t lambda) u_i],  u_i = W_t v_i / sqrt(lambda_i)

over lambda_i > eta_t lambda (lines 12 and 13), so that Z_t = B_t B_t^T. Each step only
multiplies W_t on the right by a small matrix, which is the same at all parties. Here
B_{t+1} is W_t R_t, and the embedding is H = W_T R' (line 17).

Differences from [1]: 1. The first iteration has D_1 >= D features, since it sets
lambda, and eta_t weights all features equally (`first_features`, `step_size`; D_1 = D
is [1]). 2. lambda is set differently (`default_threshold`). 3. A map embeds new rows
(`compose`).

[1] X. Zhou and X. Wang, "A Communication Efficient Federated Kernel k-Means",
manuscript under review.
[2] W. Wang and J. Fan, "Asymptotics of empirical eigenstructure for high dimensional
spiked covariance", The Annals of Statistics 45(3), 2017 (the S-POET estimator).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vfl_flower.numerics.random_features import CHUNK
from vfl_flower.rows import Rows, add_each, as_rows
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

CONSTANT = 1e-12
"""A variance of at most this share of the column's mean square is a rounding error."""

Rule = float | Literal["auto", "paper"]
"""lambda itself, or the rule by which the first iteration sets it."""


def first_features(D: int, s: int) -> int:
    """Return D_1 = max(D, 4 (s + 5)), enough for `default_threshold` ([1]: D_1 = D)."""
    return max(D, 4 * (s + 5))


def feature_range(t: int, D: int, D_1: int) -> tuple[int, int]:
    """Return the start and stop of the feature range in iteration t, counted from 1.

    The range has D features (D_1 at t = 1) and starts at a multiple of `CHUNK`.
    Orthogonal frequencies are drawn together within a chunk, and different chunks are
    independent. So the matrices xi_t = A_t A_t^T / D of different iterations are
    independent (Theorem 1).
    """
    if t == 1:
        return 0, D_1
    start = (-(-D_1 // CHUNK) + (t - 2) * -(-D // CHUNK)) * CHUNK
    return start, start + D


def step_size(t: int, D: int, D_1: int) -> float:
    """Return eta_t = D / (D_1 + (t - 1) D), or 1 at t = 1.

    If D_1 = D, this is the 1 / t of line 5.
    """
    return 1.0 if t == 1 else D / (D_1 + (t - 1) * D)


def stack(A: Array, B: Array, eta: float) -> Array:
    """Return W_t = [sqrt(eta_t / D) A_t, sqrt(1 - eta_t) B_t] (line 8), (n, D + r).

    A_t, (n, D), are random features without the factor 1 / sqrt(D), and B_t is (n, r).
    """
    n, D = A.shape
    W = np.empty((n, D + B.shape[1]))
    np.multiply(A, math.sqrt(eta / D), out=W[:, :D])
    np.multiply(B, math.sqrt(1 - eta), out=W[:, D:])
    return W


def eigenpairs(G: Array, threshold: float, at_least: int = 0) -> tuple[Array, Array]:
    """Return the eigenpairs above a threshold of G = W_t^T W_t, (m, m) (line 10).

    The threshold is eta_t lambda. At least `at_least` pairs are returned, or fewer if
    the other pairs are only rounding errors. The values, (j,), are descending; the
    vectors have the shape (m, j).
    """
    values, vectors = np.linalg.eigh(G)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = max(np.count_nonzero(values > threshold), at_least)
    count = min(count, above_rounding(values, len(G)))
    return values[:count], vectors[:, :count]


def above_rounding(values: Array, size: int) -> int:
    """Return how many of the descending eigenvalues, (j,), exceed the rounding error.

    They are the eigenvalues of a positive semidefinite matrix with `size` rows.
    """
    noise = size * np.finfo(np.float64).eps * max([*values[:1], 0.0])
    return int(np.count_nonzero(values > noise))


def shrink(values: Array, vectors: Array, cut: float) -> Array:
    """Return R_t with B_{t+1} = W_t R_t (lines 12 and 13 of Algorithm 1), (D + r, r').

    The columns of R_t are v_i sqrt((lambda_i - cut) / lambda_i) for all lambda_i > cut
    = eta_t lambda. Here lambda_i, (j,), are the eigenvalues and v_i, (D + r, j), the
    eigenvectors of W_t^T W_t.
    """
    above = values > cut
    scale = np.sqrt((values[above] - cut) / values[above])
    return np.asarray(vectors[:, above] * scale)


def embed(values: Array, vectors: Array, eta: float, lam: float, s: int) -> Array:
    """Return R' with H = W_T R' (line 17 of Algorithm 1), (D + r, min(s, j)).

    The columns of R' are v_i sqrt((lambda_i + (1 - eta) lambda) / lambda_i) for i <= s,
    with eta = eta_T. Here lambda_i, (j,), are the descending eigenvalues and v_i, (D +
    r, j), the eigenvectors of W_T^T W_T. H H^T is then the estimate of K_s, the best
    approximation of K of rank s.
    """
    scale = np.sqrt((values[:s] + (1 - eta) * lam) / values[:s])
    return np.asarray(vectors[:, :s] * scale)


def compose(P: Array, R: Array, eta: float) -> Array:
    """Extend the map from features: [A_1 .. A_t] P' = W_t R if [A_1 ..] P = B_t.

    The shapes are (D_1 + .. + D_{t-1}, r) for P, (D_t + r, m) for R, and (D_1 + .. +
    D_t, m) for P'. With the R' of `embed`, P' embeds any row x from its features alone:
    h(x) = [a_1(x) .. a_T(x)] P'. For a training row, h(x) is its row of H.
    """
    D = len(R) - P.shape[1]
    return np.vstack([math.sqrt(1 - eta) * P @ R[D:], math.sqrt(eta / D) * R[:D]])


def movement(values: Array, vectors: Array, scale: Array, eta: float, s: int) -> float:
    """Return the sine of the largest principal angle between two steps' subspaces.

    The subspaces are spanned by u_1 .. u_s in iterations t - 1 and t; the first min(s,
    r, j) vectors are compared. The result is 1 if there are no vectors to compare.
    `values`, (j,), and `vectors`, (D + r, j), are the lambda_i and v_i of W_t^T W_t.
    `scale`, (r,), holds the squared lengths of the columns of B_t, which are the
    lambda_i - eta_{t-1} lambda of the previous iteration.

    No rows are needed: B_t = U_{t-1} diag(scale)^(1/2) and W_t^T u_i = sqrt(lambda_i)
    v_i yield the cosines U_{t-1}^T U_t = diag(scale (1 - eta_t))^(-1/2) V_B
    diag(lambda_i)^(1/2), where V_B are the rows of V that belong to B_t.

    A step moves the subspace by eta_t times the error of one iteration's features,
    while the error of the mean over all iterations is sqrt(eta_t) times that error. So
    the result divided by sqrt(eta_t) indicates how far the subspace can be from the
    subspace of K.
    """
    r = len(scale)
    s = min(s, r, len(values))
    if s == 0:
        return 1.0
    V_B = vectors[len(vectors) - r :][:s, :s]
    cosines = V_B * np.sqrt(values[:s] / (scale[:s, None] * (1 - eta)))
    least = float(np.linalg.svd(cosines, compute_uv=False)[-1])
    return math.sqrt(max(0.0, 1 - least**2))


def default_threshold(values: Array, trace: float, D: int, s: int) -> float:
    """Return lambda, an estimate of the (s + 1)-th eigenvalue of K, at least 0.

    The estimate is lambda_{s+1} minus the mean of the D - s - 1 smaller eigenvalues of
    W_1^T W_1 = A_1^T A_1 / D. `values`, (j,), are the eigenvalues of this matrix in
    descending order: at least the s + 1 largest, or all nonzero eigenvalues. `trace` is
    the trace of the matrix, and D > s + 1 is its size.

    If many small eigenvalues follow a large eigenvalue, D random features overstate the
    large eigenvalue by about the sum of the small eigenvalues divided by D, like a
    sample covariance of D samples; [2] subtracts this excess. Only eigenvalues above
    lambda are learned: if lambda is too low, messages grow (a larger rank r_t); if it
    is too high, components are lost.

    In [1], by contrast, lambda is the (k + 2)-th eigenvalue of iteration 1 for k
    clusters. With s > k + 1 components, the components beyond the (k + 1)-th are then
    never learned.
    """
    if len(values) <= s:
        return 0.0
    mean_smaller = (trace - values[: s + 1].sum()) / (D - s - 1)
    return max(0.0, float(values[s] - max(mean_smaller, 0.0)))


def moments(X: Array | Rows, shift: Array | float = 0.0) -> tuple[int, Array, Array]:
    """Return the number of rows of X, (n, d), and column sums of X and X^2, (d,).

    Missing values (NaN) are ignored. `shift`, the same at all parties, is first
    subtracted from each row. The shift should be a rough mean of the rows if columns
    are far from 0 relative to their spread.
    """

    def sums(_: slice, block: Array) -> tuple[Array, Array]:
        with np.errstate(over="ignore", invalid="ignore"):  # rejected when used
            rows = block - shift
            rows[np.isnan(rows)] = 0.0
            return rows.sum(axis=0), np.square(rows, out=rows).sum(axis=0)

    zeros = np.zeros(X.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        sum_x, sum_squares = as_rows(X).map_reduce(sums, add_each, (zeros, zeros))
    return len(X), sum_x, sum_squares


def variances(
    N: int, sum_x: Array, sum_squares: Array, shift: Array | float = 0.0
) -> Array:
    """Return the columns' variances; 0 for columns that vary only by rounding errors.

    N and the sums are the results of `moments`, added up over all parties.
    `sum_squares` and the result have the shape (d,), or (1,) for the sum over all
    columns. A variance is set to 0 if it is at most 1e-12 times the mean square, which
    leaves no correct digit in float64, or if the standard deviation is not above the
    rounding error of `shift`.
    """
    square, mean = sum_squares / N, np.square(sum_x / N)
    rounding = np.square(np.finfo(np.float64).eps * shift * np.ones(len(mean)))
    if len(square) != len(mean):
        mean, rounding = mean.sum(), rounding.sum()
    variance = square - mean
    significant = variance > np.maximum(CONSTANT * square, rounding)
    return np.where(significant, variance, 0.0)


def gamma(
    N: int, sum_x: Array, sum_squares: Array, shift: Array | float = 0.0
) -> float:
    """Return the gamma of the Gaussian kernel exp(-gamma |x - x'|^2) in [1].

    gamma = N^2 / (2 sum_ij |x_i - x_j|^2), in the inverse square of the columns' unit.
    The arguments are those of `variances`, since sum_ij |x_i - x_j|^2 is 2 N^2 times
    the sum of the columns' variances. Raises ValueError if the sums are not finite or
    no column varies.
    """
    if N < 1 or not (np.isfinite(sum_x).all() and np.isfinite(sum_squares).all()):
        raise ValueError("gamma needs at least one row and finite column sums")
    total = float(variances(N, sum_x, sum_squares, shift).sum())
    if total <= 0:
        raise ValueError(
            "gamma needs a column that varies: all columns are constant, or vary too "
            "little relative to their magnitude"
        )
    return 1 / (4 * total)


@shapes_only
@dataclass
class Subspace:
    """The server's state of DSPGD: the eigenpairs of W_t^T W_t, not W_t itself.

    D_1 is the number of features in the first iteration, and D in each later iteration;
    s is the number of components, and k the number of clusters.
    """

    D: int
    D_1: int
    s: int
    k: int
    rule: Rule
    """lambda, or the rule by which the first iteration sets it: "auto" or "paper"."""
    t: int = 0
    """Number of completed iterations."""
    threshold: float = 0.0
    """lambda."""
    values: Array = field(default_factory=lambda: np.zeros(0))
    vectors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """lambda_i, (j,), and v_i, (D + r, j), of iteration t."""
    lengths: Array = field(default_factory=lambda: np.zeros(0))
    """Squared lengths of the columns of B_{t+1}, of shape (r,)."""
    moved: float = math.inf
    """Sine of the angle between successive subspaces, divided by sqrt(eta_t)."""
    dimension: int = 0
    """Maximum number of eigenvalues above rounding in any iteration so far."""

    @property
    def eta(self) -> float:
        """eta_t; 1 before the first iteration."""
        return step_size(max(self.t, 1), self.D, self.D_1)

    @property
    def next_eta(self) -> float:
        """eta_{t+1}."""
        return step_size(self.t + 1, self.D, self.D_1)

    @property
    def next_size(self) -> int:
        """D_{t+1} + r_{t+1}."""
        return (self.D if self.t else self.D_1) + self.rank

    @property
    def rank(self) -> int:
        """r_{t+1}, the number of columns of B_{t+1}."""
        return len(self.lengths)

    @property
    def mass(self) -> float:
        """Contribution of B_{t+1} to the trace of W_{t+1}^T W_{t+1}."""
        return float((1 - self.next_eta) * self.lengths.sum())

    @property
    def wanted(self) -> tuple[float, int]:
        """Threshold for the next eigenpairs, and the minimum number of them to find."""
        if self.t == 0 and self.rule == "auto":
            return math.inf, self.s + 1
        if self.t == 0 and self.rule == "paper":
            return math.inf, max(self.s + 1, self.k + 2)
        threshold = self.threshold if self.t else float(self.rule)
        return self.next_eta * threshold, self.s + (self.dimension <= self.s)

    def still(self, tol: float) -> bool:
        """Return whether the subspace moved by less than `tol`.

        The result is False as long as at most s eigenvalues have exceeded rounding
        errors: the rows of A_1 then span the whole subspace, which does not move even
        if its eigenvectors are wrong.
        """
        return self.dimension > self.s and self.moved < tol

    def step(self, values: Array, vectors: Array, trace: float) -> None:
        """Process the eigenpairs of iteration t + 1 (lines 11 to 13)."""
        self.t += 1
        count = above_rounding(values, self.D + len(values))
        values, vectors = values[:count], vectors[:, :count]
        self.dimension = max(self.dimension, count)
        if self.t == 1:
            self.threshold = self._threshold(values, trace)
        else:
            turned = movement(values, vectors, self.lengths, self.eta, self.s)
            self.moved = turned / math.sqrt(self.eta)
        self.values, self.vectors = values, vectors
        cut = self.eta * self.threshold
        self.lengths = values[values > cut] - cut

    def _threshold(self, values: Array, trace: float) -> float:
        if self.rule == "auto":
            return default_threshold(values, trace, self.D_1, self.s)
        if self.rule == "paper":
            place = self.k + 1
            return float(values[place]) if len(values) > place else 0.0
        return float(self.rule)

    @property
    def eigenvalues(self) -> Array:
        """Estimates of the s largest eigenvalues of K (line 17), of shape (s,)."""
        return self.values[: self.s] + (1 - self.eta) * self.threshold

    @property
    def R(self) -> Array:
        """R_t with B_{t+1} = W_t R_t."""
        return shrink(self.values, self.vectors, self.eta * self.threshold)

    @property
    def embedding(self) -> Array:
        """R' with H = W_t R' (line 17)."""
        return embed(self.values, self.vectors, self.eta, self.threshold, self.s)
