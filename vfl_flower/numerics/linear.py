r"""Penalised least squares, on pooled columns and on blocks of columns.

All solvers here and in ``strategies/coresets/linear.py`` minimise the same objective,
which is the paper's objective divided by n,

.. math:: \frac1n \sum_{i \in S} w_i (x_i^T \theta + b - y_i)^2
          + \lambda_1 |\theta|_1 + \lambda_2 \|\theta\|_2^2,

with the intercept b free. In matrix form the data term is :math:`\|A\theta - t\|^2`
with :math:`A = V X`, :math:`t = V y`, :math:`V = \mathrm{diag}(\sqrt{w / n})`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vfl_flower.typing import Array


@dataclass(frozen=True)
class Penalty:
    """The penalty ``l1 |theta|_1 + l2 |theta|_2^2`` of the mean squared error."""

    l1: float = 0.0
    l2: float = 0.0

    @classmethod
    def named(cls, regularizer: str, alpha: float, l1_ratio: float) -> Penalty:
        """Return the penalty of the regularizer with this name.

        "none": 0; "ridge": ``l2 = alpha`` (0.1 in the paper); "lasso": ``l1 = alpha``;
        "elasticnet": ``l1 = alpha * l1_ratio`` and ``l2 = alpha * (1 - l1_ratio)``.
        """
        ratio = {"none": 0.0, "ridge": 0.0, "lasso": 1.0}.get(regularizer, l1_ratio)
        alpha = 0.0 if regularizer == "none" else alpha
        return cls(l1=alpha * ratio, l2=alpha * (1 - ratio))

    def value(self, theta: Array) -> float:
        """Return the penalty of coefficients, of shape (d,), without the intercept."""
        return float(self.l1 * np.abs(theta).sum() + self.l2 * theta @ theta)


def solve_pooled(
    X: Array, y: Array, weights: Array, n: int, penalty: Penalty, fit_intercept: bool
) -> tuple[Array, float]:
    """Fit theta, (d,), and b to pooled rows with scikit-learn (CENTRAL in the paper).

    X has the shape (m, d); y and the weights w have the shape (m,). The weighted rows
    represent n rows. If X lacks full rank and there is no penalty, theta is the
    solution with the smallest norm for columns scaled to the same size.
    """
    from sklearn.linear_model import LinearRegression, Ridge

    total = float(weights.sum())
    scale = np.ones(X.shape[1])
    if penalty.l1:
        # scikit-learn: |.|^2 / (2 sum w) + a (r |.|_1 + (1 - r) |.|^2 / 2)
        l1, l2 = (n / total) * np.array([penalty.l1 / 2, penalty.l2])
        model = _elastic_net(l1, l2, fit_intercept, 1e-8)
    elif penalty.l2:
        # scikit-learn: sum w |.|^2 + a |.|^2
        model = Ridge(alpha=n * penalty.l2, fit_intercept=fit_intercept)
    else:
        model = LinearRegression(fit_intercept=fit_intercept)
        scale = np.sqrt((weights @ X**2) / total)
        scale[scale == 0] = 1.0
        X = X / scale
    model.fit(X, y, sample_weight=weights)
    return model.coef_ / scale, float(model.intercept_)


def mean_squared_error(residuals: Array, weights: Array | None, n: int) -> float:
    """Return ``sum w r^2 / n``, the data term of the objective, in the unit of y^2."""
    squares = residuals**2 if weights is None else weights * residuals**2
    return float(squares.sum() / n)


def center(X: Array, weights: Array) -> Array:
    """Subtract the columns' means, weighted by `weights`, (m,), from X, (m, d).

    A constant column becomes exactly 0, rather than a direction of rounding errors.
    """
    mean = weights @ X / weights.sum()
    centered = X - mean
    spread = np.abs(centered).max(axis=0)
    return np.asarray(centered * (spread > constant_noise(mean, len(X))))


def constant_noise(mean: Array, m: int) -> Array:
    """Return the largest rounding error in a constant column minus its mean."""
    return np.asarray(8 * np.finfo(np.float64).eps * np.sqrt(m) * np.abs(mean))


def whiten(gram: Array, l2: Array) -> Array:
    """Return F with ``F^T (A^T A + diag(l2)) F = I``: a party's preconditioner.

    F has the shape (d, r); `gram` is A^T A, (d, d); and `l2` holds the penalties, (d,).
    Directions are omitted if their eigenvalues, of the scaled Gram matrix, are below
    1e-12 times the largest one.
    """
    matrix = gram + np.diag(l2)
    scale = np.sqrt(np.diag(matrix))
    scale[scale == 0] = 1.0
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    large = values > 1e-12 * max(values[-1], 0.0)
    return np.asarray(vectors[:, large] / np.sqrt(values[large]) / scale[:, None])


def proximal_block(R: Array, c: Array, n_parties: int, penalty: Penalty) -> Array:
    r"""Return a party's proximal step in the metric of its own block, x of shape (d,).

    .. math:: \arg\min_x T \|R x - c\|^2 + \lambda_1 |x|_1 + \lambda_2 \|x\|^2

    Summed over all blocks, this expression majorises the objective, since
    :math:`\|\sum_j A_j x_j\|^2 \le T \sum_j \|A_j x_j\|^2`. R, (r, d), satisfies
    ``R^T R = A^T A`` for the party's block; c, (r,), is the target; l1 is above 0.
    """
    if not len(c):  # all columns are zero
        return np.zeros(R.shape[1])
    # scikit-learn: |c - R x|^2 / (2 r) + a (q |x|_1 + (1 - q) |x|^2 / 2)
    l1, l2 = penalty.l1 / n_parties / len(c) / 2, penalty.l2 / n_parties / len(c)
    return np.asarray(_elastic_net(l1, l2, False, 1e-12).fit(R, c).coef_)


def _elastic_net(l1: float, l2: float, fit_intercept: bool, tol: float) -> Any:
    """Return scikit-learn's model for the penalty ``l1 |x|_1 + l2 |x|^2 / 2``."""
    from sklearn.linear_model import ElasticNet

    options = {"fit_intercept": fit_intercept, "max_iter": 100_000, "tol": tol}
    return ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), **options)


def soft_threshold(values: Array, threshold: Array | float) -> Array:
    """Return ``sign(v) max(|v| - threshold, 0)``, the proximal map of the l1 norm."""
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0))


def momentum(previous: float) -> float:
    """Return t_{k+1} of FISTA for t_k (Beck and Teboulle 2009, equation 4.2)."""
    return (1 + math.sqrt(1 + 4 * previous**2)) / 2
