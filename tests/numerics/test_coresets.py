"""Coreset scores, draws, weights and diagnostics against their definitions."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from flint import fmpq, fmpq_mat
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulations.coreset_theorems import theorem31_size, theorem42_size, theorem52_size
from vfl_flower.numerics import leverage
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import (
    ClusterSummary,
    allocate,
    cluster_summary,
    coreset_weights,
    importance_estimate,
    sigma_min,
    tau,
    uniform,
    vkmc_sensitivities,
    vrlr_sensitivities,
)
from vfl_flower.numerics.kmeans import draw
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores

FACTORS = [leverage_factor, leverage._qr_factor]
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 6))


def gaussian(n=300, d=5, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores_of(X, factor=leverage_factor, **options):
    blocks = RowBlocks(X, **options)
    return leverage_scores(blocks, factor(blocks))


def reference(X):
    """Leverage scores by a singular value decomposition with columns of length 1."""
    norms = np.linalg.norm(X, axis=0)
    U, S, _ = np.linalg.svd(X[:, norms > 0] / norms[norms > 0], full_matrices=False)
    U = U[:, max(X.shape) * np.finfo(float).eps * S[:1] < S]
    return (U**2).sum(axis=1)


def exact(X):
    """Leverage scores x_i (X^T X)^-1 x_i in rational arithmetic."""
    rows = [fmpq(*value.as_integer_ratio()) for value in X.ravel().tolist()]
    A = fmpq_mat(*X.shape, rows)
    B = A * (A.transpose() * A).inv()
    n, d = X.shape
    scores = [sum((B[i, j] * A[i, j] for j in range(d)), fmpq(0)) for i in range(n)]
    return np.array([float(Fraction(int(s.p), int(s.q))) for s in scores])


# --- leverage scores -----------------------------------------------------------------


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("block_bytes", [1, 700, 2**20])
def test_factor_gives_an_orthonormal_basis(factor, block_bytes):
    X = gaussian() @ np.diag([1e-6, 1, 1e3, 7, 1e9])
    blocks = RowBlocks(X, block_bytes=block_bytes)
    F = factor(blocks)
    U = X @ F
    np.testing.assert_allclose(U.T @ U, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(U @ (U.T @ X), X, rtol=1e-9)  # it spans the columns
    Q = np.linalg.qr(X).Q
    scores = leverage_scores(blocks, F)
    np.testing.assert_allclose(scores, (Q**2).sum(axis=1), atol=1e-12)
    assert scores.sum() == pytest.approx(5, abs=1e-11)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e120])
@given(arrays(np.int8, SHAPES, fill=st.just(0)), st.booleans(), st.booleans())
def test_scores_of_any_small_integers(factor, scale, X, repeat, constant):
    """Zero, constant, repeated and dependent columns, and fewer rows than columns."""
    X = X.astype(float)
    if repeat:
        X = np.hstack([X, -3 * X])
    if constant:
        X = np.hstack([X, np.ones((len(X), 1))])
    scores = scores_of(X * scale, factor)
    rank = np.linalg.matrix_rank(X)
    assert factor(RowBlocks(X * scale)).shape[1] == rank
    assert np.isfinite(scores).all()
    assert scores.sum() == pytest.approx(rank, abs=1e-6)
    np.testing.assert_allclose(scores, reference(X), atol=1e-6)


def test_factor_is_right_where_the_gram_matrix_is_not():
    """Condition number 1e10, whose square is beyond float64."""
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((200, 4))).Q
    V = np.linalg.qr(rng.standard_normal((4, 4))).Q
    X = U @ np.diag([1, 1e-3, 1e-6, 1e-10]) @ V.T
    assert 5e9 < np.linalg.cond(X / np.linalg.norm(X, axis=0)) < 5e10
    expected = exact(X)
    assert expected.sum() == pytest.approx(4, abs=1e-12)
    for block_bytes in (1000, 2**20):
        scores = scores_of(X, block_bytes=block_bytes)
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert leverage._gram_factor(RowBlocks(X)) is None


@pytest.mark.parametrize("gap", 10.0 ** -np.arange(9))
def test_scores_keep_their_bound_at_every_condition_number(gap):
    X = gaussian(400, 4)
    X[:, 3] = X[:, 2] + gap * X[:, 3]
    np.testing.assert_allclose(scores_of(X), exact(X), rtol=2e-6)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("scale", [1e-250, 1e-170, 1e170, 1e300])
def test_values_whose_squares_leave_float64(factor, scale):
    X = gaussian()
    expected = reference(X)
    np.testing.assert_allclose(scores_of(scale * X, factor), expected, atol=1e-12)
    X[:, 2] *= scale
    np.testing.assert_allclose(scores_of(X, factor), expected, atol=1e-12)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_missing_values_are_refused(factor, value):
    X = gaussian()
    X[7, 1] = value
    with pytest.raises(ValueError, match="no missing or infinite value"):
        scores_of(X, factor)


def test_vrlr_sensitivities_add_a_share_of_one():
    assert vrlr_sensitivities(scores_of(gaussian()), 300).sum() == pytest.approx(5 + 1)
    assert vrlr_sensitivities(np.array([0.5, 0.0]), 4).tolist() == [0.75, 0.25]


# --- local clusterings ---------------------------------------------------------------


@pytest.mark.parametrize("method", ["lloyd", "seeding"])
@pytest.mark.parametrize("block_bytes", [100, 2**20])
def test_summary_is_that_of_the_nearest_centers(method, block_bytes):
    X = gaussian()
    blocks = RowBlocks(X, block_bytes=block_bytes)
    summary = cluster_summary(blocks, 6, np.random.default_rng(0), method)
    distances = ((X[:, None] - summary.centers) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    assert summary.sizes.sum() == 300
    np.testing.assert_array_equal(summary.sizes, np.bincount(labels))
    costs = np.bincount(labels, distances.min(axis=1))
    np.testing.assert_allclose(summary.costs, costs, rtol=1e-12)


def direct_vkmc(X, centers, alpha):
    """Algorithm 3, lines 3-11, as written."""
    n = len(X)
    pi = [int(np.argmin([((x - c) ** 2).sum() for c in centers])) for x in X]
    d2 = [((X[i] - centers[pi[i]]) ** 2).sum() for i in range(n)]
    B = [[i for i in range(n) if pi[i] == c] for c in range(len(centers))]
    cost = sum(d2)
    return [
        alpha * d2[i] / cost
        + alpha * sum(d2[h] for h in B[pi[i]]) / (len(B[pi[i]]) * cost)
        + 2 * alpha / len(B[pi[i]])
        for i in range(n)
    ]


@given(
    k=st.integers(1, 9),
    alpha=st.sampled_from([1.0, 2.0, 5.0]),
    method=st.sampled_from(["lloyd", "seeding"]),
    seed=st.integers(0, 50),
)
def test_vkmc_sensitivities_are_those_of_algorithm_3(k, alpha, method, seed):
    X = gaussian(40, 2, seed)
    blocks = RowBlocks(X, block_bytes=100)
    summary = cluster_summary(blocks, k, np.random.default_rng(seed), method)
    g = np.concatenate([vkmc_sensitivities(rows, summary, alpha) for rows in blocks])
    np.testing.assert_allclose(g, direct_vkmc(X, summary.centers, alpha), rtol=1e-9)
    assert g.sum() == pytest.approx(2 * alpha * (1 + len(summary.sizes)))
    assert (g > 0).all()
    assert g.max() <= 4 * alpha * (1 + 1e-12)


@pytest.mark.parametrize("method", ["lloyd", "seeding"])
@pytest.mark.parametrize("k", [3, 7, 50])
def test_as_many_centers_as_distinct_rows(method, k):
    X = np.array([[0.1], [0.7], [1e5 + 0.3]])[[0, 0, 0, 1, 1, 2] * 5]
    summary = cluster_summary(RowBlocks(X), k, np.random.default_rng(0), method)
    assert sorted(summary.sizes) == [5, 10, 15]
    np.testing.assert_array_equal(summary.costs, 0)
    g = vkmc_sensitivities(X, summary, alpha=2.0)
    np.testing.assert_allclose(g[:6], 4 / np.array([15, 15, 15, 10, 10, 5]))


# --- Algorithm 1 ---------------------------------------------------------------------


def test_allocation_is_multinomial():
    # Chi-square with 2 degrees of freedom: above 24.9 in 4e-6 of the seeds.
    totals = np.array([1.0, 0.0, 2.0, 5.0])
    a = allocate(totals, 8000, np.random.default_rng(0))
    assert a.dtype == np.int64
    assert a.sum() == 8000
    assert a[1] == 0
    expected = np.array([1000, 2000, 5000])
    assert ((a[[0, 2, 3]] - expected) ** 2 / expected).sum() < 24.9


def distributed_draw(parties, m, rng):
    """Algorithm 1 on a list of the parties' scores g^(j)."""
    totals = np.array([g.sum() for g in parties])
    a = allocate(totals, m, rng)
    S = np.concatenate([draw(g, a_j, rng) for g, a_j in zip(parties, a, strict=True)])
    return S, coreset_weights(totals.sum(), sum(g[S] for g in parties))


def test_weights_and_weighted_losses_are_unbiased():
    # 4000 independent coresets; each mean is within 4.5 standard errors but in 7e-6 of
    # the seeds, 2e-5 for the three together.
    rng = np.random.default_rng(0)
    n = 50
    parties = [rng.random(n) ** 4, rng.random(n) ** 4 * 3, np.full(n, 1e-3)]
    losses = np.column_stack([np.ones(n), rng.random(n) ** 3, np.arange(n) == 7])
    sums = []
    for _ in range(4000):
        S, w = distributed_draw(parties, 20, rng)
        assert S.shape == w.shape == (20,)
        sums.append(w @ losses[S])
    error = np.std(sums, axis=0) / np.sqrt(4000)
    assert (np.abs(np.mean(sums, axis=0) - losses.sum(axis=0)) < 4.5 * error).all()
    assert (error < losses.sum(axis=0) / 10).all()


def test_weights_by_hand():
    assert coreset_weights(12.0, np.array([1.0, 2.0, 4.0])).tolist() == [4, 2, 1]
    with pytest.raises(ValueError, match="must be positive"):
        coreset_weights(1.0, np.array([1.0, 0.0]))


@pytest.mark.parametrize("size", [1, 7, 10])
def test_uniform_rows_are_distinct_and_weigh_n(size):
    rows, weights = uniform(10, size, np.random.default_rng(0))
    assert len(np.unique(rows)) == size
    assert set(rows) <= set(range(10))
    assert weights.shape == (size,)
    assert weights.sum() == pytest.approx(10)


@pytest.mark.parametrize("size", [0, -1, 11])
def test_uniform_size_is_checked(size):
    with pytest.raises(ValueError, match=f"from 1 to 10, .* got {size}"):
        uniform(10, size, np.random.default_rng(0))


# --- diagnostics ---------------------------------------------------------------------


def test_sigma_min_of_orthogonal_and_of_shared_columns():
    Q = np.linalg.qr(gaussian(50, 6)).Q
    ones = np.ones(50)
    mixed = Q[:, :2] @ np.array([[1.0, 2.0], [3.0, 4.0]])
    assert sigma_min([mixed, Q[:, 2:] * 1e6], ones) == pytest.approx(1)
    # Nor is a column that is in the span of another party's, as long as it is exactly.
    assert sigma_min([mixed, Q[:, 1:]], ones) == pytest.approx(1)
    near = Q[:, 1:] + 1e-6 * Q[:, :1]
    near[:, 0] = Q[:, 1] + 1e-6 * Q[:, 5]
    assert 0 < sigma_min([mixed, near[:, :4]], ones) < 1e-5
    # A party's own repeated and zero columns are no relation between parties.
    repeated = np.column_stack([mixed, mixed[:, 0], np.zeros(50)])
    assert sigma_min([repeated, Q[:, 2:]], ones) == pytest.approx(1)
    assert sigma_min([gaussian(3, 2), gaussian(3, 2, 1)], np.ones(3)) == 0
    assert sigma_min([np.zeros((3, 2))], np.ones(3)) == 1


@given(angle=st.floats(0.01, np.pi / 2), weight=st.floats(0.01, 100))
def test_sigma_min_is_set_by_the_angle_of_the_weighted_columns(angle, weight):
    weights = np.array([1.0, weight, 3.0])
    a, b = np.array([1.0, 0.0, 0.0]), np.array([np.cos(angle), np.sin(angle), 0.0])
    actual = sigma_min([(v / np.sqrt(weights))[:, None] for v in (a, b)], weights)
    assert 0 <= actual <= 1 + 1e-12
    assert actual == pytest.approx(np.sqrt(1 - np.cos(angle)), abs=1e-9)


def test_tau_is_the_ratio_of_the_dominating_party():
    X = gaussian(200, 3)
    rng = np.random.default_rng(0)
    assert tau([X], rng) == 1
    assert tau([X, 2 * X, X], rng) == pytest.approx(6 / 4)
    assert tau([X, np.zeros((200, 2))], rng) == 1
    assert tau([np.zeros((200, 2))] * 2, rng) == 1
    assert tau([np.array([[0.0], [1]]), np.array([[0.0], [3]])], rng) == 10 / 9


def test_tau_is_infinite_where_every_party_is_blind_somewhere():
    a, b = np.array([[0.0], [0.0], [1.0]]), np.array([[0.0], [1.0], [1.0]])
    rng = np.random.default_rng(0)
    assert tau([a, b], rng) == np.inf
    assert tau([a, b, np.array([[0.0], [1.0], [2.0]])], rng) == pytest.approx(2)


def test_tau_grows_to_that_of_the_sample():
    X, Y = gaussian(30, 2), gaussian(30, 2, 1)
    local = np.array([((Z[:, None] - Z) ** 2).sum(axis=2) for Z in (X, Y)])
    off = ~np.eye(30, dtype=bool)
    expected = (local.sum(axis=0)[off] / local[:, off]).max(axis=1).min()
    estimates = [tau([X, Y], np.random.default_rng(0), p) for p in (10, 100, 100_000)]
    assert estimates[0] < estimates[1] < expected * (1 - 1e-9)
    assert estimates[2] == pytest.approx(expected)


def test_importance_estimate_covers_the_mean():
    # 1000 draws of 400 rows: with normal errors |z| > 1.96 in 5 %; a share of 8.5 % or
    # more, or a mean z beyond 0.15, is a false alarm in 1e-5 of the seeds.
    rng = np.random.default_rng(0)
    n = 3000
    losses = rng.random(n) ** 2
    g = losses + 0.2 * rng.random(n) + 0.05
    z = []
    for _ in range(1000):
        S = draw(g, 400, rng)
        mean, error = importance_estimate(losses[S], coreset_weights(g.sum(), g[S]), n)
        z.append((mean - losses.mean()) / error)
    assert np.mean(np.abs(z) > 1.96) < 0.085
    assert np.mean(np.abs(z) > 1.96) > 0.02
    assert abs(np.mean(z)) < 0.15
    assert 0.9 < np.std(z) < 1.1


def test_importance_estimate_of_a_uniform_draw_is_the_plain_one():
    rows, weights = uniform(10, 4, np.random.default_rng(0))
    losses = np.arange(10.0)[rows]
    mean, error = importance_estimate(losses, weights, 10)
    assert mean == pytest.approx(losses.mean())
    assert error == pytest.approx(losses.std(ddof=1) / 2)
    with pytest.raises(ValueError, match="at least 2 draws, got 1"):
        importance_estimate(losses[:1], weights[:1], 10)


# --- the theorems ---------------------------------------------------------------------


def test_sizes_of_the_theorems_by_hand():
    """Theorem 3.1: 4 zeta G (D log zeta G + log 1 / delta) for eps = 1/2 - 1e-12.

    Theorem 4.2 with gamma = 1/2, d = 3, T = 2: zeta G = 3 * 4 = 12 as stated, and (3 +
    2 + 1) * 4 = 24 in the proof; D = 9. Theorem 5.2 with tau = 3, d = 4, k = 5, T = 2,
    alpha = 2: zeta G = 2 * 3 * 5 * 2 = 60, and 4 * 3 * 2 * 6 * 2 * 2 = 576; D = 20.
    """
    eps, delta = 0.25, 0.2

    def size(total, D):
        return math.ceil(16 * total * (D * math.log(total) + math.log(5)))

    assert theorem31_size(7.5, 2, eps, delta) == size(7.5, 2)
    assert theorem42_size(0.5, 3, 2, eps, delta) == size(12, 9)
    assert theorem42_size(0.5, 3, 2, eps, delta, "proof") == size(24, 9)
    arguments = (3.0, 4, 5, 2, eps, delta)
    assert theorem52_size(*arguments) == size(60, 20)
    assert theorem52_size(*arguments, constants="proof") == size(576, 20)
    assert theorem52_size(*arguments, alpha=1.0) == size(30, 20)


def test_the_theorems_promise_nothing_where_their_assumptions_fail():
    assert theorem42_size(0.0, 3, 2) == math.inf
    assert theorem42_size(1e-200, 3, 2) == math.inf
    assert theorem52_size(math.inf, 3, 2, 2) == math.inf


def regression_scores(parties, y):
    """Algorithm 2, line 3, at each party; the last one has the labels."""
    blocks = [*parties[:-1], np.column_stack([parties[-1], y])]
    return blocks, [vrlr_sensitivities(scores_of(X), len(y)) for X in blocks]


@given(mix=st.floats(0, 50), seed=st.integers(0, 20))
def test_lemma_e2_bounds_what_a_row_makes_up_of_a_cost(mix, seed):
    """sup_theta (x_i theta - y_i)^2 / |X theta - y|^2 <= g_i / gamma^2.

    The supremum is the leverage score of row i of [X, y]: the model is that of the
    column i of the hat matrix, unless its coefficient of y is 0.
    """
    X, y = gaussian(40, 4, seed), gaussian(40, 1, seed + 100)[:, 0]
    X[:, 2] += mix * X[:, 0]
    blocks, g = regression_scores([X[:, :2], X[:, 2:]], y)
    gamma = sigma_min(blocks, np.ones(40))
    every = np.column_stack([X, y])
    shares = scores_of(every)
    assert (shares <= sum(g) / gamma**2 * (1 + 1e-9)).all()
    v = np.linalg.solve(every.T @ every, every[7])
    off = (X @ (v[:-1] / -v[-1]) - y) ** 2
    assert off[7] / off.sum() == pytest.approx(shares[7], rel=1e-6)


@given(scale=st.floats(0.01, 100), mix=st.floats(0, 5), seed=st.integers(0, 20))
def test_lemma_b1_bounds_gamma_by_the_condition_of_the_data(scale, mix, seed):
    X, y = gaussian(30, 4, seed), gaussian(30, 1, seed + 100)[:, 0]
    X[:, 2] = scale * (X[:, 2] + mix * X[:, 0])
    blocks, _ = regression_scores([X[:, :2], X[:, 2:]], y)
    S = np.linalg.svd(np.column_stack([X, y]), compute_uv=False)
    assert sigma_min(blocks, np.ones(30)) >= S[-1] / S[0] * (1 - 1e-9)


def lines_of(X, k):
    """Return the best of all clusterings of one column into k intervals."""
    order = np.sort(X[:, 0])
    costs = {}
    for cuts in combinations(range(1, len(X)), k - 1):
        parts = np.split(order, cuts)
        costs[cuts] = sum(((part - part.mean()) ** 2).sum() for part in parts)
    best = min(costs, key=costs.get)
    return np.array([[part.mean()] for part in np.split(order, best)]), costs[best]


def test_lemma_f2_bounds_what_a_row_makes_up_of_any_clustering():
    """At most 4 tau sum_j g_i, with alpha = 1; centres are rows, or far from all.

    The first party has nearly all of each distance, so that tau is near 1. For T = 2
    and k = 2, G = 2 (k + 1) alpha T = 12. A tenth of the bound would be too little.
    """
    closest = np.inf
    for seed in range(10):
        X = gaussian(9, 2, seed) ** 3 * [1, 1e-3]
        distances = ((X[:, None] - X) ** 2)[~np.eye(9, dtype=bool)]
        ratios = distances.sum(axis=1)[:, None] / distances
        true_tau = ratios.max(axis=0).min()
        g = []
        for part in np.split(X, 2, axis=1):
            centers, cost = lines_of(part, 2)
            labels = ((part - centers.T) ** 2).argmin(axis=1)
            d2 = ((part - centers[labels]) ** 2)[:, 0]
            sizes, costs = np.bincount(labels), np.bincount(labels, d2)
            summary = ClusterSummary(centers, sizes, costs)
            assert summary.costs.sum() == pytest.approx(cost)
            g.append(vkmc_sensitivities(part, summary, alpha=1.0))
        assert sum(map(np.sum, g)) == pytest.approx(2 * 3 * 2)
        shares = np.zeros(9)
        for pair in combinations([*X, *(1e3 * X)], 2):
            d2 = ((X[:, None] - np.array(pair)) ** 2).sum(axis=2).min(axis=1)
            shares = np.maximum(shares, d2 / d2.sum())
        bound = 4 * true_tau * sum(g)
        assert (shares <= bound).all()
        closest = min(closest, (bound / shares).min())
    assert closest == pytest.approx(6.7, abs=0.05)


def test_theorem_25_does_not_hold_for_every_epsilon():
    """Two rows u, v of length 1 at a right angle, with weights 1 + eps and 1 - eps.

    The cost of a model is |M^(1/2) (theta, -1)|^2 with M = u u' + v v' = 1 on all rows,
    which is at least 1, and M_S = (1 + eps) u u' + (1 - eps) v v' on the coreset, which
    is so within 1 +- eps for every model. Where u is at an angle with cos(2 phi) =
    -eps, the best model on the coreset has theta^2 = eps^2 / (1 - eps^2), and so the
    cost 1 / (1 - eps^2) on all rows. For eps = 0.9 this is 5.3, not 1 + 3 eps = 3.7.

    The proof takes cost(X) <= (1 + eps) cost(S), which does not follow from cost(S) >=
    (1 - eps) cost(X). (1 + eps) / (1 - eps) <= 1 + 3 eps holds up to eps = 1/3.
    """
    for eps, holds in ((0.3, True), (0.9, False)):
        phi = math.acos(-eps) / 2
        x, z = math.cos(phi), math.sin(phi)
        rows = np.array([[x, z], [-z, x]])
        weights = np.array([1 + eps, 1 - eps])
        for theta in np.linspace(-50, 50, 2001):
            off = (rows @ [theta, -1]) ** 2
            assert 1 - eps - 1e-12 <= weights @ off / off.sum() <= 1 + eps + 1e-12
        X, y, root = rows[:, :1], rows[:, 1], np.sqrt(weights)
        theta = np.linalg.lstsq(root[:, None] * X, root * y, rcond=None)[0]
        cost = ((X @ theta - y) ** 2).sum()
        assert cost == pytest.approx(1 / (1 - eps**2))
        assert (cost <= 1 + 3 * eps) == holds
    assert all((1 + e) / (1 - e) <= 1 + 3 * e for e in np.arange(1, 333) / 1000)


def misses(scores, row, m, repeats=400):
    """Return the share of coresets of m draws that do not have a row."""
    rng = np.random.default_rng(0)
    draws = (distributed_draw(scores, m, rng)[0] for _ in range(repeats))
    return np.mean([row not in rows for rows in draws])


def test_the_example_of_theorem_41():
    """X = a, y = b, equal but for one of 1,000 rows: the model theta = 1 costs 1.

    A coreset without that row says 0. Its score is 1/500 + 2/1000 of G = 4, so that 100
    draws miss it with probability 0.999^100 = 0.905; 400 of them are off by more than
    0.07 in 2e-6 of the seeds. gamma^2 = 1 - (499/500)^(1/2), the size is above n.
    """
    a = np.arange(1000) < 500
    b = a & (np.arange(1000) > 0)
    blocks, g = regression_scores([a[:, None] * 1.0, np.empty((1000, 0))], b * 1.0)
    assert sum(g)[0] == pytest.approx(0.004)
    assert misses(g, 0, 100) == pytest.approx(0.999**100, abs=0.07)
    gamma = sigma_min(blocks, np.ones(1000))
    assert gamma**2 == pytest.approx(1 - math.sqrt(499 / 500))
    assert theorem42_size(gamma, 1, 2) > 900 * 1000
    assert ((a[1:] * 1.0 - b[1:]) ** 2).sum() == 0


def test_the_example_of_theorem_51():
    """Rows (a_i, b_i), of which one alone is (1, 1): its score is that of many others.

    With the centres (0, 0), (0, 1), (1, 0) the cost of all rows is 1, and that of a
    coreset without the row is 0. Each party sees two values, so its clusters have no
    cost, and the score of the row is 2 * 2 alpha / 333 of G = 8 alpha: 100 draws miss
    it with probability (1 - 1/666)^100 = 0.861. No party has an assumption 5.1.
    """
    X = np.repeat([[0.0, 0], [0, 1], [1, 0], [1, 1]], [335, 332, 332, 1], axis=0)
    g = []
    for part in np.split(X, 2, axis=1):
        blocks = RowBlocks(part)
        summary = cluster_summary(blocks, 3, np.random.default_rng(0))
        assert summary.costs.sum() == 0
        g.append(vkmc_sensitivities(part, summary))
    assert sum(g)[-1] == pytest.approx(8 / 333)
    assert sum(map(np.sum, g)) == pytest.approx(16)
    assert misses(g, 999, 100) == pytest.approx((1 - 1 / 666) ** 100, abs=0.08)
    centers = X[[0, 335, 667]]
    cost = ((X[:, None] - centers) ** 2).sum(axis=2).min(axis=1)
    assert cost.nonzero()[0].tolist() == [999]
    measured = tau(np.split(X, 2, axis=1), np.random.default_rng(0))
    assert theorem52_size(measured, 2, 3, 2) == math.inf
