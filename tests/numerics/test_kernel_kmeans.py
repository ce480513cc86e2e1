"""DSPGD: its steps against dense matrices, its convergence, and what surrounds it."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from simulations.kernel_pooled import pooled_fkkm, recovery_error
from vfl_flower.numerics.kernel_kmeans import (
    Subspace,
    compose,
    default_threshold,
    eigenpairs,
    embed,
    feature_range,
    first_features,
    gamma,
    moments,
    movement,
    shrink,
    step_size,
    variances,
)
from vfl_flower.numerics.random_features import CHUNK, RandomFeatures, features

SEED = 11


def blobs(N, d=6, seed=0):
    rng = np.random.default_rng(seed)
    middles = 3 * rng.standard_normal((4, d))
    return middles[rng.integers(4, size=N)] + rng.normal(size=(N, d))


def kernel_of(X):
    return np.exp(-gamma(*moments(X)) * cdist(X, X, "sqeuclidean"))


def draws(X, D, D_1, seed=SEED, rows=None):
    bandwidth = 1 / math.sqrt(2 * gamma(*moments(X)))
    part = RandomFeatures("gaussian", X.shape[1], bandwidth, seed)
    rows = X if rows is None else rows
    return lambda t: features(part.angles(rows, *feature_range(t, D, D_1), 64))


def positive_part(Z, cut):
    values, vectors = np.linalg.eigh(Z)
    return (vectors * np.maximum(values - cut, 0)) @ vectors.T


# --- the steps, and the map for new rows


def test_step_sizes_are_those_of_the_paper_for_equal_numbers_of_features():
    assert [step_size(t, 20, 20) for t in (1, 2, 5)] == [1, 1 / 2, 1 / 5]
    assert [step_size(t, 20, 60) for t in (1, 2, 3)] == [1, 1 / 4, 1 / 5]


@pytest.mark.parametrize(("D", "D_1"), [(20, 20), (64, 64), (50, 84), (100, 130)])
def test_iterations_share_no_chunk_of_features(D, D_1):
    ranges = [feature_range(t, D, D_1) for t in range(1, 6)]
    assert [stop - start for start, stop in ranges] == [D_1, D, D, D, D]
    for (_, stop), (start, _) in itertools.pairwise(ranges):
        assert start % CHUNK == 0
        assert 0 <= start - stop < CHUNK


@pytest.mark.parametrize("D_1", [12, 30])
def test_the_iterates_are_those_of_the_dense_algorithm(D_1):
    """Z_{t+1} = sum_i (lambda_i - eta lambda)_+ u_i u_i^T of R_t, in N x N matrices."""
    X, D, s, lam = blobs(40), 12, 3, 1.7
    draw = draws(X, D, D_1)
    Z = np.zeros((40, 40))
    for t, iterate in enumerate(pooled_fkkm(draw, 6, s, lam), start=1):
        A, eta = draw(t), step_size(t, D, D_1)
        R = (1 - eta) * Z + eta * A @ A.T / A.shape[1]
        np.testing.assert_allclose(iterate.eta, eta)
        np.testing.assert_allclose(iterate.W @ iterate.W.T, R, atol=1e-12)
        values, vectors = np.linalg.eigh(R)
        U, top = vectors[:, -s:], values[-s:] + (1 - eta) * lam
        np.testing.assert_allclose(iterate.H @ iterate.H.T, (U * top) @ U.T, atol=1e-11)
        Z = positive_part(R, eta * lam)
        B = iterate.W @ shrink(iterate.values, iterate.vectors, eta * lam)
        np.testing.assert_allclose(B @ B.T, Z, atol=1e-11)


def test_eigenpairs_leave_out_zeros_and_keep_what_is_asked_for():
    G = np.diag([1.0, 4.0, 0.0, 2.0])
    assert eigenpairs(G, 1.5)[0].tolist() == [4, 2]
    assert eigenpairs(G, 1.5, at_least=3)[0].tolist() == [4, 2, 1]
    values, vectors = eigenpairs(G, -1.0, at_least=4)
    assert values.tolist() == [4, 2, 1]
    np.testing.assert_allclose(abs(vectors), np.eye(4)[:, [1, 3, 0]])
    assert eigenpairs(np.zeros((2, 2)), 0.0, 2)[0].shape == (0,)


def test_new_rows_fall_beside_the_exact_extension():
    """H H_new^T is near the kernel between training and new rows of four blobs."""
    X = blobs(400)
    known, new = X[:300], X[300:]
    D, T, s = 50, 20, 4
    P = np.zeros((0, 0))
    for iterate in pooled_fkkm(draws(known, D, D), T, s):
        pairs, eta = (iterate.values, iterate.vectors), iterate.eta
        Q = compose(P, embed(*pairs, eta, iterate.threshold, s), eta)
        P = compose(P, shrink(*pairs, eta * iterate.threshold), eta)
    draw = draws(known, D, D, rows=new)
    h = np.hstack([draw(t) for t in range(1, T + 1)]) @ Q
    K = np.exp(-gamma(*moments(known)) * cdist(new, known, "sqeuclidean"))
    U = np.linalg.eigh(kernel_of(known))[1]
    K_s = K @ U[:, -s:] @ U[:, -s:].T  # the extension of Nystroem
    assert np.linalg.norm(h @ iterate.H.T - K_s) < 0.15 * np.linalg.norm(K_s)


# --- the threshold, convergence and the stop


def test_what_the_server_knows_after_two_iterations():
    """Of 8, 4 and 2 eta lambda = 2 is cut off, of 6 and 1 then 1."""
    server = Subspace(D=4, D_1=4, s=1, k=2, rule=2.0)
    assert (server.next_size, server.wanted) == (4, (2, 2))
    server.step(np.array([8.0, 4, 2]), np.eye(4)[:, :3], trace=14.0)
    assert (server.lengths.tolist(), server.mass) == ([6, 2], 4)
    assert (server.next_size, server.wanted) == (6, (1, 1))
    assert not server.still(tol=1e9)
    more = [Subspace(4, 4, 1, 2, 2.0, dimension=d).wanted[1] for d in (0, 1, 2)]
    for rule, least in (("auto", [2, 6]), ("paper", [4, 6])):
        assert [Subspace(9, 9, s, 2, rule).wanted[1] for s in (1, 5)] == least
    assert more == [2, 2, 1]  # more than s until more than s have been seen
    # The angle between u_1 and the first column of B_2 has the cosine 0.6.
    vectors = np.zeros((6, 2))
    vectors[[0, 4], 0], vectors[1, 1] = np.sqrt([0.82, 0.18]), 1
    server.step(np.array([6.0, 1]), vectors, trace=7.0)
    assert (server.lengths.tolist(), server.eigenvalues.tolist()) == ([5], [7])
    assert server.moved == pytest.approx(0.8 / math.sqrt(1 / 2))
    assert server.still(tol=1.2)
    assert not server.still(tol=1.1)


def test_the_threshold_is_the_next_eigenvalue_less_the_mean_behind():
    """8, 4, 3 | 1, 0.5, 0 with s = 2: 3 - 0.5; the trace stands in for the tail."""
    values = np.array([8.0, 4, 3, 1, 0.5, 0])
    assert default_threshold(values, values.sum(), 6, 2) == 2.5
    assert default_threshold(values[:3], values.sum(), 6, 2) == 2.5
    assert default_threshold(np.array([8.0, 4]), 12.0, 6, 2) == 0
    assert first_features(20, 20) == 100
    assert first_features(120, 20) == 120


def test_the_threshold_is_nearly_right_where_the_eigenvalue_is_too_large():
    """On digits, 12 draws: below the s-th eigenvalue always, the plain one not."""
    X, s = load_digits().data[:600], 20
    true = np.linalg.eigvalsh(kernel_of(X))[::-1]
    D = first_features(20, s)
    corrected, plain = [], []
    for seed in range(12):
        A = draws(X, 20, D, seed)(1)
        G = A.T @ A / D
        values = np.linalg.eigvalsh(G)[::-1]
        plain.append(values[s])
        corrected.append(default_threshold(values, G.trace(), D, s))
    assert max(plain) > true[s - 1]
    assert max(corrected) < true[s - 1]
    assert 0.75 < np.mean(corrected) / true[s] < 1.05


def test_theorem_1_bounds_the_error_of_its_own_step():
    """4 / T (C^2 + lambda gamma + 2 G^2 tau + 2 / 3 G H tau + G H), with eta_t = 2 / t.

    The steps of Algorithm 1 are 1 / t. Both schedules in dense matrices, with the
    largest C, gamma, G and H of the run itself; delta = 0.1.
    """
    X, D, T, lam = blobs(60), 20, 60, 2.0
    K = kernel_of(X)
    best, draw = positive_part(K, lam), draws(X, D, D)
    for first, times in ((2.0, 124), (1.0, 181)):
        Z, errors = np.zeros((60, 60)), []
        C2 = nuclear = G = H = 0.0
        for t in range(1, T + 1):
            xi, eta = draw(t) @ draw(t).T / D, first / t
            C2 = max(C2, np.linalg.norm(Z - xi) ** 2)
            nuclear = max(nuclear, np.trace(Z))
            G = max(G, np.linalg.norm(xi - K))
            H = max(H, np.linalg.norm(Z - best) if t > 2 else 0.0)
            Z = positive_part((1 - eta) * Z + eta * xi, eta * lam)
            errors.append(np.linalg.norm(Z - best) ** 2)
        tau = math.log(math.ceil(2 * math.log2(T)) / 0.1)
        bound = 4 / T * (C2 + lam * nuclear + G * (2 * G + 2 / 3 * H) * tau + G * H)
        assert bound / errors[-1] == pytest.approx(times, rel=0.02)
        t = np.arange(5, T + 1)
        slope = np.polyfit(np.log(t), np.log(errors[4:]), 1)[0]
        assert -1.5 < slope < -0.6


def test_movement_is_the_angle_between_the_subspaces():
    X, s, lam = blobs(80), 3, 2.0
    U = scale = None
    compared = 0
    for iterate in pooled_fkkm(draws(X, 20, 20), 8, s, lam):
        u = iterate.W @ iterate.vectors[:, :s]
        if U is not None:
            both = min(s, len(scale))
            expected = math.sin(subspace_angles(U[:, :both], u[:, :both])[0])
            sine = movement(iterate.values, iterate.vectors, scale, iterate.eta, s)
            assert sine == pytest.approx(expected, abs=1e-7)
            compared += both == s
        U = u
        cut = iterate.eta * lam
        scale = iterate.values[iterate.values > cut] - cut
    assert compared >= 5
    assert movement(iterate.values, iterate.vectors, np.zeros(0), iterate.eta, s) == 1


# --- bandwidth and error


def test_gamma_is_that_of_all_pairs_whatever_the_parts():
    X = blobs(50) * [1, 2, 3, 0.1, 1, 0] + [5, 0, 0, 0, 0, 1e6]
    squares = ((X[:, None] - X[None]) ** 2).sum()
    expected = 50**2 / (2 * squares)
    assert gamma(*moments(X)) == pytest.approx(expected, rel=1e-12)
    parts = [moments(rows) for rows in (X[:1], X[1:30], X[30:])]
    total = [sum(part[i] for part in parts) for i in range(3)]
    assert gamma(*total) == pytest.approx(expected, rel=1e-12)


def test_a_common_shift_saves_gamma_from_cancellation():
    X = blobs(50)
    expected = gamma(*moments(X))
    far = X + 1e8
    assert gamma(*moments(far, 1e8)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="or vary too little relative to their"):
        gamma(*moments(far))


@pytest.mark.parametrize("by_column", [True, False])
def test_variances_of_columns_that_were_shifted(by_column):
    """A constant one is less its shift not quite 0, and still varies by nothing."""
    X = np.column_stack([np.full(30, 1e7 / 3), 1e9 + np.arange(30.0), np.zeros(30)])
    shift = X.mean(axis=0) * (1 + 4 * np.finfo(float).eps)
    N, sum_x, sum_squares = moments(X, shift)
    assert sum_x[0] != 0
    if not by_column:
        sum_squares = sum_squares.sum(keepdims=True)
    spreads = variances(N, sum_x, sum_squares, shift)
    expected = [0, np.arange(30.0).var(), 0] if by_column else [np.arange(30.0).var()]
    np.testing.assert_allclose(spreads, expected, rtol=1e-9)
    assert variances(*moments(X[:, :1], shift[:1]), shift[:1]) == 0


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        (moments(np.full((4, 2), 0.1)), "a column that varies"),
        (moments(np.ones((1, 2))), "a column that varies"),
        ((0, np.zeros(2), np.zeros(2)), "at least one row"),
        ((3, np.array([np.nan]), np.ones(1)), "finite column sums"),
    ],
)
def test_gamma_needs_rows_that_differ(sums, message):
    with pytest.raises(ValueError, match=message):
        gamma(*sums)


def test_recovery_error_is_that_of_dense_matrices():
    rng = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(kernel_of(blobs(30)))
    values, vectors = values[-3:], vectors[:, -3:]
    K_s = (vectors * values) @ vectors.T
    H = rng.standard_normal((30, 5))
    expected = np.linalg.norm(H @ H.T - K_s) ** 2 / 30**2
    assert recovery_error(H, values, vectors) == pytest.approx(expected, rel=1e-12)
    exact = vectors * np.sqrt(values) @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert recovery_error(exact, values, vectors) < 1e-28
