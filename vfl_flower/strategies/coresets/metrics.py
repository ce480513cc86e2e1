"""Explanations, in plain words, of the metrics of runs that train on a coreset."""

from __future__ import annotations

from vfl_flower.server.metrics import CONVERGED, Metric
from vfl_flower.strategies.evaluation import EXPLAINED, LARGEST, MEASURES, SMALLEST

WEIGHT_SUM = Metric(
    "Sum of the weights",
    "The weight of a drawn row is the number of rows that it represents. The sum "
    "should be near the number of training rows.",
)

REGRESSION: dict[str, Metric] = {
    **{n: MEASURES[n] for n in ("test_rows", "test_loss", "test_r2", "test_mae")},
    "train_loss": Metric(
        "Mean squared error, training rows",
        "The weighted error on the rows that the model was trained on. Each result has "
        "its own training rows, so do not compare results by this error.",
        "lower",
    ),
    "full_train_loss": Metric(
        "Mean squared error, all training rows",
        "The error on all training rows, including the drawn rows.",
        "lower",
    ),
    "check_loss": Metric(
        "Mean squared error, second sample",
        "The error on a second sample of rows, drawn only for this check, as an "
        "estimate of the error on all training rows.",
        "lower",
    ),
    "check_loss_error": Metric(
        "Standard error of the second sample",
        "How far the estimate can be off by chance: nineteen times in twenty it is off "
        "by at most two standard errors.",
    ),
    "objective": Metric(
        "Objective",
        "Training minimises this sum: the error on the training rows plus the penalty.",
        "lower",
    ),
    "weight_sum": WEIGHT_SUM,
    "sigma_min": Metric(
        "How little the parties' columns overlap",
        "From 0 to 1. Near 1, no party's columns repeat columns of another party; near "
        "0, the method gives no guarantee for its sample.",
        "higher",
    ),
    "sigma_min_x": Metric(
        "How little the parties' columns overlap, without the label",
        "From 0 to 1, estimated by the solver. Near 1, no party's columns repeat "
        "columns of another party; near 0, the method guarantees nothing.",
        "higher",
    ),
    "left_out": Metric(
        "Columns left out",
        "Columns that identify single rows, and are therefore not in the model.",
        "lower",
        "count",
    ),
    "converged": CONVERGED,
    "iterations": Metric(
        "Iterations", "Steps that the solver took, each in a round trip.", kind="count"
    ),
    "remaining": Metric(
        "Distance from convergence",
        "The solver's gradient or last change, which tends to 0, as a share of the "
        "spread of the label.",
        "lower",
    ),
}
"""Metrics of a regression on a coreset."""

CLUSTERS: dict[str, Metric] = {
    "explained": EXPLAINED._replace(
        text=f"{EXPLAINED.text} It is computed on the weighted drawn rows, "
        "which differ between results."
    ),
    "cost": Metric(
        "Cost, drawn rows",
        "Weighted mean squared distance of the drawn rows to their nearest centres. "
        "Each result has its own drawn rows, so do not compare results by this cost.",
        "lower",
    ),
    "full_cost": Metric(
        "Cost, all training rows",
        "Mean squared distance of all training rows to their nearest centres.",
        "lower",
    ),
    "check_cost": Metric(
        "Cost, second sample",
        "Mean squared distance to the nearest centre on a second sample, drawn only "
        "for this check, as an estimate of the cost of all training rows.",
        "lower",
    ),
    "check_cost_error": REGRESSION["check_loss_error"],
    "smallest_cluster": SMALLEST,
    "largest_cluster": LARGEST,
    "weight_sum": WEIGHT_SUM,
    "tau": Metric(
        "How much one party's columns reveal about distances",
        "At least 1. A small number means that one party's columns reveal which rows "
        "are near each other. If the number is large, the method gives no guarantee.",
        "lower",
    ),
}
"""Metrics of a clustering of a coreset."""
