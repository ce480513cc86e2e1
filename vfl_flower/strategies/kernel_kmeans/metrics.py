"""What the metrics of kernel k-means mean, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import Metric
from vfl_flower.strategies import evaluation

KERNEL_CLUSTERS: dict[str, Metric] = {
    "explained": evaluation.EXPLAINED._replace(
        text=f"{evaluation.EXPLAINED.text} Here the kernel measures the spread: it "
        "counts as near what is alike, whatever the shape of a cluster."
    ),
    "inertia": Metric(
        "Inertia",
        "Sum of the squared distances, by the kernel, of all rows to their centres: "
        "what clustering makes as small as it can.",
        "lower",
    ),
    "smallest_cluster": evaluation.SMALLEST,
    "largest_cluster": evaluation.LARGEST,
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
"""Metrics of kernel k-means."""

NEW_CLUSTERS: dict[str, Metric] = {
    "rows": evaluation.PREDICTED_ROWS,
    "test_rows": evaluation.TEST_ROWS,
    "test_loss": Metric(
        "Mean cost of new rows",
        "Mean squared distance, by the kernel, of new rows to their nearest centres. "
        "Compare it with the inertia of training over its number of rows.",
        "lower",
    ),
}
"""Metrics of new rows in clusters of kernel k-means."""
