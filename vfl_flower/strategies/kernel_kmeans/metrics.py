"""Explanations of the metrics of kernel k-means, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import Metric
from vfl_flower.strategies import evaluation

KERNEL_CLUSTERS: dict[str, Metric] = {
    "explained": evaluation.EXPLAINED._replace(
        text=f"{evaluation.EXPLAINED.text} Here the kernel measures the spread: "
        "similar rows count as near, whatever the shape of a cluster."
    ),
    "inertia": Metric(
        "Inertia",
        "Sum of the squared distances, by the kernel, of all rows to their centres: "
        "clustering minimises this sum.",
        "lower",
    ),
    "smallest_cluster": evaluation.SMALLEST,
    "largest_cluster": evaluation.LARGEST,
    "moved": Metric(
        "How far the last iteration moved",
        "How much the learned subspace turned in an iteration; 0 is the minimum. Near "
        "0 it has settled, and more iterations would change little.",
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
        "How fast similarity falls with distance: with a large gamma only near rows "
        "are similar.",
    ),
    "small_share": Metric(
        "Rows in small clusters",
        "Share of the rows in clusters too small to send a sum of their rows, which "
        "protects these rows: the centres of such clusters do not move.",
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
