"""Linear solvers against the conditions of an optimum, never against a solver."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimality import violation

from vfl_flower.numerics.linear import (
    Penalty,
    mean_squared_error,
    momentum,
    proximal_block,
    soft_threshold,
    solve_pooled,
    whiten,
)

PENALTIES = {
    "none": Penalty(),
    "ridge": Penalty(l2=0.1),
    "lasso": Penalty(l1=0.7),
    "elasticnet": Penalty(l1=0.5, l2=0.3),
}


def data(seed=0, m=60, d=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, d)) * rng.uniform(0.5, 3, d) + rng.normal(size=d)
    y = X @ rng.normal(size=d) + 4 + rng.normal(size=m)
    w = rng.uniform(0.1, 5, m)
    return X, y, w, int(w.sum()) + 7  # weights do not sum to n exactly


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("name", PENALTIES)
def test_pooled_solution_is_an_optimum(name, free, seed):
    X, y, w, n = data(seed)
    theta, b = solve_pooled(X, y, w, n, PENALTIES[name], free)
    assert violation(X, y, w, n, PENALTIES[name], theta, b, free) < 1e-6
    assert free or b == 0


def test_violation_sees_a_wrong_solution():
    X, y, w, n = data()
    penalty = PENALTIES["elasticnet"]
    theta, b = solve_pooled(X, y, w, n, penalty, True)
    for moved, shift in ((theta * (1 + 1e-4), b), (theta, b * (1 + 1e-4))):
        assert violation(X, y, w, n, penalty, moved, shift, True) > 1e-5
    assert violation(X, y, w, 2 * n, penalty, theta, b, True) > 1e-2
    for other in (Penalty(l1=0.5), Penalty(l1=0.4, l2=0.3)):
        assert violation(X, y, w, n, other, theta, b, True) > 1e-3


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", PENALTIES)
def test_pooled_solution_scales_with_the_labels(name, scale):
    """theta(c y; c l1, l2) = c theta(y; l1, l2)."""
    X, y, w, n = data()
    penalty = PENALTIES[name]
    theta, b = solve_pooled(X, y, w, n, penalty, True)
    scaled = Penalty(penalty.l1 * scale, penalty.l2)
    theta_c, b_c = solve_pooled(X, y * scale, w, n, scaled, True)
    np.testing.assert_allclose(theta_c / scale, theta, rtol=1e-9, atol=1e-9)
    assert b_c / scale == pytest.approx(b, rel=1e-9)


def test_a_large_l1_gives_exact_zeros_and_the_weighted_mean():
    X, y, w, n = data()
    theta, b = solve_pooled(X, y, w, n, Penalty(l1=1e6), True)
    assert not theta.any()
    assert b == pytest.approx(w @ y / w.sum())


@pytest.mark.parametrize("free", [True, False])
def test_without_rank_the_smallest_norm_in_columns_of_one_size(free):
    """Each column twice, in another unit: both have the same effect."""
    X, y, w, n = data(d=3)
    units = np.array([1e-3, 20.0, 1.0])
    theta, b = solve_pooled(np.hstack([X, X * units]), y, w, n, Penalty(), free)
    half, b_once = solve_pooled(X, y, w, n, Penalty(), free)
    np.testing.assert_allclose(theta[:3], half / 2, rtol=1e-8)
    np.testing.assert_allclose(theta[3:] * units, half / 2, rtol=1e-8)
    assert b == pytest.approx(b_once, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("name", PENALTIES)
def test_constant_and_zero_columns_do_not_matter(name):
    X, y, w, n = data(d=3)
    wide = np.column_stack([X, np.zeros(len(X)), np.full(len(X), 0.1)])
    theta, b = solve_pooled(wide, y, w, n, PENALTIES[name], True)
    narrow, b_narrow = solve_pooled(X, y, w, n, PENALTIES[name], True)
    np.testing.assert_allclose(theta[:3], narrow, rtol=1e-6, atol=1e-9)
    assert theta[3] == 0
    assert theta[4] * 0.1 + b == pytest.approx(b_narrow, rel=1e-6)


def test_mean_squared_error():
    """(2 * 1^2 + 3 * 2^2) / 7 = 2, and (1^2 + 2^2) / 5 = 1."""
    r = np.array([1.0, -2.0])
    assert mean_squared_error(r, np.array([2.0, 3.0]), 7) == 2.0
    assert mean_squared_error(r, None, 5) == 1.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("none", Penalty()), ("ridge", Penalty(l2=3.0)), ("lasso", Penalty(l1=3.0))),
        ("elasticnet", Penalty(l1=2.0, l2=1.0)),
    ],
)
def test_named_penalty(name, expected):
    """The paper's elastic net 2 |.|_1 + |.|^2 is alpha = 3, l1_ratio = 2/3."""
    actual = Penalty.named(name, 3.0, 2 / 3)
    assert (actual.l1, actual.l2) == pytest.approx((expected.l1, expected.l2))


def test_value_of_a_penalty():
    """2 (1 + 3) + 0.5 (1 + 9) = 13."""
    assert Penalty(l1=2.0, l2=0.5).value(np.array([1.0, -3.0])) == 13.0


@pytest.mark.parametrize("l2", [0.0, 0.4])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_whiten(scale, l2):
    A = data()[0] * np.array([scale, 1, 1, 1, 1])
    penalty = np.full(5, l2)
    F = whiten(A.T @ A, penalty)
    identity = F.T @ (A.T @ A + np.diag(penalty)) @ F
    np.testing.assert_allclose(identity, np.eye(5), atol=1e-9)


def test_whiten_leaves_out_what_the_others_span():
    A = data(d=4)[0]
    A[:, 1] = 0.0
    A[:, 3] = A[:, 0] - 2 * A[:, 2]
    F = whiten(A.T @ A, np.zeros(4))
    assert F.shape == (4, 2)
    np.testing.assert_allclose(F.T @ A.T @ A @ F, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(F[1], 0, atol=1e-12)
    U = A @ F  # spans the columns
    np.testing.assert_allclose(U @ (U.T @ A), A, atol=1e-9)


def test_whiten_nothing():
    assert whiten(np.zeros((2, 2)), np.zeros(2)).shape == (2, 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [Penalty(l1=0.3), Penalty(l1=0.2, l2=0.1)])
def test_proximal_block_is_an_optimum(penalty, seed):
    """0 is in 2 T R^T (R x - c) + l1 d|x|_1 + 2 l2 x."""
    rng = np.random.default_rng(seed)
    R, c, T = rng.normal(size=(5, 5)), rng.normal(size=5), 3
    x = proximal_block(R, c, T, penalty)
    g = 2 * T * R.T @ (R @ x - c) + 2 * penalty.l2 * x
    held = x == 0
    assert (np.abs(g[held]) <= penalty.l1 + 1e-6).all()
    np.testing.assert_allclose(g[~held], -penalty.l1 * np.sign(x[~held]), atol=1e-6)


def test_proximal_block_of_zero_columns():
    x = proximal_block(np.zeros((0, 2)), np.zeros(0), 3, Penalty(1.0))
    assert x.tolist() == [0, 0]


def test_proximal_block_of_one_column():
    """One column r: x = soft(r c, l1 / (2 T)) / (r^2 + l2 / T) = 8.5 / 5."""
    x = proximal_block(np.array([[2.0]]), np.array([5.0]), 2, Penalty(l1=6.0, l2=2.0))
    assert x[0] == pytest.approx(1.7)


@given(v=st.floats(-100, 100), threshold=st.floats(0, 100), other=st.floats(-100, 100))
def test_soft_threshold_minimises(v, threshold, other):
    """argmin_x (x - v)^2 / 2 + threshold |x|."""

    def value(x):
        return (x - v) ** 2 / 2 + threshold * abs(x)

    x = float(soft_threshold(np.array([v]), threshold)[0])
    assert value(x) <= value(other) + 1e-9
    assert abs(v) > threshold or x == 0


def test_momentum():
    """t_{k+1}^2 - t_{k+1} = t_k^2 (Beck and Teboulle 2009, below equation 4.2)."""
    t = 1.0
    for _ in range(20):
        t, previous = momentum(t), t
        assert t**2 - t == pytest.approx(previous**2)


def test_collinear_columns_with_l1_give_no_warning():
    X, y, w, n = data(d=3)
    wide = np.hstack([X, X])
    theta, b = solve_pooled(wide, y, w, n, Penalty(l1=0.1), True)
    assert violation(wide, y, w, n, Penalty(l1=0.1), theta, b, True) < 1e-5
