"""Training and test rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from vfl_flower.numerics.split import split_rows


@given(
    n=st.integers(1, 300),
    fraction=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_row_is_in_one_part(n, fraction, seed):
    train, test = split_rows(n, fraction, seed)
    assert len(test) == round(fraction * n)
    if train is None:
        assert len(test) == 0
    else:
        assert (np.diff(train) > 0).all()
        assert (np.diff(test) > 0).all()
        np.testing.assert_array_equal(np.union1d(train, test), np.arange(n))
        assert len(train) + len(test) == n


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
