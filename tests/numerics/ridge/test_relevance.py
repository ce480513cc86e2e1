"""Relevance from sums of products: it is the mean square of derivatives."""

import numpy as np
import pytest

from vfl_flower.numerics.ridge.relevance import (
    derivative_products,
    probes,
    relevance_of,
)


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    X, omega = rng.normal(size=(50, 3)), rng.normal(size=(8, 3))
    return X, omega, rng.uniform(0, 6, 8), rng.normal(size=(16, 2))


def features(X, omega, phases):
    angles = X @ omega.T + phases
    return np.hstack([np.cos(angles), np.sin(angles)])


def test_relevance_is_the_mean_square_of_finite_differences(model):
    X, omega, phases, weights = model
    F = features(X, omega, phases)
    H = derivative_products(F.T @ F, weights, len(X))
    relevance = np.diag(omega.T @ H @ omega)
    for column, found in enumerate(relevance):
        step = np.zeros(3)
        step[column] = 1e-5
        ahead, behind = (features(X + s, omega, phases) for s in (step, -step))
        slopes = (ahead - behind) @ weights / 2e-5
        assert found == pytest.approx((slopes**2).sum(axis=1).mean(), rel=1e-6)


def test_probes_have_the_covariance(model):
    """Of 40,000 probes: every estimate is within five standard errors."""
    X, omega, phases, weights = model
    F = features(X, omega, phases)
    H = derivative_products(F.T @ F, weights, len(X))
    products = omega.T @ probes(H, 40_000, np.random.default_rng(1))
    relevance = np.diag(omega.T @ H @ omega)
    off = relevance_of(products) / relevance - 1
    assert np.abs(off).max() < 5 * np.sqrt(2 / 40_000)


def test_a_column_that_the_model_does_not_use_has_none(model):
    X, omega, phases, weights = model
    omega[:, 1] = 0.0
    F = features(X, omega, phases)
    B = probes(derivative_products(F.T @ F, weights, 50), 64, np.random.default_rng(2))
    relevance = relevance_of(omega.T @ B)
    assert relevance[1] == 0.0
    assert (relevance[[0, 2]] > 0.1).all()


def test_errors_of_the_gram_matrix_make_no_probe_complex():
    B = probes(np.diag([1.0, -1e-9]), 16, np.random.default_rng(0))
    assert np.isfinite(B).all()
    assert not B[1].any()
