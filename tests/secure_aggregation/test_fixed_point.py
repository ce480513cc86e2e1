"""Encodings are exact to their error, and rings are as wide as the bound needs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from draws import law
from hypothesis import given
from hypothesis import strategies as st

from simulations.ridge_costs import cosine_bound, gram_error
from vfl_flower.secure_aggregation.fixed_point import (
    WIDTHS,
    FixedPoint,
    decode,
    finest_gram_fixed_point,
    gram_fixed_point,
    weights_fixed_point,
)

widths = st.sampled_from(WIDTHS)


def rounding(numbers):
    """Return the largest difference of a number within the bound and its encoding."""
    return 2.0 ** -(numbers.fraction + 1)


@law
@given(widths, st.integers(0, 30), st.data())
def test_decoding_returns_each_number_to_the_stated_error(bits, fraction, data):
    numbers = FixedPoint(bits, fraction, bound=100.0)
    error = rounding(numbers)
    edges = st.sampled_from([-100.0, 100.0, 0.0, error, -error])
    values = np.array(data.draw(st.lists(edges | st.floats(-100, 100), min_size=1)))
    elements, clipped = numbers.encode(values)
    assert clipped == 0
    assert elements.dtype == np.uint64
    assert int(elements.max()) < 2**bits
    assert np.abs(decode(elements, bits, fraction) - values).max() <= error


def test_numbers_beyond_the_bound_are_clipped_and_counted():
    widest = FixedPoint(48, 0, 2.0**47 - 0.75)
    for numbers, most in ((FixedPoint(48, 4, 2), 2.0), (widest, 2.0**47 - 1)):
        values = np.array([most, numbers.bound + 0.1, -4.5 * most])
        elements, clipped = numbers.encode(values)
        assert (clipped, type(numbers.bound)) == (2, float)
        assert decode(elements, 48, numbers.fraction).tolist() == [most, most, -most]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="values must be finite"):
        FixedPoint(48, 4, 2.0).encode(np.array([value]))


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        *(((47, 4, 1.0), "bits"), ((48, -1, 1.0), "fraction")),
        *(((48, 51, 1.0), "fraction"), ((48, 4, 0.0), "bound")),
        *(((48, 4, 9e-101), "bound"), ((48, 4, math.nan), "bound")),
        ((48, 40, 128.0), "bound must be below 2\\^7"),
        ((48, 0, 2.0**47 - 0.5), "bound must be below 2\\^47"),  # rounds up to 2^47
    ],
)
def test_settings_out_of_range_are_refused(settings, argument):
    with pytest.raises(ValueError, match=argument):
        FixedPoint(*settings)
    FixedPoint(48, 50, 1e-100)  # the most fraction bits, and the smallest bound


@law
@given(st.integers(1, 10**7), st.floats(1e-3, 1e3), widths)
def test_the_finest_ring_holds_the_largest_sum_and_half_of_it_would_not(
    rows, bound, bits
):
    numbers = finest_gram_fixed_point(rows, bound, bits)
    largest = math.floor(numbers.largest)
    assert rows * largest**2 < 2 ** (bits - 1)
    # One fraction bit more is four times the sum; its rounding is the 1 here.
    if numbers.fraction < 50:
        assert rows * (2 * numbers.largest + 1) ** 2 >= 2 ** (bits - 1)


@pytest.mark.parametrize(
    ("rows", "value", "bits"),
    [
        (3 * 2**12, 1.0, 48),
        # With one bit more each number is half a unit from an integer and rounded up:
        # the sum is 2^(bits - 1), too much, and would fit without the rounding.
        (2**21, (2**13 - 0.5) / 2, 48),
        (4, (2**30 - 0.5) / 2, 63),
    ],
)
def test_one_fraction_bit_more_than_the_bound_allows_overflows(rows, value, bits):
    column = np.full(rows, value)
    good = finest_gram_fixed_point(rows, value, bits)
    for fraction, fits in ((good.fraction, True), (good.fraction + 1, False)):
        numbers = FixedPoint(bits, fraction, value)
        elements, _ = numbers.encode(column)
        opened = decode(elements @ elements, bits, 2 * fraction)
        error = gram_error(rows, value, rounding(numbers))
        assert (abs(opened - rows * value**2) <= error) == fits


@law
@given(st.integers(1, 10**5), st.floats(0.1, 4), st.integers(0, 20))
def test_the_narrowest_ring_is_chosen(rows, bound, fraction):
    bits = gram_fixed_point(rows, bound, fraction).bits
    for width in WIDTHS[: WIDTHS.index(bits)]:
        assert finest_gram_fixed_point(rows, bound, width).fraction < fraction
    assert finest_gram_fixed_point(rows, bound, bits).fraction >= fraction


def test_rows_of_the_usual_sizes_get_the_documented_widths():
    bound = cosine_bound(16)
    rows = 8192, 32000, 33000, 10**6
    assert [gram_fixed_point(n, bound, 16).bits for n in rows] == [48, 48, 56, 56]


def test_a_sum_of_squares_that_is_known_to_be_small_gives_finer_numbers():
    # One row of 30 and all others near 1: |F| <= 30 alone would cost almost 5 bits.
    plain = finest_gram_fixed_point(10**5, 30.0, 63)
    finer = finest_gram_fixed_point(10**5, 30.0, 63, square_sum=10**5)
    assert finer.fraction == plain.fraction + 5


def test_too_many_rows_are_refused_with_what_would_fit():
    rule = "fraction must be at most 21 .* 1000000 rows"
    with pytest.raises(ValueError, match=rule):
        gram_fixed_point(10**6, 1.0, 22)
    # Rounding moves a column of 2^20 rows by 512 units, to a length of 2^23.5.
    limit = (2**23.5 - 512) / 2**10
    assert finest_gram_fixed_point(2**20, limit - 0.1, 48).fraction == 0
    for rows, bound in ((10**6, 1e6), (2**20, limit + 0.1), (2**50, 1.0)):
        with pytest.raises(ValueError, match="rows are too many"):
            finest_gram_fixed_point(rows, bound, 48)
    assert weights_fixed_point(FixedPoint(48, 0, 2.0**46 - 0.5), 1).fraction == 0
    with pytest.raises(ValueError, match="columns are too many"):  # 2^46 (1 + 1)
        weights_fixed_point(FixedPoint(48, 0, 2.0**46 - 0.5), 2)
    for name, bound in (("bound", 0.0), ("square_sum", 1.0)):
        with pytest.raises(ValueError, match=f"^{name} must be between"):
            gram_fixed_point(9, bound, 4, square_sum=0.0)


@law
@given(st.integers(1, 3000), st.sampled_from([FixedPoint(48, 16, cosine_bound(16)),
                                              FixedPoint(56, 27, 1.01),
                                              FixedPoint(63, 2, 1.0)]))  # fmt: skip
def test_weights_are_as_fine_as_the_ring_allows(columns, features):
    weights = weights_fixed_point(features, columns)
    assert weights.bits == features.bits

    def largest(fraction):
        return features.largest * (2**fraction + Fraction(columns, 2))

    most = 2 ** (features.bits - 1)
    assert largest(weights.fraction) < most
    assert weights.fraction == 50 or largest(weights.fraction + 1) >= most
