"""What the metrics of the algorithms mean, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import CONVERGED, Metric

TEST_ROWS = Metric(
    "Rows held out",
    "Rows that the model was not trained on, by which it is judged.",
    kind="count",
)

SQUARED_ERROR = Metric(
    "Mean squared error, rows held out",
    "The mean of (prediction - truth)² on rows that the model was not trained on. Its "
    "square root is a typical error, in the unit of the label.",
    "lower",
)

R2 = Metric(
    "Variance explained, rows held out",
    "R²: how much of the variation of the label the model predicts. 100 % is perfect; "
    "0 % is no better than naming the mean of the label for every row.",
    "higher",
    "share",
)

EXPLAINED = Metric(
    "Spread explained",
    "How much of the spread of the rows lies between the clusters and not within them. "
    "0 % is no better than a single cluster; more clusters always explain more.",
    "higher",
    "share",
)

SMALLEST = Metric(
    "Smallest cluster",
    "Rows of the smallest cluster, estimated where the clusters come from a sample.",
    kind="count",
)

LARGEST = Metric(
    "Largest cluster",
    "Rows of the largest cluster, estimated where the clusters come from a sample.",
    kind="count",
)

PREDICTED_ROWS = Metric(
    "Rows", "Rows that took part: with a prediction, rows that got one.", kind="count"
)

MEASURES: dict[str, Metric] = {
    "test_rows": TEST_ROWS,
    "test_error": Metric(
        "Wrong classes, rows held out",
        "Share of the rows held out for which the model names a wrong class.",
        "lower",
        "share",
    ),
    "test_base_error": Metric(
        "Wrong classes without a model",
        "Share of the same rows that would be wrong if the most frequent class were "
        "named for each: a useful model must be well below.",
        kind="share",
    ),
    "test_auc": Metric(
        "Ranking (area under the ROC curve)",
        "How often the model gives a row of the second, positive class a higher score "
        "than a row of the first one. 50 % is guessing, 100 % is perfect.",
        "higher",
        "share",
    ),
    "test_log_loss": Metric(
        "Log loss",
        "How surprised the model is by the true classes: -log of the probability that "
        "it gave them, on the mean. 0 is perfect; guessing between two classes has "
        "log 2 = 0.69.",
        "lower",
    ),
    "test_brier": Metric(
        "Brier score",
        "Mean squared difference between the probability and what happened (0 or 1). "
        "0 is perfect, 0.25 is the score of saying 50 % for each row.",
        "lower",
    ),
    "test_true_positives": Metric(
        "Positives found",
        "Rows of the positive class that the model takes for such.",
        "higher",
        "count",
    ),
    "test_false_positives": Metric(
        "False alarms",
        "Rows of the other class that the model takes for positive ones.",
        "lower",
        "count",
    ),
    "test_false_negatives": Metric(
        "Positives missed",
        "Rows of the positive class that the model does not take for such.",
        "lower",
        "count",
    ),
    "test_true_negatives": Metric(
        "Negatives recognised",
        "Rows of the other class that the model takes for such.",
        "higher",
        "count",
    ),
    "test_loss": SQUARED_ERROR,
    "test_r2": R2,
    "test_mae": Metric(
        "Mean absolute error, rows held out",
        "By how much a prediction misses on the mean, in the unit of the label.",
        "lower",
    ),
}
"""Of what a party with labels tells of a model."""

OF_NEW_ROWS: dict[str, Metric] = {**MEASURES, "rows": PREDICTED_ROWS}
"""Of a model that predicts, or is judged on, new rows."""

KERNEL: dict[str, Metric] = {
    **MEASURES,
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
"""Of a kernel model."""

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
"""Of a regression on a coreset."""

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
"""Of clusters of a coreset."""


KERNEL_CLUSTERS: dict[str, Metric] = {
    "explained": EXPLAINED._replace(
        text=f"{EXPLAINED.text} Here the kernel measures the spread: it counts as near "
        "what is alike, whatever the shape of a cluster."
    ),
    "inertia": Metric(
        "Inertia",
        "Sum of the squared distances, by the kernel, of all rows to their centres: "
        "what clustering makes as small as it can.",
        "lower",
    ),
    "smallest_cluster": SMALLEST,
    "largest_cluster": LARGEST,
    "moved": Metric(
        "How far the last iteration moved",
        "How much the learned subspace turned in an iteration, from 0 up. Near 0 it is "
        "at rest, and more iterations would change little.",
        "lower",
    ),
    "iterations": Metric(
        "Iterations", "How often the subspace was improved.", kind="count"
    ),
    "passes": Metric(
        "Passes over the rows",
        "How often k-means went over all rows: a round trip each.",
        kind="count",
    ),
    "rank": Metric(
        "Directions learned",
        "How many directions of the kernel's space the clusters are found in.",
        kind="count",
    ),
    "products": Metric(
        "Products",
        "How often the parties multiplied their kernel with vectors.",
        kind="count",
    ),
    "threshold": Metric(
        "Threshold", "Directions with less weight than this were not learned."
    ),
    "gamma": Metric(
        "Gamma",
        "How fast likeness falls with distance: with a large gamma only near rows are "
        "alike.",
    ),
    "small_share": Metric(
        "Rows in small clusters",
        "Share of the rows in clusters that are too small to send a sum of their rows, "
        "which protects these rows: their centres stay where they are.",
        "lower",
        "share",
    ),
    "clusters": Metric(
        "Clusters",
        "Number of clusters that the server has chosen, by how far apart they are.",
        kind="count",
    ),
}
"""Of kernel k-means."""

NEW_CLUSTERS: dict[str, Metric] = {
    "rows": PREDICTED_ROWS,
    "test_rows": TEST_ROWS,
    "test_loss": Metric(
        "Mean cost of new rows",
        "Mean squared distance, by the kernel, of new rows to their nearest centres. "
        "Compare it with the inertia of training over its number of rows.",
        "lower",
    ),
}
"""Of new rows in clusters of kernel k-means."""


FORGETTING: dict[str, Metric] = {
    "explained": EXPLAINED,
    "inertia": Metric(
        "Objective",
        "Sum of the squared distances of all rows to their centres, in squared sides "
        "of the box: what clustering makes as small as it can.",
        "lower",
    ),
    "test_rows": TEST_ROWS,
    "test_loss": Metric(
        "Mean cost of new rows",
        "Mean squared distance of new rows to their nearest centres, in squared sides "
        "of the box.",
        "lower",
    ),
    "rows": Metric(
        "Rows",
        "Rows that the model stands for or, where it predicts, that got a cluster.",
        kind="count",
    ),
    "clients": Metric("Parties", "Parties whose rows the model knows.", kind="count"),
    "version": Metric(
        "Version of the model",
        "1 after training, and one more each time that rows were forgotten or added.",
        kind="count",
    ),
    "removed": Metric(
        "Rows forgotten", "Rows that the model does not know any more.", kind="count"
    ),
    "added": Metric(
        "Rows added",
        "Rows that the parties' data have got since, and that the model now has.",
        kind="count",
    ),
    "changed": Metric(
        "Clustered anew",
        "1 if rows that went or came made the server cluster again, and 0 if all "
        "centres stayed.",
        kind="count",
    ),
    "pending": Metric(
        "Rows waiting",
        "Rows that parties request to forget or to add, and that wait for a run.",
        "lower",
        "count",
    ),
    "requests": Metric(
        "Requests",
        "How many runs have removed or added rows, counted at each party that had "
        "requested some.",
        kind="count",
    ),
    "clusters": Metric(
        "Clusters",
        "Number of clusters that the server has chosen from the counts of the bins.",
        kind="count",
    ),
    "bins": Metric(
        "Bins",
        "Small boxes in which the parties' centroids are: the server learns which, and "
        "how many rows each stands for.",
        kind="count",
    ),
    "small_bins": Metric(
        "Bins of few rows",
        "Bins that stand for fewer than 20 rows: the server learns the mean of these "
        "few, to within the bin.",
        "lower",
        "count",
    ),
    "single_bins": Metric(
        "Bins of one row",
        "Bins that stand for one row: the server learns that row to within the bin, "
        "and not whose it is.",
        "lower",
        "count",
    ),
}
"""Of clusters that can forget."""


def left_out(purpose: str, used: int, available: int, limit: str) -> list[str]:
    """Return a warning if some of the available rows are not used."""
    count = available - used
    return [f"{count:,} of {available:,} rows {purpose} are left out: {limit}"] * (
        count > 0
    )
