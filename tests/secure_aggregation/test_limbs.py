"""Limbs: the sum of the numbers, whatever their sizes."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from draws import law
from hypothesis import given

from vfl_flower.secure_aggregation.groups import group
from vfl_flower.secure_aggregation.limbs import LIMB, PLACES, join_limbs, split_limbs

STEP = Fraction(1, 2**80)
numbers = st.floats(-(2.0**119), 2.0**119, allow_nan=False)
users = st.lists(numbers, min_size=1, max_size=8)


def exact(values: list[float]) -> Fraction:
    return sum((math.trunc(Fraction(v) / STEP) * STEP for v in values), Fraction())


@law
@given(numbers)
def test_limbs_are_small_integers_and_make_the_number(value):
    limbs = split_limbs(np.array([value]))
    assert limbs.shape == (5, 1)
    assert (np.abs(limbs) < LIMB).all()
    assert (limbs == np.trunc(limbs)).all()
    places = zip(limbs[:, 0], PLACES, strict=True)
    actual = sum((Fraction(limb) * Fraction(place) for limb, place in places))
    assert actual == exact([value])


@law
@given(users)
def test_the_sum_is_that_of_the_numbers(values):
    """To five roundings of float64, beside the largest limb."""
    total = sum(split_limbs(np.array([v])) for v in values)
    actual = Fraction(float(join_limbs(total)[0]))
    largest = max(abs(Fraction(v)) for v in values)
    error = 8 * len(values) * largest * Fraction(1, 2**53)
    assert abs(actual - exact(values)) <= error
    assert abs(actual - Fraction(math.fsum(values))) <= error + len(values) * STEP


@law
@given(st.lists(st.integers(0, 2**52), min_size=1, max_size=8), st.integers(-80, 66))
def test_sums_of_one_sign_are_exact_to_rounding(integers, power):
    """As `moments` are: no more than five roundings, however they are cut."""
    values = [math.ldexp(own, power) for own in integers]
    total = sum(split_limbs(np.array([v])) for v in values)
    expected = math.fsum(values)
    assert math.isclose(join_limbs(total)[0], expected, rel_tol=5 * 2**-53)


@law
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=5))
def test_the_ring_adds_limbs_exactly(rows):
    """In the fixed point of one bound for all, where the numbers would not fit."""
    own = group("ring", LIMB, len(rows))
    total, plain = None, 0.0
    for values in rows:
        limbs = split_limbs(np.array(values))
        encoded, clipped = own.encode(limbs)
        assert clipped == 0
        total = encoded if total is None else own.add(total, encoded)
        plain = plain + limbs
    np.testing.assert_array_equal(join_limbs(own.decode(total)), join_limbs(plain))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 4)])
def test_any_shape(shape):
    values = np.full(shape, -1.5)
    limbs = split_limbs(values)
    assert limbs.shape == (5, *shape)
    np.testing.assert_array_equal(join_limbs(limbs), values)


def test_sums_that_are_nearly_integers_are_rounded():
    assert join_limbs(split_limbs(np.array([7.25])) - 1e-6).tolist() == [7.25]


@pytest.mark.parametrize("value", [2.0**120, -(2.0**120), 1e300, math.inf, math.nan])
def test_numbers_out_of_range(value):
    with pytest.raises(ValueError, match="values must be finite") as caught:
        split_limbs(np.array([0.0, value]))
    assert str(caught.value) == "absolute values must be finite and below 2^120"


def test_the_largest_number():
    value = np.nextafter(2.0**120, 0)
    assert join_limbs(split_limbs(np.array([-value]))).tolist() == [-value]
