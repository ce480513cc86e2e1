"""What the metrics of clusters that can forget mean, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import Metric
from vfl_flower.strategies.evaluation import EXPLAINED, TEST_ROWS

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
"""Metrics of clusters that can forget."""
