"""Columns that a party makes of its own columns alone."""

import io

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vfl_flower.numerics.ridge.local_columns import (
    CLIP,
    LocalColumns,
    bounded,
    fit_local_columns,
    local_columns,
    scaled_columns,
)


def fitted_to(X, most=200, **options):
    rng = np.random.default_rng(0)
    return fit_local_columns(X, most=most, rng=rng, **options)


def support(column):
    return len(column) - np.unique(column, return_counts=True)[1].max()


@given(
    seed=st.integers(0, 2**32),
    most=st.integers(0, 60),
    kinds=st.lists(
        st.sampled_from(["normal", "heavy", "few", "rare", "gaps", "one", "constant"]),
        max_size=4,
    ),
)
@example(seed=5590642, most=38, kinds=["normal"])
@settings(max_examples=30)
def test_no_column_points_to_a_row(seed, most, kinds):
    rng, n = np.random.default_rng(seed), 400
    make = {
        "normal": lambda: rng.standard_normal(n),
        "heavy": lambda: rng.standard_cauchy(n) ** 3,
        "few": lambda: rng.choice([0.0, 1, 7], n, p=[0.9, 0.06, 0.04]),
        "rare": lambda: 1.0 * (rng.permutation(n) < rng.integers(1, 60)),
        "gaps": lambda: np.where(rng.random(n) < 0.1, np.nan, rng.random(n)),
        "one": lambda: 1e6 * (np.arange(n) == rng.integers(n)),
        "constant": lambda: np.full(n, 3.0),
    }
    X = np.array([make[kind]() for kind in kinds]).reshape(len(kinds), n).T
    fitted = fit_local_columns(X, most=most, least=20, rng=rng)
    F, Z = local_columns(fitted, X), scaled_columns(fitted, X)
    assert F.shape == (n, fitted.n_columns)
    assert fitted.n_columns <= most
    assert np.abs(F).max(initial=0) <= 1
    assert Z.shape == X.shape
    assert np.abs(Z).max(initial=0) <= CLIP
    assert min(map(support, F.T), default=20) >= 20
    assert min(map(support, Z.T[Z.any(axis=0)]), default=20) >= 20
    # Of directions that rounding leaves in a Gram matrix.
    U, S, _ = np.linalg.svd(F - F.mean(axis=0), full_matrices=False)
    U = U[:, 1e-5 * S.max(initial=0) < S]
    assert (U**2).sum(axis=1).max() <= 0.5 + 1e-6
    assert bounded(F, least=20, most_leverage=0.5).all()


def test_values_are_in_units_of_training_and_clipped_at_its_ends():
    """The ends are the fifth values of either side: 4 and 395 of 0 .. 399."""
    x = np.arange(400.0)
    fitted = fitted_to(x[:, None], bins=2, waves=0)
    assert fitted.lowest.tolist() == [4]
    assert fitted.highest.tolist() == [395]
    sd = np.clip(x, 4, 395).std()
    new = np.array([[-1e9], [4], [199.5], [300], [1e9], [np.nan]])
    expected = (np.array([4, 4, 199.5, 300, 395, 199.5]) - 199.5) / sd
    np.testing.assert_allclose(scaled_columns(fitted, new)[:, 0], expected)
    np.testing.assert_allclose(local_columns(fitted, new)[:, 0], expected / CLIP)


def test_intervals_of_a_column_by_hand():
    """Of 400 rows 200 have 0, and 1 .. 200 are in one row each; 5 intervals.

    The zeros fill the first one alone, though it is a fifth of the rows. The other 200
    rows share four: up to 50, 100, 150 and 200. The last one follows from the others.
    """
    x = np.concatenate([np.zeros(200), np.arange(1.0, 201)])
    fitted = fitted_to(x[:, None], bins=5, waves=0)
    assert fitted.lows.tolist() == [-np.inf, 0, 50, 100]
    assert fitted.highs.tolist() == [0, 50, 100, 150]
    F = local_columns(fitted, np.array([[-5.0], [0.5], [50], [151], [np.nan]]))
    np.testing.assert_array_equal(
        F[:, 1:], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    )


def test_rare_levels_are_merged_with_a_neighbour():
    fitted = fitted_to(np.repeat([0.0, 1, 2, 3], [200, 15, 100, 85])[:, None], waves=0)
    assert fitted.lows.tolist() == [-np.inf, 0]
    assert fitted.highs.tolist() == [0, 2]


def test_a_column_of_two_values_is_its_value_alone():
    fitted = fitted_to(np.repeat([0.0, 1], [300, 100])[:, None], waves=0)
    assert fitted.n_columns == 1
    assert fitted.values.tolist() == [0]


@pytest.mark.parametrize("rows", [1, 3])
def test_columns_of_few_rows_are_not_let_go(rows):
    """Nonzero in few rows, in all but a few, or two columns that differ in these."""
    rng = np.random.default_rng(0)
    rare = 1.0 * (np.arange(400) < rows)
    twin = rng.standard_normal(400)
    F = np.column_stack([rare, 1 - rare, twin, twin + 1e-3 * rare, rng.random(400)])
    kept = bounded(F, least=20, most_leverage=0.5)
    expected = [False, False, True, rows == 3, True]
    if rows == 1:
        assert not kept[:2].any()
        assert kept[2:4].sum() == 1
    else:
        np.testing.assert_array_equal(kept, expected)
    assert kept[4]


def test_missing_values_have_an_indicator_where_enough_rows_have_them():
    X = np.random.default_rng(0).random((400, 2))
    X[:60, 0] = np.nan
    X[:6, 1] = np.nan
    fitted = fitted_to(X, bins=2, waves=0)
    assert fitted.gaps.tolist() == [0]
    F = local_columns(fitted, X)
    np.testing.assert_array_equal(F[:, 2], np.isnan(X[:, 0]))
    assert (F[:6, 1] == 0).all()


def test_intervals_become_fewer_where_there_is_little_room():
    X = np.random.default_rng(0).random((2000, 3))
    assert [fitted_to(X, most=most, waves=4).sizes for most in (100, 20, 4, 2)] == [
        [3, 45, 8],
        [3, 15, 2],
        [3, 0, 0],
        [2, 0, 0],
    ]


def test_waves_are_cosines_and_sines_of_random_angles():
    """The median squared distance of two rows of 6 normal columns is 2 x 5.35."""
    X = np.random.default_rng(0).standard_normal((2000, 6))
    fitted = fitted_to(X, most=100, bins=2, waves=32)
    angles = scaled_columns(fitted, X) @ fitted.frequencies
    assert fitted.sizes[2] == 64
    F = local_columns(fitted, X)[:, -64:]
    np.testing.assert_allclose(F, np.hstack([np.cos(angles), np.sin(angles)]))
    # Of 192 normal numbers the standard deviation is known to 5 %.
    assert fitted.frequencies.std() == pytest.approx(2 / np.sqrt(5.35), rel=0.15)


def test_a_fit_is_arrays_that_a_file_can_hold():
    X = np.random.default_rng(0).random((300, 2))
    fitted, file = fitted_to(X), io.BytesIO()
    np.savez(file, **vars(fitted))
    file.seek(0)
    loaded = LocalColumns(**np.load(file))
    np.testing.assert_array_equal(local_columns(loaded, X), local_columns(fitted, X))
