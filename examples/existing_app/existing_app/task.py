"""The data of a hospital, and a logistic regression on them, in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from flwr.app import Context
from sklearn.datasets import load_breast_cancer

Array = npt.NDArray[np.float64]


def load_data(context: Context) -> tuple[Array, Array]:
    """Return the rows of this hospital and their labels, 0 or 1."""
    if path := context.node_config.get("data-path"):  # a SuperNode
        table = np.loadtxt(str(path), delimiter=",", skiprows=1)
        return table[:, :-1], table[:, -1]
    return load_partition(context)  # a simulation


def load_partition(context: Context) -> tuple[Array, Array]:
    """Return one of several parts of a data set, for a simulated hospital."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    place, count = (
        int(context.node_config[key]) for key in ("partition-id", "num-partitions")
    )
    rows = np.random.default_rng(0).permutation(len(X))[place::count]
    return X[rows], y[rows].astype(float)


def probabilities(X: Array, weights: Array, bias: Array) -> Array:
    """Return the probability of label 1 for each row."""
    return np.asarray(1 / (1 + np.exp(-(X @ weights + bias))))


def descend(
    X: Array, y: Array, weights: Array, bias: Array, rate: float, steps: int
) -> tuple[Array, Array]:
    """Return weights and bias after steps of gradient descent."""
    for _ in range(steps):
        error = probabilities(X, weights, bias) - y
        weights = weights - rate * X.T @ error / len(y)
        bias = bias - rate * error.mean()
    return weights, bias
