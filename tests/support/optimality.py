"""The distance of a linear model from the optimum of its objective."""

import math

import numpy as np


def violation(X, y, w, n, penalty, theta, b, free):
    """Return the distance of (theta, b) from an optimum, relative to the data.

    0 is in the subgradient of ``sum w r^2 / n + l1 |theta|_1 + l2 |theta|^2`` where
    each column's g_l = 2 sum w r x_l / n + 2 l2 theta_l is -l1 sign(theta_l), or in
    [-l1, l1] at theta_l = 0; and sum w r = 0 for a free intercept.
    """
    r = X @ theta + b - y
    g = 2 * (w * r) @ X / n + 2 * penalty.l2 * theta
    at_zero = np.maximum(np.abs(g) - penalty.l1, 0)
    excess = np.where(theta == 0, at_zero, np.abs(g + penalty.l1 * np.sign(theta)))
    size_y = math.sqrt(w @ y**2 / n)
    unit = 2 * np.sqrt(w @ X**2 / n) * size_y
    actual = float((excess / np.where(unit == 0, 1, unit)).max())
    if free:
        actual = max(actual, abs(w @ r) / n / (size_y * math.sqrt(w.sum() / n)))
    return actual
