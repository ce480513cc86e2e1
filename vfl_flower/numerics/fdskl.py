r"""Doubly stochastic gradients of a kernel machine.

The symbols are those of [1]: the function is :math:`f(x) = \sum_j \alpha_j \phi_j(x)`
with random features :math:`\phi_j(x) = \sqrt 2 \cos(\omega_j^T x + b_j)`, and it
minimises :math:`E\,L(f(x), y) + \frac\lambda2 \|f\|_{\mathcal H}^2` (equation 1).
The losses and the solvers on a fixed set of features are in ``kernel_solvers.py``.

Differs from [1] in: 1. a step may take several instances and several features at once
(with one of each it is that of Algorithm 1); 2. there may be several functions, one a
class, on the same features; 3. f starts at `base_scores`; 4. `implicit_step`, of which
the step of [1] is the linearisation.

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
    """Return where f starts, shape (C,): the mean of labels Y, shape (n, C).

    With the logistic loss it is their log odds, with one row more of each class.
    """
    mean = Y.mean(axis=0)
    if loss != "logistic":
        return np.asarray(mean)
    return np.asarray(2 * np.arctanh(mean * len(Y) / (len(Y) + 2)))


def step_sizes(phi: Array, loss: str, factors: Sequence[float] = CANDIDATES) -> Array:
    r"""Return step sizes by the first block of features: factors / (L'' mu_1).

    L'' bounds the curvature of the loss, and mu_1 is the largest eigenvalue of the mean
    of phi(x) phi(x)^T / F. On the same features steps from 2 / (L'' mu_1) on diverge.
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

    Linearising L at f, without s and b, gives the step of `dsg_update`. The step of one
    batch may be far larger than an explicit one, which diverges from
    :math:`\gamma = 2 / (L'' \mu_1)`. It is biased, so Theorem 4 says nothing of it.

    `angles`, (B, F), are those of the new features, as
    :func:`vfl_flower.numerics.kernel_solvers.fit` takes them; `scores` and `earlier`,
    (B, C), are f before the step and :math:`f_l`, the part of it that s scales; `y`,
    (B, C), are labels, real or -1 and +1; `regularization` is :math:`1 / \gamma`, or
    None: cross-validation within the batch then chooses it.

    Returns s, (C,), :math:`\delta`, (F, C), and b, (C,), the last two in the unit of y.
    A column whose labels are equal keeps its f, and so does f where no step has a
    smaller loss on rows left out.
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

    The coefficients `alpha` of all earlier features have the shape (T, C), the F new
    features :math:`\phi` at B instances (B, F), their scores f before the step and
    their labels (B, C), and the step :math:`\gamma` is a number or (C,). Returns the
    scaled earlier coefficients, (T, C), a new array, and those of the new features,
    (F, C). Raises ValueError if the step or :math:`\lambda` is out of range.

    With blocks, the new coefficients are :math:`-\gamma / (B F)\, \phi^T L'`: the mean
    over the instances stands for the expectation over x, and the mean over the features
    for that over :math:`\omega`, so the step stays unbiased.
    """
    largest = np.max(step)
    if not (np.min(step) > 0 and 0 <= regularization * largest <= 1):
        raise ValueError(
            "step must be positive, regularization non-negative and their product at "
            f"most 1, got {largest} and {regularization}"
        )
    slopes = LOSSES[loss].derivative(scores, y)
    new = (-step / new_features.size) * (new_features.T @ slopes)
    return (1 - step * regularization) * alpha, new
