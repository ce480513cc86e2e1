"""Metrics of a model on held-out rows.

Each mean over rows comes with its standard error, whose name ends in ``_se``.

[1] E. DeLong, D. DeLong, D. Clarke-Pearson, "Comparing the Areas under Two or More
    Correlated Receiver Operating Characteristic Curves", Biometrics 44, 1988.
[2] X. Sun, W. Xu, "Fast Implementation of DeLong's Algorithm", IEEE Signal Processing
    Letters 21, 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vfl_flower.typing import Array

MOST_BINS = 20
"""Maximum number of bins in a curve, and of classes in a confusion table."""

LEAST_OF_CURVE = 100
"""Minimum number of rows for a curve or table; with fewer, a mean is as informative."""

ROUNDING = 2.0**-40
"""Numbers that differ by less than this share of the largest are treated as equal."""

LEAST_PROBABILITY = 2.0**-52
"""Smallest probability in a log loss, since the log loss is infinite at 0."""


def mean_and_error(losses: Array) -> tuple[float, float]:
    """Return the mean of `losses`, (n,), of random rows, and its standard error.

    The losses are scaled first, so that large losses and their squares do not overflow.
    """
    size = float(np.abs(losses).max()) or 1.0
    scaled = losses / size
    error = scaled.std() / np.sqrt(max(1, len(losses) - 1))
    return size * float(scaled.mean()), size * float(error)


def _named(name: str, mean_and_se: tuple[float, float]) -> dict[str, float]:
    """Return a mean under a name, and its standard error under ``<name>_se``."""
    return dict(zip((name, f"{name}_se"), mean_and_se, strict=True))


def area_under_curve(scores: Array, positive: Array) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error [1], from ranks [2].

    `scores` and `positive` (bool) have the shape (n,); at least two rows must be
    positive, and at least two negative. A tie counts as half.
    """
    X, Y = scores[positive], scores[~positive]
    m, n = len(X), len(Y)
    ranks = _midranks(scores)
    of_positive = (ranks[positive] - _midranks(X)) / n  # V_10 of [1], shape (m,)
    of_negative = 1 - (ranks[~positive] - _midranks(Y)) / m  # V_01, shape (n,)
    variance = of_positive.var(ddof=1) / m + of_negative.var(ddof=1) / n
    return float(of_positive.mean()), float(np.sqrt(variance))


def _midranks(values: Array) -> Array:
    """Return ranks of numbers, starting at 1; equal numbers share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(counts)[place] - (counts[place] - 1) / 2)


def regression(y: Array, predicted: Array) -> dict[str, float]:
    """Return error metrics of predictions of the labels y, both of the shape (n,).

    ``loss`` is the mean squared error, ``mae`` the mean absolute error, and ``r2`` the
    share of the variance explained. An error that overflows is infinite.
    """
    with np.errstate(all="ignore"):
        residual = np.asarray(predicted - y, dtype=np.float64)
        size = float(np.abs(residual).max()) or 1.0
        loss, loss_se = mean_and_error((residual / size) ** 2)
        unit = float(np.square(size))
        measures = {"loss": loss * unit, "loss_se": loss_se * unit if loss_se else 0.0}
        measures["r2"] = explained(measures["loss"], float(y.var()))
        return measures | _named("mae", mean_and_error(np.abs(residual)))


def explained(loss: float, variance: float) -> float:
    """Return R^2 = 1 - loss / variance of the labels, or 0 if R^2 is not finite."""
    with np.errstate(all="ignore"):
        r2 = float(1 - np.float64(loss) / np.float64(variance))
    return r2 if np.isfinite(r2) else 0.0


def wrong(y: Array, predicted: Array) -> dict[str, float]:
    """Return ``error``, the share of rows whose predicted class is wrong."""
    return _named("error", mean_and_error((predicted != y).astype(float)))


def base_error(counts: Array) -> float:
    """Return the error rate of always predicting the most frequent class.

    `counts`, (C,), holds the number of rows of each class.
    """
    return float(1 - counts.max() / counts.sum())


def log_loss(probability: Array) -> dict[str, float]:
    """Return ``log_loss``, the mean of -log p.

    `probability` holds p, (n,), the predicted probability of each row's true class.
    """
    losses = -np.log(np.clip(probability, LEAST_PROBABILITY, 1))
    return _named("log_loss", mean_and_error(losses))


def two_classes(
    positive: Array, predicted: Array, scores: Array, probability: Array | None = None
) -> dict[str, float]:
    """Return the metrics of a two-class model's predictions.

    All arrays have the shape (n,). `positive` marks the rows of the second class, and
    `predicted` the rows for which the model predicts this class. The model ranks the
    rows by `scores`. `probability` is the predicted probability of the second class;
    ``brier`` is its mean squared difference from the true value, 0 or 1.
    """
    measures = _named("auc", area_under_curve(scores, positive)) | {
        "true_positives": int((positive & predicted).sum()),
        "false_positives": int((~positive & predicted).sum()),
        "false_negatives": int((positive & ~predicted).sum()),
        "true_negatives": int((~positive & ~predicted).sum()),
    }
    if probability is not None:
        measures |= _named("brier", mean_and_error((probability - positive) ** 2))
    return measures


def _bins_of_curve(order_by: Array, least: int) -> list[Array]:
    """Sort rows by their values, (n,), and cut them into bins of nearly equal size.

    Returns the positions of the rows in each bin: at most `MOST_BINS` bins, each with
    at least `least` rows. Rows whose values are equal up to rounding always share a
    bin: otherwise the order of the rows in the data would decide which bin a row
    belongs to. The list is empty if there are too few rows, or too few different
    values, for two bins.
    """
    n = len(order_by)
    if n < LEAST_OF_CURVE:
        return []
    order = np.argsort(order_by, kind="stable")
    ranked = order_by[order]
    with np.errstate(all="ignore"):
        apart = np.diff(ranked) > ROUNDING * np.abs(ranked).max()
    starts = np.flatnonzero(apart) + 1
    edges = [0]
    count = min(MOST_BINS, n // least)
    for k in range(1, count if len(starts) else 0):
        edge = starts[np.abs(starts - k * n / count).argmin()]
        if least <= edge - edges[-1] and least <= n - edge:
            edges.append(edge)
    return np.split(order, edges[1:]) if len(edges) > 1 else []


def two_class_curve(
    positive: Array, scores: Array, probability: Array | None, least: int
) -> dict[str, Array]:
    """Return the counts of all rows and of positive rows in bins ordered by score.

    ``rows``, ``positives`` and, if `probability` is given, its mean ``score`` have the
    shape (B,). See `two_classes` and `_bins_of_curve`.
    """
    if not (bins := _bins_of_curve(scores, least)):
        return {}
    curve = {
        "rows": np.array([len(rows) for rows in bins], np.uint32),
        "positives": np.array([positive[rows].sum() for rows in bins], np.uint32),
    }
    if probability is not None:
        curve["score"] = np.array([probability[rows].mean() for rows in bins])
    return curve


def regression_curve(y: Array, predicted: Array, least: int) -> dict[str, Array]:
    """Return means of labels and predictions in bins ordered by prediction.

    `y` and `predicted` have the shape (n,), and the results the shape (B,). ``rows`` is
    the number of rows, ``predicted`` and ``true`` are the means, and ``true_sd`` is the
    standard deviation of the labels. See `_bins_of_curve`.
    """
    if not (bins := _bins_of_curve(predicted, least)):
        return {}
    count = np.array([len(rows) for rows in bins], np.uint32)
    means, errors = np.transpose([mean_and_error(y[rows]) for rows in bins])
    return {
        "rows": count,
        "predicted": np.array([mean_and_error(predicted[rows])[0] for rows in bins]),
        "true": means,
        "true_sd": errors * np.sqrt(count - 1.0),
    }


def confusion(
    y: Array, predicted: Array, classes: Array, least: int
) -> dict[str, Array]:
    """Return ``confusion``, (C, C), the counts of rows by class and predicted class.

    `y` and `predicted` have the shape (n,); `classes`, (C,), is in ascending order. The
    result is empty if there are fewer than three classes or more than `MOST_BINS`, or
    fewer than `LEAST_OF_CURVE` rows. The result is also empty if a class has fewer than
    `least` rows, if a class is predicted for at least one but fewer than `least` rows,
    or if a label is not one of the classes.
    """
    count = len(classes)
    few = not 2 < count <= MOST_BINS or len(y) < LEAST_OF_CURVE
    if few or not np.isin(y, classes).all():
        return {}
    counts = np.zeros((count, count), np.uint32)
    np.add.at(counts, tuple(np.searchsorted(classes, [y, predicted])), 1)
    held, named = counts.sum(axis=1), counts.sum(axis=0)
    if (held < least).any() or (named[named > 0] < least).any():
        return {}
    return {"confusion": counts}


def shortfalls(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each sign that a model is no better than a constant.

    `metrics` holds the metrics of this module under names that begin with ``test_``.
    For a clustering, it holds ``explained``, 1 - cost / (cost with one cluster), and
    ``smallest_cluster``, the number of rows in the smallest cluster.
    """
    sentences = []
    error, base = metrics.get("test_error"), metrics.get("test_base_error")
    if error is not None and base is not None and error >= base:
        sentences.append(
            f"the model is no better than the base rate: its error on the rows held "
            f"out is {error:.3g}, compared with {base:.3g} for always predicting the "
            "most frequent class"
        )
    if (true_positives := metrics.get("test_true_positives")) is not None:
        positives = true_positives + metrics["test_false_negatives"]
        if not true_positives + metrics["test_false_positives"]:
            sentences.append(
                "the model predicts the second (positive) class for none of the rows "
                f"held out, but {positives} of them belong to this class"
            )
    if metrics.get("test_r2", 1.0) <= 0:
        sentences.append(
            "the model is no better than the mean of the labels: on the rows held out, "
            f"its R^2 is {metrics['test_r2']:.3g}"
        )
    if metrics.get("explained", 1.0) <= 0:
        sentences.append(
            "the clusters are no better than a single cluster: the explained share "
            f"of the cost is {metrics['explained']:.3g}"
        )
    if not metrics.get("smallest_cluster", 1):
        sentences.append("a cluster has no rows: choose a smaller n_clusters")
    return sentences


def most_chosen(metrics: Mapping[str, Any], n_clusters: int) -> list[str]:
    """Return a sentence if the number of clusters chosen is the maximum allowed."""
    if metrics.get("clusters") != n_clusters:
        return []
    return [
        f"{n_clusters} clusters were chosen, the maximum (n_clusters): increase "
        "n_clusters. If the chosen number also rises, the rows have no compact groups"
    ]
