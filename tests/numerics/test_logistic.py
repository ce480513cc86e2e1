"""Weighted logistic regression against scikit-learn's, and its losses."""

import doctest

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from vfl_flower.numerics import logistic
from vfl_flower.numerics.logistic import log_losses, solve_logistic


def sample(m=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, 4)) * [1.0, 100.0, 1e-3, 1.0]
    positive = X @ [1.0, 0.01, 500.0, 0.0] + rng.logistic(size=m) > 1
    return X, positive, rng.uniform(0.5, 4, size=m)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-6, 1e-2])
def test_the_solution_is_that_of_another_solver(alpha, fit_intercept):
    """Of L-BFGS on columns scaled by hand, where the penalty has no part."""
    X, positive, w = sample()
    X = X / X.std(axis=0)
    theta, intercept, converged = solve_logistic(
        X, positive, w, 1000, alpha, fit_intercept
    )
    model = LogisticRegression(
        C=1 / (2 * alpha * 1000),
        tol=1e-10,
        max_iter=10_000,
        fit_intercept=fit_intercept,
    ).fit(X, positive, sample_weight=w)
    assert converged
    np.testing.assert_allclose(theta, model.coef_[0], rtol=1e-4, atol=1e-5)
    expected = model.intercept_[0] if fit_intercept else 0.0
    assert intercept == pytest.approx(expected, abs=1e-4)


def test_the_gradient_is_zero_in_any_units():
    X, positive, w = sample()
    alpha, n = 1e-5, 900
    theta, intercept, _ = solve_logistic(X, positive, w, n, alpha, True)
    off = 1 / (1 + np.exp(-(X @ theta + intercept))) - positive
    gradient = X.T @ (w * off) / n + 2 * alpha * theta
    assert np.abs(gradient / X.std(axis=0)).max() < 1e-6
    assert abs(w @ off) / n < 1e-6


def test_a_weight_is_a_number_of_copies():
    X, positive, _ = sample(60)
    copies = np.arange(60) % 3 + 1
    one = solve_logistic(X, positive, copies.astype(float), 120, 1e-3, True)
    many = solve_logistic(
        *(np.repeat(X, copies, axis=0), np.repeat(positive, copies)),
        *(np.ones(copies.sum()), 120, 1e-3, True),
    )
    np.testing.assert_allclose(one[0], many[0], rtol=1e-8)
    assert one[1] == pytest.approx(many[1])


def test_a_solver_that_is_stopped_says_so(monkeypatch):
    monkeypatch.setattr(logistic, "MOST_ITERATIONS", 1)
    X, positive, w = sample()
    assert not solve_logistic(X, positive, w, 900, 1e-9, True)[2]


def test_losses_are_those_of_scikit_learn():
    _, positive, w = sample()
    odds = np.random.default_rng(1).normal(scale=5, size=400)
    expected = log_loss(positive, 1 / (1 + np.exp(-odds)), sample_weight=w)
    losses = log_losses(odds, positive)
    assert np.average(losses, weights=w) == pytest.approx(expected)
    assert log_losses(np.array([-1e4]), np.array([True])) == pytest.approx(1e4)


def test_examples():
    assert doctest.testmod(logistic).failed == 0
