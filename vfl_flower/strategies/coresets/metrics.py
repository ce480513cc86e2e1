"""What the metrics of results on a coreset mean, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import CONVERGED, Metric
from vfl_flower.strategies.evaluation import EXPLAINED, LARGEST, MEASURES, SMALLEST

WEIGHT_SUM = Metric(
    "Sum of the weights",
    "Each drawn row stands for as many rows as its weight. The sum should be near the "
    "number of training rows.",
)

REGRESSION: dict[str, Metric] = {
    **{n: MEASURES[n] for n in ("test_rows", "test_loss", "test_r2", "test_mae")},
    "train_loss": Metric(
        "Mean squared error, rows of training",
        "The same error on the rows that the model was trained on, weighted. These "
        "rows differ between results: do not compare them by it.",
        "lower",
    ),
    "full_train_loss": Metric(
        "Mean squared error, all rows of training",
        "The error on all rows for training, the drawn ones among them.",
        "lower",
    ),
    "check_loss": Metric(
        "Mean squared error, second sample",
        "The error on a second sample of rows, drawn for this check alone, as an "
        "estimate of that on all rows of training.",
        "lower",
    ),
    "check_loss_error": Metric(
        "Standard error of the second sample",
        "How far the estimate may be off by chance: it is within two of these, "
        "nineteen times in twenty.",
    ),
    "objective": Metric(
        "Objective",
        "What training made as small as it could: the error on the rows of training "
        "and the penalty.",
        "lower",
    ),
    "weight_sum": WEIGHT_SUM,
    "sigma_min": Metric(
        "How little the parties' columns overlap",
        "From 0 to 1. Near 1 no party's columns repeat what another's say; near 0 the "
        "method gives no guarantee for its sample.",
        "higher",
    ),
    "sigma_min_x": Metric(
        "How little the parties' columns overlap, without the label",
        "From 0 to 1, as the solver estimates it. Near 1 no party's columns repeat "
        "what another's say; near 0 the method gives no guarantee for its sample.",
        "higher",
    ),
    "left_out": Metric(
        "Columns left out",
        "Columns that point to single rows, and so are no part of the model.",
        "lower",
        "count",
    ),
    "converged": CONVERGED,
    "iterations": Metric(
        "Iterations", "Steps that the solver took: a round trip each.", kind="count"
    ),
    "remaining": Metric(
        "What remains to be done",
        "What the solver brings to 0: its gradient or its last change, as a share of "
        "the spread of the label.",
        "lower",
    ),
}
"""Metrics of a regression on a coreset."""

CLUSTERS: dict[str, Metric] = {
    "explained": EXPLAINED._replace(
        text=f"{EXPLAINED.text} It is of the drawn rows, weighted, which differ "
        "between results."
    ),
    "cost": Metric(
        "Cost, drawn rows",
        "Mean squared distance of the drawn rows to their nearest centre, weighted. "
        "These rows differ between results: do not compare them by it.",
        "lower",
    ),
    "full_cost": Metric(
        "Cost, all rows of training",
        "Mean squared distance of all rows of training to their nearest centre.",
        "lower",
    ),
    "check_cost": Metric(
        "Cost, second sample",
        "Mean squared distance to the nearest centre on a second sample, drawn for "
        "this check alone: an estimate for all rows of training.",
        "lower",
    ),
    "check_cost_error": REGRESSION["check_loss_error"],
    "smallest_cluster": SMALLEST,
    "largest_cluster": LARGEST,
    "weight_sum": WEIGHT_SUM,
    "tau": Metric(
        "How much one party's columns reveal of distances",
        "At least 1. A small number says that one party's columns reveal which rows "
        "are near each other; for large ones the method gives no guarantee.",
        "lower",
    ),
}
"""Metrics of clusters of a coreset."""
