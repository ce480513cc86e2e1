"""``paper()`` gives the published algorithm with the published settings."""

import numpy as np
import pytest

from vfl_flower import FDSKL, MUFC, CoresetVKMC, CoresetVRLR, FKKMeans, Party, simulate
from vfl_flower.protocol.settings import settings_of, values_of

X = np.random.default_rng(0).normal(size=(120, 4)) / 20
ROWS = [Party(X[m::3]) for m in range(3)]
COLUMNS = [Party(X[:, :2]), Party(X[:, 2:3]), Party(X[:, 3:], y=X.sum(axis=1))]
SIZE = {"size": 2000, "rounds": "paper", "solver": "central"}
CASES = {
    "regression": (
        CoresetVRLR,
        SIZE
        | {"regularizer": "ridge", "alpha": 0.1, "l1_ratio": 2 / 3}
        | {"fit_intercept": False, "batch_size": 1},
        {"size": 40},
        COLUMNS,
    ),
    "k-means": (
        CoresetVKMC,
        SIZE
        | {"n_clusters": 10, "n_init": 10}
        | {"local_clustering": "lloyd", "approximation": 2.0},
        {"size": 40, "n_clusters": 3},
        COLUMNS,
    ),
    "kernel": (
        FDSKL,
        dict.fromkeys(("rows", "features", "iterations"), 1000)
        | {"angle_masking": "paper", "topology": "tree", "step": 0.1}
        | {"kernel": "gaussian", "loss": "logistic", "regularization": "auto"},
        dict.fromkeys(("rows", "features", "iterations"), 4)
        | {"loss": "square", "target": "continuous"},
        COLUMNS,
    ),
    "kernel k-means": (
        FKKMeans,
        {"eigensolver": "lanczos", "threshold": "paper", "clustering": "coreset"}
        | {"iterations": 20, "subspace_tol": 0.0, "coreset_size": 1000}
        | {"kernel": "gaussian", "gamma": "auto", "cem": True},
        {"n_clusters": 2, "n_components": 3, "n_features": 10, "iterations": 2},
        ROWS,
    ),
    "forgetting": (
        MUFC,
        {"client_training": "init", "min_rows_per_bin": 1, "gamma": "auto"}
        | {"server_points": "uniform", "privacy": "scma", "local_clusters": 0},
        {"n_clusters": 2},
        ROWS,
    ),
}
STEPS = {
    "regression": {"coresets_totals", "coresets_drawn_rows", "coresets_pooled_rows"},
    "k-means": {"coresets_totals", "coresets_drawn_rows", "coresets_pooled_rows"},
    "kernel": {"fdskl_start", "fdskl_angles", "fdskl_iterate"},
    "kernel k-means": {"kernel_kmeans_product", "kernel_kmeans_sample"},
    "forgetting": {"mufc_train", "mufc_commit"},
}
"""Steps of which the algorithm of the paper consists."""


def defaults(strategy):
    return {setting.name: setting.default for setting in settings_of(strategy)}


@pytest.mark.parametrize("name", CASES)
def test_settings_are_those_of_the_paper_where_none_are_given(name):
    strategy, published, given, parties = CASES[name]
    assert values_of(strategy.paper()) == defaults(strategy) | published
    chosen = strategy.paper(**given, seed=1)
    assert values_of(chosen) == defaults(strategy) | published | given | {"seed": 1}
    assert STEPS[name] <= simulate(chosen, parties).ledger.waits.keys()


def test_the_paper_s_regression_has_each_of_its_penalties_and_its_baseline():
    net = CoresetVRLR.paper(regularizer="elasticnet", alpha=3.0)
    assert (net.alpha * net.l1_ratio, net.alpha * (1 - net.l1_ratio)) == (2.0, 1.0)
    assert CoresetVRLR.paper(regularizer="none", alpha=0.0).regularizer == "none"
    assert CoresetVRLR.paper(solver="saga").batch_size == 1
    with pytest.raises(ValueError, match="alpha must be 0"):
        CoresetVRLR.paper(regularizer="none")
    with pytest.raises(TypeError, match="sise"):
        CoresetVRLR.paper(sise=5)


def test_an_iteration_of_the_paper_s_kernel_learning_has_one_row_and_one_feature():
    made = FDSKL.paper(iterations=5)
    assert (made.rows, made.features, made.iterations) == (5, 5, 5)
    assert made._batches([120]) == ([1] * 5, 5)
    assert FDSKL.paper(iterations=5, rows=10).rows == 10
