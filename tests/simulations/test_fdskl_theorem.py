"""The rate of Theorem 4 of the FDSKL paper, on tiny data."""

import math

import numpy as np
import pytest

from simulations import fdskl_theorem as theorem
from simulations.pictures import fdskl_theorem as curves_of
from vfl_flower.numerics.fdskl import dsg_update
from vfl_flower.numerics.kernel_solvers import LOSSES
from vfl_flower.numerics.random_features import RandomFeatures

LAMBDA = 0.5


@pytest.fixture(scope="module")
def problem():
    X, y = theorem.load("breast_cancer", None)
    return theorem.problem_of(X[:30], y[:30], 20, LAMBDA)


def test_rows_are_standardised_by_those_of_training():
    X, y = theorem.load("breast_cancer", None)
    assert X.shape == (200, 30)
    np.testing.assert_allclose(X[:100].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(X[:100].std(axis=0), 1)
    assert set(y) == {-1.0, 1.0}


def test_the_minimiser_has_no_gradient(problem):
    """At f_* = sum_i a_i K(x_i, .) each a_i is -L'(f_*(x_i), y_i) / (n lambda)."""
    n = len(problem.y)
    a = -LOSSES["logistic"].derivative(problem.best[:n], problem.y) / (n * LAMBDA)
    squared = ((problem.X[:, None] - problem.X[None, :n]) ** 2).sum(axis=2)
    K = np.exp(-squared / (2 * problem.bandwidth**2))
    np.testing.assert_allclose(K @ a, problem.best, atol=1e-6)
    assert problem.distance == pytest.approx(a @ K[:n] @ a, abs=1e-6)


def test_the_step_is_that_of_equation_8():
    """It is eps / (8 B) with M = kappa = theta = 1 and phi = 2."""
    eps, distance = 0.01, 0.3
    g1, g2 = 2 / LAMBDA, (1 + math.sqrt(2)) / (2 * LAMBDA**1.5)
    b = (math.sqrt(g2**2 + g1) + g2) ** 2
    asked = theorem.theorem4_iterations(1, 1, 2, LAMBDA, eps, distance)
    step = theorem.theorem_step(eps, asked, distance, LAMBDA)
    assert step == pytest.approx(eps / (8 * b), rel=1 / asked)
    assert step < theorem.theorem4_step(1, 1, 2, LAMBDA, eps)


def test_a_run_takes_the_steps_of_algorithm_1(problem, monkeypatch):
    """It equals `dsg_update`, across the border of two chunks of features."""
    monkeypatch.setattr(theorem, "CHUNK", 7)
    n, T, step = len(problem.y), 20, 0.3
    still = theorem.Problem(problem.X, problem.y, problem.bandwidth, np.zeros(30), 0.0)
    ((*_, last),) = [
        [e for _, e in theorem.errors_of_runs(still, step, T, LAMBDA, runs=1)]
    ]
    rng = np.random.default_rng(0)
    sizes = (min(7, T - s) for s in (0, 7, 14))
    rows = np.concatenate([rng.integers(n, size=(size, 1)) for size in sizes])
    draws = RandomFeatures("gaussian", 30, problem.bandwidth, 0)
    omega, b = draws.weights(0, T)
    phi = np.sqrt(2) * np.cos(problem.X @ omega.T + 2 * np.pi * b)
    alpha = np.zeros((0, 1))
    for t, (i,) in enumerate(rows):
        f, label = phi[[i], :t] @ alpha, problem.y[[i], None]
        given = phi[[i], t : t + 1], f, label, "logistic", step, LAMBDA
        alpha = np.concatenate(dsg_update(alpha, *given))
    np.testing.assert_allclose(last, (phi @ alpha)[:, 0] ** 2, atol=1e-12)


def test_errors_are_means_over_runs(problem):
    """Two runs have the mean of their errors, so one differs from it."""
    both = dict(theorem.errors_of_runs(problem, 0.1, 50, LAMBDA, runs=2))
    assert next(iter(both)) == 1
    assert list(both)[-1] == 50
    first = dict(theorem.errors_of_runs(problem, 0.1, 50, LAMBDA, runs=1))
    assert not np.allclose(both[50], first[50])


def test_the_theorem_holds_and_its_step_is_far_too_small():
    """With eps = 0.1 and seed 0, at 16 times its step still."""
    figures = theorem.rate("breast_cancer", None, eps=[0.1], factors=[16, 1024])
    slow, fast = figures["cells"]
    assert slow["factor"] * slow["t"][-1] == pytest.approx(
        fast["factor"] * fast["t"][-1], rel=0.1
    )
    for cell in (slow, fast):
        assert cell["t"][-1] == max(cell["t"])
        assert max(cell["mean"][-1], cell["new"][-1]) <= cell["largest"][-1]
    assert slow["mean"][-1] < slow["eps"] / 100
    assert (
        slow["mean"][-1] < slow["mean"][0] == pytest.approx(figures["start"], rel=0.1)
    )
    assert slow["mean"][-1] < fast["mean"][-1]
    text = "\n".join(theorem.page({"breast_cancer": figures}))
    assert f"{slow['t'][-1]:,}" in text
    ((name, (panel,)),) = curves_of({"breast_cancer": figures})
    assert name == "fdskl-theorem"
    assert [curve.dashed for curve in panel.curves] == [False, False, True]
