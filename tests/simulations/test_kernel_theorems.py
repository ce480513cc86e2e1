"""What two theorems of the federated kernel k-means paper say, beside what happens."""

import json
import os
from itertools import product

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from simulations import kernel_theorems
from simulations.kernel_baselines import default_gamma, kernel_eigenpairs
from simulations.kernel_kmeans import Rows
from simulations.kernel_pooled import pooled_draw, pooled_fkkm, recovery_error
from simulations.kernel_theorems import (
    app,
    centred_kernel,
    kernel_lloyd,
    kernel_loss,
    loss,
    loss_page,
    schedule,
    schedule_page,
)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    X = 4 * rng.normal(size=(3, 6))[y] + rng.normal(size=(240, 6))
    return Rows("blobs", X, y, k=3, s=4, coreset=60)


# --- The step ------------------------------------------------------------------------


def test_with_the_step_of_theorem_1_the_first_iteration_counts_no_more(data):
    """Whatever t = 1 had, t = 2 is the prox of its own features; 1 / t keeps half."""
    draw = pooled_draw(data.X, 8, 8, 0)

    def other(t):
        return draw(9) if t == 1 else draw(t)

    for factor, same in ((2.0, True), (1.0, False)):
        one, two = ([*pooled_fkkm(of, 3, 4, 5.0, factor)][1:] for of in (draw, other))
        assert [iterate.eta for iterate in one] == [factor / 2, factor / 3]
        H, G = one[-1].H, two[-1].H
        assert np.allclose(H @ H.T, G @ G.T, atol=1e-8) == same


def test_both_steps_have_the_same_features(data):
    entry = schedule(data, counts=(8,), iterations=6, seeds=2)
    assert [curve["step"] for curve in entry["curves"]] == ["1 / t", "2 / t"]
    slow, fast = (np.array(curve["errors"]) for curve in entry["curves"])
    assert slow.shape == fast.shape == (2, 6)
    np.testing.assert_allclose(slow[:, 0], fast[:, 0])
    assert (slow[:, 2:] != fast[:, 2:]).all()
    values, vectors = kernel_eigenpairs(data.X, 5)
    run = pooled_fkkm(pooled_draw(data.X, 8, 8, 1), 6, 4, float(values[4]), 2.0)
    *_, last = run
    error = recovery_error(last.H, values[:4], vectors[:, :4])
    assert fast[1, -1] == pytest.approx(error)
    heading, page = schedule_page({"blobs": entry})
    assert heading == "## The step of Theorem 1"
    assert len(page.splitlines()) == 4


# --- The loss ------------------------------------------------------------------------


def test_the_loss_is_that_of_the_kernels_own_space(data):
    """K = F F^T: the squared distances of F's rows to the means of their clusters."""
    F = np.linalg.cholesky(rbf_kernel(data.X, gamma=default_gamma(data.X)))
    means = np.array([F[data.y == c].mean(axis=0) for c in range(3)])
    expected = ((F - means[data.y]) ** 2).sum()
    K = centred_kernel(data.X)
    np.testing.assert_allclose(K.sum(axis=0), 0, atol=1e-9)
    # A fourth cluster without rows changes nothing.
    for k in (3, 4):
        assert kernel_loss(K, data.y, k) == pytest.approx(expected)


def test_no_clusters_of_few_rows_have_a_loss_below_the_bound():
    """All 2^6 pairs of clusters of seven rows, one of them fixed."""
    X = np.random.default_rng(1).normal(size=(7, 2))
    rows = Rows("seven", X, np.zeros(7), k=2, s=2)
    K = centred_kernel(X)
    every = [kernel_loss(K, np.array([0, *p]), 2) for p in product((0, 1), repeat=6)]
    bound = K.trace() - np.linalg.eigvalsh(K)[-1]
    assert 0.5 * min(every) < bound < min(every)
    assert kernel_theorems.lower_bound(K, rows.k) == pytest.approx(bound)


def test_kernel_k_means_ends_where_no_row_is_nearer_to_another_mean(data):
    F = np.linalg.cholesky(rbf_kernel(data.X, gamma=default_gamma(data.X)))
    K = centred_kernel(data.X)
    start = np.random.default_rng(5).integers(3, size=240)
    labels = kernel_lloyd(K, start, 3)
    means = np.array([F[labels == c].mean(axis=0) for c in range(3)])
    distances = ((F[:, None] - means) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))
    assert kernel_loss(K, labels, 3) < kernel_loss(K, start, 3)


def test_the_loss_of_separate_groups_is_that_of_their_classes(data, monkeypatch):
    monkeypatch.setattr(kernel_theorems, "TIMES", (1, 8))
    entry = loss(data, seeds=2, parties=3)
    best = kernel_loss(centred_kernel(data.X), data.y, 3)
    assert entry["bound"] < min(entry["central"]) <= best * (1 + 1e-9)
    kinds = [(run["s"], run["T"]) for run in entry["runs"]]
    assert kinds == [(s, T) for s in (3, 6, 12) for T in (1, 8)]
    for run in entry["runs"]:
        assert len(run["losses"]) == 2
        assert all(value >= entry["bound"] for value in run["losses"])
    assert np.mean(entry["runs"][-1]["losses"]) == pytest.approx(best, rel=0.02)
    heading, name, sentence, page = loss_page({"blobs": entry})
    assert (heading, name) == ("## The loss of Theorem 3", "### blobs")
    assert f"below {entry['bound']:.5g}." in sentence
    assert len(page.splitlines()) == 2 + len(kinds)


# --- The command ---------------------------------------------------------------------


def test_command_writes_both_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_theorems, "TIMES", (1,))
    words = ["schedule", "loss", "--datasets", "digits", "--rows", "200"]
    words += ["--seeds", "1", "--output-dir", str(tmp_path)]
    app(words, standalone_mode=False)
    names = ["kernel_theorems-loss", "kernel_theorems-schedule"]
    assert sorted({name.partition(".")[0] for name in os.listdir(tmp_path)}) == names
    figures = json.loads((tmp_path / "kernel_theorems-loss.json").read_text())
    assert figures["loss"]["digits"]["n"] == 200
    assert "### digits" in (tmp_path / "kernel_theorems-loss.md").read_text()
