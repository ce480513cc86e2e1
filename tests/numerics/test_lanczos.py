"""Lanczos: its identity, its orthogonality, and the eigenpairs of eigh."""

import numpy as np
import pytest
from scipy.linalg import eigh

from vfl_flower.numerics.lanczos import lanczos


def symmetric(eigenvalues, seed=0):
    n = len(eigenvalues)
    U, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return (U * eigenvalues) @ U.T


SPECTRA = {
    "random": np.random.default_rng(3).uniform(0, 1, 60) ** 4,
    "clustered": np.r_[1 + 1e-5 * np.arange(3), 0.5, 0.01 * np.arange(40) / 40],
    "rank-deficient": np.r_[3.0, 2.0, 1.0, 0.6, 0.2, np.zeros(35)],
    "decaying": 2.0 ** -np.arange(50.0),
    "indefinite": np.linspace(-2, 1, 40),
}


def run(A, threshold, seed=1, **options):
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(len(A))
    return lanczos(lambda c: A @ c, start, threshold, rng=rng, **options)


def assert_identity(A, actual):
    q = actual.Q.shape[1]
    scale = np.abs(np.linalg.eigvalsh(A)).max()
    right = actual.Q @ actual.T + np.outer(actual.residual, np.eye(q)[-1])
    np.testing.assert_allclose(A @ actual.Q, right, atol=1e-12 * scale)
    np.testing.assert_allclose(actual.Q.T @ actual.Q, np.eye(q), atol=1e-12)
    np.testing.assert_allclose(actual.Q.T @ actual.residual, 0, atol=1e-12 * scale)


@pytest.mark.parametrize("name", SPECTRA)
def test_pairs_above_the_threshold_are_those_of_eigh(name):
    A = symmetric(SPECTRA[name])
    actual = run(A, 0.1)
    values, vectors = eigh(A)
    above = values > 0.1
    assert_identity(A, actual)
    np.testing.assert_allclose(actual.values, values[above][::-1], atol=1e-11)
    U = vectors[:, above]
    np.testing.assert_allclose(actual.vectors @ actual.vectors.T, U @ U.T, atol=2e-5)
    right = actual.vectors * actual.values
    np.testing.assert_allclose(A @ actual.vectors, right, atol=1e-7)


def test_ends_before_the_space_is_exhausted():
    assert run(symmetric(SPECTRA["decaying"]), 0.1).steps < 20


def test_every_copy_of_a_multiple_eigenvalue_after_breakdowns():
    """Parts of T, each with every distinct eigenvalue left, until none is above."""
    A = symmetric(np.r_[[5.0] * 4, [2.0] * 3, [1.0] * 20, [0.0] * 13])
    actual = run(A, 1.5)
    np.testing.assert_allclose(actual.values, [5, 5, 5, 5, 2, 2, 2], atol=1e-12)
    assert_identity(A, actual)
    # parts of 4, 4, 4, 3 and 2 distinct eigenvalues
    assert actual.steps == 4 + 4 + 4 + 3 + 2


def test_a_breakdown_ends_whatever_the_unit_of_the_matrix():
    """New random columns are compared with 1, not with the eigenvalues."""
    A = 1e20 * symmetric(SPECTRA["rank-deficient"])
    pairs = run(A, 1e19)
    np.testing.assert_allclose(pairs.values, 1e20 * np.array([3, 2, 1, 0.6, 0.2]))


def test_one_large_eigenvalue_that_the_start_hardly_sees_is_found():
    """The first Ritz value is far below the threshold, with a small residual."""
    eigenvalues = np.linspace(0, 1e-6, 2000)
    eigenvalues[7] = 1
    rng, start = np.random.default_rng(0), np.ones(2000)
    actual = lanczos(lambda c: eigenvalues * c, start, 0.5, rng=rng)
    np.testing.assert_allclose(actual.values, [1], atol=1e-6)


def test_the_first_product_may_be_known():
    A = symmetric(SPECTRA["random"])
    start = np.random.default_rng(1).standard_normal(len(A))
    first = A @ (start / np.linalg.norm(start))
    known, asked = run(A, 0.5, first=first), run(A, 0.5)
    np.testing.assert_array_equal(known.vectors, asked.vectors)
    assert known.steps == asked.steps
    assert run(A, 0.5, first=first + 1).values[0] != asked.values[0]


def test_multiples_of_the_unit_matrix_exhaust_the_space():
    actual = run(2 * np.eye(7), 1.0)
    assert actual.Q.shape == (7, 7)
    np.testing.assert_allclose(actual.values, np.full(7, 2.0))
    assert len(run(2 * np.eye(7), 3.0).values) == 0


def test_rounding_is_that_of_the_largest_eigenvalue_after_a_breakdown_too():
    """What is left of a matrix of rank 5 is zero: one more step shows it."""
    assert run(symmetric(SPECTRA["rank-deficient"]), 0.1).steps == 7


def test_zero_matrix_and_one_row():
    actual = run(np.zeros((5, 5)), 0.5)
    assert actual.steps == 1
    assert len(actual.values) == 0
    actual = run(np.array([[3.0]]), 1.0)
    np.testing.assert_allclose(actual.values, [3.0])


def test_the_largest_are_found_below_the_threshold_too():
    A = symmetric(SPECTRA["random"])
    values = eigh(A, eigvals_only=True)[::-1]
    actual = run(A, np.inf, at_least=5)
    np.testing.assert_allclose(actual.values, values[:5], atol=1e-12)
    assert len(run(A, values[7] - 1e-6, at_least=5).values) == 8
    assert len(run(A[:4, :4], np.inf, at_least=9).values) == 4
