"""Points in two dimensions, for a picture."""

from __future__ import annotations

import numpy as np

from vfl_flower.typing import Array

RELATIVE = 1e-12
"""A direction in which points differ by less than this share is one by rounding."""


def principal_plane(points: Array, weights: Array) -> tuple[Array, Array]:
    """Return points in the two directions in which they differ most.

    Parameters
    ----------
    points : Array, shape (k, d)
        Such as the centres of clusters.
    weights : Array, shape (k,)
        How often each point counts, such as the rows of its cluster; shape (0,) or all
        0: once.

    Returns
    -------
    places : Array, shape (k, 2)
        The points about their weighted mean, along the two largest principal
        directions, each of which points to where its largest entry is positive.
    shares : Array, shape (2,)
        Share of the weighted sum of squares of the points along each of them; 0 where
        all points are equal.

    Examples
    --------
    >>> points = np.array([[0.0, 2, 5], [0, -2, 5]])
    >>> places, shares = principal_plane(points, np.ones(2))
    >>> places.round(6).tolist(), shares.round(6).tolist()
    ([[2.0, 0.0], [-2.0, 0.0]], [1.0, 0.0])
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not weights.sum():
        weights = np.ones(len(points))
    centred = points - weights @ points / weights.sum()
    _, sizes, directions = np.linalg.svd(
        np.sqrt(weights)[:, None] * centred, full_matrices=False
    )
    places, shares = np.zeros((len(points), 2)), np.zeros(2)
    for k, direction in enumerate(directions[:2]):
        sign = np.sign(direction[np.abs(direction).argmax()])
        if sizes[k] > RELATIVE * sizes[0]:
            places[:, k] = sign * (centred @ direction)
            shares[k] = sizes[k] ** 2 / (sizes @ sizes)
    return places, shares
