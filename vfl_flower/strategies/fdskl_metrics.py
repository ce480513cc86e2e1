"""What the metrics of doubly stochastic kernel learning mean."""

from __future__ import annotations

from vfl_flower.protocol.metrics import CONVERGED, Metric
from vfl_flower.strategies.evaluation import TOLD

METRICS: dict[str, Metric] = {
    **TOLD,
    "cv_score": Metric(
        "Loss in cross-validation",
        "The mean loss on rows of training that a fit left out, by which the strength "
        "of the smoothing was chosen. It has the unit of the loss, so compare it only "
        "between models of the same loss.",
        "lower",
    ),
    "rows": Metric(
        "Rows of training", "Rows that the model learned from.", kind="count"
    ),
    "features": Metric(
        "Random features",
        "How many random features of all columns together the model has: more can "
        "follow finer patterns, and cost more bytes.",
        kind="count",
    ),
    "local_columns": Metric(
        "Columns that parties made",
        "Features that parties made of their own columns alone.",
        kind="count",
    ),
    "bandwidth": Metric(
        "Bandwidth",
        "How near two rows must be for the model to treat them alike: a small one "
        "follows fine patterns, a large one is smooth.",
    ),
    "regularization": Metric(
        "Smoothing",
        "How strongly the model is kept simple: a large number means smoother "
        "predictions.",
    ),
    "converged": CONVERGED,
}
