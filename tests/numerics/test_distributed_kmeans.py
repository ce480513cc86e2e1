"""Distributed k-means: the sample stands for all rows, whoever holds them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import cost, mixture

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.coresets import ClusterSummary, cluster_summary
from vfl_flower.numerics.distributed_kmeans import combine, sample, split_budget
from vfl_flower.numerics.kmeans import assign, weighted_kmeans

SIZES = (150, 60, 5, 1, 84)
"""Rows of the parties: unequal, one with fewer than k rows, one with a single row."""


def parties_of(X):
    parts = np.split(X, np.cumsum(SIZES)[:-1])
    return [RowBlocks(rows, block_bytes=2048) for rows in parts]


def union(parties, k, budget, rng, solutions=None):
    solutions = solutions or [cluster_summary(blocks, k, rng) for blocks in parties]
    costs = np.array([solution.costs.sum() for solution in solutions])
    counts = split_budget(costs, budget)
    drawn = zip(parties, solutions, counts, strict=True)
    parts = [sample(*party, rng) for party in drawn]
    points, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return points, weights, costs


# --- the budget -----------------------------------------------------------------------


def test_budget_of_a_worked_example():
    """One draw each leaves 7: shares 4.2, 2.73 and 0.07 make 4, 3 and 0."""
    counts = split_budget(np.array([6.0, 0.0, 3.9, 0.1]), 10)
    np.testing.assert_array_equal(counts, [5, 0, 4, 1])
    assert counts.dtype == np.int64


@given(
    costs=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e6)), min_size=1),
    extra=st.integers(0, 10_000),
)
def test_every_draw_is_given_out(costs, extra):
    costs = np.array(costs)
    spread = costs > 0
    budget = int(spread.sum()) + extra
    counts = split_budget(costs, budget)
    assert counts.sum() == (budget if spread.any() else 0)
    np.testing.assert_array_equal(counts > 0, spread)
    if spread.any():
        share = extra * costs / costs.sum()
        assert (np.abs(counts - spread - share) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("costs", "budget", "rule"),
    [
        *(([1.0, 0.0, 2.0], budget, f"at least 2.*got {budget}") for budget in (-1, 1)),
        *(([1.0, x], 5, "non-negative and finite") for x in (-1.0, np.nan, np.inf)),
    ],
)
def test_a_budget_or_costs_that_do_not_fit_are_refused(costs, budget, rule):
    with pytest.raises(ValueError, match=rule):
        split_budget(np.array(costs), budget)


# --- a party's sample -----------------------------------------------------------------


ROWS = np.array([[0.0], [4.0], [9.0], [10.0]])
MIDDLES = np.array([[1.0], [9.0]])
SOLUTION = ClusterSummary(MIDDLES, np.array([2, 2]), np.array([10.0, 1.0]))
"""Centres 1 and 9: m = (1, 9, 0, 1), c = 11; no mean, so that all m differ."""


@pytest.mark.parametrize(
    ("uniform", "weight"),
    [
        (0.0, {0.0: 11 / 2, 4.0: 11 / 18, 10.0: 11 / 2}),
        (0.5, {0.0: 44 / 15, 4.0: 44 / 47, 9.0: 4.0, 10.0: 44 / 15}),
    ],
)
def test_sample_of_a_worked_example(uniform, weight):
    """The possible draws of two, with their weights 1 / (2 p).

    As in the paper p = m / 11: row 0 has 11/2, row 4 has 11/18, and row 9 is never
    drawn. Half uniform, p = m / 22 + 1/8 = (15, 47, 11, 15) / 88. A centre has what its
    two rows leave: with 0 and 4 drawn, 2 - 11/2 - 11/18 < 0 at centre 1.
    """
    seen = set()
    for seed in range(60):
        rng, blocks = np.random.default_rng(seed), RowBlocks(ROWS, block_bytes=8)
        points, weights = sample(blocks, SOLUTION, 2, rng, uniform)
        drawn = points[:-2, 0]
        times = 3 - len(drawn)  # a row drawn twice is sent once
        np.testing.assert_allclose(weights[:-2], [times * weight[q] for q in drawn])
        np.testing.assert_array_equal(points[-2:], SOLUTION.centers)
        left = weights[:-2] @ (drawn < 5), weights[:-2] @ (drawn > 5)
        np.testing.assert_allclose(weights[-2:], 2 - np.array(left))
        seen.add(tuple(drawn))
    # A pair of rows other than 4 has a small probability: not asked for.
    assert {(4.0,), (0.0, 4.0), (4.0, 10.0)} <= seen
    assert {q for pair in seen for q in pair} <= set(weight)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0])
def test_sample_is_unbiased_by_enumeration(uniform):
    """The exact mean over the 16 pairs of draws is the cost, whatever the centres.

    The cost on one sample may be below 0, as single weights are.
    """
    m = assign(ROWS, SOLUTION.centers)[1]
    p = (1 - uniform) * m / 11 + uniform / 4
    middles = np.cumsum(p) - p / 2

    class Fixed:
        def __init__(self, pair):
            self.pair = list(pair)

        def random(self, size):
            return middles[self.pair]

    for centers in (np.array([[0.0], [7.0]]), np.array([[20.0]]), ROWS[1:3] + 0.3):
        mean = 0.0
        for pair in itertools.product(np.flatnonzero(p), repeat=2):
            sent = sample(RowBlocks(ROWS), SOLUTION, 2, Fixed(pair), uniform)
            mean += p[list(pair)].prod() * cost(sent[0], centers, sent[1])
        assert mean == pytest.approx(cost(ROWS, centers), rel=1e-12)


def test_all_rows_where_the_share_covers_them():
    X = mixture(300, 3, spread=6.0)[:30]
    blocks = RowBlocks(X)
    solution = cluster_summary(blocks, 4, np.random.default_rng(0))
    for count in (30, 31):
        points, weights = sample(blocks, solution, count, np.random.default_rng(0))
        np.testing.assert_array_equal(points, X)
        np.testing.assert_array_equal(weights, 1)
    points, _ = sample(blocks, solution, 29, np.random.default_rng(0))
    assert len(points) < 30 + 4


def test_nothing_is_drawn_where_there_is_no_spread():
    blocks = RowBlocks(np.ones((9, 2)))
    solution = cluster_summary(blocks, 3, np.random.default_rng(0))
    points, weights = sample(blocks, solution, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(points, [[1, 1]])
    np.testing.assert_array_equal(weights, [9])


def test_uniform_draws_bound_the_weights():
    """A row 1e-6 from its centre: its weight is at most n / (u t), else some 1e9."""
    X = np.array([[0.0], [1.0], [2.0], [1 + 1e-6]])
    solution = ClusterSummary(np.array([[1.0]]), np.array([4]), np.array([2.0]))
    for seed in range(30):
        _, weights = sample(RowBlocks(X), solution, 3, np.random.default_rng(seed))
        assert (weights[:-1] <= 3 * 4 / (0.5 * 3)).all()
        assert weights.sum() == pytest.approx(4)


@pytest.mark.parametrize(
    "X",
    [
        np.full((1, 2), 1 / 3),
        np.full((50, 2), 1 / 3),
        np.repeat(mixture(5, 3, spread=6.0), 7, axis=0),
        mixture(3, 3, spread=6.0),
    ],
    ids=["one row", "constant", "five distinct rows", "fewer rows than k"],
)
def test_cost_is_exactly_zero_with_at_most_k_distinct_rows(X):
    solution = cluster_summary(RowBlocks(X), 5, np.random.default_rng(0))
    assert solution.costs.sum() == 0
    assert solution.sizes.sum() == len(X)
    distinct = np.unique(X, axis=0)
    np.testing.assert_array_equal(np.unique(solution.centers, axis=0), distinct)


# --- all parties ----------------------------------------------------------------------


@given(budget=st.just(0) | st.integers(5, 400), seed=st.integers(0, 2**32 - 1))
def test_weights_sum_to_the_number_of_rows(budget, seed):
    X, rng = mixture(300, 3, spread=6.0), np.random.default_rng(seed)
    points, weights, costs = union(parties_of(X), 4, budget, rng)
    assert weights.sum() == pytest.approx(len(X), rel=1e-9)
    assert len(points) <= budget + 4 * len(costs)
    assert costs[3] == 0  # the single row


def test_all_rows_in_the_budget_is_plain_k_means():
    X = mixture(300, 3, spread=6.0)
    points, weights, _ = union(parties_of(X), 4, 10**6, np.random.default_rng(0))
    # Parties without a spread send their rows as centres, in the order of the seeding.
    order, expected = np.lexsort(points.T), np.lexsort(X.T)
    np.testing.assert_array_equal(points[order], X[expected])
    np.testing.assert_array_equal(weights, 1)
    centers = combine(points, weights, 6, np.random.default_rng(1))
    pooled, best = weighted_kmeans(points, 6, weights, np.random.default_rng(1))
    np.testing.assert_array_equal(centers, pooled)
    assert cost(X, centers) == pytest.approx(best)


def test_combine_leaves_out_points_without_a_positive_weight():
    """Points 0 and 1 weigh 3 and 1: mean 1/4, with -2 and 0 at 50 and 90 left out."""
    points = np.array([[0.0], [50.0], [1.0], [90.0]])
    weights = np.array([3.0, -2.0, 1.0, 0.0])
    centers = combine(points, weights, 1, np.random.default_rng(0))
    np.testing.assert_allclose(centers, [[0.25]])
    centers = combine(points, weights, 3, np.random.default_rng(0))
    np.testing.assert_allclose(np.unique(centers), [0, 1])


def test_combine_needs_a_positive_weight():
    with pytest.raises(ValueError, match="at least one weight must be positive"):
        combine(np.ones((2, 1)), np.array([-1.0, 0.0]), 1, np.random.default_rng(0))
