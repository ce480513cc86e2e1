"""Random features: their marginals, their kernel, their angles and the bandwidth."""

import itertools
import tracemalloc
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vfl_flower.numerics import random_features as module
from vfl_flower.numerics.random_features import (
    CHUNK,
    Kernel,
    RandomFeatures,
    draw_pairs,
    features,
    median_bandwidth,
    pair_distances,
)

KERNELS = get_args(Kernel)
SEED = 2**128 - 12345
GAUSSIAN_7 = [
    [1.2357752641516175, 1.1338778106208363],
    [0.5421944449922387, -0.5909194775713613],
]
LAPLACIAN_7 = [
    [-0.3163995135479285, -0.6896905429669188],
    [0.3430895977035671, 1.0104516159062173],
]
PHASES_7 = [0.8734503010139788, 0.8446071616843288]


def gaussian(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def kernel_values(X, pairs, kernel, bandwidth):
    difference = X[pairs[0]] - X[pairs[1]]
    if kernel == "gaussian":
        return np.exp(-(difference**2).sum(axis=1) / (2 * bandwidth**2))
    return np.exp(-np.abs(difference).sum(axis=1) / bandwidth)


def units(turns, bits):
    """Angles in turns as the nearest whole units, in exact Python integers."""
    return [round(float(t) * 2**bits) % 2**bits for t in np.ravel(turns)]


def gap(a, b, turn=1.0):
    """Distance on the circle."""
    difference = np.abs(a.astype(float) - b.astype(float)) % turn
    return np.minimum(difference, turn - difference).max()


# --- the draws, and the kernel


@given(
    start=st.integers(0, 300),
    cuts=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    d=st.sampled_from([1, 2, 13, 64, 70]),
    kernel=st.sampled_from(KERNELS),
    orthogonal=st.booleans(),
)
@settings(max_examples=40)
def test_any_partition_of_a_range_gives_the_same_bits(
    start, cuts, d, kernel, orthogonal
):
    part, again = (
        RandomFeatures(kernel, d, 1.3, SEED, orthogonal=orthogonal) for _ in range(2)
    )
    ends = [*itertools.accumulate(cuts, initial=start)]
    pieces = [part.weights(a, b) for a, b in reversed([*itertools.pairwise(ends)])]
    omega, b = again.weights(start, ends[-1])
    assert omega.shape == (ends[-1] - start, d)
    assert b.shape == (ends[-1] - start,)
    np.testing.assert_array_equal(omega, np.vstack([w for w, _ in reversed(pieces)]))
    np.testing.assert_array_equal(b, np.hstack([p for _, p in reversed(pieces)]))


def test_the_draws_of_a_seed_stay_what_they_are():
    """A saved model is a seed: another stream would make it another model."""
    omega, b = RandomFeatures("gaussian", 2, 1.0, 7, orthogonal=True).weights(64, 66)
    np.testing.assert_allclose(omega, GAUSSIAN_7, rtol=1e-12)
    np.testing.assert_allclose(b, PHASES_7, rtol=1e-12)
    omega, _ = RandomFeatures("laplacian", 2, 1.0, 7).weights(64, 66)
    np.testing.assert_allclose(omega, LAPLACIAN_7, rtol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sparse_frequencies_make_the_product_of_kernels_of_some_columns(kernel):
    """E[phi phi'] = prod_c (1 - p + p k_c), from the same frequencies as with p = 1."""
    p, x = 0.3, np.array([1.0, -0.5, 2.0])
    part = RandomFeatures(kernel, 3, 1.2, SEED, density=p)
    omega, phases = part.weights(0, 2**16)
    all_omega, all_phases = RandomFeatures(kernel, 3, 1.2, SEED).weights(0, 2**16)
    np.testing.assert_array_equal(omega, all_omega * (omega != 0))
    np.testing.assert_array_equal(phases, all_phases)
    k = np.exp(-((x / 1.2) ** 2) / 2) if kernel == "gaussian" else np.exp(-abs(x) / 1.2)
    # The standard error of the mean of 65,536 cosines is below 0.004.
    assert np.cos(omega @ x).mean() == pytest.approx(np.prod(1 - p + p * k), abs=0.012)
    assert (omega != 0).mean() == pytest.approx(p, abs=0.006)
    np.testing.assert_array_equal(part.weights(70, 200)[0], omega[70:200])


def test_seeds_chunks_and_high_words_of_the_seed_differ():
    draws = [
        RandomFeatures("gaussian", 3, 1.0, seed).weights(start, start + CHUNK)[1]
        for seed in (0, 1, 2**64, 2**127)
        for start in (0, CHUNK, 2**40)
    ]
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert len(np.unique(np.concatenate(draws))) == len(draws) * CHUNK


@pytest.mark.parametrize(
    ("kernel", "d", "orthogonal"),
    [
        *(("gaussian", 1, True), ("gaussian", 5, False), ("gaussian", 5, True)),
        *(("gaussian", 100, True), ("laplacian", 5, False)),
    ],
)
def test_marginals(kernel, d, orthogonal):
    """Kolmogorov-Smirnov at level 1e-3 each: 15 tests at a fixed seed.

    Of each feature one column, so that the tested numbers are independent: in turn one
    of the columns, and for orthogonal directions one feature of each block.
    """
    s, M = 2.5, 64 * 400
    omega, b = RandomFeatures(kernel, d, s, 1, orthogonal=orthogonal).weights(0, M)
    step = min(d, 64) if orthogonal else 1
    rows = np.concatenate([np.arange(c, c + CHUNK, step) for c in range(0, M, CHUNK)])
    for offset in (0, step - 1):
        picked = rows[rows % CHUNK + offset < CHUNK] + offset
        column = omega[picked, np.arange(len(picked)) % d]
        name = "norm" if kernel == "gaussian" else "cauchy"
        assert stats.kstest(column * s, name).pvalue > 1e-3
    assert stats.kstest(b, "uniform").pvalue > 1e-3
    if kernel == "gaussian":
        lengths = (omega[picked] ** 2).sum(axis=1) * s**2
        assert stats.kstest(lengths, "chi2", args=(d,)).pvalue > 1e-3


@pytest.mark.parametrize(("d", "p"), [(1, 1), (2, 2), (13, 13), (64, 64), (90, 64)])
def test_blocks_are_orthogonal(d, p):
    part = RandomFeatures("gaussian", d, 0.7, 3, orthogonal=True)
    omega, _ = part.weights(0, 2 * CHUNK)
    for chunk in (omega[:CHUNK], omega[CHUNK:]):
        for start in range(0, CHUNK, p):
            block = chunk[start : start + p]
            directions = block / np.linalg.norm(block, axis=1, keepdims=True)
            gram = directions @ directions.T
            np.testing.assert_allclose(gram, np.eye(len(block)), atol=1e-12)


@pytest.mark.parametrize("splits", [(6,), (3, 2, 1)])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [16, 64])
def test_the_mean_of_products_is_the_kernel(kernel, splits, bits):
    """40 pairs, 5 standard errors each: false alarm below 40 * 6e-7 = 3e-5."""
    M, s = 20_000, 3.0 if kernel == "gaussian" else 6.0
    X = gaussian(12, 6)
    pairs = draw_pairs(12, 40, np.random.default_rng(1))
    columns = np.split(X, np.cumsum(splits)[:-1], axis=1)
    phi = features(
        sum(
            RandomFeatures(kernel, own.shape[1], s, seed).angles(own, 0, M, bits)
            for seed, own in enumerate(columns)
        )
    )
    products = phi[pairs[0]] * phi[pairs[1]]
    error = products.mean(axis=1) - kernel_values(X, pairs, kernel, s)
    # Orthogonal features have no larger error than independent ones here.
    assert (np.abs(error) < 5 * products.std(axis=1) / np.sqrt(M)).all()
    assert (np.abs(phi.mean(axis=1)) < 5 / np.sqrt(M)).all()


def test_orthogonal_features_come_closer_to_the_kernel():
    """The ratio of root mean square errors is 0.87 +- 0.015 for 150 seeds, M = 512.

    Here 60 seeds and M = 128: about 0.025 of standard error; the bound is 4 away.
    """
    X = gaussian(60, 8)
    pairs = draw_pairs(60, 200, np.random.default_rng(0))
    s = median_bandwidth(pair_distances(X, pairs, "gaussian"), "gaussian")
    K = kernel_values(X, pairs, "gaussian", s)
    errors = {}
    for orthogonal in (False, True):
        squares = []
        for seed in range(60):
            part = RandomFeatures("gaussian", 8, s, seed, orthogonal=orthogonal)
            phi = features(part.angles(X, 0, 128, 64))
            estimate = (phi[pairs[0]] * phi[pairs[1]]).mean(axis=1)
            squares.append(np.mean((estimate - K) ** 2))
        errors[orthogonal] = np.sqrt(np.mean(squares))
    assert errors[True] < 0.97 * errors[False]


# --- angles


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (700, 3), (40, 300)])
def test_angles_are_the_nearest_units(kernel, n, d):
    """Half a unit, and the rounding of the products themselves.

    Products in float32, at 16 bits, are off by less than 0.02 units for standardised
    columns (0.017 measured at 90 of them, 0.010 at 3).
    """
    part = RandomFeatures(kernel, d, d**0.5, 5)
    X = gaussian(n, d)
    omega, b = part.weights(10, 150)
    turns = X @ omega.T / (2 * np.pi) + b
    for bits, slack in ((16, 0.02), (32, 1e-3)):
        angles = part.angles(X, 10, 150, bits)
        assert angles.dtype == np.dtype(f"u{bits // 8}")
        assert angles.shape == (n, 140)
        # Leave out the few products beyond 1,000 turns, of Cauchy frequencies.
        usual = np.abs(turns) < 1e3
        assert usual.mean() > 0.95
        error = gap(angles[usual] / 2.0**bits, turns[usual]) * 2**bits
        assert error <= 0.5 + slack
    angles = part.angles(X, 10, 150, 64)
    assert angles.dtype == np.float64
    assert (angles >= 0).all()
    assert (angles < 1).all()
    assert gap(angles, turns) < 1e-9


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("power", [19.9, 20.1, 21.9, 22.1, 23.5, 50.9, 51.1, 52, 53.5])
def test_angles_on_either_side_of_the_limits_of_rounding(power, bits):
    """Products of 2^20 units leave float32, those of 2^51 the rounding by addition.

    Against exact fractions. A product is rounded to 2^-24 of it in float32, so to 1/16
    unit, and to 2^-53 in float64, twice.
    """
    part = RandomFeatures("gaussian", 1, 1.0, 5)
    omega, b = part.weights(0, 64)
    largest = float(np.abs(omega).max()) / (2 * np.pi) * 2.0**bits
    X = np.array([[1.0], [-0.9], [0.37]]) * 2.0**power / largest
    angles = part.angles(X, 0, 64, bits)
    slack = 0.5 + 1 / 8 + 2.0 ** (power - 51)
    for row, x in zip(angles, X[:, 0], strict=True):
        for angle, w, phase in zip(row, omega[:, 0], b, strict=True):
            # The product's own factor is rounded too.
            factor = Fraction(float(w / (2 * np.pi) * 2.0**bits))
            exact = Fraction(float(x)) * factor + Fraction(float(phase)) * 2**bits
            error = (int(angle) - exact + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
            assert abs(error) <= slack


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("scale", [1e3, 1e9, 1e12, 1e30])
def test_huge_values_have_the_angle_of_their_product(bits, scale):
    """Columns of one entry each: the product is one float64, its angle exact."""
    part = RandomFeatures("laplacian", 1, 1.0, 11)
    X, unit = gaussian(300, 1) * scale, 1.0 if bits == 64 else 2.0**bits
    omega, b = part.weights(0, 5)
    angles = part.angles(X, 0, 5, bits).astype(float)
    assert (angles >= 0).all()
    assert (angles < unit).all()
    products = X * (omega[:, 0] * (unit / (2 * np.pi))) + b * unit
    # One rounding more or less than a fused multiply and add.
    near = np.maximum(np.spacing(np.abs(products)), 1e-12) * 2 + 0.5 * (bits < 64)
    sure = near < unit / 8
    assert sure.any(axis=0).all() or scale * unit > 1e15
    error = np.abs(products - angles) % unit
    assert (np.minimum(error, unit - error)[sure] <= near[sure]).all()


def test_a_row_has_the_same_angles_beside_any_other_rows():
    """A row far out sends its block another way, and changes no other row.

    In integers, so that no order of summation matters but for the phase.
    """
    part = RandomFeatures("gaussian", 1, 1.0, 2)
    X = gaussian(600, 1)
    far = X.copy()
    far[17] = 1e25
    keep = np.arange(600) != 17
    for bits in (32, 64):
        np.testing.assert_array_equal(
            part.angles(far, 0, 100, bits)[keep], part.angles(X, 0, 100, bits)[keep]
        )
    # At 16 bits float64 in place of float32: another unit where two are equally near.
    near, single = part.angles(far, 0, 100, 16)[keep], part.angles(X, 0, 100, 16)[keep]
    assert gap(near, single, 2**16) <= 1
    assert 0 < (near != single).mean() < 0.02


def test_turns_just_below_zero_are_zero():
    out = np.empty((1, 4))
    module._wrap(np.array([[-1e-20, -0.25, 1.0, 2.75]]), out, True)
    assert out.tolist() == [[0.0, 0.75, 0.0, 0.75]]


@pytest.mark.parametrize(
    ("n", "d", "rows", "M", "beyond"),
    [
        # The draw of 64 x 90 numbers takes 0.3e6: one row of many fills no tile.
        (20_000, 90, np.array([3]), 64, 1e6),
        (20_000, 30, None, 1000, 20e6),
    ],
)
def test_memory_beyond_the_angles_is_a_few_tiles(n, d, rows, M, beyond):
    part, X = RandomFeatures("gaussian", d, 5.0, 9), gaussian(n, d)
    part.angles(X[:10], 0, 64, 16)
    tracemalloc.start()
    angles = part.angles(X, 0, M, 16, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < angles.nbytes + beyond


def test_no_rows_have_no_angles():
    part = RandomFeatures("gaussian", 4, 2.0, 9)
    assert part.angles(np.zeros((0, 4)), 3, 130, 16).shape == (0, 127)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_columns_beyond_float32_have_their_angles(bits):
    """X / s is as before and its products are small; an overflow would be a warning."""
    X = gaussian(50, 3)
    usual = RandomFeatures("gaussian", 3, 1.0, 9).angles(X, 0, 70, bits)
    for scale in (2.0**126, 2.0**130, 2.0**900, 2.0**-900):
        part = RandomFeatures("gaussian", 3, scale, 9)
        angles = part.angles(X * scale, 0, 70, bits)
        turn = 1.0 if bits == 64 else 2.0**bits
        assert gap(angles, usual, turn) <= (1 if bits < 64 else 1e-12)


# --- features


def test_features_of_all_types_agree():
    turns = np.random.default_rng(0).random((50, 7))
    expected = np.sqrt(2) * np.cos(2 * np.pi * turns)
    np.testing.assert_allclose(features(turns), expected, atol=1e-14)
    for bits in (16, 32):
        angles = np.array(units(turns, bits), dtype=f"u{bits // 8}").reshape(50, 7)
        limit = np.sqrt(2) * np.pi / 2**bits + 1e-14
        assert np.abs(features(angles) - expected).max() <= limit


def test_every_entry_of_the_table_is_the_cosine():
    angles = np.arange(2**16, dtype=np.uint16)
    wide = angles.astype(np.uint32) << np.uint32(16)
    np.testing.assert_allclose(features(angles), features(wide), atol=1e-15)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.float64])
def test_features_go_where_they_are_told(dtype):
    angles = (np.random.default_rng(0).random((6, 4)) * 2**15).astype(dtype)
    block = np.full((8, 4), np.nan)
    assert features(angles, out=block[1:7]).base is block
    np.testing.assert_array_equal(block[1:7], features(angles))
    assert np.isnan(block[[0, 7]]).all()
    np.testing.assert_array_equal(features(angles[:, ::2]), features(angles)[:, ::2])


# --- the bandwidth


def test_a_bandwidth_by_hand():
    """Three rows of two parties: (0, 0), (3, 4), (0, 1).

    Pairs 01, 12, 20: squared distances 25, 18, 1, L1 distances 7, 6, 1.
    """
    X = np.array([[0, 0], [3, 4], [0, 1]])
    pairs = np.array([[0, 1, 2], [1, 2, 0]])
    expected = ("gaussian", [25, 18, 1], 3), ("laplacian", [7, 6, 1], 6)
    for kernel, distances, s in expected:
        parts = [pair_distances(X[:, [k]], pairs, kernel) for k in (0, 1)]
        assert sum(parts).tolist() == distances
        assert median_bandwidth(sum(parts), kernel) == s


def test_a_median_of_2_to_the_20_steps_is_enough():
    for kernel, s in (("gaussian", 2**9.5), ("laplacian", 2.0**20)):
        assert median_bandwidth(np.full(3, 2.0**20), kernel, 1.0) == pytest.approx(s)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_distances_in_blocks_of_any_type(dtype):
    X = np.random.default_rng(0).integers(0, 200, (500, 3)).astype(dtype)
    pairs = draw_pairs(500, 100_000, np.random.default_rng(0))
    wide = X.astype(float)
    difference = wide[pairs[0]] - wide[pairs[1]]
    for kernel, terms in (("gaussian", difference**2), ("laplacian", abs(difference))):
        actual = pair_distances(X, pairs, kernel)
        np.testing.assert_array_equal(actual, terms.sum(axis=1))


def test_pairs_are_uniform_over_different_rows():
    """Chi-square over the 20 ordered pairs of 5 rows, level 1e-3, fixed seed."""
    i, j = draw_pairs(5, 20_000, np.random.default_rng(0))
    assert (i != j).all()
    counts = np.bincount(5 * i + j, minlength=25).reshape(5, 5)
    assert stats.chisquare(counts[~np.eye(5, dtype=bool)]).pvalue > 1e-3


# --- bad input


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.inf, np.nan])
def test_a_bandwidth_that_is_not_positive_and_finite_is_refused(bandwidth):
    wrong = f"bandwidth must be positive and finite, got {bandwidth}"
    with pytest.raises(ValueError, match=wrong):
        RandomFeatures("gaussian", 2, bandwidth, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.zeros((3, 3)), 0, 5, 16), r"matrix with 2 columns, got shape \(3, 3\)"),
        ((np.zeros(2), 0, 5, 16), "real matrix with 2 columns"),
        ((np.zeros((3, 2), complex), 0, 5, 16), "dtype complex"),
        ((np.zeros((3, 2)), 0, 5, 12), "bits must be 8, 16, 32 or 64, got 12"),
        ((np.zeros((3, 2)), 5, 5, 16), "0 <= start < stop, got 5 to 5"),
        ((np.zeros((3, 2)), 64, 64, 16), "0 <= start < stop, got 64 to 64"),
        ((np.zeros((3, 2)), 5, 4, 16), "0 <= start < stop, got 5 to 4"),
        ((np.zeros((3, 2)), -1, 4, 16), "0 <= start < stop, got -1 to 4"),
        ((np.array([[1.0, np.nan]]), 0, 4, 16), "X must be finite"),
        ((np.array([[1.0, -np.inf]]), 0, 4, 64), "X must be finite"),
        ((np.full((1, 2), 1.7e308), 0, 64, 16), "products with the frequencies are"),
        ((np.zeros((3, 2)), 0, 4, 16, np.array([3])), "row numbers of X, from 0 to 2"),
        ((np.zeros((3, 2)), 0, 4, 16, np.array([0.0])), "row numbers of X"),
    ],
)
def test_wrong_angles_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        RandomFeatures("gaussian", 2, 1.0, 0).angles(*args)


def test_a_seed_is_not_shown():
    assert "123456789" not in repr(RandomFeatures("gaussian", 2, 1.0, 123456789))


PAIR = np.array([[0], [1]])


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (features, (np.zeros(3, np.int16),), "uint16, uint32 or float64, got int"),
        (draw_pairs, (1, 5, None), "n must be at least 2"),
        (pair_distances, (np.zeros((1, 1)), PAIR, "gaussian"), "of X, from 0 to 0"),
        (pair_distances, (np.array([[1e160], [0.0]]), PAIR, "gaussian"), "be finite:"),
        (pair_distances, (1.7e308 * (1.0 - 2 * PAIR), PAIR, "laplacian"), "be finite:"),
        (median_bandwidth, (np.full(3, 1e-10), "gaussian", 2.0**-30), "above 9.8e-04"),
        (median_bandwidth, (np.zeros(3), "gaussian", 2.0**-30), "distances above"),
        (median_bandwidth, (np.zeros(3), "gaussian"), "got 0: set a bandwidth"),
        (median_bandwidth, (np.array([np.nan]), "laplacian"), "finite, got nan"),
    ],
)
def test_wrong_functions_are_refused(function, args, message):
    with pytest.raises(ValueError, match=message):
        function(*args)
