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

from vfl_flower.numerics.kernel_solvers import LOSSES, fit, named
from vfl_flower.typing import Array

__all__ = [
    "LOSSES",
    "base_scores",
    "dsg_update",
    "implicit_step",
    "step_sizes",
]

CANDIDATES = tuple(2.0**k for k in range(-2, 5))
"""What `step_sizes` are tried with: 1/4 to 16."""


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
    return np.asarray(np.asarray(factors) / (named(loss).curvature * largest))


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

    Linearising L at f, without s and b, gives the step of `dsg_update`. The step of
    one batch may be far larger than an explicit one, which diverges from
    :math:`\gamma = 2 / (L'' \mu_1)`. It is biased, so Theorem 4 says nothing of it.

    Parameters
    ----------
    angles : Array, shape (B, F)
        Those of the new features, as :func:`vfl_flower.numerics.kernel_solvers.fit`
        takes them.
    scores, earlier : Array, shape (B, C)
        f before the step, and :math:`f_l`, the part of it that s scales.
    y : Array, shape (B, C)
        Labels, -1 or +1 or real as the loss asks.
    loss : {"square", "logistic", "smooth_hinge"}
        L.
    regularization : float or None
        :math:`1 / \gamma`; None: cross-validation within the batch chooses it.
    rng : numpy.random.Generator
        Draws the folds.
    classes : bool
        Whether `y` are classes.

    Returns
    -------
    scale : Array, shape (C,)
        s.
    new : Array, shape (F, C)
        :math:`\delta`, in the unit of y.
    shift : Array, shape (C,)
        b, in the unit of y. A column whose labels are equal keeps its f, and so does
        f where no step has a smaller loss on rows left out.
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
        leave_out=regularization is None,
    )
    if fitted.left_out is not None:
        value = named(loss).value
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

    Parameters
    ----------
    alpha : Array, shape (T, C)
        Coefficients of all earlier features, in the unit of y.
    new_features : Array, shape (B, F)
        :math:`\phi` of the F new features at the B instances; no unit.
    scores : Array, shape (B, C)
        f at the B instances before the step, in the unit of y.
    y : Array, shape (B, C)
        Labels of the B instances, -1 or +1 or real as the loss asks.
    loss : {"square", "logistic", "smooth_hinge"}
        L.
    step : float or Array, shape (C,)
        :math:`\gamma`, positive.
    regularization : float
        :math:`\lambda`, not negative.

    Returns
    -------
    scaled : Array, shape (T, C)
        The earlier coefficients after the step, a new array.
    new : Array, shape (F, C)
        Coefficients of the new features.

    Raises
    ------
    ValueError
        Shapes do not fit, or `step` or `regularization` are out of range.

    Notes
    -----
    With blocks, the new coefficients are :math:`-\gamma / (B F)\, \phi^T L'`: the mean
    over the instances stands for the expectation over x, and the mean over the
    features for that over :math:`\omega`, so the step stays unbiased.

    Examples
    --------
    >>> import numpy as np
    >>> alpha, y = np.array([[2.0]]), np.array([[3.0]])
    >>> dsg_update(alpha, np.array([[1.0]]), np.array([[1.0]]), y, "square", 0.5, 0.1)
    (array([[1.9]]), array([[2.]]))
    """
    if scores.shape != y.shape or len(new_features) != len(y) or not len(y):
        raise ValueError(
            f"scores and y must have the {len(new_features)} rows of new_features, got "
            f"shapes {scores.shape} and {y.shape}"
        )
    largest = np.max(step)
    if not (np.min(step) > 0 and 0 <= regularization * largest <= 1):
        raise ValueError(
            "step must be positive, regularization not negative and their product at "
            f"most 1, got {largest} and {regularization}"
        )
    slopes = named(loss).derivative(scores, y)
    new = (-step / new_features.size) * (new_features.T @ slopes)
    return (1 - step * regularization) * alpha, new
