"""The beta and epsilon of robust coresets: by hand, and against their definition."""

import doctest
import json

import numpy as np
import pytest

from simulations import coreset_robust
from simulations.coreset_robust import (
    BETAS,
    errors,
    four_groups,
    measure,
    of_centers,
    of_every_linear_model,
    page,
    shared_columns,
)
from simulations.coreset_theorems import basis_and_scores, basis_blocks, measured_eps
from simulations.tables import Experiment


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


def test_beta_0_is_the_epsilon_of_a_coreset(linear):
    U, scores = linear
    rng = np.random.default_rng(0)
    rows, weights = rng.integers(len(U), size=300), rng.uniform(0, 13, 300)
    found = epsilons(np.argsort(scores), rows, weights, of_every_linear_model(U))
    assert found[0.0] == pytest.approx(measured_eps(U, rows, weights))


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
    found = measure(Experiment("", "", task, data, {"n_clusters": 3}, {}), [1000], 0)
    eps = np.sort(found["errors"]["coreset"]["1000"], axis=0)[17]
    assert eps[0] > 0.3
    assert eps[BETAS.index(0.01)] < 0.2
    assert found.get("gamma", 0) < 0.1
    assert found["asked"] > found["asked, uniform"] > found["n"]


def test_command_writes_json_and_tables(tmp_path):
    words = ["--datasets", "made", "--quick", "--output-dir", str(tmp_path)]
    coreset_robust.app(words, standalone_mode=False)
    results = json.loads((tmp_path / "coreset_robust.json").read_text())["experiments"]
    assert [one["name"].partition(",")[0] for one in results] == ["made"] * 2
    assert len(results[0]["errors"]["uniform"]["250"]) == 20
    text = (tmp_path / "coreset_robust.md").read_text()
    assert all(part in text for part in page(results))


def test_examples():
    assert doctest.testmod(coreset_robust).failed == 0
