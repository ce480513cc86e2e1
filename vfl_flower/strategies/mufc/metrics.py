"""Explanations of the metrics of clusters that can forget, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import Metric
from vfl_flower.strategies.evaluation import EXPLAINED, TEST_ROWS

FORGETTING: dict[str, Metric] = {
    "explained": EXPLAINED,
    "inertia": Metric(
        "Objective",
        "Sum of the squared distances of all rows to their centres; each side of the "
        "box has length 1. Clustering minimises this sum.",
        "lower",
    ),
    "test_rows": TEST_ROWS,
    "test_loss": Metric(
        "Mean cost of new rows",
        "Mean squared distance of new rows to their nearest centres; each side of the "
        "box has length 1.",
        "lower",
    ),
    "rows": Metric(
        "Rows",
        "Rows that the model represents or, in a prediction, assigns to clusters.",
        kind="count",
    ),
    "clients": Metric("Parties", "Parties with rows in the model.", kind="count"),
    "version": Metric(
        "Version of the model",
        "1 after training, plus 1 each time rows were forgotten or added.",
        kind="count",
    ),
    "removed": Metric(
        "Rows forgotten", "Rows that the model no longer represents.", kind="count"
    ),
    "added": Metric(
        "Rows added",
        "Rows that the parties have added and that the model now represents.",
        kind="count",
    ),
    "changed": Metric(
        "Clustered anew",
        "1 if removed or added rows made the server cluster again, and 0 if all "
        "centres stayed the same.",
        kind="count",
    ),
    "pending": Metric(
        "Rows waiting",
        "Rows whose removal or addition was requested but not yet processed by a run.",
        "lower",
        "count",
    ),
    "requests": Metric(
        "Requests",
        "Number of runs that removed or added rows, counted once for each party that "
        "had requested a change.",
        kind="count",
    ),
    "clusters": Metric(
        "Clusters",
        "Number of clusters that the server has chosen from the counts of the bins.",
        kind="count",
    ),
    "bins": Metric(
        "Bins",
        "Small boxes that contain the parties' centroids: the server learns which "
        "boxes these are, and how many rows each box represents.",
        kind="count",
    ),
    "small_bins": Metric(
        "Bins of few rows",
        "Bins that represent fewer than 20 rows: the server learns the mean of these "
        "rows, to within the bin.",
        "lower",
        "count",
    ),
    "single_bins": Metric(
        "Bins of one row",
        "Bins that represent one row: the server learns that row to within the bin, "
        "but not which party holds it.",
        "lower",
        "count",
    ),
}
"""Metrics of clusters that can forget."""
