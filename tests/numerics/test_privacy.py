"""How much noise: the library against the closed form, and the bound of a row."""

import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from vfl_flower.numerics import privacy


def closed_form(epsilon, delta):
    """Return sigma by Theorem 8 of Balle and Wang (2018), for a sensitivity of 1."""

    def excess(log_sigma):
        sigma = np.exp(log_sigma)
        second = log_ndtr(-0.5 / sigma - epsilon * sigma)
        return ndtr(0.5 / sigma - epsilon * sigma) - np.exp(epsilon + second) - delta

    return float(np.exp(brentq(excess, -4, 8, xtol=1e-12)))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_the_library_is_the_analytic_gaussian_mechanism(epsilon, delta):
    expected = closed_form(epsilon, delta)
    assert privacy.noise_multiplier(epsilon, delta) == pytest.approx(expected, rel=1e-4)


def test_one_sentence_where_the_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld.common", None)
    with pytest.raises(ValueError, match=r"pip install 'vfl-flower\[privacy\]'"):
        privacy.noise_multiplier(1.0, 1e-6)


def weighted(gram):
    """Return the upper triangle in units of its noise: sqrt(2) on the diagonal."""
    rows, others = np.triu_indices(len(gram))
    return gram[rows, others] / np.where(rows == others, np.sqrt(2), 1.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_sensitivity_is_the_squared_length_of_a_row(share):
    """Whatever part of a row is replaced; opposite parts nearly reach the bound."""
    rng = np.random.default_rng(0)
    R, largest = 7.0, 0.0
    for trial in range(300):
        parts = [rng.normal(size=4) for _ in range(3)]
        v, other, fixed = (p / np.linalg.norm(p) for p in parts)
        if trial % 2:
            # cos(v, v') = -|o|^2 / |v|^2, where the bound is reached, or -1.
            cosine = max(-1.0, -(1 - share) / share)
            other = other - (other @ v) * v
            other *= np.sqrt(1 - cosine**2) / np.linalg.norm(other)
            other = other + cosine * v
        fixed = np.sqrt((1 - share) * R) * fixed
        rows = [np.r_[np.sqrt(share * R) * w, fixed] for w in (v, other)]
        change = np.outer(rows[0], rows[0]) - np.outer(rows[1], rows[1])
        largest = max(largest, np.linalg.norm(weighted(change)))
    reached = R if share >= 0.5 else 2 * R * np.sqrt(share * (1 - share))
    assert largest <= R * (1 + 1e-9)
    assert largest == pytest.approx(reached, rel=1e-6)


@pytest.mark.parametrize("parties", [2, 3, 7])
@pytest.mark.parametrize(("outputs", "real"), [(1, True), (1, False), (5, False)])
def test_a_row_is_as_long_as_the_bound_says(parties, outputs, real):
    angles = 40
    local, targets, ones = privacy.column_weights(angles, parties, outputs, real)
    size = privacy.MOST_TARGET if real else 1.0
    longest = parties * (local + 0.01) ** 2  # 0.01: roundings of hundreds of columns
    longest += outputs * (targets * size) ** 2 + ones**2
    longest += angles * (1 + 2.0**-8.5) ** 4
    assert 0.9 * privacy.row_bound(angles) < longest < privacy.row_bound(angles)
    assert all(256 * w == int(256 * w) > 0 for w in (local, targets, ones))


def test_less_epsilon_takes_fewer_angles():
    counts = [privacy.private_angles(20_000, e) for e in (0.01, 0.5, 1, 2, 4, 8)]
    assert counts == [8, 33, 47, 66, 94, 133]
    assert privacy.private_angles(100, 0.1) == privacy.FEWEST
