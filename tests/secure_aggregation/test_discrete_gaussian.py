"""Discrete Gaussian noise: exact tables, wide ones of the right shape, no holes."""

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, norm

from vfl_flower.secure_aggregation import discrete_gaussian as noise
from vfl_flower.secure_aggregation.masks import stream


def taking(name):
    """Return a stream of bytes that is the same each time."""
    return stream(bytes(32), [name.encode()])


@pytest.mark.parametrize("sigma", [64.0, 700.3, 2047.9])
def test_the_table_is_the_distribution(sigma):
    high, low = noise.table(sigma)
    t = len(high) // 2
    x = np.arange(-t, t + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    expected = np.cumsum(weights / weights.sum())[:-1]
    np.testing.assert_allclose(high / 2.0**64, expected, atol=1e-13)
    # The tails are beyond the precision of float64: ratios of neighbours in integers.
    thresholds = [(int(h) << 64) + int(m) for h, m in zip(high, low, strict=True)]
    assert thresholds == sorted(thresholds)
    mirrored = [(1 << 128) - threshold for threshold in reversed(thresholds)]
    assert np.abs(np.subtract(thresholds, mirrored)).max() <= 1
    tail = int(9 * sigma)
    steps = np.diff(thresholds)[t - tail - 1 : t - tail + 1].astype(float)
    ratio = np.exp(-((tail - 1) ** 2 - tail**2) / (2 * sigma**2))
    assert steps[1] / steps[0] == pytest.approx(ratio, rel=1e-6)


def test_a_uniform_number_falls_between_its_thresholds(monkeypatch):
    """Where the first words are the same, the second ones decide."""
    edges = np.array([3, 5, 5, 5, 9], "<u8"), np.array([0, 1, 4, 6, 2], "<u8")
    monkeypatch.setattr(noise, "table", lambda sigma: edges)
    pairs = [(0, 9), (3, 0), (5, 0), (5, 1), (5, 5), (5, 6), (7, 0), (9, 1), (9, 2)]
    words = np.array(pairs, "<u8").T.tobytes()
    numbers = noise._narrow(lambda count: words, 64.0, len(pairs))
    assert (numbers + 2).tolist() == [0, 1, 1, 2, 3, 4, 4, 4, 5]


@pytest.mark.parametrize("sigma", [2.0**20, 1.37 * 2.0**41])
def test_wide_numbers_are_normal(sigma):
    """A fixed stream: this passes each time, or never."""
    numbers = noise.discrete_gaussian(taking("wide"), sigma, 40_000)
    assert kstest(numbers / sigma, norm.cdf).pvalue > 1e-3
    assert numbers.std() == pytest.approx(sigma, rel=0.015)
    for base in (2, 3, 32, 1024):  # no holes, whatever the number of levels
        assert chisquare(np.bincount(numbers % base, minlength=base)).pvalue > 1e-3


def test_numbers_are_made_in_blocks(monkeypatch):
    whole = noise.discrete_gaussian(taking("blocks"), 2.0**30, 100)
    again = noise.discrete_gaussian(taking("blocks"), 2.0**30, 100)
    np.testing.assert_array_equal(whole, again)
    monkeypatch.setattr(noise, "BLOCK", 30)
    parts = noise.discrete_gaussian(taking("blocks"), 2.0**30, 100)
    assert len({*parts}) == 100
    assert parts.std() == pytest.approx(2.0**30, rel=0.4)


@pytest.mark.parametrize("sigma", [0.0, 2.0**19, 2.0**58, float("nan")])
def test_sigma_out_of_range(sigma):
    with pytest.raises(ValueError, match="sigma must be between"):
        noise.discrete_gaussian(taking("range"), sigma, 1)
