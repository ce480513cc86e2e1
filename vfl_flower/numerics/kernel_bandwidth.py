"""The bandwidth that fits the labels best, found by multiplying one set of angles.

Random features of the kernel at bandwidth s are cosines of angles omega^T x + b, where
omega is drawn from the kernel's Fourier transform and divided by s. So k times an
angle, modulo a full turn, is the angle of a feature at bandwidth s / k.
"""

from __future__ import annotations

import numpy as np

from vfl_flower.numerics.kernel_solvers import fit
from vfl_flower.numerics.random_features import taken
from vfl_flower.typing import Array

WIDEST = 4
"""The bandwidth of the angles, relative to the bandwidth from the median distance."""

MULTIPLES = (1, 2, 3, 4, 6, 8, 12)
"""Permitted multiples of an angle, for 4 to 1/3 times the bandwidth from the median."""

TRIED_ROWS, TRIED_FEATURES = 3000, 384
"""Maximum numbers of rows and features for the choice."""


def best_multiple(angles: Array, Y: Array, rng: np.random.Generator) -> int:
    """Return the factor, one of `MULTIPLES`, by which to multiply each angle.

    This factor yields the lowest exact leave-one-out squared error of ridge regression
    on some of the rows and features. `angles`, (n, M), are summed over the parties and
    correspond to `WIDEST` times the bandwidth from the median distance. `Y`, (n, C),
    contains labels in the form that `fit` accepts, with classes as numbers. The result
    is `WIDEST` if, in any column, the labels of all rows used are equal.
    """
    rows = rng.permutation(len(Y))[:TRIED_ROWS]
    sample, Y = angles[rows, :TRIED_FEATURES], Y[rows]
    if (Y[:1] == Y).all(axis=0).any():
        return WIDEST
    errors = {}
    for multiple in MULTIPLES:
        tried = np.ascontiguousarray(taken(sample, multiple))
        fitted = fit(tried, Y, "square", None, rng, classes=False, leave_out=True)
        assert fitted.left_out is not None
        residuals = (fitted.left_out - Y) / Y.std(axis=0)
        errors[multiple] = float(np.square(residuals).mean())
    return min(errors, key=errors.__getitem__)
