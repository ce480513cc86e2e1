"""What theorems ask for and what coresets keep: by hand, and on tiny data."""

import doctest
import json

import numpy as np
import pytest

from simulations import coreset_theorems
from simulations.coreset_theorems import (
    BETAS,
    basis_and_scores,
    basis_blocks,
    enough,
    errors,
    four_groups,
    measured_eps,
    of_centers,
    of_every_linear_model,
    paper_s_set,
    robust,
    robust_page,
    shared_columns,
    sizes,
)
from simulations.coresets import Experiment
from simulations.experiments import Columns

N = 600


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) + 7
    return Columns(X, (2, 3), X.sum(axis=1) + rng.normal(size=N))


@pytest.fixture(scope="module")
def basis(data):
    return np.linalg.qr(np.hstack(basis_blocks(data))).Q


def test_all_rows_are_a_coreset_without_error(basis):
    every = np.arange(N)
    assert measured_eps(basis, every, np.ones(N)) == pytest.approx(0, abs=1e-12)
    assert measured_eps(basis, every, np.full(N, 1.5)) == pytest.approx(0.5)


def test_epsilon_is_the_largest_error_over_all_models(data, basis):
    """No model has a larger one, and that of the eigenvector has it."""
    rng = np.random.default_rng(1)
    rows, weights = rng.integers(N, size=90), rng.uniform(0, 2 * N / 90, 90)
    eps = measured_eps(basis, rows, weights)
    columns = np.column_stack([data.X, np.ones(N), data.y])
    costs = (columns @ rng.normal(size=(7, 20_000))) ** 2
    errors = np.abs(weights @ costs[rows] / costs.sum(axis=0) - 1)
    assert 0.3 * eps < errors.max() <= eps * (1 + 1e-9)
    part = np.sqrt(weights)[:, None] * basis[rows]
    values, vectors = np.linalg.eigh(part.T @ part - np.eye(7))
    cost = (basis @ vectors[:, np.abs(values).argmax()]) ** 2
    assert abs(weights @ cost[rows] / cost.sum() - 1) == pytest.approx(eps)


def test_less_error_takes_more_rows(basis):
    scores = (basis**2).sum(axis=1) + 2 / N
    sizes = [enough(basis, scores, eps, np.random.default_rng(0)) for eps in (0.9, 0.4)]
    assert sizes[0] < sizes[1]
    assert enough(basis, scores, 1e-3, np.random.default_rng(0)) is None
    assert enough(basis, None, 1e-3, np.random.default_rng(0)) is None


def test_measured_zeta_is_below_the_bound_of_lemma_e2(data):
    tiny = Experiment("tiny", "", "regression", data, {}, {})
    figures = sizes(tiny, 0, 0)
    assert figures["zeta"] <= 1 / figures["gamma"] ** 2
    assert figures["G"] == pytest.approx(6 + 1 + 2)  # columns, ones; y; T
    assert figures["measured zeta G"] < figures["proof"]
    assert figures["theorem"] < figures["proof"]


def test_the_set_of_the_paper_has_fewer_rows_than_its_theorems_ask_for():
    best = paper_s_set()
    assert 700 < best["regression"][0]["theorem"] / best["regression"][0]["n"] < 750
    assert 40 < best["k-means"][0]["theorem"] / best["k-means"][0]["n"] < 45


# --- Robust coresets ------------------------------------------------------------------


def epsilons(*arguments):
    """Return the epsilon of each beta, by beta."""
    return dict(zip(BETAS, errors(*arguments), strict=True))


def test_the_example_of_theorem_41_is_robust():
    """1,000 rows with costs (v_1 a_i + v_2 b_i)^2, a = b but for row 0.

    Rows 1 to 499 alone have other values, 1 and 1. In the basis of a - b, which is row
    0, and b a model costs v_1^2 + 499 (v_2 / 499^(1/2))^2. The coreset has row 1 with
    weight 400: it says 0 v_1^2 + 400/499 v_2^2, so epsilon is 1. Without row 0, a share
    of 0.001, both costs have no v_1^2, and epsilon is 99/499.
    """
    U = np.zeros((1000, 2))
    U[0, 0], U[1:500, 1] = 1, 499**-0.5
    every = of_every_linear_model(U)
    found = epsilons(np.arange(1000), np.array([1]), np.array([400.0]), every)
    assert found[0.0] == pytest.approx(1)
    assert found[0.001] == pytest.approx(99 / 499)
    # Row 1 is the next, and the only draw, so that it may not be left out.
    assert found[0.05] == found[0.001]


def test_a_drawn_row_counts_among_the_draws():
    """Of two draws with beta = 0.01 none may be left out, though it is one of 1,000."""
    U = np.full((1000, 1), 1000**-0.5)
    rows, weights = np.array([0, 1]), np.array([1000.0, 500.0])
    found = errors(np.arange(1000), rows, weights, of_every_linear_model(U))
    assert found == pytest.approx([0.5] * len(BETAS))


def test_epsilon_of_centers_by_hand():
    """Costs 8 and 2 of rows 0 and 1; row 1 stands for three: |6 - 10| / 10, then 4/10.

    Without row 0, half of the rows but none of the draws, it is |6 - 2| / 10.
    """
    error = of_centers(np.array([[8.0, 2.0]]))
    assert error(np.array([1]), np.array([3.0]), np.array([], int)) == 0.4
    assert error(np.array([1]), np.array([2.0]), np.array([], int)) == 0.6
    assert error(np.array([1]), np.array([2.0]), np.array([0])) == 0.2


@pytest.fixture(scope="module")
def linear():
    return basis_and_scores(basis_blocks(shared_columns(2000, seed=1)))


def test_no_model_has_a_larger_error(linear):
    """By the definition, with the set O that is left out, for 20,000 models."""
    U, scores = linear
    rng = np.random.default_rng(0)
    order = np.argsort(-(U**2).sum(axis=1) / scores)
    rows = rng.integers(len(U), size=300)
    rows = rows[~np.isin(rows, order[:20])]
    weights = rng.uniform(0, 13, len(rows))
    costs = (U @ rng.normal(size=(U.shape[1], 20_000))) ** 2
    outside = np.setdiff1d(np.arange(len(U)), order[:20])
    gaps = np.abs(weights @ costs[rows] - costs[outside].sum(axis=0))
    eps = of_every_linear_model(U)(rows, weights, order[:20])
    assert 0.3 * eps < (gaps / costs.sum(axis=0)).max() <= eps * (1 + 1e-9)


@pytest.mark.parametrize("data", [shared_columns(3000, 0), four_groups(3000, 0)])
def test_without_the_assumption_leaving_rows_out_makes_coresets(data):
    """Ten rows of 3,000 decide: most coresets miss some, and all may leave them out."""
    task = "k-means" if data.y is None else "regression"
    found = robust(Experiment("", "", task, data, {"n_clusters": 3}, {}), [1000], 0)
    eps = np.sort(found["errors"]["coreset"]["1000"], axis=0)[17]
    assert eps[0] > 0.3
    assert eps[BETAS.index(0.01)] < 0.2
    assert found.get("gamma", 0) < 0.1
    assert found["asked"] > found["asked, uniform"] > found["n"]


def test_command_writes_the_tables_of_robust_coresets(tmp_path):
    words = ["robust", "--datasets", "made", "--quick", "--output-dir", str(tmp_path)]
    coreset_theorems.app(words, standalone_mode=False)
    file = tmp_path / "coreset_theorems-robust.json"
    results = json.loads(file.read_text())["robust"]
    assert [one["name"].partition(",")[0] for one in results] == ["made"] * 2
    assert len(results[0]["errors"]["uniform"]["250"]) == 20
    text = (tmp_path / "coreset_theorems-robust.md").read_text()
    assert all(part in text for part in robust_page(results))


def test_examples():
    assert doctest.testmod(coreset_theorems).failed == 0
