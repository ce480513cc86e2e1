"""Random Maclaurin features: their kernel, their draws and bad input."""

import tracemalloc

import numpy as np
import pytest

from vfl_flower.numerics.maclaurin import MaclaurinFeatures

SEED = 2**128 - 7
PINNED = [
    [1, 1, -1, 1, 1, -1, 1, -1],
    [-1, -1, -1, 1, 1, 1, 1, -1],
    [1, 1, 1, -1, -1, 1, 1, -1],
]


@pytest.mark.parametrize(("degree", "offset"), [(1, 0.0), (2, 1.0), (3, 0.5)])
def test_the_mean_product_is_the_kernel(degree, offset):
    """15 means of 100,000 features, 4.5 standard errors: false alarms 1e-4 a test."""
    X = np.random.default_rng(0).standard_normal((5, 6)) / 2
    phi = MaclaurinFeatures(6, degree, offset, SEED).features(X, 0, 100_000)
    i, j = np.triu_indices(5)
    products = phi[:, None] * phi[None]
    mean = products.mean(axis=2)[i, j]
    error = products.std(axis=2)[i, j] / np.sqrt(100_000)
    kernel = ((X @ X.T + offset) ** degree)[i, j]
    assert (abs(mean - kernel) <= 4.5 * error + 1e-12).all()


def test_signs_are_balanced_and_independent():
    """36 means of 64,000 signs or pairs, 4.5 deviations: false alarms 3e-4."""
    maclaurin = MaclaurinFeatures(3, 2, 1.0, 5)
    w = np.concatenate([maclaurin.signs(c).reshape(8, 64) for c in range(1000)], axis=1)
    assert set(np.unique(w)) == {-1.0, 1.0}
    products = w @ w.T / w.shape[1]
    assert abs(products - np.eye(8)).max() < 4.5 / np.sqrt(w.shape[1])
    assert abs(w.mean(axis=1)).max() < 4.5 / np.sqrt(w.shape[1])


def test_worked_example():
    """One feature of degree 2: (w_1^T [x, 1]) (w_2^T [x, 1])."""
    maclaurin = MaclaurinFeatures(2, 2, 1.0, 3)
    w = maclaurin.signs(1)[:, :, 6]
    x = np.array([2.0, 5.0])
    expected = np.prod(w[:, :2] @ x + w[:, 2])
    np.testing.assert_allclose(
        maclaurin.features(x[None], 70, 71), [[expected]], rtol=1e-15
    )


def test_any_range_gives_the_same_features():
    X = np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32)
    maclaurin = MaclaurinFeatures(5, 3, 2.0, SEED)
    every = maclaurin.features(X, 0, 300)
    for start, stop in [(0, 1), (63, 65), (64, 128), (10, 290), (299, 300)]:
        np.testing.assert_allclose(
            maclaurin.features(X, start, stop), every[:, start:stop], rtol=1e-10
        )
    other = MaclaurinFeatures(5, 3, 2.0, SEED - 1).features(X, 0, 300)
    assert abs(every - other).max() > 1


def test_chunks_share_no_sign_words():
    maclaurin = MaclaurinFeatures(7, 3, 1.0, SEED)
    rows = [maclaurin.signs(c).reshape(-1, 64) for c in (0, 1, 2, 3)]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 4 * 3 * 8


def test_a_seed_gives_these_signs_for_ever():
    w = MaclaurinFeatures(2, 1, 1.0, 7).signs(0)
    assert w[0, :, :8].tolist() == PINNED


def test_memory_beyond_the_result_is_bounded():
    X = np.zeros((50_000, 20))
    maclaurin = MaclaurinFeatures(20, 3, 1.0, 0)
    tracemalloc.start()
    maclaurin.features(X, 0, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000 * 100 * 8 + 16e6


def test_rows_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="X must be finite"):
        MaclaurinFeatures(2, 2, 1.0, 0).features(np.full((3, 2), np.nan), 0, 5)
