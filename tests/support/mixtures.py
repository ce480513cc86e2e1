"""Rows of a mixture of normal distributions, and the cost of centres."""

import numpy as np

from vfl_flower.numerics.kmeans import assign


def mixture(n=600, d=4, clusters=6, seed=0, spread=8.0):
    rng = np.random.default_rng(seed)
    means = spread * rng.standard_normal((clusters, d))
    return means[rng.integers(clusters, size=n)] + rng.standard_normal((n, d))


def cost(X, centers, weights=1.0):
    return float((weights * assign(X, centers)[1]).sum())
