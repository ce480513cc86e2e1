"""Projection of points to two dimensions, for a picture."""

from __future__ import annotations

import numpy as np

from vfl_flower.typing import Array

RELATIVE = 1e-12
"""Relative size below which differences in a direction are rounding errors."""


def principal_plane(points: Array, weights: Array) -> tuple[Array, Array]:
    """Project points, (k, d), onto the two directions in which they differ most.

    The weights, (k,), state how many times each point counts; if the weights are
    empty or all 0, each point counts once. Returns the points relative to their
    weighted mean, (k, 2), along the two largest principal directions, and each
    direction's share of the weighted sum of squares, (2,). The sign of a direction is
    chosen so that its largest entry is positive. The shares are 0 if all points are
    equal.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not weights.sum():
        weights = np.ones(len(points))
    centred = points - weights @ points / weights.sum()
    rows = np.sqrt(weights)[:, None] * centred
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    places, shares = np.zeros((len(points), 2)), np.zeros(2)
    for k, direction in enumerate(directions[:2]):
        sign = np.sign(direction[np.abs(direction).argmax()])
        if sizes[k] > RELATIVE * sizes[0]:
            places[:, k] = sign * (centred @ direction)
            shares[k] = sizes[k] ** 2 / (sizes @ sizes)
    return places, shares
