"""Explanations of the metrics of kernel k-means, in plain words."""

from __future__ import annotations

from vfl_flower.server.metrics import Metric
from vfl_flower.strategies import evaluation

KERNEL_CLUSTERS: dict[str, Metric] = {
    "explained": evaluation.EXPLAINED._replace(
        text=f"{evaluation.EXPLAINED.text} Here the kernel measures the spread: "
        "similar rows are treated as near, whatever the shape of a cluster."
    ),
    "inertia": Metric(
        "Inertia",
        "Sum of the squared distances of all rows to their centres, measured by the "
        "kernel: clustering minimises this sum.",
        "lower",
    ),
    "smallest_cluster": evaluation.SMALLEST,
    "largest_cluster": evaluation.LARGEST,
    "moved": Metric(
        "Movement in the last iteration",
        "How much the learned subspace rotated in an iteration; 0 is the minimum. Near "
        "0, the subspace has settled, and more iterations would change little.",
        "lower",
    ),
    "iterations": Metric(
        "Iterations", "How many times the subspace was improved.", kind="count"
    ),
    "passes": Metric(
        "Passes over the rows",
        "How many times k-means went over all rows, each time in a round trip.",
        kind="count",
    ),
    "rank": Metric(
        "Directions learned",
        "Number of directions of the kernel's space in which clusters are sought.",
        kind="count",
    ),
    "products": Metric(
        "Products",
        "How many times the parties multiplied their kernel by vectors.",
        kind="count",
    ),
    "threshold": Metric("Threshold", "Directions below this weight were not learned."),
    "gamma": Metric(
        "Gamma",
        "How fast similarity falls with distance: with a large gamma, only near rows "
        "are similar.",
    ),
    "small_share": Metric(
        "Rows in small clusters",
        "Share of the rows in clusters that are too small for a sum of their rows to "
        "be sent. This rule protects the rows, but such clusters' centres do not move.",
        "lower",
        "share",
    ),
    "clusters": Metric(
        "Clusters",
        "Number of clusters, chosen by the server from the distances between them.",
        kind="count",
    ),
}
"""Metrics of kernel k-means."""

NEW_CLUSTERS: dict[str, Metric] = {
    "rows": evaluation.PREDICTED_ROWS,
    "test_rows": evaluation.TEST_ROWS,
    "test_loss": Metric(
        "Mean cost of new rows",
        "Mean squared distance of new rows to their nearest centres, measured by the "
        "kernel. Compare it with the inertia per row in training.",
        "lower",
    ),
}
"""Metrics of new rows in clusters of kernel k-means."""
