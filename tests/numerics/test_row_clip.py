"""Columns in which no row stands out: few rows change, and no column that need not."""

import numpy as np
import pytest

from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.numerics.leverage import leverage_factor, leverage_scores
from vfl_flower.numerics.linear_gram import bounded_columns
from vfl_flower.numerics.row_clip import clipped, row_clip, sums


def troubled(seed, n=400):
    """Return columns of which three are rare and three have rows that stand out."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 9))
    X[:, [1, 2, 3]] = 0.0
    for column, rows in (1, 9), (2, 8), (3, 7):
        X[rng.choice(n, rows, replace=False), column] = rng.normal(size=rows)
    X[rng.integers(n), 5] = 1e4
    X[:, 7] = rng.standard_cauchy(n)
    X[:, 8] = X[:, 4]
    X[rng.integers(n), 8] += 50
    return X


def clip_of(X, intercept=True):
    return row_clip(X, intercept, 20, 0.5)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_few_rows_change_and_none_stands_out(seed, intercept):
    """Fewer than 20 rows; all others are as they were in every bit."""
    # given
    X = troubled(seed)
    # when
    clip = clip_of(X, intercept)
    Z = clipped(clip, X)
    # then
    plain = [0, 4, 5, 6, 7, 8]
    changed = (Z[:, plain] != X[:, plain]).any(axis=1)
    assert 0 < changed.sum() < 20
    np.testing.assert_array_equal(changed, (sums(clip, X) != Z).any(axis=1))
    A = Z - intercept * Z.mean(axis=0)
    stays = bounded_columns(Z.T, A, 20, 0.5)
    assert stays[[0, 1, 4, 5, 6, 7]].all()
    A = RowBlocks(A[:, stays])
    assert leverage_scores(A, leverage_factor(A)).max() <= 0.5


def test_the_rule_leaves_out_less():
    X = troubled(0)
    assert bounded_columns(X.T, X - X.mean(axis=0), 20, 0.5).sum() <= 5


def test_rare_columns_are_added_until_they_are_not_rare():
    """By hand: 9 + 8 + 7 rows are a group, and the two that follow join it."""
    # given
    X = np.ones((200, 7))
    X[:, 0] = np.arange(200) % 5
    for column, rows in enumerate([9, 8, 7, 1, 2], 1):
        X[20 * column : 20 * column + rows, column] += 3.0
    # when
    clip = clip_of(X)
    # then
    assert clip[0].tolist() == [0, 1, 1, 1, 1, 1, 0]
    Z = sums(clip, X)
    merged = (X[:, 1:6] - 1).sum(axis=1) / 3  # each counts alike
    np.testing.assert_allclose(Z[:, 1], 4 * merged)  # the power of two next to 3
    np.testing.assert_array_equal(Z[:, 0], X[:, 0])
    assert not Z[:, 2:6].any()


@pytest.mark.parametrize("rare", [[3], [3, 5]])
def test_rare_columns_alone_are_left_out(rare):
    """No sum takes them, and none is one of its own."""
    rows = np.arange(100)
    X = np.column_stack([1.0 * rows, *(rows == row for row in rare)])
    clip, d = clip_of(X), 1 + len(rare)
    assert clip[2 : 2 + d].tolist() == np.diag([1] + [0] * len(rare)).tolist()
    assert not clipped(clip, X)[:, 1:].any()


def test_the_map_tells_no_value_of_a_single_row():
    """But its order of magnitude: what the Gram matrix is of does not depend on it."""
    # given
    X = troubled(0)
    X[:, 1] = np.arange(len(X)) == 3
    other = X.copy()
    other[3, 1] = 1.3
    # when, then
    first, second = (clipped(clip_of(rows), rows) for rows in (X, other))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("value", [1e300, -1e300, 5e-324])
def test_new_rows_of_any_size_come_near(value):
    X = troubled(0)
    clip = clip_of(X)
    new = np.full((1, X.shape[1]), value)
    moved = clipped(clip, new)
    assert np.isfinite(moved).all()
    assert np.linalg.norm((moved - clip[1]) @ clip[2 + X.shape[1] :].T) <= 1 + 1e-9


def test_numbers_of_any_size_are_merged():
    """Rare columns of 1e-130 and of 1e100 in one group overflow nowhere."""
    X = np.zeros((100, 4))
    X[:, 0] = np.arange(100)
    for column, size in (1, 1e-130), (2, 1e100), (3, 1e-130):
        X[8 * column : 8 * column + 8, column] = size
    clip = clip_of(X)
    assert clip[2:6].any(axis=1).all()
    assert np.isfinite(clipped(clip, X)).all()


def test_columns_in_which_no_row_stands_out_have_no_map():
    X = np.random.default_rng(0).normal(size=(200, 3))
    assert not len(clip_of(X))
    assert not len(clip_of(np.column_stack([X, np.ones(200), 1e200 * X[:, 0]])))
    assert clipped(np.zeros((0, 0)), X) is X


def test_labels_stay_beside_columns_that_point_to_a_row():
    """They differ in one row alone: the column goes, whatever its size."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    for size in 0.9, 1.1:
        x = size * y
        x[7] += 3
        A = np.column_stack([x, y]) - np.mean([x, y], axis=1)
        stays = bounded_columns([x, y], A, 20, 0.5, fixed=1)
        assert stays.tolist() == [False, True]
