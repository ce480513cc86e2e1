"""The experiments of federated kernel k-means, on sets that are made here."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from measured import cells_of, run

from simulations import kernel_baselines, kernel_kmeans
from simulations.kernel_pooled import (
    RowLanczos,
    paper_threshold,
    pooled_draw,
    pooled_fkkm,
)
from vfl_flower import Party, simulate
from vfl_flower.strategies.kernel_kmeans.training import FKKMeans

N, D = 240, 6


def blobs(n, k, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return 4 * rng.normal(size=(k, D))[y] + rng.normal(size=(n, D)), y


@pytest.fixture(scope="module")
def data():
    X, y = blobs(N, 3)
    return kernel_baselines.Rows("blobs", X, y, k=3, s=4, coreset=60, bound=0.4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    for name, k in (("mushrooms", 2), ("mnist", 10), ("covtype", 7)):
        X, y = blobs(N, k)
        X[:, 0] = 3  # a constant column
        np.savez(path / f"{name}.npz", X=(10 * X).astype(np.float32), y=y)
    return path


@pytest.fixture
def brief(monkeypatch):
    """Give every run few iterations and starts: the blobs need no more."""
    few = partial(FKKMeans, iterations=3, n_init=5)
    monkeypatch.setattr(kernel_baselines, "FKKMeans", few)
    monkeypatch.setattr(kernel_kmeans, "FKKMeans", few)
    return few


# --- Data ----------------------------------------------------------------------------


def test_data_sets_are_read_and_drawn(folder):
    digits = kernel_baselines.load("digits", None, 10_000)
    assert digits.X.shape == (1797, 64)
    assert (digits.k, digits.s, digits.coreset) == (10, 20, 1000)
    small = kernel_baselines.load("mnist-20k", folder, 100)
    whole = kernel_baselines.load("mnist", folder, 10_000)
    assert (len(small.X), len(whole.X)) == (100, N)
    drawn = np.random.default_rng(0).permutation(N)[:100]
    np.testing.assert_array_equal(small.X, whole.X[drawn])
    np.testing.assert_array_equal(small.y, whole.y[drawn])


def test_covtype_is_scaled(folder):
    X = kernel_baselines.load("covtype", folder, 10_000).X
    assert not X[:, 0].any()
    np.testing.assert_array_equal(X[:, 1:].min(axis=0), 0)
    np.testing.assert_array_equal(X[:, 1:].max(axis=0), 1)


# --- Recovery ------------------------------------------------------------------------


def test_the_curves_are_those_of_the_federated_run(data):
    """At the secret seed the pooled iterate is the embedding of the strategy."""
    parties = [Party(rows) for rows in np.array_split(data.X, 3)]
    strategy = FKKMeans(3, 4, 8, 5, subspace_tol=0.0)
    model = simulate(strategy, parties, seed=1).model
    draw = pooled_draw(data.X, 8, 36, int(model.parts[0]["seed"], 16))
    *_, last = pooled_fkkm(draw, 5, 4)
    H = model.transform(data.X)
    np.testing.assert_allclose(H @ H.T, last.H @ last.H.T, atol=1e-6)


def test_rows_and_columns_give_the_same_iterates(data):
    draw, rows = pooled_draw(data.X, 8, 36, 3), RowLanczos(N)
    for t, iterate in enumerate(pooled_fkkm(draw, 4, 4), start=1):
        H, steps = rows.step(draw(t), iterate.eta, iterate.threshold, 4)
        np.testing.assert_allclose(H @ H.T, iterate.H @ iterate.H.T, atol=1e-5)
        assert steps >= 4


def test_papers_threshold_is_an_eigenvalue_of_the_first_iteration():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 8))
    expected = np.linalg.eigvalsh(A @ A.T / 8)[::-1][4]
    assert paper_threshold(A, 3) == pytest.approx(expected)
    assert paper_threshold(A, 7) == 0  # there are 8, and the 9th is 0


def test_slope_of_a_power_is_its_exponent():
    """The first point does not count."""
    t = np.arange(1, 11)
    curve = 0.4 / t
    curve[0] = 7
    assert kernel_kmeans.slope(curve) == pytest.approx(-1)
    assert math.isnan(kernel_kmeans.slope(curve[:2]))


def test_interval_is_students():
    """Four values of deviation 2 and mean error 1; t(0.975, 3) = 3.182."""
    values = np.array([[-3.0], [-1.0], [1.0], [3.0]]) * math.sqrt(3 / 5)
    np.testing.assert_allclose(kernel_kmeans.interval(values), 3.1824, rtol=1e-4)
    assert np.isnan(kernel_kmeans.interval(values[:1])).all()


def test_errors_fall_and_do_not_depend_on_the_mechanism(data):
    data = replace(data, counts=(4, 16), iterations=12)
    entry = kernel_kmeans.recovery(data, seeds=3, without=16)
    kinds = [(c["D"], c["rule"], c["cem"]) for c in entry["curves"]]
    assert kinds == [
        (4, "auto", True),
        (4, "oracle", True),  # the paper's threshold needs k + 2 features
        (16, "auto", True),
        (16, "auto", False),
        (16, "paper", True),
        (16, "oracle", True),
    ]
    for curve in entry["curves"]:
        errors = np.array(curve["errors"])
        assert errors.shape == (3, 12)
        assert len(curve["thresholds"]) == 3
        mean = errors.mean(axis=0)
        if curve["rule"] != "auto":  # whose first iteration has more features
            assert mean[-1] < mean[0]
    by_kind = dict(zip(kinds, entry["curves"], strict=True))
    a, b = (by_kind[16, "auto", cem]["errors"] for cem in (True, False))
    np.testing.assert_allclose(a, b, rtol=0.01)  # of Ritz values near lambda
    oracle = by_kind[16, "oracle", True]
    np.testing.assert_allclose(oracle["thresholds"], entry["eigenvalues"][4])


# --- Floats --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(data):
    return kernel_kmeans.floats(data, D=8, iterations=2, parties=3)


def test_floats_are_those_of_the_formulas(counted):
    assert list(counted["methods"]) == list(kernel_kmeans.SOLVERS)
    for name, figures in counted["methods"].items():
        assert figures["ledger"] == figures["formula"] > 0, name


def test_pooled_counts_are_those_of_theorem_2(counted):
    counts = [36, 8]
    with_cem = 3 * sum(
        q * m for q, m in zip(counted["Q_1"], counted["sizes"], strict=True)
    )
    without = sum(q * (N + 3 * c) for q, c in zip(counted["Q_0"], counts, strict=True))
    assert counted["pooled"]["lanczos"] == with_cem
    assert counted["pooled"]["without CEM"] == without


# --- NMI -----------------------------------------------------------------------------


@pytest.fixture
def entry(data, monkeypatch):
    """Return the scores of runs with two iterations at most."""
    fk = kernel_kmeans.fk
    short = lambda D, T, **more: fk(D, min(T, 2), **more)  # noqa: E731
    monkeypatch.setattr(kernel_kmeans, "fk", short)
    return kernel_kmeans.nmi(data, seeds=2, parties=3, quick=True)


def test_each_method_has_a_score_a_seed(entry):
    families = [figures["family"] for figures in entry["methods"].values()]
    assert families == [*["FK"] * 4, *["RFK"] * 10, "CE PCA", "plain", *["central"] * 2]
    for figures in entry["methods"].values():
        assert len(figures["nmi"]) == 2
        assert all(0 <= score <= 1 for score in figures["nmi"])
    for name in ("SK", "CK"):
        assert np.mean(entry["methods"][name]["nmi"]) > 0.8
        assert entry["methods"][name]["floats"] == N * D


def test_scores_of_the_strategy_are_by_row(data):
    """Labels come back party by party, and go to the rows that the party has."""
    order = np.random.default_rng(0).permutation(N)
    parts = [np.sort(part) for part in np.array_split(order, 3)]
    figures = kernel_baselines.federated(data, parts, 0, n_features=20, iterations=5)
    assert figures["nmi"] > 0.8
    result = simulate(
        FKKMeans(3, 4, 20, 5, clustering="coreset", coreset_size=60),
        [Party(data.X[rows]) for rows in parts],
        seed=0,
    )
    assert figures["floats"] == kernel_baselines.uploaded(result.ledger)
    assert figures["bytes"] == result.ledger.bytes_up


def test_needed_is_the_cheapest_that_is_as_good():
    def method(family, floats, *scores):
        return {"family": family, "floats": floats, "nmi": list(scores)}

    entry = {
        "methods": {
            "a": method("FK", 100.0, 0.70, 0.72),
            "b": method("RFK", 50.0, 0.69, 0.70),  # 0.015 below
            "c": method("RFK", 400.0, 0.70, 0.71),
            "d": method("RFK", 250.0, 0.70, 0.705),
            "e": method("CE PCA", 10.0, 0.5, 0.9),  # 0.7: a hundredth below
            "f": method("plain", 10.0, 0.5, 0.5),
        }
    }
    assert kernel_kmeans.needed(entry, "a", "RFK") == ("d", 250.0)
    assert kernel_kmeans.needed(entry, "a", "CE PCA") == ("e", 10.0)
    assert kernel_kmeans.needed(entry, "a", "plain") == ("", math.inf)


# --- k-means by sums ----------------------------------------------------------------


def test_both_forms_of_k_means_are_run_on_the_same_splits(data, brief):
    entry = kernel_kmeans.clustering(data, parties=(3, 4), seeds=1)
    forms = [(run["parties"], run["clustering"]) for run in entry["runs"]]
    assert forms == [(M, form) for M in (3, 4) for form in ("coreset", "sums")]
    assert all(run["nmi"] > 0.7 for run in entry["runs"])
    assert all(
        np.isnan(run["small_share"]) == (run["clustering"] == "coreset")
        for run in entry["runs"]
    )
    _, page = kernel_kmeans.clustering_page({"blobs": entry})
    names, *rows = cells_of(page)
    for row, M in zip(rows, (3, 4), strict=True):
        cells = dict(zip(names, row, strict=True))
        assert cells["M"] == str(M)
        for form in ("coreset", "sums"):
            runs = [r for r in entry["runs"] if r["parties"] == M]
            mean = np.mean([r["nmi"] for r in runs if r["clustering"] == form])
            assert float(cells[f"NMI, {form}"]) == pytest.approx(mean, abs=1e-3)


# --- The number of clusters ----------------------------------------------------------


def test_the_number_of_clusters_is_chosen_beside_pooled_criteria(brief, monkeypatch):
    monkeypatch.setattr(kernel_baselines, "GENERATED", 400)
    entry = kernel_kmeans.number(
        kernel_baselines.load("groups-5", None, 10**6), parties=3, seeds=1
    )
    (run_of_it,) = entry["runs"]
    assert list(run_of_it) == ["chosen", *kernel_kmeans.CRITERIA]
    assert run_of_it["chosen"] == run_of_it["simplified"] == 5
    _, choices = kernel_kmeans.number_page({"groups-5": entry})
    assert cells_of(choices)[1][1:3] == ["5", "5"]


def test_multiples_of_gamma_stand_beside_k_means(data, brief):
    entry = kernel_kmeans.gamma(data, parties=3, seeds=1)
    assert list(entry["scores"]) == ["k-means", "1", "2", "5", "20"]
    assert all(len(runs) == 1 for runs in entry["scores"].values())
    assert np.min([entry["scores"][key] for key in ("k-means", "1")]) > 0.7
    strategy = brief(data.k, gamma=5 * entry["gamma"])
    parts = kernel_baselines.split_of(data, 3, 0)
    model = simulate(strategy, [Party(data.X[rows]) for rows in parts], seed=0).model
    y, labels = data.y[np.concatenate(parts)], np.concatenate(model.labels_)
    expected = kernel_kmeans.rand(y, labels)
    assert entry["scores"]["5"][0] == pytest.approx(expected, abs=0.02)
    assert kernel_baselines.agreement(y, labels) > 0.7
    _, page = kernel_kmeans.gamma_page({"blobs": entry})
    cell = dict(zip(*cells_of(page), strict=True))["20 x"]
    assert float(cell.split()[0]) == pytest.approx(
        np.mean(entry["scores"]["20"]), abs=1e-3
    )


# --- The command ---------------------------------------------------------------------


def test_command_writes_json_and_tables(folder, tmp_path, capsys, monkeypatch):
    """Of a set with too many rows for messages: floats by formula alone."""
    monkeypatch.setattr(kernel_kmeans, "LEDGER", 99)
    arguments = ["floats", "--datasets", "mushrooms", "--rows", "100", "--quick"]
    run(kernel_kmeans.app, *arguments, "--data-dir", folder, "--output-dir", tmp_path)
    results = json.loads((tmp_path / "kernel_kmeans-floats.json").read_text())
    assert results["floats"]["mushrooms"]["n"] == 100
    assert results["floats"]["mushrooms"]["T"] == 5
    assert results["floats"]["mushrooms"]["methods"] == {}
    page = (tmp_path / "kernel_kmeans-floats.md").read_text()
    assert page in capsys.readouterr().out
