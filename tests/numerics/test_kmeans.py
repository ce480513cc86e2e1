"""k-means by blocks against scikit-learn, and the combination of local clusterings."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mixtures import cost, mixture
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin_min

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.kmeans import (
    assign,
    distdim,
    draw,
    lloyd,
    partial_distances,
    seed_centers,
    simplified_silhouettes,
    weighted_kmeans,
)


def log_cost(X, centers, weights):
    return np.log(cost(X, centers, 1.0 if weights is None else weights))


def small_integers(rows):
    return arrays(np.float64, (rows, 2), elements=st.integers(-9, 9).map(float))


# --- assignments, distances and seeding -----------------------------------------------


def test_assign_agrees_with_scikit_learn():
    X = mixture()
    labels, distances = assign(X, X[:7])
    expected = pairwise_distances_argmin_min(X, X[:7], metric="sqeuclidean")
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(distances, expected[1], atol=1e-11)
    np.testing.assert_array_equal(distances[:7], 0)


@given(X=small_integers(8), centers=small_integers(3), offset=st.sampled_from([0, 1e9]))
def test_distances_are_right_far_from_the_origin(X, centers, offset):
    exact = ((X[:, None] - centers) ** 2).sum(axis=2)
    labels, distances = assign(X + offset, centers + offset)
    np.testing.assert_array_equal(distances, exact[np.arange(8), labels])
    # Equal distances may be told apart by rounding, by far less than this.
    np.testing.assert_allclose(distances, exact.min(axis=1), atol=1e-4)
    partial = partial_distances(X + offset, centers + offset)
    assert (partial >= 0).all()
    np.testing.assert_allclose(partial, exact, atol=1e-4)


@pytest.mark.parametrize("weights", [None, np.arange(600.0)])
def test_seeds_are_distinct_rows_whatever_the_blocks(weights):
    X = mixture()
    first, second = (
        seed_centers(RowBlocks(X, block_bytes=b), 20, np.random.default_rng(3), weights)
        for b in (200, 2**20)
    )
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first, axis=0)) == 20
    assert all((c == X).all(axis=1).any() for c in first)


@pytest.mark.parametrize("weighted", [False, True])
def test_seeding_is_as_good_as_that_of_scikit_learn(weighted):
    # Mean log cost of 200 seedings each; were they equal, a difference of 4 standard
    # errors would be a false alarm in 3e-5 of the seeds.
    X = mixture(n=400, clusters=12, spread=3.0)
    w = 10.0 ** -np.random.default_rng(0).integers(4, size=400) if weighted else None
    ours, theirs = [], []
    for s in range(200):
        seeds = seed_centers(RowBlocks(X), 12, np.random.default_rng(s), w)
        ours.append(log_cost(X, seeds, w))
        seeds, _ = kmeans_plusplus(X, 12, sample_weight=w, random_state=s)
        theirs.append(log_cost(X, seeds, w))
    error = np.sqrt((np.var(ours) + np.var(theirs)) / 200)
    assert error < 0.03
    assert np.mean(ours) - np.mean(theirs) < 4 * error


def test_equal_weights_change_nothing():
    X = mixture()
    plain, weighted = (
        seed_centers(RowBlocks(X), 9, np.random.default_rng(0), w)
        for w in (None, np.full(600, 2.0**-20))
    )
    np.testing.assert_array_equal(plain, weighted)


def test_weighted_seeding_takes_no_row_of_weight_zero():
    X = mixture()
    weights = np.zeros(600)
    weights[:5] = 1
    centers = seed_centers(RowBlocks(X), 5, np.random.default_rng(0), weights)
    assert {tuple(c) for c in centers} == {tuple(x) for x in X[:5]}


@given(offset=st.sampled_from([0.0, 1e6, -3e8]), seed=st.integers(0, 99))
def test_every_distinct_value_is_a_seed_where_there_are_few(offset, seed):
    values = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]]) + offset
    X = values[np.arange(30) % 3]
    centers = seed_centers(RowBlocks(X), 5, np.random.default_rng(seed))
    assert centers.shape == (5, 2)
    np.testing.assert_array_equal(np.unique(centers, axis=0), np.unique(values, axis=0))


# --- Lloyd's iteration ---------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block_bytes", [300, 2**20])
def test_lloyd_agrees_with_scikit_learn(weighted, block_bytes):
    X = mixture(spread=2.0)
    weights = np.random.default_rng(1).random(600) if weighted else None
    model = KMeans(6, init=X[:6], n_init=1, tol=0, max_iter=1000, algorithm="lloyd")
    model.fit(X, sample_weight=weights)
    centers = lloyd(RowBlocks(X, block_bytes=block_bytes), X[:6], weights, 1000, tol=0)
    np.testing.assert_allclose(centers, model.cluster_centers_, atol=1e-9)


def test_lloyd_stops_and_never_gets_worse():
    X = mixture(spread=2.0)
    costs = [cost(X, lloyd(RowBlocks(X), X[:6], max_iter=i, tol=0)) for i in range(12)]
    assert costs[0] == cost(X, X[:6])
    assert all(later <= earlier for earlier, later in pairwise(costs))
    assert costs[-1] < costs[1] < costs[0]
    loose = lloyd(RowBlocks(X), X[:6], tol=0.2)
    assert costs[-1] < cost(X, loose) < costs[0]


def test_a_center_without_rows_stays():
    start = np.array([[0.0], [1e3]])
    given_start = start.copy()
    centers = lloyd(RowBlocks(np.array([[1.0], [3.0]])), start)
    np.testing.assert_array_equal(centers, [[2.0], [1e3]])
    np.testing.assert_array_equal(start, given_start)


def test_exact_centers_stay_exact():
    # The mean of 30 times 0.1 is not 0.1 in floating point.
    X = np.array([[0.1], [0.7], [1e5 + 0.3]])[np.arange(90) % 3]
    centers = lloyd(RowBlocks(X), X[:3], tol=0)
    np.testing.assert_array_equal(centers, X[:3])


# --- at the server -------------------------------------------------------------------


def test_silhouettes_of_a_worked_example():
    """At 1, the centres 0 and 10 are 1 and 9 away; the last row lies on two centres."""
    rows, centers = np.array([[0.0], [1.0], [5.0]]), np.array([[0.0], [10.0]])
    np.testing.assert_allclose(simplified_silhouettes(rows, centers), [1, 1 - 1 / 9, 0])
    assert simplified_silhouettes(rows[:1], np.zeros((2, 1))) == 1


def test_weighted_kmeans_weighs():
    X, weights = np.array([[0.0], [1.0], [10.0]]), np.array([3.0, 1.0, 1.0])
    centers, inertia = weighted_kmeans(X, 2, weights, np.random.default_rng(0))
    np.testing.assert_allclose(np.sort(centers[:, 0]), [0.25, 10.0])
    assert inertia == pytest.approx(0.75)


def test_fewer_distinct_rows_than_clusters_are_no_fault():
    X, rng = np.array([[0.0], [2.0], [2.0]]), np.random.default_rng(0)
    centers, cost = weighted_kmeans(X, 3, np.ones(3), rng)
    assert (set(centers.ravel()), cost) == ({0.0, 2.0}, 0)


def test_distdim_worked_example():
    """Two parties, one column each, with centres {0, 4} and {0, 6}.

    Rows in the cells (0, 0), (0, 0), (4, 0), (4, 6) with weights 1, 2, 1, 5: the cells
    weigh 3, 1, 5. With k = 2 the cell (4, 0) joins (0, 0): its centre is
    (0 * 3 + 4 * 1) / 4 = 1, at cost 3 * 1 + 1 * 9 = 12; joining (4, 6) would cost
    36 * 5 / 6 = 30.
    """
    labels = np.array([[0, 0], [0, 0], [1, 0], [1, 1]])
    local = [np.array([[0.0], [4.0]]), np.array([[0.0], [6.0]])]
    weights, rng = np.array([1.0, 2.0, 1.0, 5.0]), np.random.default_rng(0)
    centers = distdim(labels, local, weights, 2, rng)
    np.testing.assert_allclose(centers[centers[:, 0].argsort()], [[1, 0], [4, 6]])


# --- draws ---------------------------------------------------------------------------


@given(
    g=st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 3.0, 1e12]), min_size=1),
    size=st.integers(0, 50),
    first=st.integers(0, 50),
    seed=st.integers(0, 1000),
)
def test_draws_are_rows_with_mass_and_a_prefix_is_a_shorter_draw(g, size, first, seed):
    g = np.array(g)
    if g.sum() == 0:
        g[0] = 1
    rows = draw(g, size, np.random.default_rng(seed))
    assert rows.dtype == np.int64
    assert rows.shape == (size,)
    assert (g[rows] > 0).all()
    prefix = draw(g, min(first, size), np.random.default_rng(seed))
    np.testing.assert_array_equal(rows[: len(prefix)], prefix)


@pytest.mark.parametrize("total", [1.0, 1.5, 2 - 2.0**-52, 1e-300, 1e300])
@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
def test_the_extreme_random_numbers_draw_rows_with_mass(total, number):
    class Extreme:
        def random(self, size):
            return np.full(size, number)

    assert draw(np.array([0.0, total, 0.0]), 1, Extreme()) == [1]


def test_draws_have_the_probabilities():
    # Chi-square with 3 degrees of freedom: above 27.9 in 4e-6 of the seeds.
    g = np.array([1.0, 0.0, 2.0, 3.0, 4.0])
    counts = np.bincount(draw(g, 10_000, np.random.default_rng(0)), minlength=5)
    expected = 1000 * g
    assert counts[1] == 0
    with np.errstate(invalid="ignore"):
        assert np.nansum((counts - expected) ** 2 / expected) < 27.9


@pytest.mark.parametrize("g", [[], [0.0, 0.0], [1.0, -0.5], [np.nan], [np.inf, 1.0]])
def test_draw_needs_weights(g):
    with pytest.raises(ValueError, match="positive, finite sum"):
        draw(np.array(g, dtype=float), 1, np.random.default_rng(0))
