r"""Doubly stochastic gradients of a kernel machine.

The symbols are those of [1]: the function is :math:`f(x) = \sum_j \alpha_j \phi_j(x)`
with random features :math:`\phi_j(x) = \sqrt 2 \cos(\omega_j^T x + b_j)`, and it
minimises :math:`E\,L(f(x), y) + \frac\lambda2 \|f\|_{\mathcal H}^2` (equation 1).
The losses and the solvers on a fixed set of features are in ``kernel_solvers.py``.

Differences from [1]: 1. A step can use several instances and several features at once
(with one of each, it is the step of Algorithm 1). 2. There can be several functions,
one per class, on the same features. 3. f starts at `base_scores`. 4. `implicit_step` is
added; its linearisation is the step of [1].

References
----------
[1] B. Gu, Z. Dang, X. Li and H. Huang, "Federated doubly stochastic kernel learning
for vertically partitioned data", KDD 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vfl_flower.numerics.kernel_solvers import LOSSES, fit
from vfl_flower.typing import Array

CANDIDATES = tuple(2.0**k for k in range(-2, 5))
"""Factors that `step_sizes` tries: 1/4 to 16."""


def base_scores(Y: Array, loss: str) -> Array:
    """Return the initial value of f, of shape (C,): the mean of the labels Y, (n, C).

    With the logistic loss, the initial value is the log odds of the labels, after
    adding one row of each class.
    """
    mean = Y.mean(axis=0)
    if loss != "logistic":
        return np.asarray(mean)
    return np.asarray(2 * np.arctanh(mean * len(Y) / (len(Y) + 2)))


def step_sizes(phi: Array, loss: str, factors: Sequence[float] = CANDIDATES) -> Array:
    r"""Compute step sizes, factors / (L'' mu_1), from the first block of features.

    L'' bounds the curvature of the loss, and mu_1 is the largest eigenvalue of the mean
    of phi(x) phi(x)^T / F. Steps of 2 / (L'' mu_1) or more diverge if the features stay
    the same.
    """
    largest = np.linalg.norm(phi, 2) ** 2 / phi.size
    return np.asarray(np.asarray(factors) / (LOSSES[loss].curvature * largest))


def implicit_step(
    angles: Array,
    scores: Array,
    earlier: Array,
    y: Array,
    loss: str,
    regularization: float | None,
    rng: np.random.Generator,
    classes: bool,
) -> tuple[Array, Array, Array]:
    r"""Take one implicit (proximal) doubly stochastic step.

    .. math:: \min_{\delta, s, b}\ \frac1B \sum_i L\big(f(x_i) + (s - 1) f_l(x_i) +
       \phi(x_i)^T \delta + b,\ y_i\big) + \frac{F}{2\gamma} |\delta|^2

    Linearising L at f, without s and b, gives the step of `dsg_update`. An implicit
    step on one batch can be far larger than an explicit step, which diverges if
    :math:`\gamma` is :math:`2 / (L'' \mu_1)` or more. The implicit step is biased, so
    Theorem 4 does not apply to it.

    `angles`, (B, F), are the angles of the new features, in the form that
    :func:`vfl_flower.numerics.kernel_solvers.fit` accepts. `scores`, (B, C), are f
    before the step, and `earlier`, (B, C), is :math:`f_l`, the term of f that s scales.
    `y`, (B, C), are labels, real or -1 and +1. `regularization` is :math:`1 / \gamma`;
    if it is None, cross-validation within the batch chooses it.

    Returns s, (C,); :math:`\delta`, (F, C); and b, (C,). :math:`\delta` and b are in
    the unit of y. f is unchanged in a column whose labels are all equal, and in all
    columns if the step does not lower the loss on the rows left out.
    """
    scale, shift = np.ones(y.shape[1]), np.zeros(y.shape[1])
    new = np.zeros((angles.shape[1], y.shape[1]))
    differ = (y[:1] != y).any(axis=0)
    if not differ.any():
        return scale, new, shift
    fitted = fit(
        angles,
        y[:, differ],
        loss,
        regularization,
        rng,
        classes=classes,
        offset=scores[:, differ],
        earlier=earlier[:, differ],
        folds=min(5, len(y)),
    )
    if fitted.left_out is not None:
        value = LOSSES[loss].value
        before = value(scores[:, differ], y[:, differ]).mean()
        if value(fitted.left_out, y[:, differ]).mean() >= before:
            return scale, new, shift
    assert fitted.turn is not None
    scale[differ] += fitted.turn
    new[:, differ] = fitted.coef / math.sqrt(angles.shape[1])
    shift[differ] = fitted.intercept
    return scale, new, shift


def dsg_update(
    alpha: Array,
    new_features: Array,
    scores: Array,
    y: Array,
    loss: str,
    step: float | Array,
    regularization: float,
) -> tuple[Array, Array]:
    r"""Take one doubly stochastic step (equation 7; lines 9 and 10 of Algorithm 1).

    .. math:: \alpha_j \leftarrow (1 - \gamma\lambda)\,\alpha_j, \qquad
       \alpha_t = -\gamma\, L'(f(x_i), y_i)\, \phi_t(x_i)

    `alpha`, the coefficients of all earlier features, has the shape (T, C). The F new
    features :math:`\phi` at B instances have the shape (B, F); the scores f of these
    instances before the step, and their labels, have the shape (B, C). The step
    :math:`\gamma` is a number or has the shape (C,). Returns the scaled earlier
    coefficients, (T, C), in a new array, and the coefficients of the new features,
    (F, C). Raises ValueError if the step or :math:`\lambda` is out of range.

    For blocks of instances and features, the new coefficients are :math:`-\gamma / (B
    F)\, \phi^T L'`. The mean over the instances replaces the expectation over x, and
    the mean over the features replaces the expectation over :math:`\omega`, so the step
    stays unbiased.
    """
    largest = np.max(step)
    if not (np.min(step) > 0 and 0 <= regularization * largest <= 1):
        raise ValueError(
            "step must be positive, regularization must be non-negative, and their "
            f"product must be at most 1, got {largest} and {regularization}"
        )
    slopes = LOSSES[loss].derivative(scores, y)
    new = (-step / new_features.size) * (new_features.T @ slopes)
    return (1 - step * regularization) * alpha, new
