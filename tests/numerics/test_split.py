"""Training and test rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from vfl_flower.numerics.split import split_rows, training_rows


@given(
    n=st.integers(1, 300),
    fraction=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_row_is_in_one_part(n, fraction, seed):
    train, test = split_rows(n, fraction, seed)
    train = np.arange(n) if train is None else train
    assert len(test) == round(fraction * n)
    for rows in (train, test):
        assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.sort([*train, *test]), np.arange(n))


@pytest.mark.parametrize(("n", "fraction"), [(100, 0.0), (1, 0.4), (4, 0.1)])
def test_none_stands_for_all_rows(n, fraction):
    train, test = split_rows(n, fraction, seed=0)
    assert train is None
    assert test.shape == (0,)
    assert np.arange(n)[test].shape == (0,)  # whole numbers, fit to index with


def test_whoever_knows_the_seed_agrees():
    first, again, other = (split_rows(50, 0.3, seed)[1] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("fraction", "most"), [(0.0, 10), (0.3, 7)])
def test_training_rows_are_drawn_from_those_that_are_not_held_out(fraction, most):
    for rows in (2, most):
        drawn = training_rows(10, fraction, rows, 7)
        assert (np.diff(drawn) > 0).all()
        assert len({*drawn} - {*split_rows(10, fraction, 7)[1]}) == len(drawn) == rows
    for rows in (1, most + 1):
        with pytest.raises(ValueError, match=f"from 2 to {most}, got {rows}"):
            training_rows(10, fraction, rows, 7)


def test_each_row_is_held_out_as_often():
    """Counts over 2,000 seeds; false-alarm rate 1e-6, seeds fixed.

    15 of 50 rows are drawn without return: count l has variance s p (1 - p), and the
    counts add up, so sum (l - s p)^2 / (s p (1 - p)) (n - 1) / n is chi-square with
    n - 1 = 49 degrees of freedom.
    """
    n, seeds, p = 50, 2000, 0.3
    counts = np.zeros(n)
    for seed in range(seeds):
        counts[split_rows(n, p, seed)[1]] += 1
    statistic = ((counts - seeds * p) ** 2).sum() / (seeds * p * (1 - p)) * (n - 1) / n
    assert chi2.isf(1 - 1e-6, n - 1) < statistic < chi2.isf(1e-6, n - 1)
